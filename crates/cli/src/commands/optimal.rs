//! `tandem bench optimal`: how far every policy is from the exact optimum of small instances.

use super::print;
use super::simulate::every_policy;
use crate::failure::Failure;
use crate::progress::ProgressDisplay;
use clap::Args;
use rayon::prelude::*;
use serde::Serialize;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tandem_core::{ClosedForm, Interference, Span};
use tandem_policies::PolicySpec;
use tandem_sim::interference::PairTable;
use tandem_sim::optimal::{optimum, small_instance};
use tandem_sim::{RunOptions, WorldOptions};

/// Steps of one search; an instance that needs more is left out and counted.
const STEPS_MAX: u64 = 2_000_000;

#[derive(Args)]
pub(crate) struct OptimalArgs {
    /// Number of instances, one per seed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    instances: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies: A,B:key=value,... [default: all]
    #[arg(long, value_name = "LIST")]
    policies: Option<String>,
    /// Table of pair rates, from which every job has a class at random
    #[arg(long, value_name = "FILE[:gpu=NAME]")]
    interference: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No progress bar
    #[arg(long)]
    quiet: bool,
}

/// The distance of one policy.
#[derive(Serialize)]
struct PolicyGap {
    policy: String,
    /// Mean JCT over the optimal one, less one.
    median: f64,
    p95: f64,
    worst: f64,
    /// The instance with the worst distance.
    worst_seed: u64,
    /// Part of the instances in which it is optimal, within 0.01 %.
    optimal: f64,
}

#[derive(Serialize)]
struct Gaps {
    schema: u32,
    instances: usize,
    /// Instances whose search reached its limit.
    unproven: usize,
    policies: Vec<PolicyGap>,
}

pub(crate) fn run(args: &OptimalArgs) -> Result<(), Failure> {
    let policies = match &args.policies {
        Some(list) => PolicySpec::parse_list(list)?,
        None => every_policy(),
    };
    let table = args.interference.as_deref().map(PairTable::read).transpose()?;
    let last = args.seed.checked_add(args.instances - 1);
    let last =
        last.ok_or_else(|| Failure::bad_input("--seed: too large for that many instances"))?;
    let progress = ProgressDisplay::start(args.instances, args.quiet);
    let mut gaps: Vec<Vec<(f64, u64)>> = vec![Vec::new(); policies.len()];
    let mut unproven = 0;
    let seeds: Vec<u64> = (args.seed..=last).collect();
    let of_seed = |&seed: &u64| {
        let gaps = gaps_of(seed, &policies, table.as_ref());
        progress.done.fetch_add(1, Ordering::Relaxed);
        gaps
    };
    let of_seeds: Vec<Option<Vec<f64>>> =
        seeds.par_iter().map(of_seed).collect::<Result<_, _>>()?;
    drop(progress);
    for (&seed, of_instance) in seeds.iter().zip(of_seeds) {
        match of_instance {
            Some(of_instance) => {
                for (gaps, gap) in gaps.iter_mut().zip(of_instance) {
                    gaps.push((gap, seed));
                }
            }
            None => unproven += 1,
        }
    }
    let proven = gaps.first().map_or(0, Vec::len);
    if proven == 0 {
        return Err(Failure::bad_input("no instance was solved within the limit"));
    }
    let mut results: Vec<PolicyGap> = policies
        .iter()
        .zip(gaps)
        .map(|(policy, gaps)| PolicyGap::new(policy.text.clone(), gaps))
        .collect();
    results.sort_by(|one, other| one.median.total_cmp(&other.median));
    let results = Gaps { schema: 1, instances: proven, unproven, policies: results };
    if args.json {
        return print(&serde_json::to_string(&results).expect("plain data always serialises"));
    }
    print(&results.text())
}

/// The distance of every policy on one instance; `None` if the search reached its limit.
fn gaps_of(
    seed: u64,
    policies: &[PolicySpec],
    table: Option<&PairTable>,
) -> Result<Option<Vec<f64>>, Failure> {
    let workload = small_instance(seed, table)?;
    let truth: Arc<dyn Interference> = match table {
        Some(table) => Arc::new(table.for_trace(&workload.trace)?),
        None => Arc::new(ClosedForm),
    };
    let world = WorldOptions { restore: (Span::ZERO, Span::ZERO), ..WorldOptions::default() };
    let options = RunOptions { world, ..RunOptions::default() };
    let done = AtomicU64::new(0);
    let mut means = Vec::with_capacity(policies.len());
    for policy in policies {
        let run = tandem_sim::run(&workload, policy, &truth, &options, &done)?;
        means.push(run.metrics.avg_jct_s);
    }
    let known = means.iter().copied().fold(f64::INFINITY, f64::min);
    let best = optimum(&workload, truth.as_ref(), known, STEPS_MAX);
    Ok(best.is_proven.then(|| means.iter().map(|mean| mean / best.mean_jct_s - 1.0).collect()))
}

impl PolicyGap {
    fn new(policy: String, mut gaps: Vec<(f64, u64)>) -> Self {
        gaps.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        // Nearest rank.
        let rank = |share: f64| gaps[((gaps.len() as f64 * share).ceil() as usize).max(1) - 1].0;
        let (worst, worst_seed) = gaps[gaps.len() - 1];
        let optimal = gaps.iter().filter(|(gap, _)| *gap < 1e-4).count();
        let optimal = optimal as f64 / gaps.len() as f64;
        Self { policy, median: rank(0.5), p95: rank(0.95), worst, worst_seed, optimal }
    }
}

impl Gaps {
    fn text(&self) -> String {
        let mut text = format!(
            "{:<24} {:>9} {:>9} {:>9} {:>11} {:>8}\n",
            "mean JCT above optimum", "median", "p95", "worst", "worst seed", "optimal"
        );
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        for gap in &self.policies {
            let _ = writeln!(
                text,
                "{:<24} {:>9} {:>9} {:>9} {:>11} {:>8}",
                gap.policy,
                percent(gap.median),
                percent(gap.p95),
                percent(gap.worst),
                gap.worst_seed,
                format!("{:.0} %", gap.optimal * 100.0)
            );
        }
        let _ = write!(text, "\n{} instances solved exactly", self.instances);
        if self.unproven > 0 {
            let _ = write!(text, ", {} beyond the limit of the search left out", self.unproven);
        }
        text
    }
}
