//! The jobs that have not ended, and what makes them wait outside the engine: dependencies, array limits and
//! begin times.

use super::active::{Active, Phase};
use super::unfolding::NewTasks;
use super::{Now, RunId};
use crate::job::{ArrayTask, Going, JobState, StoredJob};
use crate::request::TASKS_MAX;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{JobId, Time, UserId};

/// Jobs that have not ended, with the indices over them.
pub(super) struct Jobs {
    /// Boxed: a B-tree leaves a third of its slots empty.
    active: BTreeMap<u64, Box<Active>>,
    users: BTreeMap<u32, UserId>,
    /// What each user has, by user id.
    loads: BTreeMap<u32, JobsOfUser>,
    /// Requests by their first job: how many of their jobs have not ended.
    requests: BTreeMap<u64, u32>,
    /// Requests all of whose jobs ended in this step.
    ended_requests: Vec<u64>,
    /// Users some of whose jobs left the engine, so that others may enter.
    short: BTreeSet<u32>,
    /// Jobs of a cluster, by the cluster's id.
    externals: BTreeMap<String, u64>,
    /// Jobs that depend on a job.
    dependents: BTreeMap<u64, BTreeSet<u64>>,
    /// How many jobs are in each state, by its name.
    states: BTreeMap<&'static str, u64>,
    /// Jobs that have a process.
    with_process: BTreeSet<u64>,
    services: BTreeSet<u64>,
    /// Array tasks with a limit on how many run at a time, by the first job of the array.
    arrays: BTreeMap<u64, ArrayLimit>,
    /// Tasks that have not ended, by the first job of their array.
    tasks_left: BTreeMap<u64, u32>,
    timers: BTreeSet<(Time, u64)>,
    next: u64,
    /// Jobs that changed in this step.
    changed: BTreeSet<u64>,
    /// Jobs that ended in this step.
    ended: Vec<StoredJob>,
    /// Their final states.
    ended_now: BTreeMap<u64, JobState>,
    /// Arrays of which a task did not complete and others have not ended, as far as it is known.
    failed_arrays: BTreeSet<u64>,
    /// Arrays of which a task did not complete in this step.
    failed_now: BTreeSet<u64>,
}

/// What the jobs of a user that have not ended amount to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserLoad {
    /// Jobs.
    pub jobs: u64,
    /// Jobs that they wait for, each counted for every job that waits.
    pub dependencies: u64,
    /// Bytes of their requests.
    pub bytes: u64,
    /// Jobs that call a webhook when they end.
    pub webhooks: u64,
}

/// The jobs of a user that have not ended.
#[derive(Clone, Debug, Default)]
struct JobsOfUser {
    load: UserLoad,
    /// Jobs that have a process.
    with_process: u64,
    /// Jobs that the engine knows.
    entered: u64,
    /// Jobs that wait until the engine knows fewer, by falling priority.
    outside: BTreeSet<(std::cmp::Reverse<i8>, u64)>,
}

impl UserLoad {
    /// Adds what another load amounts to.
    pub(crate) fn add(&mut self, other: &UserLoad) {
        self.jobs += other.jobs;
        self.dependencies += other.dependencies;
        self.bytes += other.bytes;
        self.webhooks += other.webhooks;
    }
}

/// The tasks of an array of which only some may be eligible at a time.
#[derive(Clone, Debug, Default)]
struct ArrayLimit {
    at_a_time: usize,
    eligible: BTreeSet<u64>,
    /// Tasks that wait for nothing else.
    ready: BTreeSet<u64>,
}

impl Jobs {
    pub(super) fn new(next: u64) -> Self {
        Self {
            active: BTreeMap::new(),
            users: BTreeMap::new(),
            loads: BTreeMap::new(),
            requests: BTreeMap::new(),
            ended_requests: Vec::new(),
            short: BTreeSet::new(),
            externals: BTreeMap::new(),
            dependents: BTreeMap::new(),
            states: BTreeMap::new(),
            with_process: BTreeSet::new(),
            services: BTreeSet::new(),
            arrays: BTreeMap::new(),
            tasks_left: BTreeMap::new(),
            timers: BTreeSet::new(),
            next,
            changed: BTreeSet::new(),
            ended: Vec::new(),
            ended_now: BTreeMap::new(),
            failed_arrays: BTreeSet::new(),
            failed_now: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Active> {
        self.active.get(&id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Active> {
        self.active.get_mut(&id).map(Box::as_mut)
    }

    /// A job that is known not to have ended.
    pub(super) fn expect(&self, id: u64) -> &Active {
        &self.active[&id]
    }

    /// The job of a run, unless a later run has replaced it.
    pub(super) fn of_run(&mut self, run: RunId) -> Option<&mut Active> {
        self.get_mut(run.job).filter(|active| active.job.runs == run.run)
    }

    /// The job of a cluster's id.
    pub(super) fn of_external(&self, external: &str) -> Option<u64> {
        self.externals.get(external).copied()
    }

    /// In order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Active> {
        self.active.values().map(Box::as_ref)
    }

    /// The number of jobs that have not ended.
    pub(super) fn number(&self) -> usize {
        self.active.len()
    }

    /// The id of the next job.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Counts the jobs of a submission that are still to be added, so that they have their numbers and limits hold
    /// for them.
    pub(super) fn reserve(&mut self, tasks: &NewTasks) {
        let (job, left) = (tasks.of_all(), tasks.left());
        self.next = self.next.max(tasks.first() + tasks.count() as u64);
        self.count(job, left as u64);
        if tasks.are_tasks() {
            let of_array = self.tasks_left.entry(tasks.first()).or_default();
            *of_array += u32::try_from(left).unwrap_or(u32::MAX);
        }
    }

    /// Adds a job that has not ended. It counts as changed only if that is said.
    pub(super) fn add(&mut self, active: Active) {
        self.count(&active.job, 1);
        if let Some(task) = active.job.task {
            *self.tasks_left.entry(task.first).or_default() += 1;
        }
        self.add_reserved(active);
    }

    /// Adds a job that was counted before.
    pub(super) fn add_reserved(&mut self, active: Active) {
        let id = active.job.id;
        self.next = self.next.max(id + 1);
        for dependency in &active.unmet {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        if let Some(begin) = active.begin {
            self.timers.insert((begin, id));
        }
        if let Some(ArrayTask { first, at_a_time: Some(limit), .. }) = active.job.task {
            let array = self.arrays.entry(first).or_default();
            array.at_a_time = limit as usize;
        }
        if let Some(external) = &active.job.external {
            self.externals.insert(external.clone(), id);
        }
        if active.job.request.is_service() {
            self.services.insert(id);
        }
        let mut active = Box::new(active);
        active.counted = Some(active.job.state);
        *self.states.entry(active.job.state.name()).or_default() += 1;
        self.active.insert(id, active);
    }

    /// Adds jobs that are alike to what their user has.
    fn count(&mut self, job: &StoredJob, jobs: u64) {
        let load = &mut self.loads.entry(job.uid).or_default().load;
        load.jobs += jobs;
        load.dependencies += job.dependencies.len() as u64 * jobs;
        load.webhooks += if job.request.webhook.is_some() { jobs } else { 0 };
        let of_request = self.requests.entry(job.request_id()).or_default();
        if *of_request == 0 {
            load.bytes += job.request.stored_bytes;
        }
        *of_request += u32::try_from(jobs).unwrap_or(u32::MAX);
    }

    /// Takes a job that ended from what its user has.
    fn discount(&mut self, active: &Active) {
        let job = &active.job;
        let request = job.request_id();
        let Some(JobsOfUser { load, outside, .. }) = self.loads.get_mut(&job.uid) else { return };
        load.jobs = load.jobs.saturating_sub(1);
        load.dependencies = load.dependencies.saturating_sub(job.dependencies.len() as u64);
        load.webhooks = load.webhooks.saturating_sub(u64::from(job.request.webhook.is_some()));
        outside.remove(&(std::cmp::Reverse(job.request.priority), job.id));
        if let Some(left) = self.requests.get_mut(&request) {
            *left -= 1;
            if *left == 0 {
                self.requests.remove(&request);
                self.ended_requests.push(request);
                load.bytes = load.bytes.saturating_sub(job.request.stored_bytes);
            }
        }
    }

    /// What a user has.
    pub(super) fn load(&self, uid: u32) -> UserLoad {
        self.loads.get(&uid).map_or_else(UserLoad::default, |of_user| of_user.load)
    }

    /// How many jobs are in each state.
    pub(super) fn by_state(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.states.iter().map(|(&name, &count)| (name, count)).filter(|&(_, count)| count > 0)
    }

    /// Jobs that have a process.
    pub(super) fn all_with_process(&self) -> impl Iterator<Item = &Active> {
        self.with_process.iter().filter_map(|&id| self.get(id))
    }

    /// Services.
    pub(super) fn services(&self) -> impl Iterator<Item = &Active> {
        self.services.iter().filter_map(|&id| self.get(id))
    }

    /// How many jobs of a user have a process.
    pub(super) fn with_process(&self, uid: u32) -> u64 {
        self.loads.get(&uid).map_or(0, |of_user| of_user.with_process)
    }

    /// A job of a user has a process now, or has none any more.
    pub(super) fn count_process(&mut self, job: u64, uid: u32, has_one: bool) {
        if has_one {
            self.with_process.insert(job);
        } else {
            self.with_process.remove(&job);
        }
        let Some(of_user) = self.loads.get_mut(&uid) else { return };
        of_user.with_process = match has_one {
            true => of_user.with_process + 1,
            false => of_user.with_process.saturating_sub(1),
        };
    }

    /// How many jobs have not ended.
    pub(super) fn count_all(&self) -> usize {
        self.active.len()
    }

    /// Requests all of whose jobs have ended since the last call.
    pub(super) fn take_ended_requests(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended_requests)
    }

    /// The number that the engine gave a job.
    pub(super) fn set_entry(&mut self, id: u64, entry: JobId) {
        let Some(active) = self.active.get_mut(&id) else { return };
        active.entry = Some(entry);
        self.loads.entry(active.job.uid).or_default().entered += 1;
    }

    /// Takes the number of a job that leaves the engine.
    pub(super) fn take_entry(&mut self, id: u64) -> Option<JobId> {
        let active = self.active.get_mut(&id)?;
        let entry = active.entry.take()?;
        let uid = active.job.uid;
        self.left_engine(uid);
        Some(entry)
    }

    fn left_engine(&mut self, uid: u32) {
        if let Some(load) = self.loads.get_mut(&uid) {
            load.entered = load.entered.saturating_sub(1);
            if !load.outside.is_empty() {
                self.short.insert(uid);
            }
        }
    }

    /// Whether the engine may know another job of a user; otherwise this one waits outside.
    pub(super) fn may_enter(&mut self, id: u64, most: Option<u32>) -> bool {
        let Some(active) = self.active.get(&id) else { return false };
        let place = (std::cmp::Reverse(active.job.request.priority), id);
        let load = self.loads.entry(active.job.uid).or_default();
        if most.is_some_and(|most| load.entered >= u64::from(most)) {
            load.outside.insert(place);
            return false;
        }
        load.outside.remove(&place);
        true
    }

    /// The jobs of a user that wait until the engine knows fewer, in their order.
    pub(super) fn outside(&self, uid: u32) -> impl Iterator<Item = &Active> {
        let outside = self.loads.get(&uid).into_iter().flat_map(|load| &load.outside);
        outside.filter_map(|&(_, id)| self.get(id))
    }

    /// Whether a job waits until the engine knows fewer of its user.
    pub(super) fn is_outside(&self, active: &Active) -> bool {
        let place = (std::cmp::Reverse(active.job.request.priority), active.job.id);
        self.loads.get(&active.job.uid).is_some_and(|load| load.outside.contains(&place))
    }

    /// The next job that may enter the engine in the place of one that left it.
    pub(super) fn next_outside(&mut self, most: Option<u32>) -> Option<u64> {
        while let Some(&uid) = self.short.first() {
            if let Some(load) = self.loads.get_mut(&uid)
                && most.is_none_or(|most| load.entered < u64::from(most))
                && let Some((_, id)) = load.outside.pop_first()
            {
                return Some(id);
            }
            self.short.remove(&uid);
        }
        None
    }

    /// Removes a job that ends.
    pub(super) fn remove(&mut self, id: u64) -> Option<Active> {
        let active = *self.active.remove(&id)?;
        if active.phase != Phase::Absent {
            self.count_process(id, active.job.uid, false);
        }
        self.services.remove(&id);
        if let Some(count) = active.counted.and_then(|state| self.states.get_mut(state.name())) {
            *count -= 1;
        }
        self.discount(&active);
        if active.entry.is_some() {
            self.left_engine(active.job.uid);
        }
        self.forget_idle_user(active.job.uid);
        if let Some(external) = &active.job.external {
            self.externals.remove(external);
        }
        if let Some(task) = active.job.task
            && let Some(left) = self.tasks_left.get_mut(&task.first)
        {
            *left -= 1;
            if *left == 0 {
                self.tasks_left.remove(&task.first);
                self.arrays.remove(&task.first);
                self.failed_arrays.remove(&task.first);
            }
        }
        self.changed.remove(&id);
        Some(active)
    }

    fn forget_idle_user(&mut self, uid: u32) {
        if self.loads.get(&uid).is_some_and(|of_user| of_user.load.jobs == 0) {
            self.loads.remove(&uid);
        }
    }

    /// Records the final state of a job that was removed.
    pub(super) fn push_ended(&mut self, job: StoredJob) {
        self.ended_now.insert(job.id, job.state);
        self.ended.push(job);
    }

    /// The final state of a job that ended in this very step.
    pub(super) fn ended_now(&self, id: u64) -> Option<JobState> {
        self.ended_now.get(&id).copied()
    }

    /// A task of an array did not complete; whether it is the first of which this is known.
    pub(super) fn array_fails(&mut self, first: u64) -> bool {
        self.tasks_left(first) > 0 && self.failed_arrays.insert(first)
    }

    /// Tasks of an array that have not ended.
    pub(super) fn tasks_left(&self, first: u64) -> u32 {
        self.tasks_left.get(&first).copied().unwrap_or(0)
    }

    /// The tasks of an array that have not ended, in order.
    pub(super) fn tasks(&self, first: u64) -> impl Iterator<Item = &Active> {
        // The jobs of a submission have numbers one after the other.
        let is_task =
            move |active: &&Active| active.job.task.is_some_and(|task| task.first == first);
        let left = self.tasks_left(first) as usize;
        let all = self.active.range(first..first.saturating_add(TASKS_MAX as u64));
        all.map(|(_, active)| active.as_ref()).filter(is_task).take(left)
    }

    /// Whether a task of an array is known not to have completed: in this step, or earlier while others are left.
    pub(super) fn has_failed_task(&self, first: u64) -> bool {
        self.failed_arrays.contains(&first) || self.failed_now.contains(&first)
    }

    /// Arrays of which a task did not complete before this daemon started.
    pub(super) fn set_failed_arrays(&mut self, arrays: BTreeSet<u64>) {
        self.failed_arrays = arrays;
    }

    /// Notes that a task of an array did not complete in this step.
    pub(super) fn task_failed(&mut self, first: u64) {
        self.failed_now.insert(first);
    }

    /// The jobs that depend on a job or on its array.
    pub(super) fn dependents(&self, id: u64) -> Vec<u64> {
        self.dependents.get(&id).map(|ids| ids.iter().copied().collect()).unwrap_or_default()
    }

    /// Forgets who depended on a job and its array, if both have ended.
    pub(super) fn forget_dependents(&mut self, id: u64) {
        if !self.active.contains_key(&id) && self.tasks_left(id) == 0 {
            self.dependents.remove(&id);
        }
    }

    /// A job does not depend on another any more.
    pub(super) fn remove_dependent(&mut self, id: u64, on: u64) {
        if let Some(ids) = self.dependents.get_mut(&on) {
            ids.remove(&id);
            if ids.is_empty() {
                self.dependents.remove(&on);
            }
        }
    }

    /// Writes down what a job still waits for.
    pub(super) fn keep_unmet(&mut self, id: u64) {
        let Some(active) = self.active.get_mut(&id) else { return };
        let fewer = active.job.dependencies.len().saturating_sub(active.unmet.len()) as u64;
        active.job.dependencies.clone_from(&active.unmet);
        if let Some(JobsOfUser { load, .. }) = self.loads.get_mut(&active.job.uid) {
            load.dependencies = load.dependencies.saturating_sub(fewer);
        }
    }

    pub(super) fn mark_changed(&mut self, id: u64) {
        self.changed.insert(id);
    }

    pub(super) fn set_reason(&mut self, id: u64, reason: Option<String>) {
        if let Some(active) = self.active.get_mut(&id)
            && active.job.reason != reason
        {
            active.job.reason = reason;
            self.changed.insert(id);
        }
    }

    /// The number of a user in the engine, given at first sight.
    pub(super) fn user(&mut self, uid: u32) -> UserId {
        let count = u32::try_from(self.users.len()).expect("users are counted in u32");
        *self.users.entry(uid).or_insert(UserId(count))
    }

    pub(super) fn find_user(&self, uid: u32) -> Option<UserId> {
        self.users.get(&uid).copied()
    }

    pub(super) fn add_timer(&mut self, at: Time, id: u64) {
        self.timers.insert((at, id));
    }

    pub(super) fn remove_timer(&mut self, at: Time, id: u64) {
        self.timers.remove(&(at, id));
    }

    /// A job whose timer has expired; each timer once.
    pub(super) fn next_expired(&mut self, now: Time) -> Option<u64> {
        self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.pop_first().map(|(_, id)| id)
    }

    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Whether an array task may become eligible now; it counts against the limit from then on.
    pub(super) fn takes_array_slot(&mut self, id: u64) -> bool {
        let task = self.active.get(&id).and_then(|active| active.job.task);
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) = task else { return true };
        let Some(array) = self.arrays.get_mut(&first) else { return true };
        if array.eligible.contains(&id) {
            return true;
        }
        if array.eligible.len() >= array.at_a_time {
            array.ready.insert(id);
            return false;
        }
        array.ready.remove(&id);
        array.eligible.insert(id)
    }

    /// A task waits again, as one that is held does.
    pub(super) fn return_array_slot(&mut self, id: u64) {
        let task = self.active.get(&id).and_then(|active| active.job.task);
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) = task else { return };
        let Some(array) = self.arrays.get_mut(&first) else { return };
        array.ready.remove(&id);
        array.eligible.remove(&id);
    }

    /// A task has ended.
    pub(super) fn end_array_task(&mut self, first: u64, ended: u64) {
        let Some(array) = self.arrays.get_mut(&first) else { return };
        array.eligible.remove(&ended);
        array.ready.remove(&ended);
    }

    /// The next task of an array that waits for nothing but others of it, if another one may become eligible.
    pub(super) fn next_task(&mut self, first: u64) -> Option<u64> {
        let array = self.arrays.get_mut(&first)?;
        if array.eligible.len() < array.at_a_time { array.ready.pop_first() } else { None }
    }

    /// The jobs that changed, as they are now; those that ended first.
    pub(super) fn take_changed(&mut self, now: Now) -> Vec<StoredJob> {
        let mut changed = std::mem::take(&mut self.ended);
        self.ended_now.clear();
        self.failed_now.clear();
        let now = now.time();
        for id in std::mem::take(&mut self.changed) {
            let Some(active) = self.active.get_mut(&id) else { continue };
            active.job.state = active.state();
            if active.counted != Some(active.job.state) {
                let before = active.counted.replace(active.job.state);
                if let Some(count) = before.and_then(|state| self.states.get_mut(state.name())) {
                    *count -= 1;
                }
                *self.states.entry(active.job.state.name()).or_default() += 1;
            }
            active.job.done_us = active.pace.done_us(now);
            active.lap(now);
            let rate_ppm = active.pace.progress.rate.0;
            let running =
                |(since, shared): (Time, bool)| Going { at_us: since.0, shared, rate_ppm };
            active.job.going = active.since.map(running);
            changed.push(active.job.clone());
        }
        changed
    }
}
