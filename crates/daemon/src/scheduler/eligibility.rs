//! From a submission to the engine: what a job waits for before it is eligible to be planned.

use super::unfolding::{AT_ONCE, NewTasks, TASKS_PER_STEP};
use super::{Active, Scheduler, Submission};
use crate::job::{JobState, StoredJob};
use crate::request::{After, Dependency, JobRequest};
use tandem_core::{Event, Span};

impl Scheduler {
    pub(super) fn submit(&mut self, submission: &Submission) {
        self.add_tasks(NewTasks::new(submission, self.now));
    }

    /// Adds the jobs of a submission: few of them at once, many in portions.
    fn add_tasks(&mut self, mut tasks: NewTasks) {
        if tasks.left() > self.tasks_at_once() {
            self.add_later(tasks);
            return;
        }
        self.prepare(&mut tasks);
        while tasks.left() > 0 {
            self.add_next_task(&mut tasks);
        }
    }

    /// Adds the jobs of a submission in the next steps.
    pub(super) fn add_later(&mut self, mut tasks: NewTasks) {
        self.prepare(&mut tasks);
        self.unfolding.push(tasks);
    }

    fn prepare(&mut self, tasks: &mut NewTasks) {
        self.jobs.reserve(tasks);
        if tasks.of_all().request.params.is_empty() {
            tasks.class = Some(self.class_of(tasks.of_all()).0);
        }
    }

    /// Adds a portion of the tasks that are still to be added.
    pub(super) fn unfold(&mut self) {
        let mut room = self.tasks_per_step();
        while room > 0
            && let Some(mut tasks) = self.unfolding.next()
        {
            let some = tasks.left().min(AT_ONCE).min(room);
            room -= some;
            (0..some).for_each(|_| self.add_next_task(&mut tasks));
            self.unfolding.put_back(tasks);
        }
    }

    /// Submissions of more jobs are added in portions.
    pub(crate) fn tasks_at_once(&self) -> usize {
        AT_ONCE.min(self.tasks_per_step())
    }

    fn tasks_per_step(&self) -> usize {
        self.setup.tasks_per_step.unwrap_or(TASKS_PER_STEP) as usize
    }

    fn add_next_task(&mut self, tasks: &mut NewTasks) {
        let mut job = tasks.next_job();
        job.class = tasks.class.clone().unwrap_or_else(|| self.class_of(&job).0);
        let id = job.id;
        self.created.insert(id);
        let over = |dependency: &Dependency| {
            // A job that had not ended when this was accepted may have ended since then.
            let before = tasks.over.get(&dependency.job).copied();
            let state = before.or_else(|| self.jobs.ended_now(dependency.job))?;
            Some((dependency.job, state))
        };
        let over: Vec<(u64, JobState)> = job.dependencies.iter().filter_map(over).collect();
        self.define_class(&job);
        let mut active = self.with_begin(Active::new(job));
        active.cluster_waits.clone_from(&tasks.waits);
        self.jobs.add_reserved(active);
        self.jobs.mark_changed(id);
        for (other, state) in over {
            self.meet_dependency(id, other, state);
        }
        self.settle_arrays(id);
        self.settle_starts(id);
        self.try_enter(id);
    }

    /// Adds a job of an earlier daemon, which may have to wait before it becomes eligible.
    pub(super) fn admit(&mut self, active: Active) {
        self.define_class(&active.job);
        let active = self.with_begin(active);
        self.jobs.add(active);
    }

    fn with_begin(&self, mut active: Active) -> Active {
        if let Some(begin) = active.job.request.begin_unix_s {
            let wait = ((begin * 1e6) as u64).saturating_sub(self.now.unix_us);
            active.begin = (wait > 0).then(|| self.now.time() + Span(wait));
        }
        active
    }

    fn define_class(&mut self, job: &StoredJob) {
        if self.learning.definition(&job.class).is_none()
            && let (class, Some(definition)) = self.class_of(job)
            && class == job.class
        {
            self.learning.define(&class, definition);
        }
    }

    /// Tells the engine of a job if it is eligible; sets the reason otherwise.
    pub(super) fn try_enter(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if active.entry.is_some() || active.job.ending.is_some() {
            return;
        }
        let reason = if active.job.state == JobState::Held {
            Some("held".to_owned())
        } else if !active.unmet.is_empty() {
            Some(waits_for(&active.unmet))
        } else if active.cluster_waits.is_some() {
            active.cluster_waits.clone()
        } else if active.begin.is_some_and(|begin| begin > self.now.time()) {
            Some(format!("begins at {}", begin_time(&active.job.request)))
        } else if let Some(excess) = self.excess(&active.job.request) {
            // Jobs of a cluster were not checked; such a job would block all behind it for ever.
            Some(excess)
        } else if !self.jobs.may_enter(id, self.setup.planned_per_user) {
            // There may be a million of them, so that they have no text of their own.
            self.jobs.set_reason(id, None);
            return;
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
        self.jobs.set_entry(id, entry);
        let active = self.jobs.get_mut(id).expect("an eligible job has not ended");
        if active.job.entered_us != Some(entered) || active.job.reason.is_some() {
            active.job.entered_us = Some(entered);
            active.job.reason = None;
            self.jobs.mark_changed(id);
        }
        self.planner.tell(Event::Submitted(spec));
        self.request_sharing_at_once();
    }

    /// Lets jobs enter the engine in the place of those that left it.
    pub(super) fn refill(&mut self) {
        while let Some(id) = self.jobs.next_outside(self.setup.planned_per_user) {
            self.try_enter(id);
        }
    }

    /// A job on which `id` depends has ended.
    pub(super) fn meet_dependency(&mut self, id: u64, other: u64, state: JobState) {
        let is_it = |unmet: &Dependency| unmet.job == other && !unmet.array;
        let Some(active) = self.jobs.get_mut(id) else { return };
        if !active.unmet.iter().any(is_it) {
            return;
        }
        let holds = |dependency: &Dependency| match dependency.after {
            After::Any | After::Started => true,
            After::Ok => state == JobState::Completed,
            After::NotOk => state != JobState::Completed,
        };
        let fails = active.unmet.iter().any(|unmet| is_it(unmet) && !holds(unmet));
        active.unmet.retain(|unmet| !is_it(unmet));
        self.settle(id, other, fails.then(|| format!("job {other}, which is {}", state.name())));
    }

    /// A task of an array has ended: those that depend on the array may be settled.
    pub(super) fn meet_array_dependencies(&mut self, first: u64, state: JobState) {
        let fails = state != JobState::Completed;
        if fails {
            self.jobs.task_failed(first);
            self.unfolding.task_failed(first);
        }
        // Those who wait for the array are told of its first failure and of its end, not of each of its tasks.
        if (fails && self.jobs.array_fails(first)) || self.jobs.tasks_left(first) == 0 {
            for dependent in self.jobs.dependents(first) {
                self.settlements.push_back(Settlement::Array { dependent, first, fails });
            }
        }
    }

    /// Settles a portion of what jobs waited for that have ended.
    pub(super) fn settle_dependents(&mut self) {
        for _ in 0..self.tasks_per_step() {
            match self.settlements.pop_front() {
                Some(Settlement::Job { dependent, ended, state }) => {
                    self.meet_dependency(dependent, ended, state);
                }
                Some(Settlement::Array { dependent, first, fails }) => {
                    self.meet_array(dependent, first, fails);
                }
                None => return,
            }
        }
    }

    /// Settles what `id` waits for of an array, of which a task may have failed.
    pub(super) fn meet_array(&mut self, id: u64, first: u64, fails: bool) {
        let left = self.jobs.tasks_left(first);
        let Some(active) = self.jobs.get_mut(id) else { return };
        let is_it = |unmet: &Dependency| unmet.job == first && unmet.array;
        if !active.unmet.iter().any(is_it) {
            return;
        }
        active
            .unmet
            .iter_mut()
            .filter(|unmet| is_it(unmet))
            .for_each(|unmet| unmet.failed |= fails);
        let is_broken = |unmet: &Dependency| match unmet.after {
            After::Any | After::Started => false,
            After::Ok => unmet.failed,
            After::NotOk => left == 0 && !unmet.failed,
        };
        let broken = active.unmet.iter().find(|unmet| is_it(unmet) && is_broken(unmet));
        let broken = broken.map(|unmet| match unmet.after {
            After::NotOk => format!("array {first}, all tasks of which have completed"),
            After::Any | After::Ok | After::Started => {
                format!("array {first}, a task of which did not complete")
            }
        });
        active.unmet.retain(|unmet| !is_it(unmet) || (left > 0 && !is_broken(unmet)));
        self.settle(id, first, broken);
    }

    /// A job has started: those that wait for that may be settled.
    pub(super) fn meet_starts(&mut self, id: u64) {
        let array = self.jobs.get(id).and_then(|active| active.job.task).map(|task| task.first);
        for on in [Some(id), array.filter(|&first| first != id)].into_iter().flatten() {
            self.settle_starts_on(on);
        }
    }

    /// Settles what others wait for of a job or an array that has started.
    pub(super) fn settle_starts_on(&mut self, on: u64) {
        for dependent in self.jobs.dependents(on) {
            self.settle_starts(dependent);
        }
    }

    /// Settles what a job waits for of jobs that have started.
    pub(super) fn settle_starts(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        let has_started = |active: &Active| active.job.start_us.is_some();
        let is_met = |unmet: &&Dependency| match unmet.array {
            _ if unmet.after != After::Started => false,
            true => self.jobs.tasks(unmet.job).all(has_started),
            false => self.jobs.get(unmet.job).is_none_or(has_started),
        };
        let met: Vec<Dependency> = active.unmet.iter().filter(is_met).copied().collect();
        for dependency in met {
            if let Some(active) = self.jobs.get_mut(id) {
                active.unmet.retain(|unmet| *unmet != dependency);
            }
            self.settle(id, dependency.job, None);
        }
    }

    /// Records what a job still waits for after something on which it depends has ended; `broken` says why it
    /// can never start.
    fn settle(&mut self, id: u64, other: u64, broken: Option<String>) {
        self.jobs.keep_unmet(id);
        let Some(active) = self.jobs.get(id) else { return };
        if !active.unmet.iter().any(|unmet| unmet.job == other) {
            self.jobs.remove_dependent(id, other);
        }
        self.jobs.mark_changed(id);
        match broken {
            Some(what) => self.end_job(id, JobState::Cancelled, Some(format!("depends on {what}"))),
            None => self.try_enter(id),
        }
    }

    /// Settles the dependencies of a new job on arrays: a name that turned out not to be one of an array is
    /// that of a job.
    fn settle_arrays(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        let arrays: Vec<Dependency> =
            active.unmet.iter().copied().filter(|unmet| unmet.array).collect();
        for Dependency { job: first, failed, .. } in arrays {
            let is_job = self.jobs.tasks_left(first) == 0 && self.jobs.get(first).is_some();
            if is_job && let Some(active) = self.jobs.get_mut(id) {
                let unmet = active.unmet.iter_mut().chain(&mut active.job.dependencies);
                unmet.filter(|unmet| unmet.job == first).for_each(|unmet| unmet.array = false);
            } else {
                let fails = failed || self.jobs.has_failed_task(first);
                self.meet_array(id, first, fails);
            }
        }
    }
}

/// What a job waits for has ended.
pub(super) enum Settlement {
    /// A job.
    Job { dependent: u64, ended: u64, state: JobState },
    /// A task of an array.
    Array { dependent: u64, first: u64, fails: bool },
}

/// The most jobs that a reason names.
const NAMED_MAX: usize = 4;

/// What a job waits for, for people.
fn waits_for(unmet: &[Dependency]) -> String {
    let name = |unmet: &Dependency| {
        let what = if unmet.array { "array" } else { "job" };
        let start = if unmet.after == After::Started { "the start of " } else { "" };
        format!("{start}{what} {}", unmet.job)
    };
    let mut names: Vec<String> = unmet.iter().take(NAMED_MAX).map(name).collect();
    if unmet.len() > NAMED_MAX {
        names.push(format!("{} more", unmet.len() - NAMED_MAX));
    }
    match names.split_last() {
        Some((last, [])) => format!("waits for {last}"),
        Some((last, rest)) => format!("waits for {} and {last}", rest.join(", ")),
        None => "waits".to_owned(),
    }
}

/// The begin time, in UTC.
fn begin_time(request: &JobRequest) -> String {
    let unix_us = request.begin_unix_s.map_or(0, |begin| (begin * 1e6) as u64);
    crate::time::iso(unix_us)
}
