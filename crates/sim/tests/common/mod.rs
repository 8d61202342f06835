//! Helpers of the simulation tests.
#![allow(dead_code, reason = "every test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{ClosedForm, Cluster, Interference};
use tandem_policies::PolicySpec;
use tandem_sim::trace::{GenerateOptions, ReadOptions, generate, parse};
use tandem_sim::{RunOptions, SimRun, Workload, WorkloadOptions, clusters, run};

pub(crate) fn cluster(spec: &str) -> Arc<Cluster> {
    Arc::new(clusters::cluster(spec).unwrap())
}

/// A workload from CSV in Tandem's own format.
pub(crate) fn workload(csv: &str, cluster: Arc<Cluster>) -> Workload {
    let trace = parse(csv.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
    Workload::new(trace, cluster, "trace.csv", &WorkloadOptions::default()).unwrap()
}

pub(crate) fn generated(jobs: usize, load: f64, seed: u64, cluster: Arc<Cluster>) -> Workload {
    let gpus = u32::try_from(cluster.gpus().len()).unwrap();
    let trace = generate(&GenerateOptions { jobs, gpus, load, seed });
    Workload::new(trace, cluster, "generated", &WorkloadOptions::default()).unwrap()
}

pub(crate) fn simulate(workload: &Workload, policy: &PolicySpec, options: &RunOptions) -> SimRun {
    let truth: Arc<dyn Interference> = Arc::new(ClosedForm);
    run(workload, policy, &truth, options, &AtomicU64::new(0)).unwrap()
}

/// Start and end of every job in seconds.
pub(crate) fn times(run: &SimRun) -> Vec<(f64, f64)> {
    let seconds = |time: Option<tandem_core::Time>| time.unwrap().0 as f64 / 1e6;
    run.outcomes.iter().map(|outcome| (seconds(outcome.start), seconds(outcome.end))).collect()
}
