//! When jobs that share stop doing so: where GPUs fall free, and where sharing turns out to be a loss.

use super::company::Company;
use super::rates::{neighbours, rate};
use super::worth::{Ledger, is_settled};
use crate::remaining::{left_ms, restore_ms};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tandem_core::{Draft, GpuId, JobId, PPM_ONE};

const ONE: i64 = PPM_ONE as i64;

/// Milliseconds that a job and its neighbours save if it moves to GPUs of its own, until the first of
/// them ends and less what restoring it costs. `present` gives their rates, `without` those of
/// neighbours if it were not there.
fn saving(
    draft: &Draft<'_>,
    ledger: &Ledger,
    job: JobId,
    others: impl Iterator<Item = JobId>,
    present: impl Fn(JobId) -> i64,
    without: impl Fn(JobId) -> i64,
) -> i64 {
    let own = present(job);
    let until = |job: JobId, rate: i64| {
        let left = i128::from(left_ms(draft.job(job), draft.now()));
        i64::try_from(left * i128::from(ONE) / i128::from(rate.max(1))).unwrap_or(i64::MAX)
    };
    let mut first_end_ms = until(job, own);
    let weight = |job: JobId| ledger.of(job).weight;
    let mut faster = i128::from(ONE - own) * i128::from(weight(job));
    for other in others {
        let now = present(other);
        first_end_ms = first_end_ms.min(until(other, now));
        // Whoever it does not affect gains nothing; to find out how much takes long.
        if now != ONE {
            faster += i128::from(without(other) - now) * i128::from(weight(other));
        }
    }
    let saved = faster * i128::from(first_end_ms) / i128::from(ONE);
    let cost = i128::from(restore_ms(draft.job(job))) * i128::from(weight(job));
    i64::try_from((saved - cost) / i128::from(ONE)).unwrap_or(i64::MAX)
}

/// The jobs that share under the plan so far, in order of submission.
fn sharing(draft: &Draft<'_>) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = Vec::new();
    for gpu in shared_gpus(draft) {
        jobs.extend(draft.tenants(gpu));
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// The jobs that share under the plan so far, those that would save most by leaving first.
pub(super) fn sharing_by_saving(draft: &Draft<'_>, ledger: &Ledger) -> Vec<JobId> {
    let jobs = sharing(draft);
    let company = Company::of(draft, &jobs);
    let saving = |job: JobId| {
        let without = |other: JobId| company.rate_without(draft, other, job);
        let others = company.neighbours(job);
        saving(draft, ledger, job, others, |job| company.rate(job), without)
    };
    let left = |job: JobId| ledger.of(job).left_ms;
    // Of two that save the same the longer one moves: its restore weighs less.
    let key = |&job: &JobId| (Reverse((saving(job), left(job))), job);
    let mut order = jobs;
    order.sort_by_cached_key(key);
    order
}

/// Moves those of `sharing` to free GPUs who are better off there; `false` if nobody is.
pub(super) fn part_to_free(draft: &mut Draft<'_>, ledger: &Ledger, sharing: &[JobId]) -> bool {
    let mut changed = false;
    // Who leaves changes what those who stay together would save.
    while draft.free_count() > 0 && part_once(draft, ledger, sharing) {
        changed = true;
    }
    changed
}

fn part_once(draft: &mut Draft<'_>, ledger: &Ledger, sharing: &[JobId]) -> bool {
    let mut changed = false;
    // What is free only shrinks here, so a gang size that found no room finds none later.
    let mut no_room: Vec<u32> = Vec::new();
    for &job in sharing {
        if draft.free_count() == 0 {
            break;
        }
        let Some(gpus) = draft.find(job).map(|job| job.spec.gpus) else { continue };
        if no_room.contains(&gpus) || draft.placement(job).is_none() {
            continue;
        }
        if !draft.has_room(job) {
            no_room.extend(draft.fits_every_gpu(job).then_some(gpus));
            continue;
        }
        let others = neighbours(draft, job);
        if others.is_empty() || !is_settled(draft.job(job), draft.now()) {
            continue;
        }
        let present = |job: JobId| rate(draft, job, None);
        let without = |other: JobId| rate(draft, other, Some(job));
        if saving(draft, ledger, job, others.into_iter(), present, without) > 0 {
            changed |= draft.place_exclusive(job);
        }
    }
    changed
}

/// Sends jobs back to the queue that cost their neighbours more than they gain themselves, or that
/// someone does not put up with: what is believed about pairs changes as they are observed.
pub(super) fn part_losers(draft: &mut Draft<'_>, ledger: &Ledger) -> bool {
    let mut changed = false;
    let jobs = sharing(draft);
    let company = Company::of(draft, &jobs);
    // Neighbours of those that left: what the company says of them is no longer so.
    let mut deserted: BTreeSet<JobId> = BTreeSet::new();
    // The latest first: guests rather than hosts.
    for job in jobs.into_iter().rev() {
        let others = match deserted.contains(&job) {
            true => neighbours(draft, job),
            false => company.neighbours(job).collect(),
        };
        if others.is_empty() {
            continue;
        }
        let present = |job: JobId| match deserted.contains(&job) {
            true => rate(draft, job, None),
            false => company.rate(job),
        };
        let without = |other: JobId| match deserted.contains(&other) {
            true => rate(draft, other, Some(job)),
            false => company.rate_without(draft, other, job),
        };
        let mut balance = i128::from(present(job)) * i128::from(ledger.of(job).price);
        let mut refused = balance == 0;
        for &other in &others {
            let present = present(other);
            refused |= present == 0;
            let lost = without(other) - present;
            balance -= i128::from(lost) * i128::from(ledger.of(other).delay());
        }
        let known = draft.job(job);
        let loses = refused || balance < 0 && is_settled(known, draft.now());
        if loses && known.spec.stoppable {
            draft.drop(job);
            deserted.extend(others);
            changed = true;
        }
    }
    changed
}

fn shared_gpus<'a>(draft: &'a Draft<'_>) -> impl Iterator<Item = GpuId> + 'a {
    let range = draft.cluster().partition(draft.partition()).gpus.clone();
    range.map(GpuId).filter(|&gpu| draft.tenants(gpu).len() > 1)
}
