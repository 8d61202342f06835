//! A plan: placements that a policy adds, changes or drops. Everything else stays as it is. A plan commands
//! nothing: [`check`](crate::check) and [`diff`](crate::diff) come before any action.

use crate::cluster::{Cluster, GpuId};
use crate::gpus::Gpus;
use crate::job::{JobId, JobSpec, Reason};
use crate::units::{PPM_ONE, Ppm, Time};

/// The smallest budget.
pub const BUDGET_MIN: Ppm = Ppm(PPM_ONE / 10);

/// The GPUs of a job and how it runs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its GPUs, in allocation order.
    pub gpus: Gpus,
    /// Stopped in place: no progress, memory kept.
    pub paused: bool,
    /// Sub-batches per batch; 1 is the whole batch.
    pub sub_batches: u32,
    /// The cap on the SMs that it may occupy on each GPU, from [`BUDGET_MIN`] to all. It is no reservation:
    /// the budgets on a GPU may add up to more than one.
    pub budget: Ppm,
}

impl Placement {
    /// A running placement on these GPUs.
    pub fn on(gpus: impl IntoIterator<Item = GpuId>) -> Self {
        Self::of(gpus.into_iter().collect())
    }

    /// Whether it is a complete gang of distinct GPUs in the job's partition.
    pub fn is_valid_for(&self, spec: &JobSpec, cluster: &Cluster) -> bool {
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

/// The change of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Place it like this.
    Place(Placement),
    /// Release its GPUs with its state saved, and wait.
    Drop,
}

/// The plan of a policy for one partition at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Changes in order of job id, each job once.
    changes: Vec<(JobId, Change)>,
    /// Why individual jobs wait.
    pub(crate) reasons: Vec<(JobId, Reason)>,
    /// Why all other jobs wait.
    pub(crate) reason_for_others: Option<Reason>,
    /// When to plan again even if nothing happens before.
    pub(crate) wake: Option<Time>,
}

impl Plan {
    /// All changes, in order of job id.
    pub(crate) fn changes(&self) -> &[(JobId, Change)] {
        &self.changes
    }

    /// The change of a job; `None` if it stays as it is.
    pub(crate) fn change(&self, job: JobId) -> Option<&Change> {
        let index = self.position(job).ok()?;
        Some(&self.changes[index].1)
    }

    /// Empties the plan and keeps its allocations.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        self.reasons.clear();
        self.reason_for_others = None;
        self.wake = None;
    }

    /// Takes the changes, in order of job id, and keeps the allocation.
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
