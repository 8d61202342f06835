//! Least attained service with sharing: the job with the least GPU time so far runs first. A job that finds
//! no free GPUs shares those of a gang of its size if their rates add up to more than 1.3.

use crate::kit::{
    KeyedPolicy, PairRates, PairRule, Queue, Reviews, interval, keyed, preempt_and_share,
};
use crate::{Entry, PolicyParam};
use tandem_core::{Draft, Job, Ppm, Time};

const INTERVAL: PolicyParam = interval("interval_s", 300);
const RATES_MIN: Ppm = Ppm(1_300_000);

pub(crate) const ENTRY: Entry = Entry {
    name: "least-attained",
    summary: "least attained service, sharing where two rates add up to more than 1.3",
    params: &[INTERVAL],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        keyed(LeastAttained { reviews: Reviews::every(settings.whole(INTERVAL.name)) })
    },
};

struct LeastAttained {
    reviews: Reviews,
}

/// Attained GPU time in powers of two of seconds, so that jobs that have attained about the same do not
/// preempt each other at every review.
fn level(job: &Job, now: Time) -> u32 {
    let gpu_seconds = job.attained(now).0 / 1_000_000;
    gpu_seconds.checked_ilog2().map_or(0, |power| power + 1)
}

impl KeyedPolicy for LeastAttained {
    type Key = u32;

    fn key(&self, job: &Job, now: Time) -> u32 {
        level(job, now)
    }

    fn plan(&mut self, queue: &mut Queue<u32>, draft: &mut Draft<'_>) {
        if queue.is_empty() {
            return;
        }
        let is_review = self.reviews.begin(draft.now());
        preempt_and_share(queue, draft, is_review, &mut GoodPairs);
        draft.wake_at(self.reviews.after(draft.now()));
    }
}

/// Pairs whose rates add up to enough.
struct GoodPairs;

impl PairRule for GoodPairs {
    type Rank = u32;

    fn rank(&self, draft: &Draft<'_>, job: &Job) -> u32 {
        level(job, draft.now())
    }

    /// The matching prefers the pairs with the highest rates.
    fn gain(&self, _: &Draft<'_>, _: &Job, _: &Job, rates: PairRates) -> Option<i64> {
        self.keeps(rates).then(|| i64::from(rates.sum().0 - RATES_MIN.0))
    }

    fn keeps(&self, rates: PairRates) -> bool {
        rates.sum() > RATES_MIN
    }
}
