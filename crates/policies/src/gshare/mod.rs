//! G-Share (Lin et al., 2026): time slices decide which jobs run, a minimum-weight matching which share.
//!
//! At the end of a slice all jobs are ranked by remaining time, with jobs that have waited too long
//! first. Jobs are admitted in order of rank up to the number of GPUs, and allocations without an
//! admitted tenant are preempted where an admitted job needs them. Between slices pending jobs only take
//! free GPUs. The jobs that still wait may share an allocation of their gang size; the matching minimises
//! the sum of predicted completion times. Pairs that stand are reviewed too, whether or not a job waits:
//! those that lose take turns, and the others are matched anew.

mod forecast;
#[cfg(test)]
mod tests;

use crate::Entry;
use crate::kit::{
    ACCUMULATE, KeyedPolicy, PairRates, PairRule, Queue, Reviews, interval, keyed,
    preempt_and_share,
};
use crate::spec::{PolicyParam, Value};
use forecast::ArrivalForecast;
use tandem_core::{Draft, Job, JobId, Ppm, SchedulingState, Span, Time, Work};

const SLICE: PolicyParam = interval("slice_s", 600);
const AGE: PolicyParam = PolicyParam {
    name: "age_h",
    default: Value::Whole(24),
    help: "hours of waiting after which a job goes to the front",
};
const PRICE: PolicyParam = PolicyParam {
    name: "price_percent",
    default: Value::Whole(5),
    help: "price of GPU time that a pair withholds from the queue, in percent of the mean delay",
};
const SHARE: PolicyParam = PolicyParam {
    name: "share",
    default: Value::Flag(true),
    help: "false: slices without sharing",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "gshare",
    summary: "least remaining time in slices, pairs by minimum-weight matching",
    params: &[SLICE, AGE, PRICE, SHARE, ACCUMULATE],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        keyed(GShare {
            slices: Reviews::every(settings.whole(SLICE.name)),
            pairs: Pairs {
                age: Span::from_secs(settings.whole(AGE.name).saturating_mul(3600)),
                price_percent: settings.whole(PRICE.name).min(1_000_000),
                shares: settings.flag(SHARE.name),
                accumulates: settings.flag(ACCUMULATE.name),
                forecast: ArrivalForecast::default(),
            },
        })
    },
};

struct GShare {
    slices: Reviews,
    pairs: Pairs,
}

impl KeyedPolicy for GShare {
    type Key = Work;

    fn key(&self, job: &Job, now: Time) -> Work {
        job.remaining(now)
    }

    fn plan(&mut self, queue: &mut Queue<Work>, draft: &mut Draft<'_>) {
        // Pairs are reviewed even if no job waits.
        if queue.is_empty() && draft.occupancy().none_shared() {
            return;
        }
        let is_review = self.slices.begin(draft.now());
        preempt_and_share(queue, draft, is_review, &mut self.pairs);
        draft.wake_at(self.slices.after(draft.now()));
    }
}

/// The ranks of jobs, and which of them share.
struct Pairs {
    age: Span,
    price_percent: u64,
    shares: bool,
    accumulates: bool,
    /// As of this round of offers.
    forecast: ArrivalForecast,
}

/// A pair must have rates that add up to more than this.
const RATES_MIN: Ppm = Ppm(1_050_000);

fn pays(rates: PairRates) -> bool {
    rates.sum() > RATES_MIN
}

/// Jobs that have waited too long come first, the longest wait first; then the least remaining time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Aged { since: Time },
    Remaining(Work),
}

impl PairRule for Pairs {
    type Rank = Rank;

    fn rank(&self, draft: &Draft<'_>, job: &Job) -> Rank {
        match job.state {
            SchedulingState::Waiting { since } if draft.now().since(since) >= self.age => {
                Rank::Aged { since }
            }
            _ => Rank::Remaining(job.remaining(draft.now())),
        }
    }

    fn gain(&self, draft: &Draft<'_>, job: &Job, host: &Job, rates: PairRates) -> Option<i64> {
        (self.shares && pays(rates)).then(|| self.forecast.gain(draft, job, host, rates))?
    }

    fn accumulates(&self) -> bool {
        self.accumulates
    }

    fn keeps(&self, rates: PairRates) -> bool {
        pays(rates)
    }

    fn takes_turns(&self, draft: &Draft<'_>, guest: &Job, host: &Job, rates: PairRates) -> bool {
        self.forecast.takes_turns(draft, guest, host, rates)
    }

    fn prepare(&mut self, draft: &Draft<'_>, pending: &[JobId], started: &[JobId]) {
        if self.shares {
            self.forecast = ArrivalForecast::new(draft, pending, started, self.price_percent);
        }
    }
}
