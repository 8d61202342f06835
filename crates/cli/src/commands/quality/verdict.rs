//! The criteria for the judged policy, and whether they hold.

use super::case::{CaseResults, QualityCase};
use super::plan::QualityPlan;
use crate::table::seconds;
use serde::Serialize;

/// A policy within this of the best mean counts as the best.
const BEST_WITHIN: f64 = 0.01;
/// Largest excess of the p99 over that of the best exclusive policy.
const P99_WITHIN: f64 = 0.05;
/// Required gain in mean JCT under weak estimates over the best exclusive policy, and over gshare.
const WEAK_BELOW_EXCLUSIVE: f64 = 0.40;
const WEAK_BELOW_GSHARE: f64 = 0.05;
const WEAK_LOAD: &str = "1.5";
const GSHARE: &str = "gshare";
/// Largest loss from learned rates.
const ONLINE_WITHIN: f64 = 0.03;
/// The table on which sharing hardly ever pays.
const NO_GAIN_TABLE: &str = "k80";

/// The result of a criterion.
#[derive(Debug, Serialize)]
pub(super) struct CriterionVerdict {
    /// What should hold.
    pub(super) claim: String,
    /// Number of cells that were checked.
    pub(super) cells: usize,
    /// Number of cells in which it holds.
    pub(super) held: usize,
    /// The cells in which it does not hold, with numbers.
    pub(super) misses: Vec<String>,
    /// The least and the greatest distance, in percent.
    pub(super) range_percent: Option<(f64, f64)>,
}

impl CriterionVerdict {
    /// `found` holds, for every cell, the distance in percent, and the miss if it is one.
    fn new(claim: String, found: Vec<(f64, Option<String>)>) -> Self {
        let cells = found.len();
        let distances = || found.iter().map(|(distance, _)| *distance);
        let range_percent = (cells > 0).then(|| {
            (
                distances().fold(f64::INFINITY, f64::min),
                distances().fold(f64::NEG_INFINITY, f64::max),
            )
        });
        let misses: Vec<String> = found.into_iter().filter_map(|(_, miss)| miss).collect();
        Self { claim, cells, held: cells - misses.len(), misses, range_percent }
    }

    /// In one line, without the misses.
    pub(super) fn line(&self) -> String {
        let Self { claim, cells, held, .. } = self;
        let range = self.range_percent.map_or(String::new(), |(least, most)| {
            match (signed(least), signed(most)) {
                (least, most) if least == most => format!(" ({least})"),
                (least, most) => format!(" ({least} to {most})"),
            }
        });
        let plural = if *cells == 1 { "cell" } else { "cells" };
        match (held, cells) {
            (_, 0) => format!("{claim}: not looked at"),
            (1, 1) => format!("{claim}: holds{range}"),
            (held, cells) if held == cells => {
                format!("{claim}: holds in all {cells} {plural}{range}")
            }
            _ => format!("{claim}: holds in {held} of {cells} {plural}{range}"),
        }
    }
}

/// A change in percent with its sign.
pub(super) fn signed(percent: f64) -> String {
    let text = format!("{percent:+.1} %");
    if text == "-0.0 %" { "+0.0 %".to_owned() } else { text }
}

pub(super) fn percent(value: f64, against: f64) -> f64 {
    (value / against - 1.0) * 100.0
}

/// The distance of a cell, and the miss if it is too large.
fn cell(
    case: &QualityCase,
    value: f64,
    against: f64,
    whose: &str,
    limit: f64,
) -> (f64, Option<String>) {
    let distance = percent(value, against);
    let miss = (value > against * (1.0 + limit)).then(|| {
        let (value, against) = (seconds(value), seconds(against));
        format!("{}: {value} s against {against} s of {whose} ({})", case.name(), signed(distance))
    });
    (distance, miss)
}

/// The criteria of the grid.
pub(super) fn of_grid(
    plan: &QualityPlan,
    found: &CaseResults,
    judged: &str,
) -> Vec<CriterionVerdict> {
    let limit = BEST_WITHIN * 100.0;
    let claim = format!("mean JCT of `{judged}` the lowest, or within {limit} % of it");
    let mut verdicts = vec![CriterionVerdict::new(
        claim,
        against_others(plan, found, &plan.grid, judged, BEST_WITHIN),
    )];
    let limit = P99_WITHIN * 100.0;
    let claim = format!(
        "99th percentile of the JCT of `{judged}` at most {limit} % above that of the exclusive policy with the lowest mean"
    );
    let tails = plan.grid.iter().filter_map(|case| {
        let (best, _) = found.best(case, plan.exclusive())?;
        let tail = |policy: &str| found.of(case, policy).p99_jct_s;
        Some(cell(case, tail(judged), tail(best), best, P99_WITHIN))
    });
    verdicts.push(CriterionVerdict::new(claim, tails.collect()));
    let hopeless = plan.grid.iter().filter(|case| case.table == NO_GAIN_TABLE);
    let hopeless = hopeless.filter_map(|case| {
        let (best, mean) = found.best(case, plan.exclusive())?;
        Some(cell(case, found.mean(case, judged), mean, best, BEST_WITHIN))
    });
    let limit = BEST_WITHIN * 100.0;
    let claim = format!(
        "where sharing cannot pay (K80), mean JCT of `{judged}` at most {limit} % above the best exclusive policy"
    );
    verdicts.push(CriterionVerdict::new(claim, hopeless.collect()));
    verdicts
}

fn against_others(
    plan: &QualityPlan,
    found: &CaseResults,
    cases: &[QualityCase],
    judged: &str,
    limit: f64,
) -> Vec<(f64, Option<String>)> {
    let cells = cases.iter().filter_map(|case| {
        let (best, mean) = found.best(case, plan.names().filter(|name| *name != judged))?;
        Some(cell(case, found.mean(case, judged), mean, best, limit))
    });
    cells.collect()
}

/// The criteria under the trace's own estimates.
pub(super) fn of_weak(
    plan: &QualityPlan,
    found: &CaseResults,
    judged: &str,
) -> Vec<CriterionVerdict> {
    let cases: Vec<&QualityCase> = plan.weak.iter().filter(|case| case.load == WEAK_LOAD).collect();
    let below = |whose: &dyn Fn(&QualityCase) -> Option<(String, f64)>, limit: f64| {
        let cells = cases.iter().filter_map(|case| {
            let (best, mean) = whose(case)?;
            Some(cell(case, found.mean(case, judged), mean, &best, -limit))
        });
        cells.collect::<Vec<_>>()
    };
    let exclusive = |case: &QualityCase| {
        found.best(case, plan.exclusive()).map(|(best, mean)| (best.to_owned(), mean))
    };
    let gshare = |case: &QualityCase| {
        found.has(case, GSHARE).then(|| (GSHARE.to_owned(), found.mean(case, GSHARE)))
    };
    let claim = |limit: f64, whose: &str| {
        let limit = limit * 100.0;
        format!(
            "with weak estimates at ×{WEAK_LOAD}, mean JCT of `{judged}` at least {limit} % below {whose}"
        )
    };
    let mut verdicts = vec![CriterionVerdict::new(
        claim(WEAK_BELOW_EXCLUSIVE, "the best exclusive policy"),
        below(&exclusive, WEAK_BELOW_EXCLUSIVE),
    )];
    if judged != GSHARE {
        let cells = below(&gshare, WEAK_BELOW_GSHARE);
        verdicts.push(CriterionVerdict::new(claim(WEAK_BELOW_GSHARE, "`gshare`"), cells));
    }
    verdicts
}

/// The criterion for rates that are learned.
pub(super) fn of_online(
    plan: &QualityPlan,
    found: &CaseResults,
    judged: &str,
) -> Vec<CriterionVerdict> {
    let limit = ONLINE_WITHIN * 100.0;
    let claim = format!(
        "mean JCT of `{judged}` with learned pair rates at most {limit} % above that with true ones"
    );
    let shares = plan.sharing().any(|name| name == judged);
    let cases = plan.online.iter().filter(|_| shares);
    let cells = cases.map(|(known, learned)| {
        let mean = |case| found.mean(case, judged);
        cell(known, mean(learned), mean(known), "true rates", ONLINE_WITHIN)
    });
    vec![CriterionVerdict::new(claim, cells.collect())]
}

/// The criterion for noisy estimates.
pub(super) fn of_noisy(
    plan: &QualityPlan,
    found: &CaseResults,
    judged: &str,
) -> Vec<CriterionVerdict> {
    let claim =
        format!("with noisy estimates, mean JCT of `{judged}` not above any other policy's");
    vec![CriterionVerdict::new(claim, against_others(plan, found, &plan.noisy, judged, 0.0))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> QualityCase {
        let text = |text: &str| text.to_owned();
        QualityCase {
            trace: text("t"),
            table: text("k80"),
            load: text("2"),
            spread: text("0"),
            estimates: text("true"),
            beliefs: text("true"),
            gpu_mib: None,
        }
    }

    #[test]
    fn a_miss_says_where_and_by_how_much() {
        let verdict = CriterionVerdict::new(
            "it holds".to_owned(),
            vec![
                cell(&case(), 101.0, 100.0, "srtf", 0.01),
                cell(&case(), 150.0, 100.0, "srtf", 0.01),
            ],
        );
        assert_eq!((verdict.held, verdict.cells), (1, 2));
        assert_eq!(verdict.misses, ["t, k80, ×2, spread 0: 150 s against 100 s of srtf (+50.0 %)"]);
        assert_eq!(verdict.line(), "it holds: holds in 1 of 2 cells (+1.0 % to +50.0 %)");
    }

    #[test]
    fn a_negative_limit_asks_for_a_gain() {
        assert!(cell(&case(), 61.0, 100.0, "srtf", -0.4).1.is_some());
        assert!(cell(&case(), 60.0, 100.0, "srtf", -0.4).1.is_none());
        assert_eq!(CriterionVerdict::new("x".to_owned(), Vec::new()).line(), "x: not looked at");
    }
}
