//! What is left of jobs, in milliseconds, for the policies that weigh times against each other.

use tandem_core::{Job, PPM_ONE, Time};

/// No forecast looks further than this, about a thousand years.
pub(crate) const HORIZON_MS: i64 = 1 << 45;

/// Estimated solo time left, at least one millisecond.
pub(crate) fn left_ms(job: &Job, now: Time) -> i64 {
    let ms = job.remaining(now).0 / (1000 * u128::from(PPM_ONE));
    i64::try_from(ms).unwrap_or(HORIZON_MS).clamp(1, HORIZON_MS)
}

/// What going on after a stop is taken to cost a job.
pub(crate) fn restore_ms(job: &Job) -> i64 {
    i64::try_from(job.spec.restore.0 / 1000).unwrap_or(HORIZON_MS).min(HORIZON_MS)
}
