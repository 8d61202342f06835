//! The comparison table for people.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use tandem_sim::Run;

/// One row per run. Differences are given against the first one.
pub(crate) fn comparison(runs: &[Run]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let mut header = vec!["policy", "mean JCT"];
    if runs.len() > 1 {
        header.push("vs first");
    }
    header.extend([
        "median",
        "p99",
        "mean wait",
        "makespan",
        "busy",
        "goodput",
        "slow-down",
        "preempted",
    ]);
    let shares = runs.iter().any(|run| run.metrics.shared_gpu_time > 0.0);
    if shares {
        header.push("shared");
    }
    table.set_header(header);
    let first = runs.first().map_or(0.0, |run| run.metrics.avg_jct_s);
    for run in runs {
        let metrics = &run.metrics;
        let mut row = vec![run.policy.clone(), seconds(metrics.avg_jct_s)];
        if runs.len() > 1 {
            row.push(format!("{:+.1} %", (metrics.avg_jct_s / first - 1.0) * 100.0));
        }
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
        if shares {
            row.push(format!("{:.1} %", metrics.shared_gpu_time * 100.0));
        }
        table.add_row(row.into_iter().map(Cell::new));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn seconds(value: f64) -> String {
    // Below a hundred seconds the tenths tell something.
    if value < 100.0 {
        format!("{value:.1} s")
    } else {
        format!("{} s", grouped(value.round() as u64))
    }
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
        assert_eq!(seconds(17_308.684), "17,309 s");
        assert_eq!(seconds(5.25), "5.2 s");
    }
}
