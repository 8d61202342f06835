//! A queue of pending jobs, indexed by gang size: a pass costs what it starts, not what waits.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use tandem_core::{Draft, JobId};

/// Pending jobs in ascending order of `(key, id)`.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    /// One lane per gang size, in ascending order of size; none is empty.
    lanes: Vec<Lane<K>>,
    /// The heads of the last pass, kept for their allocation.
    heads: Vec<Head<K>>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { lanes: Vec::new(), heads: Vec::new() }
    }
}

/// The pending jobs of one gang size.
#[derive(Clone, Debug)]
struct Lane<K> {
    size: u32,
    /// Apart from the rest: every pass needs it, and often it is the only one.
    first: (K, JobId),
    rest: BTreeSet<(K, JobId)>,
}

/// Where a walk through a queue goes after a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the next job.
    Job,
    /// To the next job of another gang size: no other job of this size fits.
    Size,
    /// Nowhere: the pass ends.
    Stop,
}

/// The next candidate of a lane during a pass.
#[derive(Clone, Copy, Debug)]
struct Head<K> {
    next: (K, JobId),
    lane: usize,
}

impl Next {
    /// After a job that found no whole GPUs. Free GPUs only become fewer during a pass, so no later job of
    /// its size fits either, unless memory was the reason.
    pub fn after_no_room(draft: &Draft<'_>, job: JobId) -> Next {
        if draft.fits_every_gpu(job) { Next::Size } else { Next::Job }
    }
}

impl<K: Copy + Ord> Queue<K> {
    /// Adds a job of `gpus` GPUs.
    pub fn insert(&mut self, key: K, job: JobId, gpus: u32) {
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
    pub fn remove(&mut self, key: K, job: JobId, gpus: u32) {
        let found = self.lanes.binary_search_by_key(&gpus, |lane| lane.size);
        let index = found.expect("a job of this size is in the queue");
        let lane = &mut self.lanes[index];
        if lane.first != (key, job) {
            assert!(lane.rest.remove(&(key, job)), "{job:?} is in the queue under this key");
            return;
        }
        match lane.rest.pop_first() {
            Some(first) => lane.first = first,
            None => {
                self.lanes.remove(index);
            }
        }
    }

    /// Whether no job waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// All jobs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (K, JobId)> + '_ {
        self.lanes.iter().flat_map(|lane| std::iter::once(&lane.first).chain(&lane.rest)).copied()
    }

    /// Calls `visit` with each job and its gang size, in order; returns the job at which it stopped.
    #[inline]
    pub fn walk(&mut self, mut visit: impl FnMut(JobId, u32) -> Next) -> Option<JobId> {
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
