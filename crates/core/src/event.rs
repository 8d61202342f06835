//! Events: the only input of the engine, so that a journal of them replays a run.

use crate::cluster::GpuId;
use crate::interference::{ClassTraits, Observation};
use crate::job::{ClassId, JobDescription, JobId, JobSpec, Progress};
use crate::plan::Placement;
use crate::shares::Shares;
use crate::units::{Memory, Work};
use std::sync::Arc;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job was submitted.
    Submitted(JobSpec),
    /// A job that existed before the engine started, after a restart of the driver. Ids are dense as with
    /// [`Event::Submitted`].
    Adopted {
        /// The job.
        spec: JobSpec,
        /// Its current placement, whatever this engine would plan. Without one, or on GPUs outside its
        /// partition, it waits with its state saved.
        placement: Option<Placement>,
        /// Its work so far.
        done: Work,
    },
    /// The description of a job changed.
    Described {
        /// The job.
        job: JobId,
        /// The new description.
        description: JobDescription,
    },
    /// A job reported its progress and rate.
    Progress {
        /// The job.
        job: JobId,
        /// The report.
        progress: Progress,
    },
    /// A placed job completed its work.
    Finished {
        /// The job.
        job: JobId,
    },
    /// A job was cancelled, waiting or placed.
    Cancelled {
        /// The job.
        job: JobId,
    },
    /// A placed job lost its GPUs and has to restart from its last checkpoint.
    Interrupted {
        /// The job.
        job: JobId,
        /// The work that the checkpoint holds.
        kept: Work,
    },
    /// A class of jobs appeared. Classes are numbered in the order in which they appear.
    ClassAdded {
        /// Its number, as profiles refer to it.
        class: ClassId,
        /// Its name.
        name: String,
    },
    /// What a class of jobs does alone has become known.
    ClassDescribed {
        /// Its number.
        class: ClassId,
        /// As far as it is known.
        traits: ClassTraits,
    },
    /// A job's rate beside co-located jobs was measured.
    Observed(Observation),
    /// Shares, limits or reservations changed.
    SharesChanged(Arc<Shares>),
    /// A GPU was lost. Its tenants are reported as interrupted before.
    GpuDown {
        /// The GPU.
        gpu: GpuId,
    },
    /// A GPU was drained: it keeps its tenants and takes no new ones.
    GpuDrained {
        /// The GPU.
        gpu: GpuId,
    },
    /// Processes outside the scheduler use memory of a GPU.
    GpuReserved {
        /// The GPU.
        gpu: GpuId,
        /// Their memory now, which replaces the previous amount; capped at the GPU's memory.
        memory: Memory,
    },
    /// A GPU is back or no longer drained.
    GpuUp {
        /// The GPU.
        gpu: GpuId,
    },
}
