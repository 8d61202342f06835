//! Small simulations for the tests of policies.
//!
//! The simulator links the library build of this crate, so a test names the policy that it runs.

#[path = "../../sim/tests/common/mod.rs"]
mod common;

pub(crate) use common::{cluster, generated, times};
use std::sync::Arc;
use tandem_core::Cluster;
use tandem_policies::PolicySpec;
use tandem_sim::{RunOptions, SimRun, Workload};

/// Jobs of the given columns, in our own trace format, on a cluster such as `2x8`.
pub(crate) fn workload(cluster_spec: &str, columns: &str, rows: &str) -> Workload {
    common::workload(&format!("{columns}\n{rows}"), cluster(cluster_spec))
}

/// Runs a workload; every plan is checked, and that asking again changes nothing.
pub(crate) fn run(workload: &Workload, policy: &str) -> SimRun {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    common::simulate(workload, &PolicySpec::parse(policy).unwrap(), &options)
}

/// The mean JCT of a workload in seconds, without the checks.
pub(crate) fn mean_jct_s(workload: &Workload, policy: &str) -> f64 {
    let policy = PolicySpec::parse(policy).unwrap();
    common::simulate(workload, &policy, &RunOptions::default()).metrics.avg_jct_s
}

/// Runs jobs given as `id,submit_s,gpus,duration_s,gpu_util,memory_mib`; start and end of each in
/// seconds.
pub(crate) fn simulate(policy: &str, cluster_spec: &str, rows: &str) -> Vec<(f64, f64)> {
    simulate_on(policy, cluster(cluster_spec), rows)
}

/// [`simulate`] on a cluster that no specification describes.
pub(crate) fn simulate_on(policy: &str, cluster: Arc<Cluster>, rows: &str) -> Vec<(f64, f64)> {
    let columns = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib";
    times(&run(&common::workload(&format!("{columns}\n{rows}"), cluster), policy))
}
