//! An ordered queue, indexed by gang size, so that a pass over it costs what it starts and not what
//! waits.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use tandem_core::{Draft, JobId, Reason};

/// Jobs in ascending order of `(key, id)`.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    /// One lane per gang size, in ascending order of size; none is empty.
    lanes: Vec<Lane<K>>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { lanes: Vec::new() }
    }
}

/// The waiting jobs of one gang size.
#[derive(Clone, Debug)]
struct Lane<K> {
    size: u32,
    /// The first of `jobs`, kept here because every pass looks at it.
    first: (K, JobId),
    jobs: BTreeSet<(K, JobId)>,
}

/// The next candidate of a lane during a pass.
#[derive(Clone, Copy)]
struct Head<K> {
    next: (K, JobId),
    lane: usize,
}

impl<K: Copy + Ord> Queue<K> {
    /// Adds a job of `gpus` GPUs.
    pub fn insert(&mut self, key: K, job: JobId, gpus: u32) {
        let entry = (key, job);
        match self.lanes.binary_search_by_key(&gpus, |lane| lane.size) {
            Ok(index) => {
                let lane = &mut self.lanes[index];
                lane.first = lane.first.min(entry);
                lane.jobs.insert(entry);
            }
            Err(index) => {
                let jobs = BTreeSet::from([entry]);
                self.lanes.insert(index, Lane { size: gpus, first: entry, jobs });
            }
        }
    }

    /// Removes a job; the key must be the one it was added with.
    pub fn remove(&mut self, key: K, job: JobId, gpus: u32) {
        let found = self.lanes.binary_search_by_key(&gpus, |lane| lane.size);
        let index = found.expect("a job of this size waits");
        let lane = &mut self.lanes[index];
        assert!(lane.jobs.remove(&(key, job)), "{job:?} waits under this key");
        match lane.jobs.first() {
            Some(&first) => lane.first = first,
            None => {
                self.lanes.remove(index);
            }
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// All jobs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (K, JobId)> + '_ {
        self.lanes.iter().flat_map(|lane| &lane.jobs).copied()
    }

    /// Gives whole GPUs to jobs in order. At a job that finds no room: stops, or with `backfill`
    /// goes on with the next one.
    ///
    /// What is free only shrinks during a pass, so a gang size that found no room once finds none
    /// later: the rest of its lane is passed over in one go, with the same result as one by one.
    pub fn place_in_order(&self, draft: &mut Draft<'_>, backfill: bool) {
        let lanes = self.lanes.iter().enumerate();
        let heads = lanes.map(|(lane, jobs)| (Head { next: jobs.first, lane }, jobs.size));
        let mut heads: Vec<Head<K>> = if backfill {
            heads.filter(|&(_, size)| draft.has_room(size)).map(|(head, _)| head).collect()
        } else {
            // Whoever is first decides whether anything happens at all.
            let first = heads.clone().min_by_key(|(head, _)| head.next);
            if let Some((head, _)) = first.filter(|&(_, size)| !draft.has_room(size)) {
                return explain_stop(draft, head.next.1);
            }
            heads.map(|(head, _)| head).collect()
        };
        while let Some(index) = (0..heads.len()).min_by_key(|&index| heads[index].next) {
            let Head { next, lane } = heads[index];
            if draft.place_alone(next.1) {
                match self.lanes[lane].jobs.range((Excluded(next), Unbounded)).next() {
                    Some(&following) => heads[index].next = following,
                    None => {
                        heads.swap_remove(index);
                    }
                }
            } else if backfill {
                heads.swap_remove(index);
            } else {
                return explain_stop(draft, next.1);
            }
        }
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

fn explain_stop(draft: &mut Draft<'_>, blocked: JobId) {
    draft.explain(blocked, Reason::NoRoom { free: draft.free_count() });
    draft.explain_others(Reason::Behind(blocked));
}
