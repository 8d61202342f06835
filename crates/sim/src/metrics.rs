//! The metrics of a run. Sums are exact integers and become `f64` only here.

use crate::workload::Workload;
use crate::world::World;
use serde::Serialize;
use tandem_core::MICROS_PER_SECOND;

/// The metrics of a run, as in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metrics {
    /// Mean of end − submit.
    pub avg_jct_s: f64,
    /// Median of it, nearest rank.
    pub median_jct_s: f64,
    /// 99th percentile of it, nearest rank.
    pub p99_jct_s: f64,
    /// Mean of first start − submit.
    pub avg_wait_s: f64,
    /// Last end − first submit.
    pub makespan_s: f64,
    /// Share of GPU-time with at least one tenant, over the makespan.
    pub gpu_busy: f64,
    /// Solo-equivalent GPU work of the finished jobs ÷ busy GPU time; above 1 where sharing pays.
    pub goodput: f64,
    /// Mean of JCT ÷ solo duration.
    pub avg_slowdown: f64,
    /// Share of GPU-time with at least two tenants, over the makespan.
    pub shared_gpu_time: f64,
    /// Preemptions: how often a plan took the GPUs of a job, moves included.
    pub preemptions: u64,
    /// Restores of a job's state.
    pub restores: u64,
    /// Number of plans.
    pub decisions: u64,
    /// The most jobs that were submitted and not finished at one time.
    pub active_jobs_max: u64,
    /// Services and training apart; absent if the trace has no services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<ServiceMetrics>,
}

/// Services of a trace, and the jobs that are none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServiceMetrics {
    /// Number of services.
    pub count: u64,
    /// Share of their time on GPUs in which they kept their promises.
    pub kept: f64,
    /// The least such share of one service.
    pub kept_min: f64,
    /// Mean of first start − submit of services.
    pub avg_wait_s: f64,
    /// Mean of end − submit of all other jobs.
    pub training_avg_jct_s: f64,
}

/// Measured times, which differ from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// 99th percentile of the time of a decision.
    pub decision_p99_ms: f64,
    /// The same for steps without a wake-up; `None` if there were none.
    pub event_p99_ms: Option<f64>,
    /// The same for steps at a wake-up that a policy had requested; `None` if there were none.
    pub slice_p99_ms: Option<f64>,
    /// CPU time of the simulation.
    pub cpu_s: f64,
}

/// Counts of the event loop.
pub(crate) struct Counts {
    pub(crate) decisions: u64,
    pub(crate) active_jobs_max: u64,
}

impl Metrics {
    pub(crate) fn compute(workload: &Workload, world: &World<'_>, counts: &Counts) -> Self {
        let mut jcts: Vec<u64> = Vec::with_capacity(workload.len());
        let (mut waited, mut gpu_work, mut slowdown) = (0_u128, 0_u128, 0.0);
        let (mut preemptions, mut last_end) = (0, workload.first_submit());
        for (job, outcome) in workload.jobs.iter().zip(&world.outcomes) {
            let (spec, duration) = (&job.spec, job.duration);
            let end = outcome.end.expect("every job has finished");
            let start = outcome.start.expect("a finished job has started");
            let jct = end.since(spec.submit).0;
            jcts.push(jct);
            waited += u128::from(start.since(spec.submit).0);
            gpu_work += u128::from(duration.0) * u128::from(spec.gpus);
            slowdown += jct as f64 / duration.0 as f64;
            preemptions += u64::from(outcome.preemptions);
            last_end = last_end.max(end);
        }
        let makespan = last_end.since(workload.first_submit()).0;
        let total: u128 = jcts.iter().map(|&jct| u128::from(jct)).sum();
        let median = nearest_rank(&mut jcts, 50);
        let p99 = nearest_rank(&mut jcts, 99);
        let count = jcts.len() as f64;
        let gpu_time = u128::from(makespan) * workload.cluster.gpus().len() as u128;
        let meters = &world.meters;
        Self {
            avg_jct_s: seconds(total) / count,
            median_jct_s: seconds(median.into()),
            p99_jct_s: seconds(p99.into()),
            avg_wait_s: seconds(waited) / count,
            makespan_s: seconds(makespan.into()),
            gpu_busy: ratio(meters.busy, gpu_time),
            goodput: ratio(gpu_work, meters.busy),
            avg_slowdown: slowdown / count,
            shared_gpu_time: ratio(meters.shared, gpu_time),
            preemptions,
            restores: world.restores,
            decisions: counts.decisions,
            active_jobs_max: counts.active_jobs_max,
            services: ServiceMetrics::compute(workload, world),
        }
    }
}

impl ServiceMetrics {
    fn compute(workload: &Workload, world: &World<'_>) -> Option<Self> {
        let (mut count, mut served, mut kept, mut waited) = (0_u64, 0_u128, 0_u128, 0_u128);
        let (mut training, mut total, mut kept_min) = (0_u64, 0_u128, 1.0_f64);
        for (job, outcome) in workload.jobs.iter().zip(&world.outcomes) {
            let (start, end) = outcome.start.zip(outcome.end)?;
            if job.spec.promise.is_service {
                count += 1;
                waited += u128::from(start.since(job.spec.submit).0);
                served += u128::from(job.duration.0);
                kept += u128::from(outcome.kept.0);
                kept_min = kept_min.min(ratio(outcome.kept.0.into(), job.duration.0.into()));
            } else {
                training += 1;
                total += u128::from(end.since(job.spec.submit).0);
            }
        }
        (count > 0).then(|| Self {
            count,
            kept: ratio(kept, served),
            kept_min,
            avg_wait_s: seconds(waited) / count as f64,
            training_avg_jct_s: seconds(total) / training.max(1) as f64,
        })
    }
}

/// The smallest value that at least `percent` of all do not exceed. Reorders the values.
fn nearest_rank(values: &mut [u64], percent: usize) -> u64 {
    let rank = (values.len() * percent).div_ceil(100).max(1);
    *values.select_nth_unstable(rank - 1).1
}

fn seconds(micros: u128) -> f64 {
    micros as f64 / MICROS_PER_SECOND as f64
}

fn ratio(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::nearest_rank;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let mut values = [4, 1, 3, 2];
        assert_eq!(nearest_rank(&mut values, 50), 2);
        assert_eq!(nearest_rank(&mut values, 99), 4);
        assert_eq!(nearest_rank(&mut [7], 50), 7);
        assert_eq!(nearest_rank(&mut (1..=1000).rev().collect::<Vec<_>>(), 99), 990);
    }
}
