//! `tandem bench regimes`: every policy on small traces under conditions that the published ones do not
//! have. Writes the worst cells first.

mod page;
mod verdict;

use super::simulate::every_policy;
use super::{print, remark};
use crate::args::parse_estimates;
use crate::failure::Failure;
use crate::files::OutputFile;
use crate::progress::ProgressDisplay;
use clap::{Args, ValueEnum};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tandem_policies::PolicySpec;
use tandem_sim::interference::PairTable;
use tandem_sim::regimes::{ESTIMATES, PreparedCell, RATES, REGIMES, RegimeCell, RegimeFigures};
use verdict::Comparison;

#[derive(Args)]
pub(crate) struct RegimesArgs {
    /// Folder with lucid/colocate_info.csv and gavel/simulation_throughputs.json
    #[arg(long, value_name = "DIR", default_value = "../shared/data")]
    data: PathBuf,
    /// Results in Markdown
    #[arg(long, value_name = "FILE", default_value = "docs/regimes.md")]
    out: PathBuf,
    /// Policies: A,B:key=value,...; all of them if not given
    #[arg(long, value_name = "LIST")]
    policies: Option<String>,
    /// Policy that is compared with the others
    #[arg(long, value_name = "POLICY", default_value = "tandem")]
    judge: String,
    /// Jobs of each trace
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    jobs: u32,
    /// Which seeds: numbers are chosen by one half, results are reported of the other
    #[arg(long, value_enum, default_value = "report")]
    half: SeedHalf,
    /// Seeds of the half, up to 100
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,
    /// Threads; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// No progress bar and no remarks
    #[arg(long)]
    quiet: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum SeedHalf {
    /// Seeds from 1: for choosing
    Choose,
    /// Seeds from 101: nothing was chosen by them
    Report,
}

/// Mean, longest JCT and worst user of each policy, by cell.
type CellResults = BTreeMap<RegimeCell, BTreeMap<String, RegimeFigures>>;

pub(crate) fn run(args: &RegimesArgs) -> Result<(), Failure> {
    let policies = match &args.policies {
        Some(list) => PolicySpec::parse_list(list)?,
        None => every_policy(),
    };
    if !policies.iter().any(|policy| policy.text == args.judge) || policies.len() < 2 {
        let problem =
            format!("--judge {}: give it and at least one more in --policies", args.judge);
        return Err(Failure::bad_input(problem));
    }
    let tables = tables(&args.data)?;
    // Open and drop the output, so that an unwritable path is reported before the simulations.
    OutputFile::open(&args.out)?;
    let results = simulate(args, &tables, &policies)?;
    let comparison = Comparison::new(&results, &args.judge);
    let text = page::write(args, &comparison);
    OutputFile::open(&args.out)?.write(|out| out.write_all(text.as_bytes()))?;
    for line in comparison.verdicts() {
        print(&line)?;
    }
    remark(&format!("wrote {}", args.out.display()), args.quiet);
    Ok(())
}

/// The tables of pair rates, by name; none for jobs that cannot share.
fn tables(data: &Path) -> Result<BTreeMap<&'static str, Option<PairTable>>, Failure> {
    let mut tables = BTreeMap::new();
    for name in RATES {
        let file = match name {
            "unshareable" => None,
            "lucid" => Some(data.join("lucid/colocate_info.csv").display().to_string()),
            gpu => {
                let file = data.join("gavel/simulation_throughputs.json");
                Some(format!("{}:gpu={gpu}", file.display()))
            }
        };
        tables.insert(name, file.map(|file| PairTable::read(&file)).transpose()?);
    }
    Ok(tables)
}

fn cells(args: &RegimesArgs) -> Vec<RegimeCell> {
    let first = match args.half {
        SeedHalf::Choose => 1,
        SeedHalf::Report => 101,
    };
    let mut cells = Vec::new();
    for regime in REGIMES {
        for rates in RATES {
            for estimates in ESTIMATES {
                cells.extend((first..first + args.seeds).map(|seed| RegimeCell {
                    regime: regime.to_owned(),
                    rates: rates.to_owned(),
                    estimates: estimates.to_owned(),
                    seed,
                }));
            }
        }
    }
    cells
}

fn simulate(
    args: &RegimesArgs,
    tables: &BTreeMap<&'static str, Option<PairTable>>,
    policies: &[PolicySpec],
) -> Result<CellResults, Failure> {
    let cells = cells(args);
    let jobs = args.jobs as usize;
    let total = cells.len() * policies.len() * jobs;
    let progress = ProgressDisplay::start(total as u64, args.quiet);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build();
    let pool = pool.map_err(|cause| Failure::from(std::io::Error::other(cause)))?;
    pool.install(|| {
        cells
            .into_par_iter()
            .map(|cell| {
                let estimates = parse_estimates(&cell.estimates).map_err(Failure::bad_input)?;
                let table = tables.get(cell.rates.as_str()).and_then(Option::as_ref);
                let prepared = PreparedCell::new(&cell, jobs, estimates, table);
                let figures = policies
                    .iter()
                    .map(|policy| Ok((policy.text.clone(), prepared.run(policy, &progress.done)?)));
                let figures = figures.collect::<Result<BTreeMap<_, _>, Failure>>()?;
                Ok((cell, figures))
            })
            .collect()
    })
}
