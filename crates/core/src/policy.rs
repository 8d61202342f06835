//! The contract of a scheduling policy.

use crate::draft::Draft;
use crate::job::{Job, Reason};
use crate::shares::Shares;
use crate::units::Time;
use std::sync::Arc;

/// Decides which jobs of one partition run on which GPUs. The engine keeps one instance per partition.
///
/// A policy may keep an index of the waiting jobs; the engine reports every change of it. A policy must not
/// assume that its plan was carried out: only `enqueue` and `dequeue` say so.
pub trait Policy: Send {
    /// The job waits from now on: it was submitted, stopped or interrupted.
    fn enqueue(&mut self, job: &Job);

    /// The job, described as when it was enqueued, no longer waits: it was placed or cancelled.
    fn dequeue(&mut self, job: &Job);

    /// A job of this partition has finished or was cancelled.
    fn job_ended(&mut self, _job: &Job, _now: Time) {}

    /// Shares, limits or reservations changed. Only the gate listens: see [`Shares::gate`].
    fn shares_changed(&mut self, _shares: &Arc<Shares>) {}

    /// Why a pending job waits that is kept back from the plan; `None` if it takes part in it.
    fn reason(&self, _job: &Job) -> Option<Reason> {
        None
    }

    /// Writes the plan for this instant into `draft`.
    fn plan(&mut self, draft: &mut Draft<'_>);
}
