//! What people ask of jobs and devices.

use super::{Phase, RunId, Scheduler, ToJob};
use crate::job::{Ending, JobState};
use tandem_backends::Op;
use tandem_core::Event;

impl Scheduler {
    pub(super) fn cancel(&mut self, id: u64, by: &str) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.job.ending.is_some() {
            return;
        }
        active.job.ending = Some(Ending::Cancelled { by: by.to_owned() });
        self.changed.insert(id);
        let active = &self.jobs[&id];
        if active.phase != Phase::Absent {
            self.dirty.insert(id);
        } else if active.job.external.is_some() {
            self.withdraw(id);
        } else {
            self.end_job(id, JobState::Cancelled, Some(format!("cancelled by {by}")));
        }
    }

    /// Asks the engine to end a job that waits there. It is over when the engine says so: until then the
    /// engine still has it, and a later daemon would be offered it again.
    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        let Some(external) = active.job.external.clone() else { return };
        let run = RunId { job: id, run: active.job.runs };
        if let Some(entry) = active.entry.take() {
            self.events.push(Event::Cancelled { job: entry });
        }
        self.set_reason(id, Some("is being cancelled".to_owned()));
        self.ask(Op::Withdraw { run, external });
    }

    pub(super) fn hold(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.phase != Phase::Absent || active.job.ending.is_some() {
            return;
        }
        active.job.state = JobState::Held;
        if let Some(entry) = active.entry.take() {
            active.job.entered_us = None;
            self.events.push(Event::Cancelled { job: entry });
        }
        self.give_turn_back(id);
        self.set_reason(id, Some("held".to_owned()));
    }

    pub(super) fn release(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.job.state == JobState::Held && active.job.ending.is_none() {
            active.job.state = JobState::Pending;
            self.set_reason(id, None);
            self.try_enter(id);
        }
    }

    pub(super) fn set_user_paused(&mut self, id: u64, paused: bool) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        active.job.user_paused = paused;
        self.changed.insert(id);
        self.dirty.insert(id);
    }

    pub(super) fn set_accum(&mut self, id: u64, accum: Option<u32>) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        active.job.accum = accum;
        let parts = accum.unwrap_or(active.job.sub_batches);
        if let Some(seat) = &mut active.seat {
            seat.sub_batches = parts;
        }
        if active.caps.accum {
            self.outcome.messages.push((id, ToJob::Accum(parts)));
        }
        self.changed.insert(id);
    }
}
