//! Which devices take new jobs.

use super::Scheduler;
use tandem_core::{Event, GpuId};

impl Scheduler {
    /// Whether a device takes no new jobs, for whatever reason.
    pub fn is_shut(&self, device: u32) -> bool {
        self.drained.contains(&device)
            || self.closed.contains_key(&device)
            || (self.setup.foreign_avoid && self.foreign.contains_key(&device))
            || self.stranded.values().any(|kept| kept.contains(&device))
    }

    /// Changes a reason for which a device may be shut, and tells the engine if it makes a difference.
    pub(super) fn reopen(&mut self, device: u32, change: impl FnOnce(&mut Self)) {
        let before = self.is_shut(device);
        change(self);
        let after = self.is_shut(device);
        let gpu = GpuId(device);
        if before != after {
            self.events.push(if after { Event::GpuDrained { gpu } } else { Event::GpuUp { gpu } });
        }
    }

    pub(super) fn drain(&mut self, device: u32, drained: bool) {
        self.reopen(device, |scheduler| {
            if drained {
                scheduler.drained.insert(device);
            } else {
                scheduler.drained.remove(&device);
            }
        });
    }

    /// The back end closes a device, or opens it again. Who sits there stays; who was about to begin there
    /// has to go elsewhere.
    pub(super) fn close(&mut self, device: u32, reason: Option<&str>) {
        if device as usize >= self.present.len() {
            return;
        }
        self.reopen(device, |scheduler| match reason {
            Some(reason) => drop(scheduler.closed.insert(device, reason.to_owned())),
            None => drop(scheduler.closed.remove(&device)),
        });
        let there: Vec<u64> = self.present[device as usize].iter().copied().collect();
        for id in there {
            self.strand(id);
        }
    }
}
