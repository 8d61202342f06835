//! The contract of a policy.

use crate::draft::Draft;
use crate::job::Job;
use crate::units::Time;

/// Decides for one partition who runs where. The engine keeps one instance per partition.
///
/// A policy may keep an index of the jobs that wait; the engine tells it of every change. It must
/// not assume that its plan was carried out: only `enqueue` and `dequeue` say so.
pub trait Policy: Send {
    /// This job waits from now on: it was submitted, stopped or interrupted.
    fn enqueue(&mut self, job: &Job);

    /// This job, as it was when it was enqueued, waits no longer: it was placed or withdrawn.
    fn dequeue(&mut self, job: &Job);

    /// This job is over, finished or withdrawn: whoever keeps account of jobs may do so now.
    fn job_ended(&mut self, _job: &Job, _now: Time) {}

    /// Whether it is told about jobs of other partitions that are over.
    fn wants_jobs_ended_elsewhere(&self) -> bool {
        false
    }

    /// This job of another partition is over.
    fn job_ended_elsewhere(&mut self, _job: &Job, _now: Time) {}

    /// Writes the plan for this instant into `draft`.
    fn plan(&mut self, draft: &mut Draft<'_>);
}
