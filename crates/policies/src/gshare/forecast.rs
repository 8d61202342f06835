//! When jobs would end: alone, in a pair, or after waiting their turn. In milliseconds from now.

use super::partner;
use crate::remaining::{HORIZON_MS, left_ms, restore_ms};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use tandem_core::{Draft, Job, JobId, PPM_ONE};

/// Two jobs whose rates do not add up to more than this gain nothing worth the trouble.
const RATES_MIN: u32 = 1_050_000;
/// When each of two jobs ends.
pub(super) struct Ends {
    pub(super) guest: i64,
    pub(super) host: i64,
}

/// When two jobs end that share GPUs until the first of them does; `None` where sharing is not worth
/// it or they are known not to fit.
pub(super) fn together(draft: &Draft<'_>, guest: &Job, host: &Job) -> Option<Ends> {
    let gpu = *draft.placement(host.id())?.gpus.first()?;
    let kind = draft.cluster().gpu(gpu).kind;
    let (of_guest, of_host) = draft.pair_rates(guest, host, kind)?;
    let (of_guest, of_host) = (of_guest.0.max(1), of_host.0.max(1));
    if of_guest.saturating_add(of_host) <= RATES_MIN {
        return None;
    }
    let (guest, host) = (left_ms(guest, draft.now()), left_ms(host, draft.now()));
    let one = i64::from(PPM_ONE);
    let stretched = |left: i64, rate: u32| {
        let ms = i128::from(left) * i128::from(one) / i128::from(rate);
        i64::try_from(ms).unwrap_or(HORIZON_MS).min(HORIZON_MS)
    };
    let first = stretched(guest, of_guest).min(stretched(host, of_host));
    // Whoever outlives the other runs on alone.
    let end = |left: i64, rate: u32| {
        let done = i128::from(first) * i128::from(rate) / i128::from(one);
        first + i64::try_from(i128::from(left) - done).unwrap_or(HORIZON_MS).max(0)
    };
    Some(Ends { guest: end(guest, of_guest), host: end(host, of_host) })
}

/// What sharing is compared with.
pub(super) struct Forecast {
    /// When each job that waits would get GPUs of its own.
    turn_ms: BTreeMap<JobId, i64>,
    /// What a GPU-millisecond costs the queue that somebody withholds from it, in parts of `scale`.
    price: i64,
    scale: i64,
}

impl Forecast {
    /// `queue` waits, `started` does so no longer under the plan so far. A GPU-second withheld delays
    /// each job of the queue by a second over the number of GPUs; `price_percent` scales that.
    pub(super) fn new(
        draft: &Draft<'_>,
        queue: &[JobId],
        started: &[JobId],
        price_percent: u64,
    ) -> Self {
        let waiting = i64::try_from(queue.len()).unwrap_or(i64::MAX);
        let percent = i64::try_from(price_percent).unwrap_or(i64::MAX);
        Self {
            turn_ms: turns(draft, queue, started),
            price: waiting.saturating_mul(percent),
            scale: i64::from(draft.up_count().max(1)) * 100,
        }
    }

    /// By how much the sum of completion times falls if `guest` joins `host` instead of waiting; `None`
    /// if it does not fall.
    pub(super) fn gain(&self, draft: &Draft<'_>, guest: JobId, host: JobId) -> Option<i64> {
        let (guest, host) = (draft.job(guest), draft.job(host));
        if !fits(draft, guest, host) {
            return None;
        }
        let ends = together(draft, guest, host)?;
        let (left, host_left) = (left_ms(guest, draft.now()), left_ms(host, draft.now()));
        // A job that is about to leave its GPUs has a state to restore too.
        let restores = guest.must_restore || guest.placement().is_some();
        let restore = if restores { restore_ms(guest) } else { 0 };
        let withheld = (ends.guest.max(ends.host) - host_left).max(0);
        let gpu_ms = i128::from(withheld) * i128::from(guest.spec.gpus);
        let withheld = gpu_ms * i128::from(self.price) / i128::from(self.scale);
        let withheld = i64::try_from(withheld).unwrap_or(HORIZON_MS).min(HORIZON_MS);
        let sharing = ends.guest + (ends.host - host_left) + withheld + restore;
        let waiting = self.turn_ms[&guest.id()] + left;
        (sharing < waiting).then_some(waiting - sharing)
    }
}

/// Whether the memory of every GPU of `host` holds `guest` too.
fn fits(draft: &Draft<'_>, guest: &Job, host: &Job) -> bool {
    let Some(placement) = draft.placement(host.id()) else { return false };
    let wanted = guest.spec.profile.memory + draft.rules().context;
    placement.gpus.iter().all(|&gpu| {
        let used = draft.occupancy().memory_used(gpu);
        draft.tenants(gpu).len() == 1 && used + wanted <= draft.cluster().gpu(gpu).memory
    })
}

/// When each job of `queue` would find enough GPUs, if all before it get theirs first and nobody is
/// preempted.
fn turns(draft: &Draft<'_>, queue: &[JobId], started: &[JobId]) -> BTreeMap<JobId, i64> {
    let mut releases = BinaryHeap::new();
    // A job that has left and found another place is among those that started.
    let started: BTreeSet<JobId> = started.iter().copied().collect();
    let stays = |job: &&Job| draft.placement(job.id()).is_some() && !started.contains(&job.id());
    for job in draft.placed().filter(stays).chain(started.iter().map(|&job| draft.job(job))) {
        let end = match partner(draft, job.id()) {
            None => left_ms(job, draft.now()),
            // The pair releases its GPUs when the later one ends; it is entered once.
            Some(other) if job.id() < other => {
                let other = draft.job(other);
                together(draft, other, job).map_or(HORIZON_MS, |ends| ends.guest.max(ends.host))
            }
            Some(_) => continue,
        };
        releases.push(Reverse((end, job.spec.gpus)));
    }
    let (mut now, mut free) = (0, draft.free_count());
    let mut turn_ms = BTreeMap::new();
    for job in queue.iter().map(|&job| draft.job(job)) {
        while free < job.spec.gpus {
            let Some(Reverse((end, gpus))) = releases.pop() else { break };
            now = end.max(now);
            free += gpus;
        }
        free = free.saturating_sub(job.spec.gpus);
        turn_ms.insert(job.id(), now);
        releases.push(Reverse(((now + left_ms(job, draft.now())).min(HORIZON_MS), job.spec.gpus)));
    }
    turn_ms
}
