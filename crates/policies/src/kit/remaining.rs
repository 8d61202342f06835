//! Remaining times and restore costs in milliseconds, for policies that add and compare times.

use tandem_core::{Job, PPM_ONE, Time};

/// The longest time that a forecast can give, about a thousand years.
pub const HORIZON_MS: i64 = 1 << 45;

/// Estimated remaining solo time, at least one millisecond.
pub fn remaining_ms(job: &Job, now: Time) -> i64 {
    let ms = job.remaining(now).0 / (1000 * u128::from(PPM_ONE));
    i64::try_from(ms).unwrap_or(HORIZON_MS).clamp(1, HORIZON_MS)
}

/// The time that a job is expected to need to restore its state after a preemption.
pub fn restore_ms(job: &Job) -> i64 {
    i64::try_from(job.spec.restore.0 / 1000).unwrap_or(HORIZON_MS).min(HORIZON_MS)
}
