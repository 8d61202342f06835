//! An ordered queue, indexed by gang size, so that a pass over it costs what it starts and not what
//! waits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use tandem_core::{Draft, JobId, Reason};

/// Jobs in ascending order of `(key, id)`.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    by_size: BTreeMap<u32, BTreeSet<(K, JobId)>>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { by_size: BTreeMap::new() }
    }
}

/// The next candidate of one gang size.
struct Head<K> {
    next: (K, JobId),
    size: u32,
}

impl<K: Copy + Ord> Queue<K> {
    /// Adds a job of `gpus` GPUs.
    pub fn insert(&mut self, key: K, job: JobId, gpus: u32) {
        self.by_size.entry(gpus).or_default().insert((key, job));
    }

    /// Removes a job; the key must be the one it was added with.
    pub fn remove(&mut self, key: K, job: JobId, gpus: u32) {
        let jobs = self.by_size.get_mut(&gpus).expect("a job of this size waits");
        assert!(jobs.remove(&(key, job)), "{job:?} waits under this key");
        if jobs.is_empty() {
            self.by_size.remove(&gpus);
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.by_size.is_empty()
    }

    /// All jobs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (K, JobId)> + '_ {
        self.by_size.values().flatten().copied()
    }

    /// Gives whole GPUs to jobs in order. At a job that finds no room: stops, or with `backfill`
    /// goes on with the next one.
    ///
    /// What is free only shrinks during a pass, so a gang size that found no room once finds none
    /// later: the rest of its jobs is passed over in one go, with the same result as one by one.
    pub fn place_in_order(&self, draft: &mut Draft<'_>, backfill: bool) {
        if draft.free_count() == 0 || self.is_empty() {
            draft.explain_others(Reason::NoRoom { free: draft.free_count() });
            return;
        }
        let sizes = self.by_size.iter();
        let mut heads: Vec<Head<K>> = sizes
            .filter(|&(&size, _)| !backfill || draft.has_room(size))
            .filter_map(|(&size, jobs)| Some(Head { next: *jobs.first()?, size }))
            .collect();
        while let Some(index) = (0..heads.len()).min_by_key(|&index| heads[index].next) {
            let Head { next, size } = heads[index];
            if draft.place_alone(next.1) {
                match self.by_size[&size].range((Excluded(next), Unbounded)).next() {
                    Some(&following) => heads[index].next = following,
                    None => {
                        heads.swap_remove(index);
                    }
                }
            } else if backfill {
                heads.swap_remove(index);
            } else {
                draft.explain(next.1, Reason::NoRoom { free: draft.free_count() });
                draft.explain_others(Reason::Behind(next.1));
                return;
            }
        }
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}
