//! Preempt and share: reviews decide by rank which jobs run, a matching decides which of the others
//! share their GPUs.
//!
//! An allocation is a set of GPUs with one or two tenants, both on all of it.

use super::pairing::{PairCandidates, PairLimits, PairOffer, PairRates, partner, sub_batches_on};
use super::placement::place_ranked;
use super::preemption::{admit_highest, evicted_jobs, sort_by_rank};
use super::queue::Queue;
use super::remaining::remaining_ms;
use super::repair::{RepairRule, part_onto_free_gpus, repair};
use tandem_core::{Draft, Job, JobId, PPM_ONE, Reason};

/// Large enough for every host of all but the largest partitions.
const LIMITS: PairLimits = PairLimits { jobs: 64, hosts: 160 };
/// Between reviews of a partition in which more jobs wait than this, fewer are matched: an event must be
/// answered at once, and the next review comes soon.
const DEEP_QUEUE: usize = 1024;
const DEEP_QUEUE_LIMITS: PairLimits = PairLimits { jobs: 4, hosts: 64 };
/// Rounds of pairing in one plan.
const ROUNDS_MAX: usize = 8;

/// Which jobs share.
pub trait PairRule: Sized {
    /// Where a job ranks, the smallest first. Unlike the key of a queue it may change with time.
    type Rank: Ord;

    /// The rank of a job at the instant of `draft`.
    fn rank(&self, draft: &Draft<'_>, job: &Job) -> Self::Rank;

    /// What the pair gains if `job`, which has no GPUs, shares those of `host`, in any unit that adds up;
    /// `None` if it should wait. The two fit together and accept their rates.
    fn gain(&self, draft: &Draft<'_>, job: &Job, host: &Job, rates: PairRates) -> Option<i64>;

    /// Whether a job may run in sub-batches where it would not fit beside another otherwise.
    fn accumulates(&self) -> bool {
        false
    }

    /// Whether two jobs that share GPUs should go on doing so.
    fn keeps(&self, rates: PairRates) -> bool;

    /// Whether two jobs that share GPUs should take turns instead: `guest` waits from now on. `rates` are
    /// one standard deviation above the believed ones.
    fn takes_turns(&self, _: &Draft<'_>, _guest: &Job, _host: &Job, _rates: PairRates) -> bool {
        false
    }

    /// Called before each round of pairing with the jobs that wait and those that the plan so far has
    /// started, both in order of rank.
    fn prepare(&mut self, _draft: &Draft<'_>, _pending: &[JobId], _started: &[JobId]) {}
}

/// Plans for one instant. At a review, and when a belief has moved, pairs that no longer pay are
/// unshared and the others are matched anew, whether or not a job waits. At a review the highest-ranked
/// jobs are admitted, preempting allocations without an admitted tenant. At any instant, pending jobs
/// take free GPUs in order of rank, and then share where that gains by `rule`.
pub fn preempt_and_share<K: Copy + Ord>(
    queue: &Queue<K>,
    draft: &mut Draft<'_>,
    is_review: bool,
    rule: &mut impl PairRule,
) {
    let reviews_pairs = is_review || draft.beliefs_moved();
    if reviews_pairs && !draft.occupancy().none_shared() {
        let pending = queue.iter().map(|(_, job)| (rule.rank(draft, draft.job(job)), job));
        rule.prepare(draft, &sort_by_rank(pending), &[]);
        unshare(draft, rule);
    }
    if is_review && !queue.is_empty() {
        let pending = queue.iter().map(|(_, job)| draft.job(job));
        let all = pending.chain(draft.placed());
        let ranked = sort_by_rank(all.map(|job| (rule.rank(draft, job), job.id())));
        admit_highest(draft, &ranked);
    }
    fill(queue, draft, is_review, reviews_pairs, rule);
    if reviews_pairs {
        let parted = part_onto_free_gpus(draft, &EqualJobs);
        // A job that moved may have left GPUs that a pending one can use.
        if repair(draft, &EqualJobs) || parted {
            fill(queue, draft, is_review, reviews_pairs, rule);
        }
    }
    draft.explain_others(Reason::Outranked);
}

/// Pending jobs take free GPUs in order of rank, and then share where that gains by `rule`.
fn fill<K: Copy + Ord>(
    queue: &Queue<K>,
    draft: &mut Draft<'_>,
    is_review: bool,
    reviews_pairs: bool,
    rule: &mut impl PairRule,
) {
    if draft.free_count() == 0 && draft.single_tenant_count() == 0 {
        return;
    }
    // A preempted job may find other GPUs at once.
    let evicted = if reviews_pairs { evicted_jobs(draft) } else { Vec::new() };
    let pending = queue.iter().map(|(_, job)| job).chain(evicted);
    let ranked = pending.map(|job| (rule.rank(draft, draft.job(job)), job));
    let pending = sort_by_rank(ranked);
    place_ranked(draft, pending.iter().copied());
    // Each round leaves fewer jobs waiting, which can make sharing pay for others.
    let limits = if is_review || pending.len() <= DEEP_QUEUE { LIMITS } else { DEEP_QUEUE_LIMITS };
    let mut rounds = ROUNDS_MAX;
    while rounds > 0 && share_once(draft, &pending, limits, rule) {
        rounds = if pending.len() > DEEP_QUEUE { 0 } else { rounds - 1 };
    }
}

/// Every job counts the same, until one of the two ends.
struct EqualJobs;

impl RepairRule for EqualJobs {
    fn delay_cost(&self, _: JobId) -> i64 {
        i64::from(PPM_ONE)
    }

    fn may_move(&self, draft: &Draft<'_>, job: &Job) -> bool {
        // A job that restores its state has not shown yet what the move was worth.
        let restoring = job.progress.at > draft.now();
        job.spec.stoppable && job.placement().is_some() && !restoring
    }
}

/// One round of pairing; `false` if no pair gains.
fn share_once(
    draft: &mut Draft<'_>,
    jobs: &[JobId],
    limits: PairLimits,
    rule: &mut impl PairRule,
) -> bool {
    let is_pending = |job: &JobId| draft.placement(*job).is_none();
    let (pending, started): (Vec<JobId>, Vec<JobId>) = jobs.iter().copied().partition(is_pending);
    let remaining = |job| remaining_ms(draft.job(job), draft.now());
    let candidates = PairCandidates::find(draft, &pending, limits, remaining);
    if candidates.is_empty() {
        return false;
    }
    rule.prepare(draft, &pending, &started);
    candidates.pair(draft, |draft, job, host| {
        let gpus = &draft.placement(host)?.gpus;
        let (job, host) = (draft.job(job), draft.job(host));
        let option = sub_batches_on(draft, job, gpus, rule.accumulates())?;
        let rates = PairRates::of(draft, job, host)?;
        let rates = PairRates { own: rates.own.times(option.rate()), ..rates };
        let gain = rule.gain(draft, job, host, rates)?;
        Some(PairOffer { gain, sub_batches: option.count })
    })
}

/// Ends the pairs that no longer pay: the lower-ranked job is preempted, or the other one if that
/// cannot be stopped.
fn unshare(draft: &mut Draft<'_>, rule: &impl PairRule) {
    let mut preempted = Vec::new();
    let rank = |job: &Job| (rule.rank(draft, job), job.id());
    for host in draft.placed() {
        let Some(other) = partner(draft, host.id()).map(|other| draft.job(other)) else { continue };
        // The higher-ranked of the two is the host, so that each pair is asked about once.
        let keeps = || {
            PairRates::of(draft, other, host).is_some_and(|rates| {
                let rates = rates.raised(draft, other, host);
                rule.keeps(rates) && !rule.takes_turns(draft, other, host, rates)
            })
        };
        if rank(host) < rank(other) && !keeps() {
            let job = [other, host].into_iter().find(|job| job.spec.stoppable);
            preempted.extend(job.map(Job::id));
        }
    }
    preempted.into_iter().for_each(|job| draft.drop(job));
}
