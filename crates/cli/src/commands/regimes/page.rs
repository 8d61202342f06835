//! The results as Markdown.

use super::verdict::Comparison;
use super::{RegimesArgs, SeedHalf};
use std::fmt::Write;
use tandem_sim::regimes::{ESTIMATES, RATES, REGIMES, RegimeCell};

/// Cells that are listed one by one.
const LISTED: usize = 5;

pub(super) fn write(args: &RegimesArgs, comparison: &Comparison) -> String {
    let mut text = String::new();
    let judged = &args.judge;
    let seeds = match args.half {
        SeedHalf::Choose => "by which numbers were chosen",
        SeedHalf::Report => "by which nothing was chosen",
    };
    let command = if args.jobs == 250 { String::new() } else { format!(" --jobs {}", args.jobs) };
    let _ = write!(
        text,
        "# Regimes\n\nWritten by `tandem bench regimes{command}`: generated traces of {} jobs under conditions that the published ones do not have, {} seeds {seeds}. \
         Simulated, so any machine gets the same figures. [Results](results.md) has the published traces.\n\n## What holds of `{judged}`\n\n",
        args.jobs, args.seeds,
    );
    for line in comparison.verdicts() {
        let _ = writeln!(text, "{line}");
    }
    text += "\n## By condition\n\nMean JCT against the best other policy of each cell, geometric mean; cells more than 1 % above it.\n\n";
    text += "| condition | mean JCT | above | cells |\n| --- | ---: | ---: | ---: |\n";
    let mut row = |name: &str, counts: &dyn Fn(&RegimeCell) -> bool| {
        let (mean, above, count) = comparison.mean_where(counts);
        let _ = writeln!(text, "| {name} | {} | {above} | {count} |", change(mean));
    };
    for name in REGIMES {
        row(name, &|cell| cell.regime == name);
    }
    for name in RATES {
        row(name, &|cell| cell.rates == name);
    }
    for name in ESTIMATES {
        row(&format!("estimates {name}"), &|cell| cell.estimates == name);
    }
    let _ = write!(
        text,
        "\n## The worst cells\n\n| regime | rates | estimates | seed | mean JCT | best other | longest JCT | worst user |\n| --- | --- | --- | ---: | ---: | --- | ---: | ---: |\n",
    );
    for found in comparison.cells.iter().take(LISTED) {
        let RegimeCell { regime, rates, estimates, seed } = &found.cell;
        let _ = writeln!(
            text,
            "| {regime} | {rates} | {estimates} | {seed} | {} | {} | {:.2} | {:.2} |",
            change(found.mean),
            found.best_other,
            found.longest,
            found.worst_user,
        );
    }
    text
}

fn change(ratio: f64) -> String {
    format!("{:+.1} %", 100.0 * (ratio - 1.0))
}
