//! From a submission to the engine: what a job waits for before it is eligible to be planned.

use super::{Active, Scheduler, Submission, new_jobs};
use crate::job::JobState;
use crate::request::{After, Dependency, JobRequest};
use std::collections::BTreeMap;
use tandem_core::{Event, Span};

impl Scheduler {
    pub(super) fn submit(&mut self, submission: &Submission) {
        let known: BTreeMap<u64, JobState> = submission.over.iter().copied().collect();
        for job in new_jobs(submission, self.now) {
            let id = job.id;
            let over = |dependency: &Dependency| {
                // A job that had not ended when this was accepted may have ended in this very step.
                let before = known.get(&dependency.job).copied();
                let state = before.or_else(|| self.jobs.ended_now(dependency.job))?;
                Some((dependency.job, state))
            };
            let over: Vec<(u64, JobState)> = job.dependencies.iter().filter_map(over).collect();
            self.admit(Active::new(job));
            for (other, state) in over {
                self.meet_dependency(id, other, state);
            }
            self.try_enter(id);
        }
    }

    /// Adds a job that may have to wait before it becomes eligible.
    pub(super) fn admit(&mut self, mut active: Active) {
        if let Some(begin) = active.job.request.begin_unix_s {
            let wait = ((begin * 1e6) as u64).saturating_sub(self.now.unix_us);
            active.begin = (wait > 0).then(|| self.now.time() + Span(wait));
        }
        self.jobs.add(active);
    }

    /// Tells the engine of a job if it is eligible; sets the reason otherwise.
    pub(super) fn try_enter(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if active.entry.is_some() || active.job.ending.is_some() {
            return;
        }
        let reason = if active.job.state == JobState::Held {
            Some("held".to_owned())
        } else if let Some(first) = active.unmet.first() {
            Some(format!("waits for job {}", first.job))
        } else if active.begin.is_some_and(|begin| begin > self.now.time()) {
            Some("waits for its time".to_owned())
        } else if let Some(excess) = self.excess(&active.job.request) {
            // Jobs of a cluster were not checked; such a job would block all behind it for ever.
            Some(excess)
        } else if !self.jobs.takes_array_slot(id) {
            Some("waits for other tasks of its array".to_owned())
        } else {
            None
        };
        match reason {
            Some(reason) => self.jobs.set_reason(id, Some(reason)),
            None => self.enter(id),
        }
    }

    /// What a job needs that all devices together do not have.
    fn excess(&self, request: &JobRequest) -> Option<String> {
        let devices = &self.setup.devices;
        let (gang, count) = (request.gang() as usize, devices.len());
        if gang > count {
            return Some(format!("needs {gang} GPUs, there are {count}"));
        }
        let memory = devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
        let wanted = request.gpu_memory_bytes.filter(|&wanted| wanted > memory)?;
        let mib = |bytes: u64| bytes >> 20;
        Some(format!("needs {} MiB of a GPU, they have {} MiB", mib(wanted), mib(memory)))
    }

    pub(super) fn enter(&mut self, id: u64) {
        let entry = self.planner.enter(id);
        let spec = self.spec(id, entry);
        let entered = spec.submit.0;
        let active = self.jobs.get_mut(id).expect("an eligible job has not ended");
        active.entry = Some(entry);
        active.job.entered_us = Some(entered);
        active.job.reason = None;
        self.planner.tell(Event::Submitted(spec));
        self.jobs.mark_changed(id);
    }

    /// A job on which `id` depends has ended.
    pub(super) fn meet_dependency(&mut self, id: u64, other: u64, state: JobState) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        let holds = |dependency: &Dependency| match dependency.after {
            After::Any => true,
            After::Ok => state == JobState::Completed,
            After::NotOk => state != JobState::Completed,
        };
        let fails = active.unmet.iter().any(|unmet| unmet.job == other && !holds(unmet));
        active.unmet.retain(|unmet| unmet.job != other);
        active.job.dependencies.retain(|dependency| dependency.job != other);
        self.jobs.mark_changed(id);
        if fails {
            let reason = format!("depends on job {other}, which is {}", state.name());
            self.end_job(id, JobState::Cancelled, Some(reason));
        } else {
            self.try_enter(id);
        }
    }
}
