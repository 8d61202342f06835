//! Limits of users, each and all together. Everything that a user can size has a limit.

/// The limits of `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Jobs of all users that have not ended.
    pub jobs: u64,
    /// Jobs of a user that have not ended.
    pub jobs_per_user: u64,
    /// Jobs of a user that are planned at a time; the others wait behind them.
    pub planned_per_user: u32,
    /// Dependencies of the jobs of a user that have not ended, counted for each job.
    pub dependencies_per_user: u64,
    /// Jobs of a user that have not ended and call a webhook.
    pub webhooks_per_user: u64,
    /// Requests of a user's jobs that have not ended, with their environments.
    pub store_mib_per_user: u64,
    /// Ended jobs of a user; beyond it the oldest are deleted.
    pub history_mib_per_user: u64,
    /// The journal after a start; beyond it nothing is journalled.
    pub journal_mib: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            jobs: 1_000_000,
            jobs_per_user: 100_000,
            planned_per_user: 5_000,
            dependencies_per_user: 200_000,
            webhooks_per_user: 10_000,
            store_mib_per_user: 256,
            history_mib_per_user: 256,
            journal_mib: 256,
        }
    }
}
