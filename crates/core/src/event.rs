//! What happened. Events are the only input of the engine, so a journal of them replays a run.

use crate::cluster::GpuId;
use crate::interference::Observation;
use crate::job::{JobDescription, JobId, JobSpec, Progress};
use crate::plan::Placement;
use crate::units::{Memory, Work};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job was handed in.
    Submitted(JobSpec),
    /// A job that was there before the engine began, after a restart of its driver. Ids are dense as with
    /// [`Event::Submitted`].
    Adopted {
        /// The job.
        spec: JobSpec,
        /// Where it sits already, whatever the plans of this engine would say; it waits with its state
        /// saved if it sits nowhere, or on GPUs that its partition does not have.
        placement: Option<Placement>,
        /// The work that it has done.
        done: Work,
    },
    /// More is known about a job than when it was submitted, or something else.
    Described {
        /// The job.
        job: JobId,
        /// All that may change.
        description: JobDescription,
    },
    /// A job reported how far it is and how fast it goes.
    Progress {
        /// The job.
        job: JobId,
        /// Its report.
        progress: Progress,
    },
    /// A placed job did all its work.
    Finished {
        /// The job.
        job: JobId,
    },
    /// A job was withdrawn, waiting or not.
    Cancelled {
        /// The job.
        job: JobId,
    },
    /// A placed job was torn from its GPUs and has to start again from its last checkpoint.
    Interrupted {
        /// The job.
        job: JobId,
        /// The work that survives.
        kept: Work,
    },
    /// A job showed how fast it runs beside another one.
    Observed(Observation),
    /// A GPU is lost. Its tenants are reported as interrupted before this.
    GpuDown {
        /// The GPU.
        gpu: GpuId,
    },
    /// A GPU takes no new tenants; those it has stay.
    GpuDrained {
        /// The GPU.
        gpu: GpuId,
    },
    /// Processes that are not ours take memory of a GPU.
    GpuReserved {
        /// The GPU.
        gpu: GpuId,
        /// How much they take now, whatever they took before; it counts as at most all there is.
        memory: Memory,
    },
    /// A GPU is back, or is no longer drained.
    GpuUp {
        /// The GPU.
        gpu: GpuId,
    },
}
