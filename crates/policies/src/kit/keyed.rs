//! A policy states a key, the kit keeps the queue.

use super::queue::Queue;
use tandem_core::{Draft, Job, Policy, Time};

/// A policy that serves pending jobs by a key.
///
/// The kit inserts a job into the queue when it starts to wait and removes it when it is placed or
/// cancelled. The policy only says where a job ranks and what to do with the queue.
pub trait KeyedPolicy: Send {
    /// What jobs are ordered by.
    type Key: Copy + Ord + Send;

    /// The key of a job: the smallest is served first, and ties go to the job submitted first.
    ///
    /// The key of a pending job must not change while it waits. Remaining time and attained service
    /// do not, so that any `now` gives the same key; the kit passes zero.
    fn key(&self, job: &Job, now: Time) -> Self::Key;

    /// Writes the plan for this instant into `draft`. `queue` has every pending job.
    fn plan(&mut self, queue: &mut Queue<Self::Key>, draft: &mut Draft<'_>);

    /// See [`Policy::job_ended`].
    fn job_ended(&mut self, _job: &Job, _now: Time) {}
}

/// Makes a [`Policy`] of a [`KeyedPolicy`], with an empty queue.
pub fn keyed<P: KeyedPolicy + 'static>(policy: P) -> Box<dyn Policy> {
    Box::new(Keyed { policy, queue: Queue::default() })
}

struct Keyed<P: KeyedPolicy> {
    policy: P,
    queue: Queue<P::Key>,
}

impl<P: KeyedPolicy> Policy for Keyed<P> {
    fn enqueue(&mut self, job: &Job) {
        self.queue.insert(self.policy.key(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(self.policy.key(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn job_ended(&mut self, job: &Job, now: Time) {
        self.policy.job_ended(job, now);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        self.policy.plan(&mut self.queue, draft);
    }
}
