//! Scheduled completions of jobs.

use tandem_core::{JobId, Time};

/// When a job ends if nothing changes, ordered by time, then job. One integer, because a heap compares it
/// without a branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Completion(u128);

impl Completion {
    pub(super) fn new(at: Time, job: JobId, version: u32) -> Self {
        Self(u128::from(at.0) << 64 | u128::from(job.0) << 32 | u128::from(version))
    }

    pub(super) fn at(self) -> Time {
        Time((self.0 >> 64) as u64)
    }

    pub(super) fn job(self) -> JobId {
        JobId((self.0 >> 32) as u32)
    }

    /// The version of the job for which it was scheduled.
    pub(super) fn version(self) -> u32 {
        self.0 as u32
    }
}
