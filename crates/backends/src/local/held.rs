//! Runs that live and belong to no job: its record is damaged, or the store was lost or put back. Their devices
//! are not free before they end.

use super::probe::{Probe, probe};
use super::record::{self, ALLOCATION, AppliedAllocation, RunSpec, SPEC};
use super::run::lock;
use super::shared::LocalShared;
use crate::event::{BackendEvent, RunHandle};
use crate::op::RunId;
use crate::recovery::RecoveredRun;

impl LocalShared {
    /// The devices of a run by its records, if its process lives.
    pub(super) fn live_devices(&self, id: RunId) -> Option<Vec<u32>> {
        let (Probe::Supervised { dir, .. } | Probe::Orphaned { dir, .. }) =
            probe(&self.options.state, id, &self.boot)
        else {
            return None;
        };
        let moved: Option<AppliedAllocation> = record::read(&dir, ALLOCATION).unwrap_or(None);
        let spec: Option<RunSpec> = record::read(&dir, SPEC).unwrap_or(None);
        let allocation = moved.map(|moved| moved.allocation);
        let devices = allocation.or(spec.map(|spec| spec.launch.allocation))?.devices;
        let exists = |device: &u32| (*device as usize) < self.devices.len();
        Some(devices.into_iter().filter(exists).collect())
    }

    /// Holds the devices of a run that belongs to no job, if it lives.
    pub(super) fn hold(&self, id: RunId) -> Vec<(u32, String)> {
        // Before it is watched, so that its end releases them.
        let devices = self.live_devices(id).unwrap_or_default();
        lock(&self.held).insert(id, (devices.clone(), String::new()));
        let process = match self.recover(id) {
            RecoveredRun::Running { handle: RunHandle::Process(pid), .. } => Some(pid),
            RecoveredRun::Starting => None,
            _ => {
                lock(&self.held).remove(&id);
                lock(&self.runs).remove(&id);
                return Vec::new();
            }
        };
        let end = process.map(|pid| format!("; to end it: kill {pid}")).unwrap_or_default();
        let process =
            process.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
        let job = id.job;
        let dir = record::directory(&self.options.state, id, 0);
        tracing::error!(
            "{process} of job {job} runs, but the store has no good record of that job; its devices {devices:?} \
             are held until it ends{end}; its folder is {}",
            dir.display()
        );
        let reason =
            format!("held by {process} of job {job}, of which the store has no good record{end}");
        if let Some(held) = lock(&self.held).get_mut(&id) {
            held.1.clone_from(&reason);
        }
        devices.into_iter().map(|device| (device, reason.clone())).collect()
    }

    pub(super) fn is_held(&self, id: RunId) -> bool {
        lock(&self.held).contains_key(&id)
    }

    /// The run has ended: devices that no other such run holds accept jobs again. `false` if it belongs to a job.
    pub(super) fn release(&self, id: RunId) -> bool {
        let mut held = lock(&self.held);
        let Some((devices, _)) = held.remove(&id) else { return false };
        tracing::warn!("run {id}, of which the store has no good record, has ended");
        for device in devices {
            let other = held.values().find(|(others, _)| others.contains(&device));
            let unavailable = other.map(|(_, reason)| reason.clone());
            self.emit(BackendEvent::Device { device, unavailable });
        }
        true
    }
}
