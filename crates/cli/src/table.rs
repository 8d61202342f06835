//! Tables of simulation results.

use crate::units;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use tandem_sim::{LowerBound, SimRun};

/// One row per run, times in seconds. Differences are given against the first one.
pub(crate) fn comparison(runs: &[SimRun]) -> String {
    compared_with(runs, "vs first", 0)
}

/// One row per run, times in seconds. Differences are given against the run with index `base`.
pub(crate) fn compared_with(runs: &[SimRun], label: &str, base: usize) -> String {
    let several = runs.len() > 1;
    let shares = runs.iter().any(|run| run.metrics.shared_gpu_time > 0.0);
    let mut header = vec!["policy", "mean JCT s"];
    header.extend(several.then_some(label));
    header.extend(["median s", "p99 s", "mean wait s", "makespan s", "busy", "goodput"]);
    header.extend(["slow-down", "preempted"]);
    header.extend(shares.then_some("shared"));
    let estimates = runs.iter().any(|run| run.estimates.is_some());
    header.extend(estimates.then_some(["estimates ρ", "half within"]).into_iter().flatten());
    let base = runs.get(base).map_or(0.0, |run| run.metrics.avg_jct_s);
    let mut rows = Vec::new();
    for run in runs {
        let metrics = &run.metrics;
        let mut row = vec![run.policy.clone(), seconds(metrics.avg_jct_s)];
        let change = (metrics.avg_jct_s / base - 1.0) * 100.0;
        row.extend(several.then(|| format!("{change:+.1} %")));
        row.extend([
            seconds(metrics.median_jct_s),
            seconds(metrics.p99_jct_s),
            seconds(metrics.avg_wait_s),
            seconds(metrics.makespan_s),
            format!("{:.1} %", metrics.gpu_busy * 100.0),
            format!("{:.3}", metrics.goodput),
            format!("{:.1}", metrics.avg_slowdown),
            grouped(metrics.preemptions),
        ]);
        row.extend(shares.then(|| format!("{:.1} %", metrics.shared_gpu_time * 100.0)));
        row.extend(run.estimates.iter().flat_map(|errors| {
            let spearman = errors.spearman.map_or("-".to_owned(), |value| format!("{value:.2}"));
            [spearman, format!("× {:.1}", errors.median_factor)]
        }));
        rows.push(row);
    }
    plain(&header, rows)
}

/// The lower bound on the mean JCT, and the gap of the best policy to it.
pub(crate) fn left(bound: LowerBound, runs: &[SimRun]) -> String {
    let LowerBound { exclusive_s, sharing_s, tenants_max } = bound;
    let tenants = units::counted(tenants_max, "job");
    let (alone, shared) = (seconds(exclusive_s), seconds(sharing_s));
    let (mut text, which) = if alone == shared {
        let text = format!(
            "No schedule with up to {tenants} on a GPU can have a mean JCT below {shared} s"
        );
        (text, "that")
    } else {
        let text = format!(
            "No schedule can have a mean JCT below {alone} s without sharing, or below {shared} s with up to {tenants} on a GPU"
        );
        (text, "the latter")
    };
    let best =
        runs.iter().min_by(|one, other| one.metrics.avg_jct_s.total_cmp(&other.metrics.avg_jct_s));
    if let Some(best) = best.filter(|_| sharing_s > 0.0) {
        let above = (best.metrics.avg_jct_s / sharing_s - 1.0) * 100.0;
        text += &format!("; {} is {above:.1} % above {which}", best.policy);
    }
    text + "."
}

/// A table with a rule under its header; all columns but the first are numbers.
pub(crate) fn plain(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let rule = LineStyle::none().fill('─').junction('─');
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(rule));
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row.into_iter().map(Cell::new));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// Seconds as text.
pub(crate) fn seconds(value: f64) -> String {
    // Below a hundred seconds, tenths are significant.
    if value < 100.0 { format!("{value:.1}") } else { grouped(value.round() as u64) }
}

/// Thousands separated by commas.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_in_threes() {
        let values = [0, 999, 1000, 123_456, 1_234_567];
        assert_eq!(values.map(grouped), ["0", "999", "1,000", "123,456", "1,234,567"]);
        assert_eq!(seconds(17_308.684), "17,309");
        assert_eq!(seconds(5.25), "5.2");
    }
}
