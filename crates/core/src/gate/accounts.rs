//! GPU time charged to users: for fair shares, and for limits of GPU time in a period.

use crate::draft::Draft;
use crate::job::{Job, JobId, UserId};
use crate::shares::Shares;
use crate::units::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Charges are halved in this many steps, each of which multiplies them by the 64th root of a half.
const DECAY_STEPS: u64 = 64;
const DECAY_PPM: u128 = 989_228;

/// What users have been charged.
pub(super) struct Charges {
    /// GPU microseconds over weight, halved with every half-life. Only differences matter.
    charged: BTreeMap<UserId, u128>,
    /// Up to which GPU time each job has been charged.
    jobs: BTreeMap<JobId, Span>,
    /// Users who had jobs at the last update.
    active: BTreeSet<UserId>,
    /// Users with jobs now, by account, as of the last update.
    sizes: BTreeMap<Option<u32>, u32>,
    decayed_at: Time,
    /// GPU time in this period, by user and by account.
    used: BTreeMap<UserId, Span>,
    used_by_account: BTreeMap<u32, Span>,
    period: u64,
}

impl Charges {
    pub(super) fn new(shares: &Shares) -> Self {
        let charged = shares.history.iter().map(|(&user, span)| (user, u128::from(span.0)));
        Self {
            charged: charged.collect(),
            jobs: BTreeMap::new(),
            active: BTreeSet::new(),
            sizes: BTreeMap::new(),
            decayed_at: Time(0),
            used: shares.used.clone(),
            used_by_account: BTreeMap::new(),
            // The period in which the engine starts; set by the first update.
            period: u64::MAX,
        }
    }

    /// Whether no plan was made yet.
    pub(super) fn is_new(&self) -> bool {
        self.period == u64::MAX
    }

    pub(super) fn of(&self, user: UserId) -> u128 {
        self.charged.get(&user).copied().unwrap_or(0)
    }

    pub(super) fn used(&self, user: UserId) -> Span {
        self.used.get(&user).copied().unwrap_or(Span::ZERO)
    }

    pub(super) fn used_by_account(&self, account: u32) -> Span {
        self.used_by_account.get(&account).copied().unwrap_or(Span::ZERO)
    }

    /// What GPU time costs a user: the users of an account divide its weight.
    pub(super) fn price(&self, shares: &Shares, job: &Job, gpu_time: u128) -> u128 {
        match shares.account(&job.spec) {
            Some(account) => {
                let users = self.sizes.get(&Some(account.0)).copied().unwrap_or(1).max(1);
                let weight = shares.accounts[account.index()].weight.max(1);
                gpu_time * u128::from(users) / u128::from(weight)
            }
            None => {
                let weight = shares.users.get(&job.spec.user).map_or(1, |user| user.weight.max(1));
                gpu_time / u128::from(weight)
            }
        }
    }

    /// Charges what a job has used since it was last charged.
    pub(super) fn settle(&mut self, shares: &Shares, job: &Job, now: Time) {
        let attained = job.attained(now);
        let before = self.jobs.insert(job.id(), attained);
        // A job that is first seen while it runs was there before the engine.
        let before =
            before.unwrap_or(if job.placement().is_some() { attained } else { Span::ZERO });
        let more = attained.0.saturating_sub(before.0);
        if more == 0 {
            return;
        }
        let price = self.price(shares, job, u128::from(more));
        *self.charged.entry(job.spec.user).or_default() += price;
        *self.used.entry(job.spec.user).or_default() += Span(more);
        if let Some(account) = shares.account(&job.spec) {
            *self.used_by_account.entry(account.0).or_default() += Span(more);
        }
    }

    pub(super) fn forget(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Charges the running jobs, begins a new period, and lets a user who comes back begin near the others.
    pub(super) fn update(&mut self, shares: &Shares, draft: &Draft<'_>) {
        let now = draft.now();
        for job in draft.placed() {
            self.settle(shares, job, now);
        }
        let period = shares.period_of(now);
        if self.period != u64::MAX && self.period != period {
            self.used.clear();
            self.used_by_account.clear();
        }
        self.period = period;
        self.decay(shares, now);
    }

    fn decay(&mut self, shares: &Shares, now: Time) {
        let Some(fair) = shares.fair else { return };
        let step = (fair.half_life.0 / DECAY_STEPS).max(1);
        let steps = now.since(self.decayed_at).0 / step;
        self.decayed_at = Time(self.decayed_at.0 + steps * step);
        for charged in self.charged.values_mut() {
            if steps >= DECAY_STEPS * DECAY_STEPS {
                *charged = 0;
            }
            for _ in 0..steps.min(DECAY_STEPS * DECAY_STEPS) {
                *charged = *charged * DECAY_PPM / 1_000_000;
            }
        }
    }

    /// Takes note of who has jobs now, with their accounts. A user who had none begins with at least the
    /// least charge of those who had, less `credit`: what was not used is not saved up.
    pub(super) fn note_active(&mut self, active: BTreeMap<UserId, Option<u32>>, credit: u128) {
        let others = self.active.iter().filter(|user| active.contains_key(user));
        if let Some(least) = others.map(|&user| self.of(user)).min() {
            let least = least.saturating_sub(credit);
            for &user in active.keys().filter(|user| !self.active.contains(user)) {
                let charged = self.charged.entry(user).or_default();
                *charged = (*charged).max(least);
            }
        }
        self.sizes.clear();
        for account in active.values() {
            *self.sizes.entry(*account).or_default() += 1;
        }
        self.active = active.into_keys().collect();
    }
}
