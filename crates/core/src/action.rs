//! Actions: what a back end or the simulated world has to carry out.

use crate::job::JobId;
use crate::plan::Placement;

/// One action. Within a step, actions that free GPUs come before actions that need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Save the state, release the GPUs and return to the queue.
    Stop {
        /// The job.
        job: JobId,
    },
    /// Stop making progress; keep GPUs and memory.
    Pause {
        /// The job.
        job: JobId,
    },
    /// Save the state and continue on other GPUs, or on the same ones with other sub-batches, or another
    /// budget where that needs a restart.
    Move {
        /// The job.
        job: JobId,
        /// Its new placement.
        placement: Placement,
    },
    /// Continue where it is under another budget.
    Budget {
        /// The job.
        job: JobId,
        /// Its placement with the new budget.
        placement: Placement,
    },
    /// Start, or continue from the saved state.
    Start {
        /// The job.
        job: JobId,
        /// Its placement.
        placement: Placement,
        /// It has run before, so its state must be restored first.
        restore: bool,
    },
    /// Continue after a pause.
    Resume {
        /// The job.
        job: JobId,
    },
}
