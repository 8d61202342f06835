//! Tiresias (NSDI'19): discretised two-dimensional attained service. Jobs start in the high-priority
//! queue and are demoted to the low-priority one once they have attained a threshold of GPU-time.
//! Inside a queue jobs run in order of submission. Needs no estimates.

use crate::Entry;
use crate::kit::{
    KeyedPolicy, Queue, Reviews, interval, keyed, place_in_order, rank_all, run_highest,
};
use crate::spec::{PolicyParam, Value};
use tandem_core::{Draft, Job, JobId, Reason, Span, Time};

const THRESHOLD: PolicyParam = PolicyParam {
    name: "threshold_gpu_s",
    default: Value::Whole(18_000),
    help: "GPU-seconds after which a job is demoted to the low-priority queue",
};
const INTERVAL: PolicyParam = interval("interval_s", 60);

pub(crate) const ENTRY: Entry = Entry {
    name: "tiresias",
    summary: "least attained service in two queues; preempts at intervals, needs no estimates",
    params: &[THRESHOLD, INTERVAL],
    tuning: &[],
    tenants_max: 1,
    build: |settings| {
        keyed(Tiresias {
            threshold: Span::from_secs(settings.whole(THRESHOLD.name)),
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
        })
    },
};

struct Tiresias {
    threshold: Span,
    reviews: Reviews,
}

impl Tiresias {
    fn is_demoted(&self, job: &Job, now: Time) -> bool {
        job.attained(now) >= self.threshold
    }

    /// The first review after which one of `jobs` that the plan leaves on GPUs is demoted.
    fn next_demotion(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Option<Time> {
        let now = draft.now();
        let demotion = |&job: &JobId| {
            draft.placement(job)?;
            let job = draft.job(job);
            let missing =
                self.threshold.0.checked_sub(job.attained(now).0).filter(|&missing| missing > 0)?;
            Some(now + Span(missing.div_ceil(u64::from(job.spec.gpus))))
        };
        let first = jobs.iter().filter_map(demotion).min()?;
        Some(self.reviews.after(Time(first.0 - 1)))
    }
}

impl KeyedPolicy for Tiresias {
    /// Whether the job is demoted.
    type Key = bool;

    fn key(&self, job: &Job, now: Time) -> bool {
        self.is_demoted(job, now)
    }

    fn plan(&mut self, queue: &mut Queue<bool>, draft: &mut Draft<'_>) {
        if queue.is_empty() {
            return;
        }
        let now = draft.now();
        if !self.reviews.is_at(now) {
            // Between reviews pending jobs only take free GPUs.
            place_in_order(queue, draft, true);
            draft.wake_at(self.reviews.after(now));
            return;
        }
        let ranked = rank_all(queue, draft, |job, now| self.is_demoted(job, now));
        run_highest(draft, &ranked);
        draft.explain_others(Reason::Outranked);
        // A review changes nothing more until a job is demoted or another event happens.
        if let Some(review) = self.next_demotion(draft, &ranked) {
            draft.wake_at(review);
        }
    }
}
