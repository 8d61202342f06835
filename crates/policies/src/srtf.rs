//! Shortest remaining time first, and its variant that multiplies time by GPUs (shortest remaining
//! service first). Both preempt at every event; the preempted job pays the restore.

use crate::Entry;
use crate::kit::{KeyedPolicy, Queue, keyed, rank_all, run_highest};
use tandem_core::{Draft, Job, Reason, Time, Work};

pub(crate) const SRTF: Entry = Entry {
    name: "srtf",
    summary: "shortest remaining time first; preempts at every event",
    params: &[],
    tuning: &[],
    tenants_max: 1,
    build: |_| keyed(Srtf { key: Job::remaining }),
};

pub(crate) const SRSF: Entry = Entry {
    name: "srsf",
    summary: "shortest remaining time x GPUs first; preempts at every event",
    params: &[],
    tuning: &[],
    tenants_max: 1,
    build: |_| {
        let service = |job: &Job, now| Work(job.remaining(now).0 * u128::from(job.spec.gpus));
        keyed(Srtf { key: service })
    },
};

struct Srtf {
    key: fn(&Job, Time) -> Work,
}

impl KeyedPolicy for Srtf {
    type Key = Work;

    fn key(&self, job: &Job, now: Time) -> Work {
        (self.key)(job, now)
    }

    fn plan(&mut self, queue: &mut Queue<Work>, draft: &mut Draft<'_>) {
        if queue.is_empty() {
            return;
        }
        let ranked = rank_all(queue, draft, self.key);
        run_highest(draft, &ranked);
        draft.explain_others(Reason::Outranked);
    }
}
