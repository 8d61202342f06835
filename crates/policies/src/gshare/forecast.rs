//! Predicted completion times: alone, in a pair, or after waiting. In milliseconds from now.

use super::pays;
use crate::kit::{HORIZON_MS, PairRates, partner, remaining_ms, restore_ms};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tandem_core::{Draft, Job, JobId, PPM_ONE};

/// Completion times of a pair.
struct PairEnds {
    own: i64,
    host: i64,
}

/// The completion times of two jobs that share GPUs until the first of them ends.
fn pair_ends(draft: &Draft<'_>, job: &Job, host: &Job, rates: PairRates) -> PairEnds {
    let (own, host) = (remaining_ms(job, draft.now()), remaining_ms(host, draft.now()));
    let (own_rate, host_rate) = (rates.own.ppm().0.max(1), rates.host.ppm().0.max(1));
    let one = i128::from(PPM_ONE);
    let shared = |remaining: i64, rate: u32| {
        let ms = i128::from(remaining) * one / i128::from(rate);
        i64::try_from(ms).unwrap_or(HORIZON_MS).min(HORIZON_MS)
    };
    let first = shared(own, own_rate).min(shared(host, host_rate));
    // The other one runs on alone.
    let end = |remaining: i64, rate: u32| {
        let done = i128::from(first) * i128::from(rate) / one;
        first + i64::try_from(i128::from(remaining) - done).unwrap_or(HORIZON_MS).max(0)
    };
    PairEnds { own: end(own, own_rate), host: end(host, host_rate) }
}

/// What sharing is compared with.
#[derive(Default)]
pub(super) struct Forecast {
    /// When each pending job would start on GPUs of its own.
    start_ms: BTreeMap<JobId, i64>,
    /// What the queue loses with a GPU-millisecond that a pair withholds from it, in parts of `scale`.
    price: i64,
    scale: i64,
}

impl Forecast {
    /// `pending` waits, `started` has been started by the plan so far. A GPU-second that is withheld
    /// delays each pending job by a second over the number of GPUs; `price_percent` scales that.
    pub(super) fn new(
        draft: &Draft<'_>,
        pending: &[JobId],
        started: &[JobId],
        price_percent: u64,
    ) -> Self {
        let waiting = i64::try_from(pending.len()).unwrap_or(i64::MAX);
        let percent = i64::try_from(price_percent).unwrap_or(i64::MAX);
        Self {
            start_ms: start_times(draft, pending, started),
            price: waiting.saturating_mul(percent),
            scale: i64::from(draft.up_count().max(1)) * 100,
        }
    }

    /// By how much the sum of completion times falls if `job` joins `host` instead of waiting; `None`
    /// if it does not fall.
    pub(super) fn gain(
        &self,
        draft: &Draft<'_>,
        job: &Job,
        host: &Job,
        rates: PairRates,
    ) -> Option<i64> {
        let ends = pair_ends(draft, job, host, rates);
        let own_ms = remaining_ms(job, draft.now());
        let host_ms = remaining_ms(host, draft.now());
        // A job that the plan preempts has a state to restore too.
        let restores = job.must_restore || job.placement().is_some();
        let restore = if restores { restore_ms(job) } else { 0 };
        let withheld = (ends.own.max(ends.host) - host_ms).max(0);
        let gpu_ms = i128::from(withheld) * i128::from(job.spec.gpus);
        let withheld = gpu_ms * i128::from(self.price) / i128::from(self.scale);
        let withheld = i64::try_from(withheld).unwrap_or(HORIZON_MS).min(HORIZON_MS);
        let sharing = ends.own + (ends.host - host_ms) + withheld + restore;
        let waiting = self.start_ms[&job.id()] + own_ms;
        (sharing < waiting).then_some(waiting - sharing)
    }
}

/// When each pending job would start if those before it start first and no job is preempted.
fn start_times(draft: &Draft<'_>, pending: &[JobId], started: &[JobId]) -> BTreeMap<JobId, i64> {
    let mut releases = releases(draft, started);
    let (mut now, mut free) = (0, draft.free_count());
    let mut start_ms = BTreeMap::new();
    for job in pending.iter().map(|&job| draft.job(job)) {
        while free < job.spec.gpus {
            let Some(Reverse((end, gpus))) = releases.pop() else { break };
            now = end.max(now);
            free += gpus;
        }
        free = free.saturating_sub(job.spec.gpus);
        start_ms.insert(job.id(), now);
        let end = (now + remaining_ms(job, draft.now())).min(HORIZON_MS);
        releases.push(Reverse((end, job.spec.gpus)));
    }
    start_ms
}

/// When running jobs release how many GPUs, the earliest first.
fn releases(draft: &Draft<'_>, started: &[JobId]) -> BinaryHeap<Reverse<(i64, u32)>> {
    // A job that was preempted and found other GPUs is among those that were started.
    let started: BTreeSet<JobId> = started.iter().copied().collect();
    let stays = |job: &&Job| draft.placement(job.id()).is_some() && !started.contains(&job.id());
    let running = draft.placed().filter(stays).chain(started.iter().map(|&job| draft.job(job)));
    let release = |job: &Job| {
        let end = match partner(draft, job.id()) {
            None => remaining_ms(job, draft.now()),
            // A pair releases its GPUs when the later one ends; it is entered once.
            Some(other) if job.id() < other => {
                let other = draft.job(other);
                let rates = PairRates::of(draft, other, job).filter(|&rates| pays(rates));
                rates.map_or(HORIZON_MS, |rates| {
                    let ends = pair_ends(draft, other, job, rates);
                    ends.own.max(ends.host)
                })
            }
            Some(_) => return None,
        };
        Some(Reverse((end, job.spec.gpus)))
    };
    running.filter_map(release).collect()
}
