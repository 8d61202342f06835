//! An ordered queue, indexed by gang size, so that a pass over it costs what it starts and not what
//! waits.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use tandem_core::{Draft, JobId, Reason};

/// Jobs in ascending order of `(key, id)`.
#[derive(Clone, Debug)]
pub(crate) struct Queue<K> {
    /// One lane per gang size, in ascending order of size; none is empty.
    lanes: Vec<Lane<K>>,
    /// Those of the last pass, kept for their allocation.
    heads: Vec<Head<K>>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { lanes: Vec::new(), heads: Vec::new() }
    }
}

/// The waiting jobs of one gang size.
#[derive(Clone, Debug)]
struct Lane<K> {
    size: u32,
    /// Every pass looks at the first, and often it is the only one.
    first: (K, JobId),
    rest: BTreeSet<(K, JobId)>,
}

/// Where a walk through a queue goes after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// To the next job.
    Job,
    /// To the next job of another gang size: this size is through.
    Size,
    /// Nowhere.
    Stop,
}

/// The next candidate of a lane during a pass.
#[derive(Clone, Copy, Debug)]
struct Head<K> {
    next: (K, JobId),
    lane: usize,
}

impl Next {
    /// After a job that found no whole GPUs. What is free only shrinks during a pass, so nobody of its size
    /// finds any later, unless it was for want of memory.
    pub(crate) fn after_no_room(draft: &Draft<'_>, job: JobId) -> Next {
        if draft.fits_every_gpu(job) { Next::Size } else { Next::Job }
    }
}

impl<K: Copy + Ord> Queue<K> {
    /// Adds a job of `gpus` GPUs.
    pub(crate) fn insert(&mut self, key: K, job: JobId, gpus: u32) {
        let entry = (key, job);
        match self.lanes.binary_search_by_key(&gpus, |lane| lane.size) {
            Ok(index) => {
                let lane = &mut self.lanes[index];
                let later = lane.first.max(entry);
                lane.first = lane.first.min(entry);
                lane.rest.insert(later);
            }
            Err(index) => {
                let lane = Lane { size: gpus, first: entry, rest: BTreeSet::new() };
                self.lanes.insert(index, lane);
            }
        }
    }

    /// Removes a job; the key must be the one it was added with.
    pub(crate) fn remove(&mut self, key: K, job: JobId, gpus: u32) {
        let found = self.lanes.binary_search_by_key(&gpus, |lane| lane.size);
        let index = found.expect("a job of this size waits");
        let lane = &mut self.lanes[index];
        if lane.first != (key, job) {
            assert!(lane.rest.remove(&(key, job)), "{job:?} waits under this key");
            return;
        }
        match lane.rest.pop_first() {
            Some(first) => lane.first = first,
            None => {
                self.lanes.remove(index);
            }
        }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// All jobs, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, JobId)> + '_ {
        self.lanes.iter().flat_map(|lane| std::iter::once(&lane.first).chain(&lane.rest)).copied()
    }

    /// Gives whole GPUs to jobs in order. At a job that finds no room: stops, or with `backfill`
    /// goes on with the next one.
    ///
    /// What is free only shrinks during a pass, so a gang size that found no room once finds none
    /// later: the rest of its lane is passed over in one go, with the same result as one by one.
    pub(crate) fn place_in_order(&mut self, draft: &mut Draft<'_>, backfill: bool) {
        let stopped_at = self.walk(|job, _| match draft.place_exclusive(job) {
            true => Next::Job,
            false if backfill => Next::after_no_room(draft, job),
            false => Next::Stop,
        });
        let no_room = Reason::NoRoom { free: draft.free_count() };
        match stopped_at {
            Some(blocked) => {
                draft.explain(blocked, no_room);
                draft.explain_others(Reason::Behind(blocked));
            }
            None => draft.explain_others(no_room),
        }
    }

    /// Shows the jobs to `visit` in order, with their gang sizes; gives the job at which it stopped.
    #[inline]
    pub(crate) fn walk(&mut self, mut visit: impl FnMut(JobId, u32) -> Next) -> Option<JobId> {
        let Self { lanes, heads } = self;
        heads.clear();
        heads.extend(lanes.iter().enumerate().map(|(lane, jobs)| Head { next: jobs.first, lane }));
        while let Some(index) = (0..heads.len()).min_by_key(|&index| heads[index].next) {
            let Head { next, lane } = heads[index];
            let following = match visit(next.1, lanes[lane].size) {
                Next::Job => lanes[lane].rest.range((Excluded(next), Unbounded)).next(),
                Next::Size => None,
                Next::Stop => return Some(next.1),
            };
            match following {
                Some(&following) => heads[index].next = following,
                None => {
                    heads.swap_remove(index);
                }
            }
        }
        None
    }
}
