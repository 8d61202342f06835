//! Tiresias (NSDI'19): discretised two-dimensional attained service. Jobs start in the queue of the highest
//! priority and are demoted to the next one once they have attained a threshold of GPU-time.
//! Inside a queue jobs run in order of submission, or with `order=start` those first that run already, as in
//! the published simulators: then no job is preempted for another of its queue. Needs no estimates.

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
const SECOND: PolicyParam = PolicyParam {
    name: "second_gpu_s",
    default: Value::Whole(0),
    help: "GPU-seconds of a second demotion, to a third queue; 0: none",
};
const ORDER: PolicyParam = PolicyParam {
    name: "order",
    default: Value::Choice { word: "submission", of: &["submission", "start"] },
    help: "inside a queue: by submission, or running jobs first",
};
const INTERVAL: PolicyParam = interval("interval_s", 60);

pub(crate) const ENTRY: Entry = Entry {
    name: "tiresias",
    summary: "least attained service in two queues; preempts at intervals, needs no estimates",
    params: &[THRESHOLD, SECOND, ORDER, INTERVAL],
    tuning: &[],
    tenants_max: 1,
    build: |settings| {
        let second = Some(settings.whole(SECOND.name)).filter(|&seconds| seconds > 0);
        let thresholds = [Some(settings.whole(THRESHOLD.name)), second];
        keyed(Tiresias {
            thresholds: thresholds.into_iter().flatten().map(Span::from_secs).collect(),
            running_first: settings.choice(ORDER.name) == "start",
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
        })
    },
};

struct Tiresias {
    /// Of one queue to the next.
    thresholds: Vec<Span>,
    running_first: bool,
    reviews: Reviews,
}

impl Tiresias {
    fn demotions(&self, job: &Job, now: Time) -> usize {
        let attained = job.attained(now);
        self.thresholds.iter().filter(|&&limit| attained >= limit).count()
    }

    /// The first review after which one of `jobs` that the plan leaves on GPUs is demoted.
    fn next_demotion(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Option<Time> {
        let now = draft.now();
        let demotion = |&job: &JobId| {
            draft.placement(job)?;
            let job = draft.job(job);
            let attained = job.attained(now).0;
            let missing = self.thresholds.iter().filter_map(|limit| limit.0.checked_sub(attained));
            let missing = missing.filter(|&missing| missing > 0).min()?;
            Some(now + Span(missing.div_ceil(u64::from(job.spec.gpus))))
        };
        let first = jobs.iter().filter_map(demotion).min()?;
        Some(self.reviews.after(Time(first.0 - 1)))
    }
}

impl KeyedPolicy for Tiresias {
    /// How often a pending job was demoted, and whether it stands behind the running jobs of its queue.
    type Key = (usize, bool);

    fn key(&self, job: &Job, now: Time) -> Self::Key {
        (self.demotions(job, now), self.running_first)
    }

    fn plan(&mut self, queue: &mut Queue<Self::Key>, draft: &mut Draft<'_>) {
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
        let ranked = rank_all(queue, draft, |job, now| (self.demotions(job, now), false));
        run_highest(draft, &ranked);
        draft.explain_others(Reason::Outranked);
        // A review changes nothing more until a job is demoted or another event happens.
        if let Some(review) = self.next_demotion(draft, &ranked) {
            draft.wake_at(review);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::simulate;

    #[test]
    fn a_job_is_demoted_by_its_gpu_time_and_waits_for_those_above_it() {
        // Both GPUs of a attain 100 GPU-seconds after 50 s; the next review is at 60 s.
        let rows = "a,0,2,200,,\nb,10,2,30,,\n";
        let times = simulate("tiresias:threshold_gpu_s=100", "1x2", rows);
        assert_eq!(times[1], (60.0, 90.0));
    }

    #[test]
    fn a_second_demotion_lets_jobs_of_the_second_queue_pass() {
        // a is demoted at the review at 120 s, b at 240 s. In two queues the older a then runs to its end:
        // 240 + 40 of restore + 880. In three it is demoted again at 360 s, with 200 s done, and b at 480 s:
        // 480 + 40 + 800.
        let rows = "a,0,1,1000,,\nb,10,1,1000,,\n";
        let two = simulate("tiresias:threshold_gpu_s=100", "1x1", rows);
        assert_eq!(two, [(0.0, 1160.0), (120.0, 2080.0)]);
        let three = simulate("tiresias:threshold_gpu_s=100,second_gpu_s=200", "1x1", rows);
        assert_eq!(three, [(0.0, 1320.0), (120.0, 2160.0)]);
    }

    #[test]
    fn jobs_that_run_are_not_preempted_for_older_ones_of_their_queue() {
        // a is demoted at 120 s and b takes its place; when b is demoted, at 240 s, both are in the second queue.
        let rows = "a,0,1,1000,,\nb,10,1,1000,,\n";
        let by_submission = simulate("tiresias:threshold_gpu_s=100", "1x1", rows);
        let by_start = simulate("tiresias:threshold_gpu_s=100,order=start", "1x1", rows);
        // By submission a comes back and ends first; otherwise b goes on.
        assert!(by_submission[0].1 < by_submission[1].1, "{by_submission:?}");
        assert!(by_start[1].1 < by_start[0].1, "{by_start:?}");
        assert_eq!(by_start[1], (120.0, 1120.0));
    }
}
