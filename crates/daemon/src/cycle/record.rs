//! Records placements and series for dashboards and programs. No decision depends on them, and a turn never
//! waits for them.

use super::{Cycle, Present};
use crate::api::live::{self, LiveEvent};
use crate::api::timeline;
use crate::job::StoredJob;
use crate::scheduler::Now;
use crate::store::StoreTransaction;
use tandem_backends::RunSample;

impl Cycle {
    /// A view of the present state.
    pub(super) fn present(&self, now: Now) -> Present<'_> {
        Present {
            scheduler: &self.scheduler,
            now,
            devices: &self.devices,
            meter: &self.meter,
            turns: &self.turns,
            history: &self.history,
            trouble: self.trouble.as_deref(),
        }
    }

    /// Adds a sample to the series of jobs and devices, and publishes it if anyone subscribes.
    pub(super) fn record_samples(&mut self, now: Now, runs: &[RunSample]) {
        let Self { history, scheduler, meter, devices, .. } = self;
        history.samples.sample(now.unix_us, scheduler, meter, runs, devices);
        if self.publisher.is_watched() {
            self.publisher.publish_live(LiveEvent::Sample(live::sample(&self.present(now))));
        }
    }

    /// Writes the placements that began or ended. A failure to write loses them, and nothing else.
    pub(super) fn record_placements(&mut self, now: Now, changed: &[StoredJob]) {
        let records = self.history.placements.update(now, &self.scheduler, changed);
        if records.is_empty() {
            return;
        }
        let write = |transaction: &StoreTransaction<'_>| {
            records.iter().try_for_each(|record| transaction.placement(record))
        };
        if let Err(error) = self.store.write_unsynced(write) {
            tracing::warn!("cannot keep placements: {error}");
        }
        if self.publisher.is_watched() {
            let present = self.present(now);
            for record in &records {
                let shown = timeline::placement(record, Some(&present));
                self.publisher.publish_live(LiveEvent::Placement(shown));
            }
        }
    }
}
