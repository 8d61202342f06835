//! Values by job for jobs that have not ended. Slots are reused, so that memory follows the number of current
//! jobs.

use crate::job::JobId;
use std::ops::{Index, IndexMut};

/// A map from job to `T`. Ids are dense, so a vector of positions replaces hashing.
#[derive(Clone, Debug)]
pub struct JobMap<T> {
    /// The position of each job's value in `values`.
    places: Vec<u32>,
    values: Vec<Option<T>>,
    vacant: Vec<u32>,
}

const NOWHERE: u32 = u32::MAX;

impl<T> Default for JobMap<T> {
    fn default() -> Self {
        Self { places: Vec::new(), values: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> JobMap<T> {
    /// An empty map with capacity for the positions of `count` jobs.
    pub fn for_jobs(count: usize) -> Self {
        Self { places: Vec::with_capacity(count), ..Self::default() }
    }

    /// Adds or replaces the value of a job.
    pub fn insert(&mut self, job: JobId, value: T) {
        let place = self.place_of(job);
        self.values[place] = Some(value);
    }

    /// The position of a job's value; a vacant one if it has none.
    fn place_of(&mut self, job: JobId) -> usize {
        if job.index() >= self.places.len() {
            self.places.resize(job.index() + 1, NOWHERE);
        }
        let place = &mut self.places[job.index()];
        if *place == NOWHERE {
            *place = self.vacant.pop().unwrap_or_else(|| {
                self.values.push(None);
                u32::try_from(self.values.len() - 1).expect("jobs are counted in u32")
            });
        }
        *place as usize
    }

    /// Removes the value of a job; returns whether it had one.
    pub fn remove(&mut self, job: JobId) -> bool {
        let Some(place) = self.places.get_mut(job.index()) else { return false };
        let place = std::mem::replace(place, NOWHERE);
        let Some(value) = self.values.get_mut(place as usize) else { return false };
        *value = None;
        self.vacant.push(place);
        true
    }

    /// The value of a job, if it has one.
    pub fn get(&self, job: JobId) -> Option<&T> {
        let place = *self.places.get(job.index())?;
        self.values.get(place as usize)?.as_ref()
    }

    /// All values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }
}

impl<T> Index<JobId> for JobMap<T> {
    type Output = T;
    fn index(&self, job: JobId) -> &T {
        self.values[self.places[job.index()] as usize].as_ref().expect("a job that has not ended")
    }
}

impl<T> IndexMut<JobId> for JobMap<T> {
    fn index_mut(&mut self, job: JobId) -> &mut T {
        self.values[self.places[job.index()] as usize].as_mut().expect("a job that has not ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_an_ordered_map(steps in proptest::collection::vec((0u32..40, any::<bool>()), 0..200)) {
            let mut map = JobMap::default();
            let mut expected = BTreeMap::new();
            for (number, (id, insert)) in steps.into_iter().enumerate() {
                let job = JobId(id);
                if insert {
                    map.insert(job, number);
                    expected.insert(job, number);
                } else {
                    prop_assert_eq!(map.remove(job), expected.remove(&job).is_some());
                }
                let mut values: Vec<usize> = map.values().copied().collect();
                values.sort_unstable();
                let mut wanted: Vec<usize> = expected.values().copied().collect();
                wanted.sort_unstable();
                prop_assert_eq!(values, wanted);
            }
            for id in 0..50 {
                prop_assert_eq!(map.get(JobId(id)), expected.get(&JobId(id)));
            }
        }
    }
}
