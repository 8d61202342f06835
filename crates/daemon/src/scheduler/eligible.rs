//! From a submission to the engine: what a job has to wait for before it may be planned.

use super::{Active, Scheduler, Submission, new_jobs};
use crate::job::{ArrayTask, Job, JobState};
use crate::request::{After, Dependency, JobRequest};
use std::collections::BTreeMap;
use tandem_core::{Event, JobId, Span};

impl Scheduler {
    pub(super) fn submit(&mut self, submission: &Submission) {
        let known: BTreeMap<u64, JobState> = submission.over.iter().copied().collect();
        for job in new_jobs(submission, self.now) {
            let id = job.id;
            self.next_job = self.next_job.max(id + 1);
            let over = |dependency: &Dependency| {
                let job = dependency.job;
                let before = known.get(&job).map(|&state| (job, state));
                // One that was not over when this was accepted may have ended in this very step.
                let just_now = |ended: &&Job| ended.id == job && ended.state.is_over();
                let ended = || self.outcome.changed.iter().find(just_now);
                before.or_else(|| ended().map(|ended| (job, ended.state)))
            };
            let over: Vec<(u64, JobState)> = job.dependencies.iter().filter_map(over).collect();
            self.admit(Active::new(job));
            for (other, state) in over {
                self.depend(id, other, state);
            }
            self.try_enter(id);
        }
    }

    /// Takes a job in that may have to wait before the engine hears of it.
    pub(super) fn admit(&mut self, mut active: Active) {
        let id = active.job.id;
        for dependency in &active.unmet {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        if let Some(begin) = active.job.request.begin_unix_s {
            let begin_us = (begin * 1e6) as u64;
            let wait = begin_us.saturating_sub(self.now.unix_us);
            if wait > 0 {
                let at = self.now.time() + Span(wait);
                active.begin = Some(at);
                self.timers.insert((at, id));
            }
        }
        if let Some(ArrayTask { first, at_a_time: Some(limit), .. }) = active.job.task {
            let turns = self.arrays.entry(first).or_default();
            turns.at_a_time = limit as usize;
            turns.waiting.insert(id);
        }
        if let Some(external) = &active.job.external {
            self.externals.insert(external.clone(), id);
        }
        self.jobs.insert(id, active);
        self.changed.insert(id);
    }

    /// Tells the engine of a job if nothing stands in its way, and says what does otherwise.
    pub(super) fn try_enter(&mut self, id: u64) {
        let Some(active) = self.jobs.get(&id) else { return };
        if active.entry.is_some() || active.job.ending.is_some() {
            return;
        }
        let obstacle = if active.job.state == JobState::Held {
            Some("held".to_owned())
        } else if let Some(first) = active.unmet.first() {
            Some(format!("waits for job {}", first.job))
        } else if active.begin.is_some_and(|begin| begin > self.now.time()) {
            Some("waits for its time".to_owned())
        } else if let Some(excess) = self.excess(&active.job.request) {
            // Nobody checked jobs of the engine; such a one would be in the way of all behind it for ever.
            Some(excess)
        } else if !self.takes_turn(id) {
            Some("waits for other tasks of its array".to_owned())
        } else {
            None
        };
        match obstacle {
            Some(reason) => self.set_reason(id, Some(reason)),
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

    /// Whether a task may go on now, which it then does.
    pub(super) fn takes_turn(&mut self, id: u64) -> bool {
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) = self.jobs[&id].job.task else {
            return true;
        };
        let Some(turns) = self.arrays.get_mut(&first) else { return true };
        if turns.going.contains(&id) {
            return true;
        }
        if turns.going.len() >= turns.at_a_time {
            return false;
        }
        turns.waiting.remove(&id);
        turns.going.insert(id)
    }

    pub(super) fn enter(&mut self, id: u64) {
        let entry = JobId(u32::try_from(self.entries.len()).expect("entries are counted in u32"));
        self.entries.push(id);
        let spec = self.spec(id, entry);
        let entered = spec.submit.0;
        let active = self.jobs.get_mut(&id).expect("it was just looked at");
        active.entry = Some(entry);
        active.job.entered_us = Some(entered);
        active.job.reason = None;
        self.events.push(Event::Submitted(spec));
        self.changed.insert(id);
    }

    pub(super) fn set_reason(&mut self, id: u64, reason: Option<String>) {
        if let Some(active) = self.jobs.get_mut(&id)
            && active.job.reason != reason
        {
            active.job.reason = reason;
            self.changed.insert(id);
        }
    }

    pub(super) fn give_turn_back(&mut self, id: u64) {
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) =
            self.jobs.get(&id).and_then(|active| active.job.task)
        else {
            return;
        };
        let Some(turns) = self.arrays.get_mut(&first) else { return };
        if turns.going.remove(&id) {
            turns.waiting.insert(id);
        }
    }

    /// A job on which `id` depends is over.
    pub(super) fn depend(&mut self, id: u64, other: u64, state: JobState) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        let holds = |dependency: &Dependency| match dependency.after {
            After::Any => true,
            After::Ok => state == JobState::Completed,
            After::NotOk => state != JobState::Completed,
        };
        let fails = active.unmet.iter().any(|unmet| unmet.job == other && !holds(unmet));
        active.unmet.retain(|unmet| unmet.job != other);
        active.job.dependencies.retain(|dependency| dependency.job != other);
        self.changed.insert(id);
        if fails {
            let reason = format!("depends on job {other}, which is {}", state.name());
            self.end_job(id, JobState::Cancelled, Some(reason));
        } else {
            self.try_enter(id);
        }
    }
}
