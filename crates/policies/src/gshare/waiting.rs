//! Who waits, in the order in which they are served: those that have waited too long first, then those
//! with the least left.

use crate::queue::{Next, Queue};
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{Draft, Job, JobId, JobState, Span, Time, Work};

#[derive(Default)]
pub(super) struct Waiting {
    by_remaining: Queue<Work>,
    by_since: BTreeSet<(Time, JobId)>,
}

/// Since when a job has been waiting, as seen at `now`: one that is only about to wait, since then.
fn since(job: &Job, now: Time) -> Time {
    match job.state {
        JobState::Waiting { since } => since,
        JobState::Placed { .. } => now,
    }
}

impl Waiting {
    /// What remains of a job stands still while it waits, so `now` matters for a job that is placed.
    pub(super) fn insert(&mut self, job: &Job, now: Time) {
        self.by_remaining.insert(job.remaining(now), job.id(), job.spec.gpus);
        self.by_since.insert((since(job, now), job.id()));
    }

    pub(super) fn remove(&mut self, job: &Job, now: Time) {
        self.by_remaining.remove(job.remaining(now), job.id(), job.spec.gpus);
        self.by_since.remove(&(since(job, now), job.id()));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_since.is_empty()
    }

    /// Jobs that have waited too long, the longest first.
    fn aged(&self, now: Time, age: Span) -> impl Iterator<Item = JobId> + '_ {
        let aged = move |(since, _): &&(Time, JobId)| now.since(*since) >= age;
        self.by_since.iter().take_while(aged).map(|(_, job)| *job)
    }

    /// All jobs of the partition, the first to be served first.
    pub(super) fn ranked(&self, draft: &Draft<'_>, age: Span) -> Vec<JobId> {
        let now = draft.now();
        let placed = draft.placed().map(|job| (job.remaining(now), job.id()));
        self.order(draft, age, placed)
    }

    /// Those that still wait under the plan so far, likewise, and those that no longer do.
    pub(super) fn ranked_waiting(&self, draft: &Draft<'_>, age: Span) -> (Vec<JobId>, Vec<JobId>) {
        let order = self.order(draft, age, std::iter::empty());
        order.into_iter().partition(|&job| draft.placement(job).is_none())
    }

    fn order(
        &self,
        draft: &Draft<'_>,
        age: Span,
        others: impl Iterator<Item = (Work, JobId)>,
    ) -> Vec<JobId> {
        let mut order: Vec<JobId> = self.aged(draft.now(), age).collect();
        let aged: BTreeSet<JobId> = order.iter().copied().collect();
        let mut rest: Vec<(Work, JobId)> = self.by_remaining.iter().chain(others).collect();
        rest.sort_unstable();
        order.extend(rest.into_iter().map(|(_, job)| job).filter(|job| !aged.contains(job)));
        order
    }

    /// Gives whole GPUs to whoever finds some, in order.
    pub(super) fn fill(&mut self, draft: &mut Draft<'_>, age: Span) {
        if draft.free_count() == 0 {
            return;
        }
        let aged: Vec<JobId> = self.aged(draft.now(), age).collect();
        for job in aged {
            if draft.placement(job).is_none() {
                draft.place_exclusive(job);
            }
        }
        self.by_remaining.walk(|job, _| {
            match draft.placement(job).is_some() || draft.place_exclusive(job) {
                true => Next::Job,
                false => Next::after_no_room(draft, job),
            }
        });
    }

    /// Of each gang size that `has_hosts`, the first to be served of those that still wait under the
    /// plan so far, at most `most`.
    pub(super) fn first_by_size(
        &mut self,
        draft: &Draft<'_>,
        age: Span,
        most: usize,
        has_hosts: impl Fn(u32) -> bool,
    ) -> BTreeMap<u32, Vec<JobId>> {
        let mut first: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
        for job in self.aged(draft.now(), age) {
            let size = draft.job(job).spec.gpus;
            let jobs = first.entry(size).or_default();
            if has_hosts(size) && jobs.len() < most && draft.placement(job).is_none() {
                jobs.push(job);
            }
        }
        let aged: BTreeSet<JobId> = first.values().flatten().copied().collect();
        self.by_remaining.walk(|job, size| {
            if !has_hosts(size) {
                return Next::Size;
            }
            let jobs = first.entry(size).or_default();
            if jobs.len() < most && draft.placement(job).is_none() && !aged.contains(&job) {
                jobs.push(job);
            }
            if jobs.len() < most { Next::Job } else { Next::Size }
        });
        first.retain(|_, jobs| !jobs.is_empty());
        first
    }
}
