//! `tandem demo`: policies on a built-in trace; needs no GPU, trace or option.

use super::simulate::tenants_max;
use super::{print, remark};
use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::files::{Folder, OutputFile};
use crate::progress::ProgressDisplay;
use crate::table;
use std::sync::Arc;
use tandem_core::{ClosedForm, Cluster, Interference};
use tandem_policies::PolicySpec;
use tandem_sim::trace::{GenerateOptions, generate};
use tandem_sim::{
    LowerBound, RunOptions, SimResults, SimRun, Workload, WorkloadOptions, clusters, report,
};

const JOBS: usize = 5000;
const NODES: u32 = 16;
const GPUS_PER_NODE: u32 = 8;
/// Offered load 1: jobs ask for as much GPU time as there is.
const LOAD: f64 = 1.0;
/// Named here, so that a new policy in the registry does not change the table in the README.
const POLICIES: &str = "fifo,sjf,srtf,srsf,tiresias,sjf-ffs,sjf-bsbf,gshare,lucid,tandem";

pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    if args.live {
        return super::demo_live::run(args);
    }
    let gpus = NODES * GPUS_PER_NODE;
    let trace = generate(&GenerateOptions { jobs: JOBS, gpus, load: LOAD, seed: args.seed });
    let cluster = Arc::new(Cluster::uniform(NODES, GPUS_PER_NODE, clusters::DEFAULT_MEMORY));
    let options = WorkloadOptions { seed: args.seed, ..WorkloadOptions::default() };
    let workload = Workload::new(trace, cluster, "generated", &options)?;
    let folder = Folder::open(&args.out)?;
    let path = args.out.join("report.html");
    OutputFile::open(&path)?;
    let policies = PolicySpec::parse_list(POLICIES)?;
    remark(
        &format!(
            "{} synthetic jobs (seed {}) on {NODES} nodes of {GPUS_PER_NODE} GPUs, under {} policies",
            table::grouped(JOBS as u64),
            args.seed,
            policies.len()
        ),
        args.quiet,
    );
    let run_options = RunOptions { seed: args.seed, record: true, ..RunOptions::default() };
    let truth: Arc<dyn Interference> = Arc::new(ClosedForm);
    let progress = ProgressDisplay::start((workload.len() * policies.len()) as u64, args.quiet);
    let runs = tandem_sim::compare(&workload, &policies, &truth, &run_options, 0, &progress.done)?;
    drop(progress);
    let notes =
        ["The trace is synthetic: generated from a seed, calibrated on published statistics."
            .to_owned()];
    let bound = LowerBound::new(&workload, truth.as_ref(), tenants_max(&policies));
    let html = report::html(&workload, bound, &runs, &notes, None);
    OutputFile::open(&path)?.write(|out| out.write_all(html.as_bytes()))?;
    folder.keep();
    if args.json {
        let results = SimResults::new(&workload, bound, &runs, true);
        print(&serde_json::to_string(&results).expect("plain data always serialises"))?;
    } else {
        print(&verdict(&policies, &runs, bound))?;
    }
    remark(&next_steps(&path.display().to_string()), args.quiet);
    Ok(())
}

/// The table relative to the best policy without sharing, with a summary.
fn verdict(policies: &[PolicySpec], runs: &[SimRun], bound: LowerBound) -> String {
    let mean = |index: &usize| runs[*index].metrics.avg_jct_s;
    let by_mean = |one: &usize, other: &usize| mean(one).total_cmp(&mean(other));
    let exclusive = (0..runs.len()).filter(|&index| policies[index].entry.tenants_max == 1);
    let (Some(base), Some(best)) = (exclusive.min_by(by_mean), (0..runs.len()).min_by(by_mean))
    else {
        return table::comparison(runs);
    };
    let label = format!("vs {}", runs[base].policy);
    let saved = (1.0 - mean(&best) / mean(&base)) * 100.0;
    format!(
        "{}\n\n{} finishes jobs {saved:.1} % sooner on average than {}, the best policy that does not share GPUs.\n{}",
        table::compared_with(runs, &label, base),
        runs[best].policy,
        runs[base].policy,
        table::left(bound, runs)
    )
}

fn next_steps(report: &str) -> String {
    format!(
        "\nJCT is the time from submission to completion; slow-down is JCT / running time alone.\n\
         Wrote {report}: open it in a browser.\n\n\
         Next, with real jobs on this machine, which share its devices:\n  \
         tandem demo --live\n  \
         tandem daemon start\n  \
         tandem submit -- tandem-train --steps 2000\n\n\
         Or with a trace of your own cluster:\n  \
         tandem trace info jobs.csv\n  \
         tandem compare --trace jobs.csv --cluster 16x8 --out results"
    )
}
