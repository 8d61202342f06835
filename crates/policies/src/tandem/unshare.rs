//! When co-located jobs stop sharing: where GPUs fall free, and where sharing turns out to be a loss.

use super::Review;
use super::colocation::Colocation;
use super::rates::{ONE, neighbours, rate, times};
use super::value::{JobValue, JobValues, is_settled};
use crate::kit::{remaining_ms, restore_ms};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use tandem_core::{Draft, GpuId, JobId};

/// Milliseconds that a job and its neighbours save if it moves to GPUs of its own, until the first of
/// them ends, minus the cost of restoring it. `present` gives their rates, `without` the rates of
/// neighbours if the job were not there.
fn saving(
    draft: &Draft<'_>,
    values: &JobValues,
    job: JobId,
    others: impl Iterator<Item = JobId>,
    present: impl Fn(JobId) -> i64,
    without: impl Fn(JobId) -> i64,
) -> i64 {
    let own = present(job);
    let end_ms = |job: JobId, rate: i64| {
        let remaining = i128::from(remaining_ms(draft.job(job), draft.now()));
        i64::try_from(remaining * i128::from(ONE) / i128::from(rate.max(1))).unwrap_or(i64::MAX)
    };
    let mut first_end_ms = end_ms(job, own);
    let weight = |job: JobId| values.of(job).weight;
    let mut speed_up = i128::from(ONE - own) * i128::from(weight(job));
    for other in others.filter(|&other| !is_service(draft, other)) {
        let now = present(other);
        first_end_ms = first_end_ms.min(end_ms(other, now));
        // A neighbour at full speed gains nothing, and its rate without the job is costly to compute.
        if now != ONE {
            speed_up += i128::from(without(other) - now) * i128::from(weight(other));
        }
    }
    let saved = speed_up * i128::from(first_end_ms) / i128::from(ONE);
    let cost = i128::from(restore_ms(draft.job(job))) * i128::from(weight(job));
    i64::try_from((saved - cost) / i128::from(ONE)).unwrap_or(i64::MAX)
}

/// A service has no end that could come sooner: once its promise is kept, it loses nothing beside others.
fn is_service(draft: &Draft<'_>, job: JobId) -> bool {
    draft.job(job).spec.promise.is_service
}

/// The co-located jobs under the plan so far, in order of submission.
fn colocated_jobs(draft: &Draft<'_>) -> Vec<JobId> {
    let mut jobs: Vec<JobId> = Vec::new();
    if draft.occupancy().none_shared() {
        return jobs;
    }
    let mut last: &[JobId] = &[];
    for gpu in draft.cluster().partition(draft.partition()).gpus.clone() {
        let tenants = draft.tenants(GpuId(gpu));
        // The GPUs of a gang mostly have the same tenants as the one before.
        if tenants.len() > 1 && tenants != last {
            jobs.extend_from_slice(tenants);
            last = tenants;
        }
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// The co-located jobs under the plan so far, the largest saving by GPUs of their own first.
pub(super) fn colocated_by_saving(draft: &Draft<'_>, values: &JobValues) -> Vec<JobId> {
    let mut jobs = colocated_jobs(draft);
    let colocation = Colocation::of(draft, &jobs);
    let saving = |job: JobId| {
        let without = |other: JobId| colocation.rate_without(draft, other, job);
        let others = colocation.neighbours(job);
        saving(draft, values, job, others, |job| colocation.rate(job), without)
    };
    // Of two equal savings the longer job moves: its restore weighs less.
    let remaining = |job: JobId| values.of(job).remaining_ms;
    jobs.sort_by_cached_key(|&job| (Reverse((saving(job), remaining(job))), job));
    jobs
}

/// Moves those of `colocated` to free GPUs that save by it; `false` if none does.
pub(super) fn unshare_onto_free_gpus(
    draft: &mut Draft<'_>,
    review: &Review<'_>,
    colocated: &[JobId],
) -> bool {
    let mut changed = false;
    // A job that moves changes the savings of its neighbours.
    while draft.free_count() > 0 && unshare_once(draft, review, colocated) {
        changed = true;
    }
    changed
}

fn unshare_once(draft: &mut Draft<'_>, review: &Review<'_>, colocated: &[JobId]) -> bool {
    let mut changed = false;
    // Free GPUs only become fewer here, so a gang size that did not fit does not fit later.
    let mut too_large: Vec<u32> = Vec::new();
    for &job in colocated {
        if draft.free_count() == 0 {
            break;
        }
        let Some(gpus) = draft.find(job).map(|job| job.spec.gpus) else { continue };
        if too_large.contains(&gpus) || draft.placement(job).is_none() {
            continue;
        }
        if !draft.has_room(job) {
            too_large.extend(draft.fits_every_gpu(job).then_some(gpus));
            continue;
        }
        let others = neighbours(draft, job);
        if others.is_empty() || !is_settled(draft.job(job), draft.now(), review.tuning) {
            continue;
        }
        let present = |job: JobId| rate(draft, job, None);
        let without = |other: JobId| rate(draft, other, Some(job));
        if saving(draft, review.values, job, others.into_iter(), present, without) > 0 {
            changed |= draft.place_exclusive(job);
        }
    }
    changed
}

/// Preempts jobs that cost their neighbours more than they gain themselves, or with a neighbour that
/// does not accept its slow-down: beliefs about pairs change as pairs are observed. `false` if none does.
pub(super) fn unshare_losing(draft: &mut Draft<'_>, review: &Review<'_>) -> bool {
    let mut changed = false;
    let jobs = colocated_jobs(draft);
    let colocation = Colocation::of(draft, &jobs);
    // Neighbours of preempted jobs, for which `colocation` is out of date.
    let mut outdated: BTreeSet<JobId> = BTreeSet::new();
    // What all of them lose by sharing is what they would gain from GPUs that fall free: the co-located
    // jobs wait for these like pending ones.
    let lost =
        |job: &JobId| times((ONE - colocation.rate(*job)).max(0), review.values.of(*job).weight);
    let waiting: i64 = jobs.iter().map(lost).fold(0, i64::saturating_add);
    let gpus = i64::from(draft.up_count().max(1));
    let waiting_for = |value: &JobValue| waiting.saturating_mul(i64::from(value.gpus)) / gpus;
    // The latest first: the job that joined rather than its host.
    for job in jobs.into_iter().rev() {
        let others = match outdated.contains(&job) {
            true => neighbours(draft, job),
            false => colocation.neighbours(job).collect(),
        };
        if others.is_empty() {
            continue;
        }
        let present = |job: JobId| match outdated.contains(&job) {
            true => rate(draft, job, None),
            false => colocation.rate(job),
        };
        let without = |other: JobId| match outdated.contains(&other) {
            true => rate(draft, other, Some(job)),
            false => colocation.rate_without(draft, other, job),
        };
        let value = |job: JobId| review.values.of(job);
        let mut balance = i128::from(present(job)) * i128::from(value(job).delay_cost);
        let mut is_refused = balance == 0;
        let end_ms =
            |job: JobId, rate: i64| value(job).remaining_ms.saturating_mul(ONE) / rate.max(1);
        let mut lasts_ms =
            end_ms(job, present(job)).min(review.tuning.horizon_ms(restore_ms(draft.job(job))));
        for &other in &others {
            let present = present(other);
            is_refused |= present == 0;
            if is_service(draft, other) {
                continue;
            }
            lasts_ms = lasts_ms.min(end_ms(other, present));
            let lost = without(other) - present;
            let cost = value(other).delay_cost.saturating_add(waiting_for(value(other)));
            balance -= i128::from(lost) * i128::from(cost);
        }
        let known = draft.job(job);
        let restore =
            i128::from(restore_ms(known)) * i128::from(value(job).weight) * i128::from(ONE);
        let loses = -balance * i128::from(lasts_ms) > restore
            && is_settled(known, draft.now(), review.tuning);
        if (is_refused || loses) && known.spec.stoppable {
            draft.drop(job);
            outdated.extend(others);
            changed = true;
        }
    }
    changed
}
