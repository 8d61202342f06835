//! Several policies on one workload, in parallel. Runs are independent and returned in the given order, so
//! that the results do not depend on the number of threads.

use crate::run::{RunError, RunOptions, SimRun, run};
use crate::workload::Workload;
use rayon::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::Interference;
use tandem_policies::PolicySpec;

/// Runs all `policies` with `threads` threads (0: one per core). `done` counts finished jobs.
pub fn compare(
    workload: &Workload,
    policies: &[PolicySpec],
    truth: &Arc<dyn Interference>,
    options: &RunOptions,
    threads: usize,
    done: &AtomicU64,
) -> Result<Vec<SimRun>, RunError> {
    if let [policy] = policies {
        return Ok(vec![run(workload, policy, truth, options, done)?]);
    }
    let pool = rayon::ThreadPoolBuilder::new()
        // No more threads than policies.
        .num_threads(threads.min(policies.len()))
        .build()
        .expect("threads can be started");
    pool.install(|| {
        policies.par_iter().map(|policy| run(workload, policy, truth, options, done)).collect()
    })
}
