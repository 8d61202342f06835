//! Shortest remaining time first, and its variant that weighs time with GPUs (shortest remaining
//! service first). Preemptive at every event; who is preempted pays the restore.

use crate::queue::Queue;
use crate::ranked::run_highest;
use crate::registry::Entry;
use tandem_core::{Draft, Job, JobId, Policy, Time, Work};

pub(crate) const SRTF: Entry = Entry {
    name: "srtf",
    summary: "shortest remaining time first; preempts at every event",
    params: &[],
    tenants_max: 1,
    build: |_| Box::new(Srtf { rank: Job::remaining, queue: Queue::default() }),
};

pub(crate) const SRSF: Entry = Entry {
    name: "srsf",
    summary: "shortest remaining time x GPUs first; preempts at every event",
    params: &[],
    tenants_max: 1,
    build: |_| {
        let service = |job: &Job, now| Work(job.remaining(now).0 * u128::from(job.spec.gpus));
        Box::new(Srtf { rank: service, queue: Queue::default() })
    },
};

struct Srtf {
    /// Smaller goes first. It stands still while a job waits.
    rank: fn(&Job, Time) -> Work,
    queue: Queue<Work>,
}

impl Policy for Srtf {
    fn enqueue(&mut self, job: &Job) {
        self.queue.insert((self.rank)(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove((self.rank)(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        if self.queue.is_empty() {
            return;
        }
        let now = draft.now();
        let mut ranked: Vec<(Work, JobId)> = self.queue.iter().collect();
        ranked.extend(draft.placed().map(|job| ((self.rank)(job, now), job.id())));
        ranked.sort_unstable();
        let ranked: Vec<JobId> = ranked.into_iter().map(|(_, job)| job).collect();
        run_highest(draft, &ranked);
    }
}
