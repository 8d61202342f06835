//! What a cluster says about its jobs beside their starts and ends: that one cannot start now, and that a run got
//! other devices than the policy chose.

use super::Scheduler;
use super::active::Phase;
use crate::request::JobRequest;
use std::sync::Arc;
use tandem_backends::{DeviceAllocation, RunId};
use tandem_core::{Event, GpuId, Placement, Work};

impl Scheduler {
    /// The cluster keeps a pending job from starting, or no longer does.
    pub(super) fn waits_in_cluster(&mut self, external: &str, reason: Option<&str>) {
        let Some(id) = self.jobs.of_external(external) else { return };
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.cluster_waits = reason.map(str::to_owned);
        if active.phase != Phase::Absent {
            // Its run comes first: the end of that follows.
            return;
        }
        match reason {
            Some(_) => self.leave_queue(id),
            None => {
                active.begin = None;
                self.try_enter(id);
            }
        }
    }

    /// Takes a job that its cluster would not start out of the queue. It keeps its place there.
    pub(super) fn leave_queue(&mut self, id: u64) {
        if let Some(entry) = self.jobs.take_entry(id) {
            self.planner.tell(Event::Cancelled { job: entry });
        }
        if let Some(active) = self.jobs.get_mut(id) {
            active.job.placed = false;
            self.jobs.return_array_slot(id);
            self.jobs.mark_changed(id);
            self.try_enter(id);
        }
    }

    /// A run that is about to start has other devices than the policy chose.
    pub(super) fn placed_elsewhere(&mut self, run: RunId, devices: &[u32]) {
        let is_known = devices.iter().all(|&device| self.devices.contains(device));
        let Some(active) = self.jobs.of_run(run) else { return };
        let Some(before) = active.allocation.clone() else { return };
        let is_starting = active.phase == Phase::Starting && active.job.ending.is_none();
        if !is_starting || !is_known || devices.is_empty() || before.devices == devices {
            return;
        }
        let id = run.job;
        active.job.devices = devices.to_vec();
        if devices.len() != active.job.request.gang() as usize {
            // Slurm gives whole nodes to some jobs.
            let gpus = devices.len() as f64;
            let request = JobRequest { gpus, ..JobRequest::clone(&active.job.request) };
            active.job.request = Arc::new(request);
        }
        let entry = self.planner.enter(id);
        let active = self.jobs.get_mut(id).expect("its run is about to start");
        if let Some(old) = active.entry.replace(entry) {
            self.planner.tell(Event::Cancelled { job: old });
        }
        let allocation = DeviceAllocation { devices: devices.to_vec(), ..before };
        let spec = self.spec(id, entry);
        let placement = Placement::on(devices.iter().map(|&device| GpuId(device)));
        let placement = Some(Placement { sub_batches: allocation.sub_batches, ..placement });
        self.planner.tell(Event::Adopted { spec, placement, done: Work::default() });
        self.set_phase(id, Phase::Starting, Some(allocation));
    }
}
