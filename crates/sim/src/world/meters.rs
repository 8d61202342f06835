//! GPU time by number of tenants.

use tandem_core::Time;

/// GPU time by number of tenants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meters {
    pub(super) at: Time,
    /// GPUs with at least one tenant now.
    pub(crate) busy_gpus: u32,
    /// GPUs with at least two.
    pub(crate) shared_gpus: u32,
    /// GPU-microseconds with at least one tenant.
    pub(crate) busy: u128,
    /// GPU-microseconds with at least two.
    pub(crate) shared: u128,
}

impl Meters {
    pub(super) fn advance(&mut self, now: Time) {
        let span = u128::from(now.since(self.at).0);
        self.busy += span * u128::from(self.busy_gpus);
        self.shared += span * u128::from(self.shared_gpus);
        self.at = now;
    }
}
