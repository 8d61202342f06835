//! What happened. Events are the only input of the engine, so a journal of them replays a run.

use crate::cluster::GpuId;
use crate::interference::Observation;
use crate::job::{JobId, JobSpec, Progress};
use crate::units::Work;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job was handed in.
    Submitted(JobSpec),
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
    /// A GPU is back.
    GpuUp {
        /// The GPU.
        gpu: GpuId,
    },
}
