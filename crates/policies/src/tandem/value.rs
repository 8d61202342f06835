//! The value of jobs and the cost of delaying them.
//!
//! **Value** decides who gets GPUs. A job with remaining time r finishes 1/r of itself per unit of time,
//! so GPUs lower the mean JCT most where the sum of 1/r of their tenants is greatest: shortest remaining
//! time first (Smith's rule), but per GPU, and added up where one gang takes the place of several jobs.
//! Gangs count more (`gang_weight`), and so do jobs near the p99 (`jct_history`).
//!
//! **Delay cost** decides who shares. If a job ends one second later, so do the jobs that wait for its
//! GPUs: with n pending jobs in a partition of P GPUs, a late gang of g costs 1 + g·n/P seconds of JCT.
//! For one GPU and jobs in order of remaining time that is the exact derivative of the sum of JCTs.

use super::fairness::Fairness;
use super::gang_weight::gang_weight;
use super::jct_history::{JctHistory, JctSummary};
use super::overdue::Overdue;
use super::tuning::Tuning;
use crate::kit::{evicted_jobs, remaining_ms, restore_ms};
use std::cmp::Reverse;
use tandem_core::{Draft, Job, JobId, JobMap, PPM_ONE, PRIORITY_MAX, SchedulingState, Time};

/// A value is this times a weight over milliseconds.
const VALUE_SCALE: i64 = 1 << 30;

/// The value of one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobValue {
    /// Remaining solo time, with the restore that a pending job must do first.
    pub(super) remaining_ms: i64,
    pub(super) gpus: u32,
    /// By priority and fair share, in parts per million.
    pub(super) weight: i64,
    pub(super) value: i64,
    /// What preempting it loses: its value if its restore were done, or `MAX` if it must not be preempted.
    pub(super) loss: i64,
    /// Milliseconds of JCT that a delay of one millisecond costs, in parts per million.
    pub(super) delay_cost: i64,
}

/// The weight of a priority in parts per million: two steps double it.
fn priority_weight(priority: i8) -> i64 {
    const SQRT_2: i64 = 1_414_214;
    let priority = priority.clamp(-PRIORITY_MAX, PRIORITY_MAX);
    let odd = priority.rem_euclid(2) == 1;
    let (weight, doublings) =
        (if odd { SQRT_2 } else { i64::from(PPM_ONE) }, priority.div_euclid(2));
    if doublings >= 0 { weight << doublings } else { weight >> -doublings }
}

/// The key of the queue, the smallest first: remaining time × GPUs / weight. It does not change while
/// a job waits.
pub(super) fn queue_key(job: &Job, now: Time) -> u128 {
    let size = u128::from(remaining_ms(job, now).unsigned_abs()) * u128::from(job.spec.gpus);
    (size << 20) / u128::from(priority_weight(job.spec.priority).unsigned_abs())
}

/// Whether a running job may be moved: it can be stopped, and if it had to restore, it has made use of
/// that for as long as [`Tuning::settle_restores`] says.
pub(super) fn is_settled(job: &Job, now: Time, tuning: &Tuning) -> bool {
    let SchedulingState::Placed { since, .. } = job.state else { return true };
    let stays_us = tuning.settle_restores * 1000 * restore_ms(job).unsigned_abs();
    job.spec.stoppable && (!job.must_restore || now.since(since).0 >= stays_us)
}

impl JobValue {
    /// Of a job that started after the last review: next to nothing, until the next one.
    const UNKNOWN: JobValue = JobValue {
        remaining_ms: 1000,
        gpus: 1,
        weight: 1,
        value: 1,
        loss: i64::MAX,
        delay_cost: 1,
    };
}

impl JobValue {
    /// The job goes before all others and keeps its GPUs until it ends.
    fn put_first(&mut self) {
        (self.value, self.loss) = (i64::MAX - 1, i64::MAX);
    }
}

/// What the value of a job depends on besides the job.
struct Context<'a> {
    now: Time,
    fairness: &'a Fairness,
    jcts: Option<JctSummary>,
    tuning: &'a Tuning,
}

impl Context<'_> {
    fn value(&self, job: &Job) -> JobValue {
        let (now, tuning) = (self.now, self.tuning);
        let restores = job.placement().is_none() && job.must_restore;
        let restore = if restores { restore_ms(job) } else { 0 };
        let remaining_ms = (remaining_ms(job, now) + restore).max(tuning.remaining_min_ms);
        let weight = self.fairness.adjust(job.spec.user, priority_weight(job.spec.priority));
        let projected_ms = age_ms(job, now) + remaining_ms;
        let one = i128::from(PPM_ONE);
        let urgency = self.jcts.map_or(one, |jcts| jcts.urgency(projected_ms, tuning));
        let gang_weight = gang_weight(job.spec.gpus, tuning.gang_exponent_quarters);
        // Most factors are one, and divisions of 128 bits are slow.
        let scaled = |value: i128, factor: i128| {
            if factor == one { value } else { value * factor / one }
        };
        let value_at = |remaining_ms: i64| {
            let value = match weight.checked_mul(VALUE_SCALE) {
                Some(value) => i128::from(value / remaining_ms),
                None => i128::from(weight) * i128::from(VALUE_SCALE) / i128::from(remaining_ms),
            };
            i64::try_from(scaled(scaled(value, gang_weight), urgency)).unwrap_or(i64::MAX)
        };
        // Taking turns pays only if the newcomer is shorter by more than the restore.
        let without_restore_ms = remaining_ms - restore_ms(job);
        let may_stop = job.spec.stoppable && without_restore_ms > 0;
        let loss = if may_stop { value_at(without_restore_ms) } else { i64::MAX };
        let gpus = job.spec.gpus;
        JobValue {
            remaining_ms,
            gpus,
            weight,
            value: value_at(remaining_ms),
            loss,
            delay_cost: weight,
        }
    }
}

fn age_ms(job: &Job, now: Time) -> i64 {
    i64::try_from(now.since(job.spec.submit).0 / 1000).unwrap_or(i64::MAX / 2)
}

/// The values of all jobs of a partition, as of the last review.
#[derive(Default)]
pub(super) struct JobValues {
    values: JobMap<JobValue>,
    /// Pending jobs, the most value per GPU first.
    pending: Vec<JobId>,
    history: JctHistory,
}

impl JobValues {
    /// Computes the values of all jobs.
    pub(super) fn update(
        &mut self,
        draft: &Draft<'_>,
        pending: impl Iterator<Item = JobId>,
        patience: u64,
        fairness: &mut Fairness,
        tuning: &Tuning,
    ) {
        let now = draft.now();
        self.pending.clear();
        self.pending.extend(pending);
        let jobs = || draft.placed().chain(self.pending.iter().map(|&job| draft.job(job)));
        fairness.compare(jobs(), now);
        let context = Context { now, fairness, jcts: self.history.summary(), tuning };
        let overdue = Overdue { patience, jcts: context.jcts, now };
        for job in jobs() {
            self.values.insert(job.id(), context.value(job));
        }
        for job in overdue.first(jobs(), draft.up_count()) {
            self.values[job].put_first();
        }
        let pending = std::mem::take(&mut self.pending);
        self.pending = self.by_value(pending);
    }

    /// A job of this partition has ended.
    pub(super) fn remove(&mut self, job: &Job, now: Time) {
        self.history.add(age_ms(job, now));
        if self.values.get(job.id()).is_some() {
            self.values.remove(job.id());
        }
    }

    pub(super) fn of(&self, job: JobId) -> &JobValue {
        self.values.get(job).unwrap_or(&JobValue::UNKNOWN)
    }

    /// The jobs that waited at the last update, the most value per GPU first.
    pub(super) fn pending(&self) -> &[JobId] {
        &self.pending
    }

    /// Computes delay costs from the jobs that wait under the plan so far.
    pub(super) fn update_delay_costs(&mut self, draft: &Draft<'_>, tuning: &Tuning) {
        let waits = |job: &JobId| draft.placement(*job).is_none();
        let started: Vec<JobId> = self.pending.iter().copied().filter(|job| !waits(job)).collect();
        self.pending.retain(waits);
        self.add_pending(evicted_jobs(draft));
        let scale = 100 * i64::from(draft.up_count().max(1));
        let delay_cost = |value: &JobValue, behind: i64| {
            let queue = behind.saturating_mul(i64::from(value.gpus));
            let queue = queue.saturating_mul(tuning.queue_cost_percent) / scale;
            value.weight.saturating_add(queue)
        };
        let mut behind: i64 = self.pending.iter().map(|&job| self.values[job].weight).sum();
        // Jobs that the plan has started hold GPUs like running ones.
        for job in draft.placed().map(Job::id).chain(started) {
            let value = &mut self.values[job];
            value.delay_cost = delay_cost(value, behind);
        }
        for &job in &self.pending {
            let value = &mut self.values[job];
            behind -= value.weight;
            value.delay_cost = delay_cost(value, behind);
        }
    }

    /// Adds jobs to the pending ones, which stay in order: few are preempted, and many wait.
    fn add_pending(&mut self, jobs: Vec<JobId>) {
        let mut merged = Vec::with_capacity(self.pending.len() + jobs.len());
        let mut rest = self.pending.as_slice();
        for job in self.by_value(jobs) {
            let key = self.value_key(job);
            let (before, after) =
                rest.split_at(rest.partition_point(|&other| self.value_key(other) < key));
            merged.extend_from_slice(before);
            rest = after;
            // It may have been added by an earlier update of the same review.
            if rest.first() != Some(&job) {
                merged.push(job);
            }
        }
        merged.extend_from_slice(rest);
        self.pending = merged;
    }

    fn value_key(&self, job: JobId) -> (Reverse<i64>, JobId) {
        let value = self.of(job);
        (Reverse(value.value / i64::from(value.gpus)), job)
    }

    /// Sorts jobs, the most value per GPU first.
    pub(super) fn by_value(&self, mut jobs: Vec<JobId>) -> Vec<JobId> {
        jobs.sort_by_cached_key(|&job| self.value_key(job));
        jobs.dedup();
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_of_priority_double_the_weight_over_the_whole_range() {
        let one = i64::from(PPM_ONE);
        assert_eq!([-2, 0, 2, 4].map(priority_weight), [one / 2, one, 2 * one, 4 * one]);
        assert_eq!([-1, 1].map(priority_weight), [707_107, 1_414_214]);
        assert_eq!(priority_weight(PRIORITY_MAX), one << 10);
        assert_eq!(priority_weight(i8::MAX), priority_weight(PRIORITY_MAX));
        assert_eq!(priority_weight(i8::MIN), priority_weight(-PRIORITY_MAX));
        let weights: Vec<i64> = (-PRIORITY_MAX..=PRIORITY_MAX).map(priority_weight).collect();
        assert!(weights.is_sorted_by(|less, more| less < more), "{weights:?}");
    }
}
