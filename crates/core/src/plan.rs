//! What a policy wants: placements added, altered or dropped. What a plan does not name stays as
//! it is. A plan commands nothing; [`check`](crate::check) and [`diff`](crate::diff) stand between
//! it and the GPUs.

use crate::cluster::{Cluster, GpuId};
use crate::gpus::Gpus;
use crate::job::{JobId, JobSpec, Reason};
use crate::units::{PPM_ONE, Ppm, Time};

/// The least budget a tenant may have.
pub const BUDGET_MIN: Ppm = Ppm(PPM_ONE / 10);

/// Where and how a job sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its GPUs, in the order in which the allocation touches them.
    pub gpus: Gpus,
    /// Stopped in place: no progress, memory kept.
    pub paused: bool,
    /// The parts in which it computes each batch; 1 is the batch as a whole.
    pub sub_batches: u32,
    /// The most of each of its GPUs' SMs that it may occupy, from [`BUDGET_MIN`] to all: a cap, never a
    /// reservation, so that the budgets of the tenants of a GPU may add up to more than one.
    pub budget: Ppm,
}

impl Placement {
    /// Running on these GPUs.
    pub fn on(gpus: impl IntoIterator<Item = GpuId>) -> Self {
        Self::of(gpus.into_iter().collect())
    }

    /// Whether it is a whole gang of a job's partition, however it came about.
    pub fn suits(&self, spec: &JobSpec, cluster: &Cluster) -> bool {
        let range = &cluster.partition(spec.partition).gpus;
        let mut gpus = self.gpus.to_vec();
        gpus.sort_unstable();
        gpus.len() == spec.gpus as usize
            && gpus.is_sorted_by(|one, other| one < other)
            && gpus.iter().all(|gpu| range.contains(&gpu.0))
    }

    pub(crate) fn of(gpus: Gpus) -> Self {
        Self { gpus, paused: false, sub_batches: 1, budget: Ppm::ONE }
    }
}

/// What is wanted of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// To sit here, like this.
    Place(Placement),
    /// To leave its GPUs, state saved, and wait.
    Drop,
}

/// The wishes of a policy for one partition at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What changes, in order of job id, each job once.
    changes: Vec<(JobId, Change)>,
    /// Why particular jobs wait.
    pub reasons: Vec<(JobId, Reason)>,
    /// Why every other job waits.
    pub reason_for_others: Option<Reason>,
    /// When to plan again even if nothing happens.
    pub wake: Option<Time>,
}

impl Plan {
    /// What changes, in order of job id.
    pub fn changes(&self) -> &[(JobId, Change)] {
        &self.changes
    }

    /// What is wanted of a job; `None` if it is to stay as it is.
    pub fn change(&self, job: JobId) -> Option<&Change> {
        let index = self.position(job).ok()?;
        Some(&self.changes[index].1)
    }

    /// Empties the plan, keeping its allocations.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.reasons.clear();
        self.reason_for_others = None;
        self.wake = None;
    }

    /// Takes the changes out, in order of job id, keeping the allocation.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (JobId, Change)> + '_ {
        self.changes.drain(..)
    }

    pub(crate) fn set(&mut self, job: JobId, change: Change) {
        match self.position(job) {
            Ok(index) => self.changes[index].1 = change,
            Err(index) => self.changes.insert(index, (job, change)),
        }
    }

    pub(crate) fn unset(&mut self, job: JobId) {
        if let Ok(index) = self.position(job) {
            self.changes.remove(index);
        }
    }

    fn position(&self, job: JobId) -> Result<usize, usize> {
        self.changes.binary_search_by_key(&job, |(named, _)| *named)
    }
}
