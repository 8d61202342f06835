//! Tiresias (NSDI'19): discretised two-dimensional attained service. Jobs start in a high queue and
//! sink to a low one once they have attained a threshold of GPU-time; inside a queue the first
//! submitted goes first. Needs no estimates.

use crate::queue::Queue;
use crate::ranked::run_highest;
use crate::registry::Entry;
use crate::reviews::{self, Reviews};
use crate::spec::{Param, Value};
use tandem_core::{Draft, Job, JobId, Policy, Span, Time};

const THRESHOLD: Param = Param {
    name: "threshold_gpu_s",
    default: Value::Whole(18_000),
    help: "GPU-seconds after which a job sinks to the low queue",
};
const INTERVAL: Param = reviews::interval("interval_s", 60);

pub(crate) const ENTRY: Entry = Entry {
    name: "tiresias",
    summary: "least attained service in two queues; preempts at intervals, needs no estimates",
    params: &[THRESHOLD, INTERVAL],
    tenants_max: 1,
    build: |settings| {
        Box::new(Tiresias {
            threshold: Span::from_secs(settings.whole(THRESHOLD.name)),
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
            queue: Queue::default(),
        })
    },
};

struct Tiresias {
    threshold: Span,
    reviews: Reviews,
    /// Keyed by whether the job has sunk.
    queue: Queue<bool>,
}

impl Tiresias {
    fn has_sunk(&self, job: &Job, now: Time) -> bool {
        job.attained(now) >= self.threshold
    }

    /// The review at which the next of `jobs` has sunk, of those that the plan leaves on GPUs.
    fn next_sinking(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Option<Time> {
        let now = draft.now();
        let sinking = |&job: &JobId| {
            draft.placement(job)?;
            let job = draft.job(job);
            let left =
                self.threshold.0.checked_sub(job.attained(now).0).filter(|&left| left > 0)?;
            Some(now + Span(left.div_ceil(u64::from(job.spec.gpus))))
        };
        let sunk = jobs.iter().filter_map(sinking).min()?;
        Some(self.reviews.after(Time(sunk.0 - 1)))
    }
}

impl Policy for Tiresias {
    fn enqueue(&mut self, job: &Job) {
        // Attained service stands still while a job waits, so any instant will do.
        self.queue.insert(self.has_sunk(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(self.has_sunk(job, Time(0)), job.id(), job.spec.gpus);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        if self.queue.is_empty() {
            return;
        }
        let now = draft.now();
        if !self.reviews.is_at(now) {
            // Between reviews arrivals and completions only fill what is free.
            self.queue.place_in_order(draft, true);
            draft.wake_at(self.reviews.after(now));
            return;
        }
        let mut ranked: Vec<(bool, JobId)> = self.queue.iter().collect();
        ranked.extend(draft.placed().map(|job| (self.has_sunk(job, now), job.id())));
        ranked.sort_unstable();
        let ranked: Vec<JobId> = ranked.into_iter().map(|(_, job)| job).collect();
        run_highest(draft, &ranked);
        // A review changes nothing more until a job sinks or something else happens.
        if let Some(review) = self.next_sinking(draft, &ranked) {
            draft.wake_at(review);
        }
    }
}
