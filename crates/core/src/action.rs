//! What is to be done, for a back end or the simulated world to carry out.

use crate::job::JobId;
use crate::plan::Placement;

/// One thing to do. In a step those that free GPUs come before those that need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Save the state, leave the GPUs, wait in the queue.
    Stop {
        /// The job.
        job: JobId,
    },
    /// Stop making progress, keep GPUs and memory.
    Pause {
        /// The job.
        job: JobId,
    },
    /// Save the state and go on at another place, or in the same place in another way.
    Move {
        /// The job.
        job: JobId,
        /// Its new place.
        placement: Placement,
    },
    /// Begin, or go on from the saved state.
    Start {
        /// The job.
        job: JobId,
        /// Its place.
        placement: Placement,
        /// It has run before, so its state must be restored first.
        restore: bool,
    },
    /// Make progress again after a pause.
    Resume {
        /// The job.
        job: JobId,
    },
}
