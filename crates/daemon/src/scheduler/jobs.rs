//! The jobs that have not ended, and what makes them wait outside the engine: dependencies, array limits and
//! begin times.

use super::active::Active;
use super::{Now, RunId};
use crate::job::{ArrayTask, Going, Job, JobState};
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{Time, UserId};

/// Jobs that have not ended, with the indices over them.
pub(super) struct Jobs {
    active: BTreeMap<u64, Active>,
    users: BTreeMap<u32, UserId>,
    /// Jobs of a cluster, by the cluster's id.
    externals: BTreeMap<String, u64>,
    /// Jobs that depend on a job.
    dependents: BTreeMap<u64, BTreeSet<u64>>,
    /// Array tasks with a limit on how many run at a time, by the first job of the array.
    arrays: BTreeMap<u64, ArrayLimit>,
    timers: BTreeSet<(Time, u64)>,
    next: u64,
    /// Jobs that changed in this step.
    changed: BTreeSet<u64>,
    /// Jobs that ended in this step.
    ended: Vec<Job>,
}

/// The tasks of an array of which only some may be eligible at a time.
#[derive(Clone, Debug, Default)]
struct ArrayLimit {
    at_a_time: usize,
    eligible: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

impl Jobs {
    pub(super) fn new(next: u64) -> Self {
        Self {
            active: BTreeMap::new(),
            users: BTreeMap::new(),
            externals: BTreeMap::new(),
            dependents: BTreeMap::new(),
            arrays: BTreeMap::new(),
            timers: BTreeSet::new(),
            next,
            changed: BTreeSet::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&Active> {
        self.active.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Active> {
        self.active.get_mut(&id)
    }

    /// A job that is known not to have ended.
    pub(super) fn expect(&self, id: u64) -> &Active {
        &self.active[&id]
    }

    /// The job of a run, unless a later run has replaced it.
    pub(super) fn of_run(&mut self, run: RunId) -> Option<&mut Active> {
        self.active.get_mut(&run.job).filter(|active| active.job.runs == run.run)
    }

    /// The job of a cluster's id.
    pub(super) fn of_external(&self, external: &str) -> Option<u64> {
        self.externals.get(external).copied()
    }

    /// In order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Active> {
        self.active.values()
    }

    /// The id of the next job.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a job that has not ended.
    pub(super) fn add(&mut self, active: Active) {
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
            array.waiting.insert(id);
        }
        if let Some(external) = &active.job.external {
            self.externals.insert(external.clone(), id);
        }
        self.active.insert(id, active);
        self.changed.insert(id);
    }

    /// Removes a job that ends.
    pub(super) fn remove(&mut self, id: u64) -> Option<Active> {
        let active = self.active.remove(&id)?;
        if let Some(external) = &active.job.external {
            self.externals.remove(external);
        }
        self.changed.remove(&id);
        Some(active)
    }

    /// Records the final state of a job that was removed.
    pub(super) fn push_ended(&mut self, job: Job) {
        self.ended.push(job);
    }

    /// The final state of a job that ended in this very step.
    pub(super) fn ended_now(&self, id: u64) -> Option<JobState> {
        self.ended.iter().find(|job| job.id == id).map(|job| job.state)
    }

    /// The jobs that depended on one that has ended.
    pub(super) fn take_dependents(&mut self, id: u64) -> BTreeSet<u64> {
        self.dependents.remove(&id).unwrap_or_default()
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
            return false;
        }
        array.waiting.remove(&id);
        array.eligible.insert(id)
    }

    /// A task waits again, as one that is held does.
    pub(super) fn return_array_slot(&mut self, id: u64) {
        let task = self.active.get(&id).and_then(|active| active.job.task);
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) = task else { return };
        let Some(array) = self.arrays.get_mut(&first) else { return };
        if array.eligible.remove(&id) {
            array.waiting.insert(id);
        }
    }

    /// A task has ended: those of its array that wait, in order.
    pub(super) fn end_array_task(&mut self, first: u64, ended: u64) -> Vec<u64> {
        let Some(array) = self.arrays.get_mut(&first) else { return Vec::new() };
        array.eligible.remove(&ended);
        array.waiting.remove(&ended);
        let waiting: Vec<u64> = array.waiting.iter().copied().collect();
        if array.eligible.is_empty() && waiting.is_empty() {
            self.arrays.remove(&first);
        }
        waiting
    }

    /// Whether another task of an array may become eligible.
    pub(super) fn has_array_slot(&self, first: u64) -> bool {
        self.arrays.get(&first).is_some_and(|array| array.eligible.len() < array.at_a_time)
    }

    /// The jobs that changed, as they are now; those that ended first.
    pub(super) fn take_changed(&mut self, now: Now) -> Vec<Job> {
        let mut changed = std::mem::take(&mut self.ended);
        let now = now.time();
        for id in std::mem::take(&mut self.changed) {
            let Some(active) = self.active.get_mut(&id) else { continue };
            active.job.state = active.state();
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
