//! What sharing gains, in milliseconds of JCT.

use super::Review;
use super::rates::{ONE, times};
use crate::kit::restore_ms;
use tandem_core::Job;

/// How a job that shares and its neighbours would run.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedRun {
    /// The rate of the job, in parts per million.
    pub(super) rate: i64,
    /// Milliseconds of JCT that its neighbours lose per millisecond, in parts per million.
    pub(super) cost: i64,
    /// When the first neighbour ends.
    pub(super) others_end_ms: i64,
}

/// Milliseconds of JCT that all jobs together gain if `job` shares, until it or a neighbour ends or the
/// horizon is reached, minus its restore.
pub(super) fn sharing_gain(job: &Job, review: &Review<'_>, run: SharedRun) -> i64 {
    let (value, tuning) = (review.values.of(job.id()), review.tuning);
    let own_end_ms = value.remaining_ms.saturating_mul(ONE) / run.rate.max(1);
    let horizon_ms = tuning.horizon_ms(restore_ms(job));
    let lasts_ms = own_end_ms.min(run.others_end_ms).min(horizon_ms);
    let per_ms = i128::from(times(run.rate, value.delay_cost)) - i128::from(run.cost);
    let restore = i128::from(restore_ms(job)) * i128::from(value.delay_cost);
    let gain = (per_ms * i128::from(lasts_ms) - restore) / i128::from(ONE);
    i64::try_from(gain).unwrap_or(if gain > 0 { i64::MAX } else { i64::MIN })
}
