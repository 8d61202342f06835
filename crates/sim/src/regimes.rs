//! Regimes: small traces under conditions that the published traces do not have, so that a policy cannot
//! be good only where it was tuned. `tandem bench regimes` runs every policy on all of them.

use crate::interference::PairTable;
use crate::links::Network;
use crate::run::{RunError, RunOptions, SimRun, run};
use crate::trace::{GenerateOptions, Trace, generate};
use crate::workload::{Estimates, Workload, WorkloadOptions, assign_classes};
use crate::{FaultOptions, WorldOptions, clusters};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{
    Cluster, ClusterBuilder, GpuTypeId, Interference, Memory, Profile, Ratio, Span, Time,
};
use tandem_policies::PolicySpec;

/// Conditions of a trace.
pub const REGIMES: [&str; 10] = [
    "gangs",
    "mixed",
    "tiny",
    "two-types",
    "12-gib",
    "restore-900",
    "spread-0.3",
    "faults",
    "bursts",
    "contention",
];
/// Pair rates: three tables, and jobs that do not fit together at all.
pub const RATES: [&str; 4] = ["lucid", "v100", "k80", "unshareable"];
/// What policies are told about durations.
pub const ESTIMATES: [&str; 3] = ["true", "noisy:1.0", "history"];

/// Offered load, unless the regime says otherwise.
const LOAD: f64 = 1.2;
/// Gang sizes of the regime of gangs.
const LARGE_GANGS: [u32; 5] = [16, 24, 32, 48, 64];
/// Time between two bursts.
const BURST: Span = Span::from_secs(6 * 3600);
/// Users with fewer jobs do not count for the worst user: chance decides there.
const USER_JOBS_MIN: usize = 10;

/// One combination of conditions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RegimeCell {
    /// One of [`REGIMES`].
    pub regime: String,
    /// One of [`RATES`].
    pub rates: String,
    /// One of [`ESTIMATES`].
    pub estimates: String,
    /// Seed of the trace and of everything that is drawn.
    pub seed: u64,
}

/// What a policy came to in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegimeFigures {
    /// Mean JCT.
    pub mean_jct_s: f64,
    /// Longest JCT.
    pub longest_jct_s: f64,
    /// The largest ratio of JCTs to solo durations of a user with at least ten jobs; 0 if there is none.
    pub worst_user: f64,
}

/// Jobs that fit beside no other.
struct Unshareable;

impl Interference for Unshareable {
    fn pair_rate(&self, _: &Profile, _: &Profile, _: GpuTypeId) -> Option<Ratio> {
        None
    }
}

/// A cell ready to be simulated.
pub struct PreparedCell {
    workload: Workload,
    truth: Arc<dyn Interference>,
    options: RunOptions,
}

impl PreparedCell {
    /// The workload of `jobs` jobs of a cell. `table` has its pair rates; without one no job can share.
    ///
    /// # Panics
    /// If the cell names an unknown regime.
    pub fn new(
        cell: &RegimeCell,
        jobs: usize,
        estimates: Estimates,
        table: Option<&PairTable>,
    ) -> Self {
        let cluster = Arc::new(cluster(&cell.regime));
        let gpus = u32::try_from(cluster.gpus().len()).expect("GPUs are counted in u32");
        let mut trace = generate(&GenerateOptions { jobs, gpus, load: LOAD, seed: cell.seed });
        reshape(&cell.regime, &mut trace, gpus, cell.seed);
        let truth: Arc<dyn Interference> = match table {
            None => Arc::new(Unshareable),
            Some(table) => {
                assign_classes(&mut trace, table, cell.seed);
                Arc::new(table.for_trace(&trace).expect("classes are those of the table"))
            }
        };
        // A job that fits into no GPU is left out for all policies alike.
        let options = WorkloadOptions {
            estimates,
            seed: cell.seed,
            skip_bad: true,
            ..WorkloadOptions::default()
        };
        let workload = Workload::new(trace, cluster, &cell.regime, &options);
        let workload = workload.expect("a generated trace is sound");
        Self { workload, truth, options: run_options(&cell.regime, cell.seed) }
    }

    /// Simulates a policy. `done` counts finished jobs.
    pub fn run(&self, policy: &PolicySpec, done: &AtomicU64) -> Result<RegimeFigures, RunError> {
        let run = run(&self.workload, policy, &self.truth, &self.options, done)?;
        Ok(figures(&self.workload, &run))
    }

    /// Number of jobs.
    pub fn jobs(&self) -> usize {
        self.workload.len()
    }
}

fn cluster(regime: &str) -> Cluster {
    let uniform = |spec: &str| clusters::cluster(spec).expect("the specification is sound");
    match regime {
        "gangs" => uniform("16x8"),
        "tiny" => uniform("1x4"),
        "12-gib" => uniform("4x8:12288"),
        "two-types" => {
            let mut builder = ClusterBuilder::default();
            let fast = builder.gpu_type("fast", Ratio::ONE);
            let slow = builder.gpu_type("slow", Ratio::HALF);
            builder.partition("all");
            for kind in [fast, slow, fast, slow] {
                builder.node(8, kind, clusters::DEFAULT_MEMORY);
            }
            builder.taking_every_job().build()
        }
        other => {
            assert!(REGIMES.contains(&other), "unknown regime {other}");
            uniform("4x8")
        }
    }
}

/// Changes a generated trace as the regime says.
fn reshape(regime: &str, trace: &mut Trace, gpus: u32, seed: u64) {
    match regime {
        "gangs" => {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            for job in &mut trace.jobs {
                job.gpus = LARGE_GANGS[rng.random_range(0..LARGE_GANGS.len())];
            }
            scale_to_load(trace, gpus);
        }
        "bursts" => {
            for job in &mut trace.jobs {
                job.submit = Time(job.submit.0 / BURST.0 * BURST.0);
            }
        }
        "12-gib" => {
            let memory = |memory: Memory| Memory(memory.0.min(Memory::from_mib(12_000).0));
            trace.jobs.iter_mut().for_each(|job| job.memory = job.memory.map(memory));
        }
        _ => {}
    }
}

/// Stretches the submissions so that the trace asks for [`LOAD`] of `gpus` GPUs.
fn scale_to_load(trace: &mut Trace, gpus: u32) {
    let work: f64 = trace.jobs.iter().map(|job| f64::from(job.gpus) * job.duration.0 as f64).sum();
    let last = trace.jobs.iter().map(|job| job.submit.0).max().unwrap_or(0).max(1);
    let stretch = work / (f64::from(gpus) * LOAD) / last as f64;
    for job in &mut trace.jobs {
        // `as` saturates.
        job.submit = Time((job.submit.0 as f64 * stretch) as u64);
    }
}

fn run_options(regime: &str, seed: u64) -> RunOptions {
    let mut options = RunOptions { seed, ..RunOptions::default() };
    let world = WorldOptions::default();
    match regime {
        "restore-900" => {
            let restore = Span::from_secs(900);
            options.world = WorldOptions { restore: (restore, restore), ..world };
        }
        "spread-0.3" => options.world = WorldOptions { spread_rate: Ratio::new(7, 10), ..world },
        "faults" => {
            let checkpoint = Span::from_secs(30 * 60);
            options.faults = Some(FaultOptions { mtbf_h: 500.0, repair_h: 2.0, checkpoint });
        }
        "contention" => options.network = Some(Network::default()),
        _ => {}
    }
    options
}

fn figures(workload: &Workload, run: &SimRun) -> RegimeFigures {
    let mut longest = 0_u64;
    // JCTs, solo durations and jobs of each user.
    let mut users: BTreeMap<_, (u64, u64, usize)> = BTreeMap::new();
    for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
        let jct = outcome.end.map_or(0, |end| end.since(job.spec.submit).0);
        longest = longest.max(jct);
        let user = users.entry(job.spec.user).or_default();
        *user = (user.0 + jct, user.1 + job.duration.0, user.2 + 1);
    }
    let many = users.values().filter(|(_, _, jobs)| *jobs >= USER_JOBS_MIN);
    let worst = many.map(|&(jct, alone, _)| jct as f64 / alone.max(1) as f64);
    RegimeFigures {
        mean_jct_s: run.metrics.avg_jct_s,
        longest_jct_s: longest as f64 / 1e6,
        worst_user: worst.fold(0.0, f64::max),
    }
}
