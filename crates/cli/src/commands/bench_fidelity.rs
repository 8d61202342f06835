//! `tandem bench fidelity`: runs a stream of real training jobs on this machine and in the simulator, and compares
//! their JCTs. The simulator knows only what the daemon measured before the run.

mod live;
mod others;
mod picture;
mod stream;

use super::live::export::{Aliases, RATE_COLUMNS, TRACE_COLUMNS, rate_rows, write_csv};
use super::{print, remark, sample_job};
use crate::failure::Failure;
use crate::files::{Folder, OutputFile};
use crate::table;
use clap::Args;
use live::Learned;
use others::CoreTimes;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use stream::{StreamEntry, StreamOptions};
use tandem_core::{Cluster, Interference, JobId, Memory, Span};
use tandem_policies::PolicySpec;
use tandem_sim::interference::PairTable;
use tandem_sim::trace::{ReadOptions, read};
use tandem_sim::{RunOptions, Workload, WorkloadOptions, WorldOptions};

/// How long all programs are watched before and after every policy.
const SAMPLE: Duration = Duration::from_secs(2);
/// A machine is busy if other programs use more than this fraction of its cores.
const BUSY: f64 = 0.1;
/// Targets on a quiet machine: relative error of the mean JCT, and median relative error of a job.
const MEAN_ERROR_MAX: f64 = 0.05;
const JOB_ERROR_MAX: f64 = 0.10;

#[derive(Args)]
pub(crate) struct BenchFidelityArgs {
    /// Jobs of the stream
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    jobs: u32,
    /// Policies: A,B:key=value,...
    #[arg(long, value_name = "LIST", default_value = "sjf,sjf-bsbf,tandem:slice_s=2")]
    policies: String,
    /// Number of cores to use as devices
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    devices: u32,
    /// Classes of the jobs, the first of the six
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(1..=6))]
    classes: u8,
    /// Mean duration of a job, alone
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..=3600))]
    mean: u32,
    /// Offered load: work submitted per second and device
    #[arg(long, value_name = "X", default_value_t = 1.5, value_parser = parse_load)]
    load: f64,
    /// Seed of the stream
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write trace.csv, rates.csv and fidelity.svg to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// No messages
    #[arg(long)]
    quiet: bool,
}

fn parse_load(text: &str) -> Result<f64, String> {
    let load = text.parse().ok().filter(|load| (0.01..=100.0).contains(load));
    load.ok_or_else(|| "give a number from 0.01 to 100".to_owned())
}

/// The results of a policy on this machine and in the simulator.
struct PolicyFidelity {
    policy: String,
    /// JCT of every job in seconds: live, simulated.
    jobs: Vec<(f64, f64)>,
}

/// All results.
struct FidelityReport {
    policies: Vec<PolicyFidelity>,
    /// Largest fraction of the cores that other programs used, before, between and during the runs.
    used_by_others: f64,
    /// Fraction of CPU time that the hypervisor took during the run (steal).
    stolen: f64,
}

pub(crate) fn run(args: &BenchFidelityArgs) -> Result<(), Failure> {
    let specs = PolicySpec::parse_list(&args.policies)?;
    let train = sample_job::find()?;
    let cores = std::thread::available_parallelism()?.get();
    if args.devices as usize > cores {
        return Err(Failure::bad_input(format!(
            "--devices {}: this machine has {cores} cores",
            args.devices
        )));
    }
    let kept = args.out.as_deref().map(Folder::open).transpose()?;
    let scratch = tempfile::tempdir()?;
    let folder = args.out.as_deref().unwrap_or(scratch.path());
    let say = |text: &str| remark(text, args.quiet);
    let mut used_by_others = CoreTimes::now().used_after(SAMPLE);
    if used_by_others > BUSY {
        say(&format!(
            "this machine is busy: {:.0} % of its cores before the run",
            used_by_others * 100.0
        ));
    }
    say("measuring every class alone and every pair ...");
    let learned = live::learn(&train, args.devices, args.classes.into(), args.quiet)?;
    used_by_others = used_by_others.max(learned.used_by_others);
    let options = StreamOptions {
        jobs: args.jobs as usize,
        devices: args.devices,
        mean_s: args.mean.into(),
        load: args.load,
        seed: args.seed,
    };
    let stream = stream::draw(&options, &learned.measured);
    write_inputs(folder, &learned, &stream)?;
    let before = CoreTimes::now();
    let mut policies = Vec::new();
    for spec in &specs {
        let policy = spec.text.clone();
        say(&format!("{policy}: {} real jobs ...", args.jobs));
        let real = live::run(&policy, args.devices, &train, &learned, &stream, args.quiet)?;
        // No job of ours runs here.
        used_by_others =
            used_by_others.max(real.used_by_others).max(CoreTimes::now().used_after(SAMPLE));
        let simulated = simulate(folder, spec, args.devices, learned.memory_bytes)?;
        policies.push(PolicyFidelity {
            policy,
            jobs: real.jcts_s.into_iter().zip(simulated).collect(),
        });
    }
    let report = FidelityReport { policies, used_by_others, stolen: before.stolen_since() };
    if args.out.is_some() {
        let picture = picture::svg(&report.policies);
        OutputFile::open(&folder.join("fidelity.svg"))?
            .write(|out| out.write_all(picture.as_bytes()))?;
    }
    if let Some(kept) = kept {
        kept.keep();
    }
    print(&if args.json { report.json(args) } else { report.text() })
}

/// Writes the inputs of the simulator: the stream as a trace, and the pair rates measured before it.
fn write_inputs(folder: &Path, learned: &Learned, stream: &[StreamEntry]) -> Result<(), Failure> {
    let tasks = stream.iter().flat_map(|one| std::iter::repeat_n(one, one.tasks));
    let row = |(number, one): (usize, &StreamEntry)| one.row(number, &learned.measured[one.class]);
    let trace: Vec<Vec<String>> = tasks.enumerate().map(row).collect();
    let rates = rate_rows(&learned.classes, &mut Aliases::new(true));
    let file = |name: &str| OutputFile::open(&folder.join(name));
    file("trace.csv")?.write(|out| write_csv(out, &TRACE_COLUMNS, &trace))?;
    file("rates.csv")?.write(|out| write_csv(out, &RATE_COLUMNS, &rates))?;
    Ok(())
}

/// The JCT of every job in the order of the trace.
fn simulate(
    folder: &Path,
    policy: &PolicySpec,
    devices: u32,
    memory_bytes: u64,
) -> Result<Vec<f64>, Failure> {
    let trace = read(&folder.join("trace.csv"), &ReadOptions::default())?;
    let table = PairTable::read(&folder.join("rates.csv").to_string_lossy())?;
    let cluster = Arc::new(Cluster::uniform(1, devices, Memory::from_mib(memory_bytes >> 20)));
    let mut workload = Workload::new(trace, cluster, "trace.csv", &WorkloadOptions::default())?;
    for job in &mut workload.jobs {
        // A paused process stays in memory, so it continues at once.
        job.spec.restore = Span::ZERO;
    }
    let truth: Arc<dyn Interference> = Arc::new(table.for_trace(&workload.trace)?);
    let world = WorldOptions { restore: (Span::ZERO, Span::ZERO), ..WorldOptions::default() };
    let options = RunOptions { world, ..RunOptions::default() };
    let run = tandem_sim::run(&workload, policy, &truth, &options, &AtomicU64::new(0))?;
    let mut completion = vec![f64::NAN; workload.len()];
    for (id, outcome) in (0..).map(JobId).zip(&run.outcomes) {
        let number: usize = workload.id(id).parse().expect("rows are numbered");
        let end = outcome.end.expect("every job of a finished run has ended");
        completion[number] =
            end.since(workload.spec(id).submit).0 as f64 / Span::from_secs(1).0 as f64;
    }
    Ok(completion)
}

impl PolicyFidelity {
    fn means(&self) -> (f64, f64) {
        let count = self.jobs.len() as f64;
        let (live, simulated) =
            (self.jobs.iter().map(|job| job.0), self.jobs.iter().map(|job| job.1));
        (live.sum::<f64>() / count, simulated.sum::<f64>() / count)
    }

    fn mean_error(&self) -> f64 {
        let (live, simulated) = self.means();
        simulated / live - 1.0
    }

    /// A quantile of the jobs' relative errors, by nearest rank.
    fn job_error(&self, share: f64) -> f64 {
        let mut errors: Vec<f64> =
            self.jobs.iter().map(|job| (job.1 / job.0 - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let rank = (share * errors.len() as f64).ceil() as usize;
        errors.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    fn is_within_target(&self) -> bool {
        self.mean_error().abs() <= MEAN_ERROR_MAX && self.job_error(0.5) <= JOB_ERROR_MAX
    }
}

impl FidelityReport {
    fn is_busy(&self) -> bool {
        self.used_by_others > BUSY || self.stolen > BUSY
    }

    /// The policies in order of mean JCT.
    fn ranking(&self, mean: impl Fn(&PolicyFidelity) -> f64) -> Vec<&str> {
        let mut ranked: Vec<&PolicyFidelity> = self.policies.iter().collect();
        ranked.sort_by(|one, other| mean(one).total_cmp(&mean(other)));
        ranked.iter().map(|policy| policy.policy.as_str()).collect()
    }

    fn rankings(&self) -> (Vec<&str>, Vec<&str>) {
        (self.ranking(|policy| policy.means().0), self.ranking(|policy| policy.means().1))
    }

    fn json(&self, args: &BenchFidelityArgs) -> String {
        let policies: Vec<_> = self
            .policies
            .iter()
            .map(|policy| {
                let (live, simulated) = policy.means();
                json!({
                    "policy": policy.policy,
                    "mean_jct_live_s": live,
                    "mean_jct_simulated_s": simulated,
                    "mean_error": policy.mean_error(),
                    "job_error_median": policy.job_error(0.5),
                    "job_error_p95": policy.job_error(0.95),
                    "jobs": policy.jobs.iter().map(|job| [job.0, job.1]).collect::<Vec<_>>(),
                })
            })
            .collect();
        let (live, simulated) = self.rankings();
        let object = json!({
            "schema": 1,
            "jobs": args.jobs,
            "classes": args.classes,
            "devices": args.devices,
            "load": args.load,
            "seed": args.seed,
            "policies": policies,
            "ranking_live": live,
            "ranking_simulated": simulated,
            "used_by_others": self.used_by_others,
            "stolen": self.stolen,
            "is_busy": self.is_busy(),
        });
        object.to_string()
    }

    fn text(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let row = |policy: &PolicyFidelity| {
            let (live, simulated) = policy.means();
            vec![
                policy.policy.clone(),
                format!("{live:.2}"),
                format!("{simulated:.2}"),
                format!("{:+.1} %", policy.mean_error() * 100.0),
                percent(policy.job_error(0.5)),
                percent(policy.job_error(0.95)),
                if policy.is_within_target() { "yes" } else { "no" }.to_owned(),
            ]
        };
        let header =
            ["policy", "live s", "simulated s", "error", "job median", "job p95", "on target"];
        let table = table::plain(&header, self.policies.iter().map(row).collect());
        let (live, simulated) = self.rankings();
        let order = if live == simulated {
            format!("Best first, in both: {}.", live.join(", "))
        } else {
            format!("Best first, live: {}; simulated: {}.", live.join(", "), simulated.join(", "))
        };
        let quiet = if self.is_busy() { "busy" } else { "quiet" };
        format!(
            "{table}\n\nMean JCT live and simulated, and the error per job. Target: mean within {}, median of \
             jobs within {}.\n{order}\nThe machine was {quiet}: other programs used up to {} of its cores, the \
             hypervisor took {} of the CPU time.",
            percent(MEAN_ERROR_MAX),
            percent(JOB_ERROR_MAX),
            percent(self.used_by_others),
            percent(self.stolen)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_machine_and_rankings_may_differ() {
        let policy = |name: &str, jobs: &[(f64, f64)]| PolicyFidelity {
            policy: name.to_owned(),
            jobs: jobs.to_vec(),
        };
        let one = policy("one", &[(10.0, 11.0), (20.0, 20.0), (10.0, 8.0)]);
        assert!((one.mean_error() - (39.0 / 40.0 - 1.0)).abs() < 1e-12);
        assert!((one.job_error(0.5) - 0.1).abs() < 1e-9);
        assert!((one.job_error(0.95) - 0.2).abs() < 1e-9);
        let other = policy("other", &[(13.0, 14.0), (13.0, 14.0), (13.0, 14.0)]);
        let policies = vec![one, other];
        let report = FidelityReport { policies, used_by_others: 0.0, stolen: 0.0 };
        let (live, simulated) = report.rankings();
        assert_eq!((live, simulated), (vec!["other", "one"], vec!["one", "other"]));
        assert!(report.text().contains("live: other, one; simulated: one, other"));
    }
}
