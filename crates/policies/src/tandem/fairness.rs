//! Fair shares between users: whoever has had more GPU time than others counts for less.

use std::collections::BTreeMap;
use tandem_core::{Job, PPM_ONE, Time, UserId};

/// GPU-seconds that everybody is taken to have had: users are not told apart by less.
const GRACE_GPU_S: u64 = 3600;
/// Nobody counts for more than this times the usual, or for less than the usual over it.
const FACTOR_MAX: u64 = 16;

/// The GPU time of users.
pub(super) struct Fairness {
    /// How much it matters, from 0 to 1, in parts per million.
    strength: u32,
    /// GPU-seconds of jobs that are over.
    past: BTreeMap<UserId, u64>,
    /// What the jobs of a user count for, in parts per million; of those with jobs at present.
    factors: BTreeMap<UserId, i64>,
}

fn attained_gpu_s(job: &Job, now: Time) -> u64 {
    job.attained(now).0 / 1_000_000
}

impl Fairness {
    pub(super) fn new(strength: u32) -> Self {
        Self { strength, past: BTreeMap::new(), factors: BTreeMap::new() }
    }

    /// A job is over.
    pub(super) fn add(&mut self, job: &Job, now: Time) {
        if self.strength > 0 {
            *self.past.entry(job.spec.user).or_default() += attained_gpu_s(job, now);
        }
    }

    /// Compares the users of these jobs, the present ones: each counts for the mean GPU time over its
    /// own, as far as fairness matters.
    pub(super) fn compare<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>, now: Time) {
        if self.strength == 0 {
            return;
        }
        let mut used: BTreeMap<UserId, u64> = BTreeMap::new();
        for job in jobs {
            let user = job.spec.user;
            let past = || GRACE_GPU_S + self.past.get(&user).copied().unwrap_or(0);
            *used.entry(user).or_insert_with(past) += attained_gpu_s(job, now);
        }
        let mean = used.values().sum::<u64>() / (used.len() as u64).max(1);
        let (one, strength) = (u64::from(PPM_ONE), u64::from(self.strength));
        let factor = |own: u64| {
            let ratio = u128::from(mean) * u128::from(one) / u128::from(own);
            let ratio = u64::try_from(ratio).unwrap_or(u64::MAX);
            let ratio = ratio.clamp(one / FACTOR_MAX, one * FACTOR_MAX);
            ((one - strength) * one + strength * ratio) / one
        };
        let factor = |(user, own)| (user, i64::try_from(factor(own)).unwrap_or(i64::MAX));
        self.factors = used.into_iter().map(factor).collect();
    }

    /// A weight as fairness has it.
    pub(super) fn adjust(&self, user: UserId, weight: i64) -> i64 {
        let factor = self.factors.get(&user).copied().unwrap_or(i64::from(PPM_ONE));
        (weight.saturating_mul(factor) / i64::from(PPM_ONE)).max(1)
    }
}
