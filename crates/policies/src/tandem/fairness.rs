//! Fair shares between users: jobs of users with more GPU time behind them count less.

use super::tuning::Tuning;
use std::collections::BTreeMap;
use tandem_core::{Job, PPM_ONE, Time, UserId};

/// The GPU time of users.
pub(super) struct Fairness {
    /// How much fair shares matter, from 0 to 1, in parts per million.
    strength: u32,
    grace_gpu_s: u64,
    factor_max: u64,
    /// GPU-seconds of finished jobs.
    past: BTreeMap<UserId, u64>,
    /// The factor of a user's jobs in parts per million; of users with jobs at present.
    factors: BTreeMap<UserId, i64>,
}

fn attained_gpu_s(job: &Job, now: Time) -> u64 {
    job.attained(now).0 / 1_000_000
}

impl Fairness {
    pub(super) fn new(strength: u32, tuning: &Tuning) -> Self {
        Self {
            strength,
            grace_gpu_s: tuning.fairness_grace_gpu_s.max(1),
            factor_max: tuning.fairness_factor_max.max(1),
            past: BTreeMap::new(),
            factors: BTreeMap::new(),
        }
    }

    /// A job has finished.
    pub(super) fn add(&mut self, job: &Job, now: Time) {
        if self.strength > 0 {
            *self.past.entry(job.spec.user).or_default() += attained_gpu_s(job, now);
        }
    }

    /// Compares the users of `jobs`, all of the partition: the factor of a user is the mean GPU time of
    /// these users over the user's own.
    pub(super) fn compare<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>, now: Time) {
        if self.strength == 0 {
            return;
        }
        let mut used: BTreeMap<UserId, u64> = BTreeMap::new();
        for job in jobs {
            let user = job.spec.user;
            let past = || self.grace_gpu_s + self.past.get(&user).copied().unwrap_or(0);
            *used.entry(user).or_insert_with(past) += attained_gpu_s(job, now);
        }
        let mean = used.values().sum::<u64>() / (used.len() as u64).max(1);
        let (one, strength) = (u64::from(PPM_ONE), u64::from(self.strength));
        let factor = |own: u64| {
            let ratio = u128::from(mean) * u128::from(one) / u128::from(own);
            let ratio = u64::try_from(ratio).unwrap_or(u64::MAX);
            let ratio = ratio.clamp(one / self.factor_max, one * self.factor_max);
            ((one - strength) * one + strength * ratio) / one
        };
        let factor = |(user, own)| (user, i64::try_from(factor(own)).unwrap_or(i64::MAX));
        self.factors = used.into_iter().map(factor).collect();
    }

    /// The weight of a job of `user`, adjusted by its factor.
    pub(super) fn adjust(&self, user: UserId, weight: i64) -> i64 {
        let factor = self.factors.get(&user).copied().unwrap_or(i64::from(PPM_ONE));
        (weight.saturating_mul(factor) / i64::from(PPM_ONE)).max(1)
    }
}
