//! `tandem slurm shadow report`: what Tandem would have gained with the site's own jobs. The jobs come from
//! Slurm's accounting, the decisions from the policies of the daemon in the simulator; Slurm is not changed.

use super::{print, remark, simulate};
use crate::args::TraceInput;
use crate::failure::Failure;
use crate::slurm_args::ShadowReportArgs;
use crate::table;
use crate::units::counted;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_backends::slurm;
use tandem_core::{ClosedForm, Interference};
use tandem_policies::PolicySpec;
use tandem_sim::interference::{Learning, PairTable, trace_beliefs};
use tandem_sim::trace::{SacctCounts, Trace, TraceFormat};
use tandem_sim::{
    Estimates, RunOptions, Workload, WorkloadOptions, assign_classes, clusters, compare,
};

/// First come, first served: what Slurm does without backfill.
const PLAIN: &str = "fifo";
/// The simulation is called into question where it is slower than the records by this factor.
const MISMATCH: f64 = 1.3;
/// Share of the table's pairs that Tandem knows at the start.
const TRAIN_PAIRS: f64 = 0.5;

/// The outcome with one draw of what the jobs are.
struct Draw {
    plain_s: f64,
    tandem_s: f64,
    shared: f64,
    slowdown: f64,
}

impl Draw {
    /// The part of the mean completion time that is saved.
    fn gain(&self) -> f64 {
        1.0 - self.tandem_s / self.plain_s
    }
}

pub(super) fn report(args: &ShadowReportArgs) -> Result<(), Failure> {
    let policy = PolicySpec::parse(&args.policy)?;
    let cluster = match &args.cluster {
        Some(spec) => spec.clone(),
        None => cluster(&args.partition)?,
    };
    let asked = args.history.is_none().then(|| ask(&args.partition, args.days)).transpose()?;
    let file = match (&args.history, &asked) {
        (Some(file), _) => file.as_path(),
        (None, Some(file)) => file.path(),
        (None, None) => return Err(Failure::bad_input("give a --history")),
    };
    let table = args.interference.as_deref().map(PairTable::read).transpose()?;
    // Without rates nothing is drawn.
    let count = if table.is_some() { args.draws } else { 1 };
    let mut draws = Vec::new();
    let (mut jobs, mut recorded) = (0, None);
    for seed in 1..=u64::from(count) {
        let (draw, trace) = draw(file, &cluster, table.as_ref(), &policy, seed)?;
        (jobs, recorded) = trace;
        draws.push(draw);
    }
    draws.sort_by(|one, other| one.gain().total_cmp(&other.gain()));
    if args.json {
        show_json(args, &draws, jobs, recorded)
    } else {
        show(args, &draws, jobs, recorded)
    }
}

/// The partition as Slurm lists it, in the shorthand of `--cluster`.
fn cluster(partition: &str) -> Result<String, Failure> {
    let nodes = slurm::gpus_of_nodes(partition).map_err(Failure::failed)?;
    let Some(&gpus) = nodes.first() else {
        return Err(Failure::bad_input(format!(
            "partition {partition} has no GPUs; name another, or give --cluster"
        )));
    };
    if nodes.iter().any(|&other| other != gpus) {
        return Err(Failure::bad_input(format!(
            "nodes of partition {partition} have different numbers of GPUs; describe them in a file and give \
             --cluster (docs/tutorials/replay-your-cluster.md)"
        )));
    }
    Ok(format!("{}x{gpus}", nodes.len()))
}

/// The history of the last days, in a temporary file.
fn ask(partition: &str, days: u32) -> Result<tempfile::NamedTempFile, Failure> {
    let history = slurm::history(partition, days)
        .map_err(|error| Failure::failed(format!("{error}; without accounting give --history")))?;
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(&history)?;
    Ok(file)
}

/// Rows of the history that are no jobs of the report.
fn say_what_is_missing(trace: &Trace) {
    for text in trace.sacct.iter().flat_map(SacctCounts::remarks) {
        remark(&text, false);
    }
    if let Some(first) = trace.skipped.first() {
        let rows = counted(trace.skipped.len(), "bad row");
        remark(&format!("{rows} left out, the first at line {first}"), false);
    }
}

/// Number of jobs, and their mean completion time in the history.
type Recorded = (usize, Option<f64>);

/// Simulates the history with a draw of what its jobs are.
fn draw(
    file: &Path,
    cluster: &str,
    table: Option<&PairTable>,
    policy: &PolicySpec,
    seed: u64,
) -> Result<(Draw, Recorded), Failure> {
    let input = TraceInput { format: Some(TraceFormat::Sacct), interference: None, skip_bad: true };
    let (mut trace, _) = simulate::read_trace(file, &input)?;
    if seed == 1 {
        say_what_is_missing(&trace);
    }
    let recorded = (trace.jobs.len(), trace.recorded.map(|span| span.0 as f64 / 1e6));
    let mut options = RunOptions { seed, ..RunOptions::default() };
    let truth: Arc<dyn Interference> = match table {
        Some(table) => {
            assign_classes(&mut trace, table, seed);
            let truth: Arc<dyn Interference> = Arc::new(table.for_trace(&trace)?);
            let learning = Learning { train_pairs: TRAIN_PAIRS, seed, online: true };
            let beliefs = trace_beliefs(&trace, truth.clone(), Some(table), None, None, learning)?;
            options.beliefs = Some(beliefs);
            truth
        }
        None => Arc::new(ClosedForm),
    };
    let (cluster, _) = clusters::cluster_and_shares(cluster)?;
    let about = WorkloadOptions {
        estimates: Estimates::History,
        seed,
        skip_bad: true,
        ..WorkloadOptions::default()
    };
    let workload = Workload::new(trace, Arc::new(cluster), &file.display().to_string(), &about)?;
    let policies = [PolicySpec::parse(PLAIN)?, policy.clone()];
    let runs = compare(&workload, &policies, &truth, &options, 0, &AtomicU64::new(0))?;
    let [plain, tandem] = &runs[..] else { return Err(Failure::failed("a run is missing")) };
    let draw = Draw {
        plain_s: plain.metrics.avg_jct_s,
        tandem_s: tandem.metrics.avg_jct_s,
        shared: tandem.metrics.shared_gpu_time,
        slowdown: tandem.metrics.avg_slowdown,
    };
    Ok((draw, recorded))
}

/// Assumptions without which the figures say nothing.
fn assumptions(args: &ShadowReportArgs, plain_s: f64, recorded: Option<f64>) -> Vec<String> {
    let rates = match &args.interference {
        Some(table) => format!(
            "What the jobs compute is unknown: {} draws of classes measured in {table}, of whose pairs Tandem \
             knows half at the start.",
            args.draws
        ),
        None => "What the jobs compute is unknown, and without --interference each counts as one that uses all \
                 of its GPU: the gain is that of order alone, none of sharing."
            .to_owned(),
    };
    let mut said = vec![
        rates,
        "Durations are estimated from earlier jobs of the same user and name.".to_owned(),
        "Plain is first come, first served; Slurm with backfill is faster.".to_owned(),
    ];
    if let Some(recorded) = recorded.filter(|&recorded| plain_s > MISMATCH * recorded) {
        said.push(format!(
            "The recorded time is {:.1} times shorter than the simulated plain one: the gain over the real \
             Slurm is smaller than shown, or the cluster was larger.",
            plain_s / recorded
        ));
    }
    said
}

fn show(
    args: &ShadowReportArgs,
    draws: &[Draw],
    jobs: usize,
    recorded: Option<f64>,
) -> Result<(), Failure> {
    let (Some(low), Some(high)) = (draws.first(), draws.last()) else { return Ok(()) };
    let middle = &draws[draws.len() / 2];
    let policy = &args.policy;
    let row = |name: &str, draw: &Draw, tandem: bool| {
        let jct = if tandem { draw.tandem_s } else { draw.plain_s };
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let rest = |text: String| if tandem { text } else { String::new() };
        vec![
            name.to_owned(),
            table::seconds(jct),
            rest(percent(draw.gain())),
            rest(percent(draw.shared)),
            rest(format!("{:.2}", draw.slowdown)),
        ]
    };
    let mut rows = vec![row(&format!("plain ({PLAIN})"), middle, false)];
    if draws.len() > 1 {
        rows.push(row(&format!("{policy}, worst draw"), low, true));
        rows.push(row(&format!("{policy}, median"), middle, true));
        rows.push(row(&format!("{policy}, best draw"), high, true));
    } else {
        rows.push(row(policy, middle, true));
    }
    let in_records =
        recorded.map(|seconds| format!(", {} s in Slurm's records", table::seconds(seconds)));
    print(&format!(
        "{}, mean completion time{}:",
        counted(jobs, "job"),
        in_records.unwrap_or_default()
    ))?;
    let header = ["", "mean JCT [s]", "gain", "time on shared GPUs", "slow-down"];
    print(&table::plain(&header, rows))?;
    print(&format!("\n{}", assumptions(args, middle.plain_s, recorded).join("\n")))
}

fn show_json(
    args: &ShadowReportArgs,
    draws: &[Draw],
    jobs: usize,
    recorded: Option<f64>,
) -> Result<(), Failure> {
    let of = |draw: &Draw| {
        json!({
            "plain_jct_s": draw.plain_s,
            "jct_s": draw.tandem_s,
            "gain": draw.gain(),
            "shared_gpu_time": draw.shared,
            "slowdown": draw.slowdown,
        })
    };
    let plain_s = draws.first().map_or(0.0, |draw| draw.plain_s);
    let draws: Vec<_> = draws.iter().map(of).collect();
    let answer = json!({
        "schema": 1,
        "jobs": jobs,
        "recorded_jct_s": recorded,
        "policy": args.policy,
        "draws": draws,
        "assumptions": assumptions(args, plain_s, recorded),
    });
    print(&answer.to_string())
}
