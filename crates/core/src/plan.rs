//! What a policy wants: placements added, altered or dropped. What a plan does not name stays as
//! it is. A plan commands nothing; [`check`](crate::check) and [`diff`](crate::diff) stand between
//! it and the GPUs.

use crate::cluster::GpuId;
use crate::job::{JobId, Reason};
use crate::occupancy::Gpus;
use crate::units::Time;
use std::collections::BTreeMap;

/// Where and how a job sits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its GPUs, in the order in which the allocation touches them.
    pub gpus: Gpus,
    /// Stopped in place: no progress, memory kept.
    pub paused: bool,
}

impl Placement {
    /// Running on these GPUs.
    pub fn on(gpus: impl IntoIterator<Item = GpuId>) -> Self {
        Self { gpus: gpus.into_iter().collect(), paused: false }
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
    /// What changes, by job.
    pub changes: BTreeMap<JobId, Change>,
    /// Why particular jobs wait.
    pub reasons: Vec<(JobId, Reason)>,
    /// Why every other job waits.
    pub reason_for_others: Option<Reason>,
    /// When to plan again even if nothing happens.
    pub wake: Option<Time>,
}
