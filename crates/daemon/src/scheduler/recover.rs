//! Takes over the jobs of an earlier daemon, with what the back end found of their runs.

use super::active::{Active, Phase};
use super::services::goes_first;
use super::{BackendEvent, Input, Kept, RecoveredRun, Scheduler};
use crate::job::{Caps, Ending, JobState, StoredJob};
use crate::request::Dependency;
use std::collections::BTreeMap;
use tandem_backends::{DeviceAllocation, OpId, RunHandle, RunId};
use tandem_core::{Event, GpuId, Placement, Span};

/// What follows from the jobs of an earlier daemon.
#[derive(Default)]
pub(super) struct Recovery {
    /// Runs that still exist, or whose end is among the inputs.
    pub(super) runs: Vec<(u64, Phase, DeviceAllocation)>,
    /// What happened while no daemon watched.
    pub(super) inputs: Vec<Input>,
}

/// A job that ended while no daemon watched: its state and the reason.
type Ended = (u64, JobState, String);

impl Scheduler {
    /// Takes over jobs that have not ended; `over` gives the states of those that have and that others
    /// depend on.
    pub(super) fn recover(&mut self, kept: Vec<Kept>, over: &BTreeMap<u64, JobState>) -> Recovery {
        let mut recovery = Recovery::default();
        let mut ended: Vec<Ended> = Vec::new();
        let mut ids: Vec<u64> = Vec::new();
        for (mut job, found) in kept.into_iter().flat_map(Kept::jobs) {
            let id = job.id;
            ids.push(id);
            let Some(found) = found else {
                let is_as_stored =
                    !job.placed && job.going.is_none() && job.caps == Caps::default();
                job.placed = false;
                job.going = None;
                job.caps = Caps::default();
                self.admit(Active::new(job));
                if !is_as_stored {
                    self.jobs.mark_changed(id);
                }
                continue;
            };
            ended.extend(self.recover_run(job, &found, &mut recovery));
            self.jobs.mark_changed(id);
        }
        // All jobs that depend on them are there now.
        for (id, state, reason) in ended {
            self.end_job(id, state, Some(reason));
        }
        while !self.settlements.is_empty() {
            self.settle_dependents();
        }
        for &id in &ids {
            self.meet_dependencies(id, over);
            self.settle_starts(id);
        }
        for id in ids {
            self.try_enter(id);
            self.withdraw_again(id);
        }
        recovery
    }

    /// Takes over a job that had a run; gives its end if it is known without that of the run.
    fn recover_run(
        &mut self,
        mut job: StoredJob,
        found: &RecoveredRun,
        recovery: &mut Recovery,
    ) -> Option<Ended> {
        self.account_unwatched(&mut job, found);
        let run = RunId { job: job.id, run: job.runs };
        let (phase, handle) = match found {
            RecoveredRun::NeverStarted => return self.never_started(job),
            RecoveredRun::Rebooted => {
                self.processes.forget(run);
                return self.rebooted(job);
            }
            RecoveredRun::Running { handle, paused: true, .. } => (Phase::Stopped, Some(*handle)),
            RecoveredRun::Running { handle, paused: false, .. } => (Phase::Running, Some(*handle)),
            RecoveredRun::Starting => (Phase::Starting, None),
            RecoveredRun::NotStarted { .. } => (Phase::Starting, None),
            RecoveredRun::Exited(_) | RecoveredRun::Lost { .. } => (Phase::Running, None),
        };
        recovery.inputs.extend(missed_event(run, found).map(Input::Backend));
        let allocation = self.adopt(job, handle, found);
        recovery.runs.push((run.job, phase, allocation));
        None
    }

    /// Adds up what a run did while no daemon watched it.
    fn account_unwatched(&self, job: &mut StoredJob, found: &RecoveredRun) {
        match found {
            RecoveredRun::Running { paused: false, .. } => job.account(self.now.at_us),
            RecoveredRun::Exited(exit) => {
                let ago = self.now.unix_us.saturating_sub(exit.at_unix_us);
                job.account(self.now.at_us.saturating_sub(ago));
            }
            RecoveredRun::Starting if self.setup.keeps_queue => {
                // If it ran, the cluster has requeued it: its progress is lost.
                job.going = None;
                job.done_us = 0;
                job.caps = Caps::default();
            }
            _ => job.going = None,
        }
    }

    /// Tells the engine of a job that has a run; gives the allocation of the run.
    fn adopt(
        &mut self,
        job: StoredJob,
        handle: Option<RunHandle>,
        found: &RecoveredRun,
    ) -> DeviceAllocation {
        let (id, sub_batches) = (job.id, job.sub_batches);
        let is_known = job.devices.iter().all(|&device| self.devices.contains(device));
        let is_placed = job.placed && is_known;
        let allocation = DeviceAllocation {
            devices: if is_known { job.devices.clone() } else { Vec::new() },
            share_ppm: job.request.share_ppm(),
            memory_bytes: job.request.gpu_memory_bytes.unwrap_or(0),
            sub_batches: job.accum.unwrap_or(sub_batches),
            goes_first: goes_first(&job.request, &self.setup),
        };
        self.admit(Active::new(job));
        self.jobs.takes_array_slot(id);
        let entry = self.planner.enter(id);
        let active = self.jobs.get_mut(id).expect("admitted above");
        active.unmet.clear();
        active.handle = handle;
        if let RecoveredRun::Running { enforcement, .. } = found {
            active.enforcement = *enforcement;
        }
        let (total, length) = (active.job.total_us, active.length);
        let class = active.job.class.clone();
        let done = active.pace.progress.done_by(self.now.time());
        if let Some(total_us) = total {
            self.learning.set_total(&class, id, Span(total_us), length);
        }
        let spec = self.spec(id, entry);
        let gpus = allocation.devices.iter().map(|&device| GpuId(device));
        let placement = is_placed.then(|| Placement { sub_batches, ..Placement::on(gpus) });
        self.jobs.set_entry(id, entry);
        self.planner.tell(Event::Adopted { spec, placement, done });
        allocation
    }

    fn never_started(&mut self, mut job: StoredJob) -> Option<Ended> {
        let id = job.id;
        // The number of a run that never existed is used again.
        job.runs = job.runs.saturating_sub(1);
        job.placed = false;
        job.caps = Caps::default();
        let ended = job.ending.take().and_then(|ending| ending.end());
        self.admit(Active::new(job));
        ended.map(|(state, reason)| (id, state, reason))
    }

    /// The machine rebooted: nothing of the process is left.
    fn rebooted(&mut self, mut job: StoredJob) -> Option<Ended> {
        let id = job.id;
        job.placed = false;
        job.caps = Caps::default();
        let ended = match job.ending.take() {
            Some(Ending::Requeue { .. }) => None,
            Some(ending) => ending.end(),
            None if job.request.requeue => None,
            None => Some((JobState::Failed, "reboot".to_owned())),
        };
        if ended.is_none() {
            job.reason = Some("reboot; queued again".to_owned());
            job.done_us = 0;
            job.entered_us = None;
        }
        self.admit(Active::new(job));
        ended.map(|(state, reason)| (id, state, reason))
    }

    /// Only the cluster knows whether it was asked to cancel a pending job.
    fn withdraw_again(&mut self, id: u64) {
        let is_ending = |active: &Active| active.entry.is_none() && active.job.ending.is_some();
        if self.jobs.get(id).is_some_and(is_ending) {
            self.withdraw(id);
        }
    }

    /// Meets the dependencies on jobs that had ended when this daemon started.
    fn meet_dependencies(&mut self, id: u64, over: &BTreeMap<u64, JobState>) {
        let Some(active) = self.jobs.get(id) else { return };
        let others: Vec<Dependency> = active.unmet.clone();
        for Dependency { job: other, array, .. } in others {
            if array {
                let fails = self.jobs.has_failed_task(other);
                self.meet_array(id, other, fails);
            } else if self.jobs.get(other).is_none() {
                // A job that is not even remembered is not known to have completed.
                let state = over.get(&other).copied().unwrap_or(JobState::Unknown);
                self.meet_dependency(id, other, state);
            }
        }
    }
}

/// The event that no daemon was there to hear.
fn missed_event(run: RunId, found: &RecoveredRun) -> Option<BackendEvent> {
    match found.clone() {
        RecoveredRun::Exited(exit) => Some(BackendEvent::Exited { run, exit }),
        RecoveredRun::NotStarted { reason, transient } => {
            Some(BackendEvent::NotStarted { op: OpId(0), run, reason, transient })
        }
        RecoveredRun::Lost { reason } => Some(BackendEvent::Lost { run, reason }),
        _ => None,
    }
}
