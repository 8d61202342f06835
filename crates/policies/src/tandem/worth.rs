//! What jobs are worth: to whom the GPUs should go, and what a moment of progress is good for.
//!
//! **Value.** A job with r left finishes 1/r of itself per unit of time, so GPUs do most for the mean
//! completion time where the sum of 1/r of their tenants is greatest: shortest remaining time first, but
//! counted per GPU and added up where one gang takes the place of several jobs. Gangs count for more
//! (`gangs`), and so does whoever may still be kept from being among the slowest jobs (`usual`).
//!
//! **Price.** Sharing is a different question: one job loses a moment, another wins one. If a job ends a
//! moment later, so does everyone who waits for its GPUs: with n jobs in the queue of a partition of P
//! GPUs, a gang of g that is late costs 1 + g·n/P moments. For one GPU and jobs in order of remaining
//! time that is the exact derivative of the sum of completion times: each job counts once for itself
//! and once for everyone behind it.
//!
//! **Delay.** A guest that stays takes its moments from the same hosts again and again: those with most
//! left, who are the last to finish anyway. So that the mean is not bought with the tail, what is taken
//! from a job counts for more the longer it will have taken compared with those that are over.

use super::fairness::Fairness;
use super::gangs::Crowd;
use super::usual::{Lengths, Usual};
use crate::remaining::{left_ms, restore_ms};
use std::cmp::Reverse;
use tandem_core::{Draft, Job, JobId, JobMap, JobState, PPM_ONE, Time};

/// A value is this times a weight over milliseconds.
const VALUE_SCALE: i128 = 1 << 30;
/// What is left counts as at least this: estimates are not better.
const LEFT_MS_MIN: i64 = 1000;
/// Priorities beyond this count as this.
const PRIORITY_MAX: i8 = 10;

/// One job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worth {
    /// Solo time left, with what restoring takes if it waits and must.
    pub(super) left_ms: i64,
    pub(super) gpus: u32,
    /// In parts per million.
    pub(super) weight: i64,
    pub(super) value: i64,
    /// What is lost if it leaves its GPUs: its value, or too much to think of.
    pub(super) loss: i64,
    /// How many moments are lost if it loses one, in parts per million.
    pub(super) price: i64,
    /// How much more a moment counts that others take from it.
    tail: i64,
}

/// What a job counts for by its priority, in parts per million.
fn weight(job: &Job) -> i64 {
    let priority = job.spec.priority.clamp(-PRIORITY_MAX, PRIORITY_MAX);
    let one = i64::from(PPM_ONE);
    if priority >= 0 { one << priority } else { one >> -priority }
}

/// Where a job stands among those that wait, the smallest first: remaining time × GPUs / weight. It
/// does not change while a job waits.
pub(super) fn rank(job: &Job) -> u128 {
    let size = u128::from(left_ms(job, Time(0)).unsigned_abs()) * u128::from(job.spec.gpus);
    (size << 20) / u128::from(weight(job).unsigned_abs())
}

/// Whether a placed job may leave again: one that had to restore its state first makes as much use of that
/// as it cost, so that everyone gets on whatever the policy changes its mind about. One that cannot be
/// stopped never may.
pub(super) fn is_settled(job: &Job, now: Time) -> bool {
    let JobState::Placed { since, .. } = job.state else { return true };
    let stays_us = 2 * 1000 * restore_ms(job).unsigned_abs();
    job.spec.stoppable && (!job.must_restore || now.since(since).0 >= stays_us)
}

impl Worth {
    const UNKNOWN: Worth = Worth {
        left_ms: LEFT_MS_MIN,
        gpus: 1,
        weight: 1,
        value: 1,
        loss: i64::MAX,
        price: 1,
        tail: 0,
    };

    fn of(
        job: &Job,
        now: Time,
        fairness: &Fairness,
        crowd: &Crowd,
        usual: Option<Lengths>,
    ) -> Self {
        let restores = job.placement().is_none() && job.must_restore;
        let restore = if restores { restore_ms(job) } else { 0 };
        let left_ms = (left_ms(job, now) + restore).max(LEFT_MS_MIN);
        let weight = fairness.adjust(job.spec.user, weight(job));
        let takes_ms = age_ms(job, now) + left_ms;
        let one = i128::from(PPM_ONE);
        let urgency = usual.map_or(one, |usual| usual.urgency(takes_ms));
        let value = i128::from(weight) * VALUE_SCALE / i128::from(left_ms);
        let value = value * crowd.factor(job.spec.gpus, left_ms) / one * urgency / one;
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let loss = if is_settled(job, now) { value } else { i64::MAX };
        let tail = usual.map_or(0, |usual| usual.tail(takes_ms, weight));
        Self { left_ms, gpus: job.spec.gpus, weight, value, loss, price: weight, tail }
    }

    /// How many moments are lost if others take one from it, in parts per million.
    pub(super) fn delay(&self) -> i64 {
        self.price.saturating_add(self.tail)
    }
}

fn age_ms(job: &Job, now: Time) -> i64 {
    i64::try_from(now.since(job.spec.submit).0 / 1000).unwrap_or(i64::MAX / 2)
}

/// The worth of all jobs of a partition, as of the last review.
#[derive(Default)]
pub(super) struct Ledger {
    worths: JobMap<Worth>,
    /// Jobs that wait, the most valuable per GPU first.
    waiting: Vec<JobId>,
    usual: Usual,
}

impl Ledger {
    /// Values everyone anew.
    pub(super) fn read(
        &mut self,
        draft: &Draft<'_>,
        waiting: impl Iterator<Item = JobId>,
        fairness: &mut Fairness,
    ) {
        let now = draft.now();
        self.waiting.clear();
        self.waiting.extend(waiting);
        let jobs = || draft.placed().chain(self.waiting.iter().map(|&job| draft.job(job)));
        fairness.compare(jobs(), now);
        let (crowd, usual) = (Crowd::of(jobs, now, draft.up_count()), self.usual.lengths());
        for job in jobs() {
            self.worths.insert(job.id(), Worth::of(job, now, fairness, &crowd, usual));
        }
        self.sort();
    }

    /// A job is over.
    pub(super) fn close(&mut self, job: &Job, now: Time) {
        self.usual.add(age_ms(job, now));
        if self.worths.get(job.id()).is_some() {
            self.worths.remove(job.id());
        }
    }

    /// A job of another partition is over.
    pub(super) fn hear(&mut self, job: &Job, now: Time) {
        self.usual.add(age_ms(job, now));
    }

    /// A job that came to GPUs since the last review counts for next to nothing until the next one.
    pub(super) fn of(&self, job: JobId) -> &Worth {
        self.worths.get(job).unwrap_or(&Worth::UNKNOWN)
    }

    /// Those that waited when this was last looked at, the most valuable per GPU first.
    pub(super) fn waiting(&self) -> &[JobId] {
        &self.waiting
    }

    /// Looks who waits under the plan so far, and prices everyone's moments by that.
    pub(super) fn price(&mut self, draft: &Draft<'_>) {
        let leaves = |job: &JobId| draft.placement(*job).is_none();
        let gone: Vec<JobId> = draft.placed().map(Job::id).filter(leaves).collect();
        let started: Vec<JobId> = self.waiting.iter().copied().filter(|job| !leaves(job)).collect();
        self.waiting.retain(leaves);
        self.add_waiting(gone);
        let gpus = i64::from(draft.up_count().max(1));
        let priced = |worth: &Worth, behind: i64| {
            worth.weight.saturating_add(behind.saturating_mul(i64::from(worth.gpus)) / gpus)
        };
        let mut behind: i64 = self.waiting.iter().map(|&job| self.worths[job].weight).sum();
        // Those that the plan has started are not among the placed yet, and hold GPUs like them.
        for job in draft.placed().map(Job::id).chain(started) {
            let worth = &mut self.worths[job];
            worth.price = priced(worth, behind);
        }
        for &job in &self.waiting {
            let worth = &mut self.worths[job];
            behind -= worth.weight;
            worth.price = priced(worth, behind);
        }
    }

    fn sort(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting = self.by_value(waiting);
    }

    /// Adds jobs to those that wait, who stay in order: few leave their GPUs, and many wait.
    fn add_waiting(&mut self, jobs: Vec<JobId>) {
        let mut merged = Vec::with_capacity(self.waiting.len() + jobs.len());
        let mut rest = self.waiting.as_slice();
        for job in self.by_value(jobs) {
            let key = self.place(job);
            let (before, after) =
                rest.split_at(rest.partition_point(|&other| self.place(other) < key));
            merged.extend_from_slice(before);
            rest = after;
            // It may have left under the plan that was priced before, too.
            if rest.first() != Some(&job) {
                merged.push(job);
            }
        }
        merged.extend_from_slice(rest);
        self.waiting = merged;
    }

    /// Where a job stands among those that wait, the smallest first.
    fn place(&self, job: JobId) -> (Reverse<i64>, JobId) {
        let worth = self.of(job);
        (Reverse(worth.value / i64::from(worth.gpus)), job)
    }

    /// Puts the most valuable per GPU first.
    pub(super) fn by_value(&self, mut jobs: Vec<JobId>) -> Vec<JobId> {
        jobs.sort_by_cached_key(|&job| self.place(job));
        jobs.dedup();
        jobs
    }
}
