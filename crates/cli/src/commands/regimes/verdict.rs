//! One policy against the others, cell by cell.

use super::CellResults;
use std::collections::BTreeMap;
use tandem_policies::PolicySpec;
use tandem_sim::regimes::{RegimeCell, RegimeFigures};

/// Limits on a cell: mean JCT over that of the best other policy.
const MEAN_USUAL: f64 = 1.01;
const MEAN_WORST: f64 = 1.04;
/// Share of the cells that hold [`MEAN_USUAL`].
const USUAL_SHARE: f64 = 0.97;
/// Limits on the geometric mean over all cells, and over those with rates at which sharing pays.
const ALL_CELLS: f64 = 0.96;
const SHARING_CELLS: f64 = 0.92;
/// Limit on the longest JCT over that of the exclusive policy with the lowest mean, and on the worst user's
/// slow-down over the lowest of the others.
const TAIL: f64 = 1.5;

/// The judged policy in one cell, relative to others.
pub(super) struct ComparedCell {
    pub(super) cell: RegimeCell,
    pub(super) best_other: String,
    /// Mean JCT over that of the best other policy.
    pub(super) mean: f64,
    /// Longest JCT over that of the exclusive policy with the lowest mean.
    pub(super) longest: f64,
    /// The worst user's slow-down over the lowest of the others.
    pub(super) worst_user: f64,
}

pub(super) struct Comparison {
    /// The worst first.
    pub(super) cells: Vec<ComparedCell>,
}

impl Comparison {
    pub(super) fn new(results: &CellResults, judged: &str) -> Self {
        let compare = |(cell, figures): (&RegimeCell, &BTreeMap<String, RegimeFigures>)| {
            let own = figures.get(judged)?;
            let others = || figures.iter().filter(|(name, _)| *name != judged);
            let by_mean = |one: &(&String, &RegimeFigures), other: &(&String, &RegimeFigures)| {
                one.1.mean_jct_s.total_cmp(&other.1.mean_jct_s)
            };
            let (best_other, best) = others().min_by(by_mean)?;
            let exclusive = others().filter(|(name, _)| is_exclusive(name)).min_by(by_mean);
            let users = others().map(|(_, figures)| figures.worst_user);
            let least = users.fold(f64::INFINITY, f64::min);
            Some(ComparedCell {
                cell: cell.clone(),
                best_other: best_other.clone(),
                mean: own.mean_jct_s / best.mean_jct_s,
                longest: exclusive
                    .map_or(0.0, |(_, other)| own.longest_jct_s / other.longest_jct_s),
                worst_user: if least > 0.0 { own.worst_user / least } else { 0.0 },
            })
        };
        let mut cells: Vec<ComparedCell> = results.iter().filter_map(compare).collect();
        cells.sort_by(|one, other| other.mean.total_cmp(&one.mean));
        Self { cells }
    }

    /// Geometric mean over the cells that `counts` accepts, and the number of those above the usual limit.
    pub(super) fn mean_where(&self, counts: impl Fn(&RegimeCell) -> bool) -> (f64, usize, usize) {
        let means = self.cells.iter().filter(|cell| counts(&cell.cell)).map(|cell| cell.mean);
        let means: Vec<f64> = means.collect();
        let logs: f64 = means.iter().map(|mean| mean.ln()).sum();
        let above = means.iter().filter(|&&mean| mean > MEAN_USUAL).count();
        ((logs / means.len().max(1) as f64).exp(), above, means.len())
    }

    /// One line for each criterion.
    pub(super) fn verdicts(&self) -> Vec<String> {
        let count = self.cells.len();
        let share = |holds: &dyn Fn(&ComparedCell) -> bool| {
            self.cells.iter().filter(|cell| holds(cell)).count() as f64 / count.max(1) as f64
        };
        let most = |of: fn(&ComparedCell) -> f64| self.cells.iter().map(of).fold(0.0, f64::max);
        let usual = share(&|cell| cell.mean <= MEAN_USUAL);
        let worst = most(|cell| cell.mean);
        let (all, ..) = self.mean_where(|_| true);
        let (sharing, ..) =
            self.mean_where(|cell| ["lucid", "v100"].contains(&cell.rates.as_str()));
        let (longest, user) = (most(|cell| cell.longest), most(|cell| cell.worst_user));
        let line = |holds: bool, text: String| {
            format!("- {}: {text}", if holds { "holds" } else { "**missed**" })
        };
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        vec![
            line(
                usual >= USUAL_SHARE,
                format!(
                    "mean JCT at most 1 % above the best other policy in 97 % of the cells: in {:.1} % of {count}",
                    100.0 * usual
                ),
            ),
            line(
                worst <= MEAN_WORST,
                format!("mean JCT never more than 4 % above it: {:+.1} % at worst", percent(worst)),
            ),
            line(
                all <= ALL_CELLS,
                format!(
                    "geometric mean over all cells at least 4 % below it: {:+.1} %",
                    percent(all)
                ),
            ),
            line(
                sharing <= SHARING_CELLS,
                format!(
                    "over the cells with Lucid's and V100 rates at least 8 % below it: {:+.1} %",
                    percent(sharing)
                ),
            ),
            line(
                longest <= TAIL,
                format!(
                    "longest JCT at most 1.5 times that of the exclusive policy with the lowest mean: {longest:.2} at worst, in {:.1} % of the cells",
                    100.0 * share(&|cell| cell.longest <= TAIL)
                ),
            ),
            line(
                user <= TAIL,
                format!(
                    "worst user's slow-down at most 1.5 times the lowest of the others: {user:.2} at worst, in {:.1} % of the cells",
                    100.0 * share(&|cell| cell.worst_user <= TAIL)
                ),
            ),
        ]
    }
}

fn is_exclusive(policy: &str) -> bool {
    PolicySpec::parse(policy).is_ok_and(|policy| policy.entry.tenants_max == 1)
}
