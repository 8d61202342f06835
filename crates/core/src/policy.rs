//! The contract of a policy.

use crate::draft::Draft;
use crate::job::Job;

/// Decides for one partition who runs where. The engine keeps one instance per partition.
///
/// A policy may keep an index of the jobs that wait; the engine tells it of every change. It must
/// not assume that its plan was carried out: only `enqueue` and `dequeue` say so.
pub trait Policy: Send {
    /// This job waits from now on: it was submitted, stopped or interrupted.
    fn enqueue(&mut self, job: &Job);

    /// This job, as it was when it was enqueued, waits no longer: it was placed or withdrawn.
    fn dequeue(&mut self, job: &Job);

    /// Writes the plan for this instant into `draft`.
    fn plan(&mut self, draft: &mut Draft<'_>);
}
