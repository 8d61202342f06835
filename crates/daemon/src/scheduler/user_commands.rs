//! What users ask of their jobs.

use super::{JobAction, Phase, Scheduler, ToJob};
use crate::job::{Ending, JobState};
use tandem_backends::Op;
use tandem_core::Event;

impl Scheduler {
    pub(super) fn change(&mut self, action: JobAction, id: u64, by: &str) {
        match action {
            JobAction::Cancel => self.cancel(id, by),
            JobAction::Hold => self.hold(id),
            JobAction::Release => self.release(id),
            JobAction::Pause => self.set_user_paused(id, true),
            JobAction::Resume => self.set_user_paused(id, false),
            JobAction::Requeue => self.requeue(id, by),
        }
    }

    pub(super) fn cancel(&mut self, id: u64, by: &str) {
        let Some(active) = self.jobs.get(id) else { return };
        match active.job.ending {
            // Asked a second time, it gets no more time to save a checkpoint.
            Some(Ending::Cancelled { .. } | Ending::TimeUp) if active.phase == Phase::Asked => {
                self.end_process(id);
                return;
            }
            Some(Ending::Cancelled { .. } | Ending::TimeUp) => return,
            Some(Ending::Requeue { .. }) | None => {}
        }
        self.end_run(id, Ending::Cancelled { by: by.to_owned() });
        let active = self.jobs.expect(id);
        if active.phase != Phase::Absent {
            // Its process is being ended.
        } else if active.job.external.is_some() {
            self.withdraw(id);
        } else {
            self.end_job(id, JobState::Cancelled, Some(format!("cancelled by {by}")));
        }
    }

    /// Ends the process of a job, which is asked to save a checkpoint first if it can.
    pub(super) fn end_run(&mut self, id: u64, ending: Ending) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        let reason = ending.under_way();
        active.job.ending = Some(ending);
        self.jobs.set_reason(id, Some(reason));
        self.jobs.mark_changed(id);
        self.processes.mark(id);
    }

    /// Queues a job again that has a process: from its checkpoint if it can save one, else from the start.
    pub(super) fn requeue(&mut self, id: u64, by: &str) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        if active.job.ending.is_none() && active.phase != Phase::Absent {
            active.job.user_paused = false;
            self.end_run(id, Ending::Requeue { by: by.to_owned() });
        }
    }

    /// Cancels a job that is pending in the cluster. It has ended when the cluster says so: until then the
    /// cluster still has it, and a later daemon would import it again.
    pub(super) fn withdraw(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        let Some(external) = active.job.external.clone() else { return };
        let run = active.run();
        if let Some(entry) = self.jobs.take_entry(id) {
            self.planner.tell(Event::Cancelled { job: entry });
        }
        self.jobs.set_reason(id, Some("is being cancelled".to_owned()));
        self.processes.request(Op::Withdraw { run, external });
    }

    pub(super) fn hold(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        if active.phase != Phase::Absent || active.job.ending.is_some() {
            return;
        }
        active.job.state = JobState::Held;
        active.job.entered_us = None;
        if let Some(entry) = self.jobs.take_entry(id) {
            self.planner.tell(Event::Cancelled { job: entry });
        }
        let first = self.jobs.expect(id).job.task.map(|task| task.first);
        self.jobs.return_array_slot(id);
        self.jobs.set_reason(id, Some("held".to_owned()));
        first.into_iter().for_each(|first| self.enter_next_tasks(first));
    }

    pub(super) fn release(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        if active.job.state == JobState::Held && active.job.ending.is_none() {
            active.job.state = JobState::Pending;
            self.jobs.set_reason(id, None);
            self.try_enter(id);
        }
    }

    pub(super) fn set_user_paused(&mut self, id: u64, paused: bool) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.job.user_paused = paused;
        self.jobs.mark_changed(id);
        self.processes.mark(id);
    }

    pub(super) fn set_accum(&mut self, id: u64, accum: Option<u32>) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.job.accum = accum;
        let parts = accum.unwrap_or(active.job.sub_batches);
        if let Some(allocation) = &mut active.allocation {
            allocation.sub_batches = parts;
        }
        if active.job.caps.accum {
            self.processes.send(id, ToJob::Accum(parts));
        }
        self.jobs.mark_changed(id);
    }
}
