//! Predicted completion times: alone, in a pair, or after waiting. In milliseconds from now.

use super::pays;
use crate::kit::{HORIZON_MS, PairRates, partner, remaining_ms, restore_ms};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
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
pub(super) struct ArrivalForecast {
    /// When each pending job would start on GPUs of its own, by job.
    start_ms: Vec<(JobId, i64)>,
    /// The remaining times of pending jobs in order of rank, and when they would start.
    queue: Vec<(i64, i64)>,
    /// When GPUs fall free that no pending job takes, and how many, the earliest first.
    later: Vec<(i64, u32)>,
    /// What the queue loses with a GPU-millisecond that a pair withholds from it, in parts of `scale`.
    price: i64,
    scale: i64,
}

impl ArrivalForecast {
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
        let StartTimes { mut start_ms, later } = start_times(draft, pending, started);
        let remaining = |job: JobId| remaining_ms(draft.job(job), draft.now());
        let queue = start_ms.iter().map(|&(job, start)| (remaining(job), start)).collect();
        start_ms.sort_unstable();
        Self {
            queue,
            start_ms,
            later,
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
        // A job that the plan preempts has a state to restore too.
        let restores = job.must_restore || job.placement().is_some();
        let restore = if restores { restore_ms(job) } else { 0 };
        let sharing = self.sharing(draft, job, host, rates) + restore;
        let place = self.start_ms.binary_search_by_key(&job.id(), |&(job, _)| job);
        let start_ms = self.start_ms[place.expect("a job that joins was pending")].1;
        let waiting = start_ms + remaining_ms(job, draft.now());
        (sharing < waiting).then_some(waiting - sharing)
    }

    /// The completion time of `job` beside `host`, with what that delays the host and the queue.
    fn sharing(&self, draft: &Draft<'_>, job: &Job, host: &Job, rates: PairRates) -> i64 {
        let ends = pair_ends(draft, job, host, rates);
        let host_ms = remaining_ms(host, draft.now());
        let withheld = (ends.own.max(ends.host) - host_ms).max(0);
        let gpu_ms = i128::from(withheld) * i128::from(job.spec.gpus);
        let withheld = gpu_ms * i128::from(self.price) / i128::from(self.scale.max(1));
        let withheld = i64::try_from(withheld).unwrap_or(HORIZON_MS).min(HORIZON_MS);
        ends.own + (ends.host - host_ms) + withheld
    }

    /// Whether the sum of completion times falls if `guest`, which shares with `host`, waits instead and
    /// pays its restore.
    pub(super) fn takes_turns(
        &self,
        draft: &Draft<'_>,
        guest: &Job,
        host: &Job,
        rates: PairRates,
    ) -> bool {
        let own_ms = remaining_ms(guest, draft.now());
        let host_ms = remaining_ms(host, draft.now());
        let ahead = self.queue.partition_point(|&(remaining, _)| remaining <= own_ms);
        let start_ms = match self.queue.get(ahead) {
            Some(&(_, start)) => start,
            None => self.later_start_ms(guest.spec.gpus),
        };
        // With no job ahead of it the guest has the GPUs of its host next.
        let start_ms = if ahead == 0 { start_ms.min(host_ms) } else { start_ms };
        let waiting = start_ms.saturating_add(own_ms).saturating_add(restore_ms(guest));
        self.sharing(draft, guest, host, rates) > waiting
    }

    /// When `gpus` GPUs are free behind all pending jobs.
    fn later_start_ms(&self, gpus: u32) -> i64 {
        let mut free = 0_u32;
        let mut releases = self.later.iter();
        let found = releases.find(|&&(_, released)| {
            free = free.saturating_add(released);
            free >= gpus
        });
        found.map_or(HORIZON_MS, |&(end, _)| end)
    }
}

/// What happens if pending jobs start in order and no job is preempted.
struct StartTimes {
    /// When each pending job would start, in milliseconds from now.
    start_ms: Vec<(JobId, i64)>,
    /// When how many GPUs fall free behind all pending jobs, the earliest first.
    later: Vec<(i64, u32)>,
}

fn start_times(draft: &Draft<'_>, pending: &[JobId], started: &[JobId]) -> StartTimes {
    let mut releases = releases(draft, started);
    let (mut now, mut free) = (0, draft.free_count());
    let mut start_ms = Vec::with_capacity(pending.len());
    for job in pending.iter().map(|&job| draft.job(job)) {
        while free < job.spec.gpus {
            let Some(Reverse((end, gpus))) = releases.pop() else { break };
            now = end.max(now);
            free += gpus;
        }
        free = free.saturating_sub(job.spec.gpus);
        start_ms.push((job.id(), now));
        let end = (now + remaining_ms(job, draft.now())).min(HORIZON_MS);
        releases.push(Reverse((end, job.spec.gpus)));
    }
    let mut later: Vec<(i64, u32)> = releases.into_iter().map(|Reverse(release)| release).collect();
    later.push((now, free));
    later.sort_unstable();
    StartTimes { start_ms, later }
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
