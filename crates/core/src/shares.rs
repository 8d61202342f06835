//! Shares and limits between people: accounts with weights, limits, reservations. The gate
//! ([`Shares::gate`]) makes every policy respect them.

use crate::cluster::{GpuId, id};
use crate::job::{JobSpec, UserId};
use crate::units::{Memory, Span, Time};
use std::collections::BTreeMap;

id!(
    /// An account: users whose jobs count together.
    AccountId
);

/// What a job counts for and which rights it has among the jobs of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobShare {
    /// The account that it is charged to; that of its user if absent.
    pub account: Option<AccountId>,
    /// Jobs of a higher tier run before those of lower tiers, whoever owns them, and may take their GPUs.
    pub tier: i8,
    /// The reservation in which it runs, and nowhere else while that lasts.
    pub reservation: Option<u32>,
}

/// What the jobs of a user or an account may have at once; no limit where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Jobs on GPUs.
    pub jobs: Option<u32>,
    /// GPUs, a shared one counted for each of its tenants.
    pub gpus: Option<u32>,
    /// GPU memory of all jobs on GPUs.
    pub memory: Option<Memory>,
    /// GPU time in each period. Jobs that run when it is used up go on, and no other starts.
    pub gpu_time: Option<Span>,
}

impl Limits {
    /// Whether there is any.
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }
}

/// Which limit keeps a job from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Jobs on GPUs.
    Jobs,
    /// GPUs.
    Gpus,
    /// GPU memory.
    Memory,
    /// GPU time in this period.
    GpuTime,
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// That of the user.
    User,
    /// That of the account.
    Account,
}

/// An account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its share relative to other accounts and users, at least 1. Its users divide it equally.
    pub weight: u32,
    /// What all its jobs may have at once.
    pub limits: Limits,
}

/// What differs for one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserShare {
    /// The account that jobs are charged to if they name none.
    pub account: Option<AccountId>,
    /// The share of a user without an account, at least 1.
    pub weight: u32,
    /// Instead of [`Shares::user_limits`].
    pub limits: Option<Limits>,
}

impl Default for UserShare {
    fn default() -> Self {
        Self { account: None, weight: 1, limits: None }
    }
}

/// GPUs that are kept for some jobs for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its number, by which jobs name it.
    pub id: u32,
    /// Its GPUs.
    pub gpus: Vec<GpuId>,
    /// From then on no other job starts there; at most `start`.
    pub closes: Time,
    /// From then on only its jobs run there; others are stopped if they can be.
    pub start: Time,
    /// Until then.
    pub end: Time,
}

/// How users divide the GPUs when they want more than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairShare {
    /// Jobs are stopped for the share of another user at most this often.
    pub slice: Span,
    /// After this time, used GPU time counts half.
    pub half_life: Span,
}

/// Everything that users agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Fair shares between users, if they are on.
    pub fair: Option<FairShare>,
    /// By [`AccountId`].
    pub accounts: Vec<Account>,
    /// Users who differ from others.
    pub users: BTreeMap<UserId, UserShare>,
    /// Limits of each user.
    pub user_limits: Limits,
    /// Periods of [`Limits::gpu_time`] begin at multiples of this; none if zero.
    pub period: Span,
    /// GPU time that users had in this period before the engine started.
    pub used: BTreeMap<UserId, Span>,
    /// GPU time that users had before the engine started, halved with every half-life since.
    pub history: BTreeMap<UserId, Span>,
    /// Reservations, which may overlap in time but not in GPUs.
    pub reservations: Vec<Reservation>,
}

impl Shares {
    /// Whether nothing is agreed on.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The account of a job.
    pub fn account(&self, spec: &JobSpec) -> Option<AccountId> {
        let of_user = || self.users.get(&spec.user).and_then(|user| user.account);
        spec.share.account.or_else(of_user).filter(|id| id.index() < self.accounts.len())
    }

    /// The limits of a user.
    pub fn limits_of(&self, user: UserId) -> &Limits {
        let own = self.users.get(&user).and_then(|user| user.limits.as_ref());
        own.unwrap_or(&self.user_limits)
    }

    /// Whether anybody has limits.
    pub(crate) fn has_limits(&self) -> bool {
        self.user_limits.is_any()
            || self.users.values().any(|user| user.limits.is_some())
            || self.accounts.iter().any(|account| account.limits.is_any())
    }

    /// The period in which an instant is.
    pub(crate) fn period_of(&self, now: Time) -> u64 {
        now.0.checked_div(self.period.0).unwrap_or(0)
    }
}
