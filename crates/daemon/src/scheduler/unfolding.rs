//! Submissions whose tasks are added a portion at a time, so that a step takes about as long whatever users submit.

use super::{Now, Submission};
use crate::job::{JobState, StoredJob};
use crate::request::Tasks;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Tasks that a step adds, unless the setup says otherwise.
pub(super) const TASKS_PER_STEP: u32 = 2048;
/// Tasks of one submission that are added before it is the turn of another.
pub(super) const AT_ONCE: usize = 256;

/// A submission of which some tasks are still to be added; part of the first record of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unfinished {
    /// The submission, with the time at which it was accepted.
    pub submission: Submission,
    /// How many tasks have been added.
    pub added: usize,
}

/// The tasks of a submission.
pub(super) struct NewTasks {
    of_all: StoredJob,
    tasks: Option<Tasks>,
    count: usize,
    /// How many have been added.
    pub(super) added: usize,
    /// Final states of dependencies that had ended before.
    pub(super) over: BTreeMap<u64, JobState>,
    /// The class of all, unless parameters make several.
    pub(super) class: Option<String>,
    /// Why the cluster would not start them now.
    pub(super) waits: Option<String>,
}

impl NewTasks {
    pub(super) fn new(submission: &Submission, now: Now) -> Self {
        let request = std::sync::Arc::new(submission.request.clone());
        // Both were checked before the submission was accepted.
        let tasks = request.tasks().ok();
        let of_all = StoredJob {
            id: submission.first,
            uid: submission.uid,
            gid: submission.gid,
            user: submission.user.clone(),
            dependencies: submission.dependencies(),
            state: if request.hold { JobState::Held } else { JobState::Pending },
            reason: request.hold.then(|| "held".to_owned()),
            submit_us: submission.submit_unix_us.unwrap_or(now.unix_us),
            external: submission.external.clone(),
            sub_batches: 1,
            request,
            ..StoredJob::default()
        };
        let count = tasks.as_ref().map_or(0, Tasks::count);
        let over = submission.over.iter().copied().collect();
        let waits = submission.waits.clone();
        Self { of_all, tasks, count, added: 0, over, class: None, waits }
    }

    /// The id of the first job.
    pub(super) fn first(&self) -> u64 {
        self.of_all.id
    }

    /// A job as all of them are, with the id of the first.
    pub(super) fn of_all(&self) -> &StoredJob {
        &self.of_all
    }

    /// Whether they are tasks of an array or a sweep.
    pub(super) fn are_tasks(&self) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.number(0).is_some())
    }

    /// How many jobs there are in all.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// How many are still to be added.
    pub(super) fn left(&self) -> usize {
        self.count - self.added
    }

    /// The next job.
    pub(super) fn next_job(&mut self) -> StoredJob {
        let (first, index) = (self.first(), self.added);
        self.added += 1;
        let number = self.tasks.as_ref().and_then(|tasks| tasks.number(index));
        let at_a_time = self.tasks.as_ref().and_then(|tasks| tasks.at_a_time);
        let task = number.map(|number| crate::job::ArrayTask { first, number, at_a_time });
        StoredJob { id: first + index as u64, task, ..self.of_all.clone() }
    }
}

/// Submissions that are not complete.
#[derive(Default)]
pub(super) struct Unfolding {
    /// By their first job.
    tasks: BTreeMap<u64, NewTasks>,
    /// Of each user, in order.
    of_users: BTreeMap<u32, VecDeque<u64>>,
    /// Those that wait for a job or an array, by its id.
    waiting: BTreeMap<u64, BTreeSet<u64>>,
    /// The user who was served last.
    last: u32,
    /// Tasks that are still to be added.
    left: usize,
    /// Submissions that were completed in this step, by their first job.
    completed: Vec<u64>,
}

impl Unfolding {
    pub(super) fn push(&mut self, tasks: NewTasks) {
        self.left += tasks.left();
        let first = tasks.first();
        for dependency in &tasks.of_all.dependencies {
            self.waiting.entry(dependency.job).or_default().insert(first);
        }
        self.of_users.entry(tasks.of_all.uid).or_default().push_back(first);
        self.tasks.insert(first, tasks);
    }

    /// The next submission of the next user, to be given back.
    pub(super) fn next(&mut self) -> Option<NewTasks> {
        let next = self.of_users.range((Excluded(self.last), Unbounded)).next();
        let uid = *next.or_else(|| self.of_users.first_key_value())?.0;
        self.last = uid;
        let own = self.of_users.get_mut(&uid)?;
        let first = own.pop_front();
        if own.is_empty() {
            self.of_users.remove(&uid);
        }
        let tasks = self.tasks.remove(&first?)?;
        self.left -= tasks.left();
        Some(tasks)
    }

    /// Takes back a submission of which tasks were added.
    pub(super) fn put_back(&mut self, tasks: NewTasks) {
        let first = tasks.first();
        if tasks.left() > 0 {
            self.left += tasks.left();
            self.of_users.entry(tasks.of_all.uid).or_default().push_front(first);
            self.tasks.insert(first, tasks);
            return;
        }
        self.completed.push(first);
        for dependency in &tasks.of_all.dependencies {
            if let Some(waiting) = self.waiting.get_mut(&dependency.job) {
                waiting.remove(&first);
                if waiting.is_empty() {
                    self.waiting.remove(&dependency.job);
                }
            }
        }
    }

    /// A job has ended: tasks that are added later need not wait for it.
    pub(super) fn job_ended(&mut self, job: u64, state: JobState) {
        for first in self.waiting.get(&job).into_iter().flatten() {
            if let Some(tasks) = self.tasks.get_mut(first) {
                tasks.over.insert(job, state);
            }
        }
    }

    /// A task of an array did not complete: tasks that are added later know it.
    pub(super) fn task_failed(&mut self, array: u64) {
        for first in self.waiting.get(&array).into_iter().flatten() {
            let Some(tasks) = self.tasks.get_mut(first) else { continue };
            let named = tasks.of_all.dependencies.iter_mut();
            named.filter(|one| one.job == array && one.array).for_each(|one| one.failed = true);
        }
    }

    /// How many tasks are still to be added.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// How many tasks of a user are still to be added.
    pub(super) fn left_of(&self, uid: u32) -> usize {
        let own = self.of_users.get(&uid).into_iter().flatten();
        own.filter_map(|first| self.tasks.get(first)).map(NewTasks::left).sum()
    }

    /// Whether tasks of the submission that begins with a job are still to be added.
    pub(super) fn has(&self, first: u64) -> bool {
        self.tasks.contains_key(&first)
    }

    pub(super) fn take_completed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.completed)
    }
}
