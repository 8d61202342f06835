//! The contract of a scheduling policy.

use crate::draft::Draft;
use crate::job::Job;
use crate::units::Time;

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

    /// Whether [`Policy::job_ended_elsewhere`] is called.
    fn wants_jobs_ended_elsewhere(&self) -> bool {
        false
    }

    /// A job of another partition has finished or was cancelled.
    fn job_ended_elsewhere(&mut self, _job: &Job, _now: Time) {}

    /// Writes the plan for this instant into `draft`.
    fn plan(&mut self, draft: &mut Draft<'_>);
}
