//! The gate between the engine and a policy: it offers the policy only the pending jobs that may run under
//! the shares and limits between users, so that every policy respects them.
//!
//! At every plan
//! 1. GPUs of reservations are closed to other jobs, and their tenants stopped when a reservation starts;
//! 2. GPU time since the last plan is charged to users;
//! 3. pending jobs are granted in fair order (`grant`): by tier, then by charged GPU time over weight, each
//!    user's own in order of priority and submission. Running jobs count first. Users who are alone, and
//!    engines without fair shares, are granted everything that limits allow;
//! 4. once per slice, running jobs beyond the share of their user are stopped if granted jobs need their
//!    GPUs;
//! 5. the policy plans with the granted jobs; jobs of reservations are placed on their GPUs.

mod accounts;
mod grant;
mod reserved;
#[cfg(test)]
mod tests;

use crate::cluster::GpuId;
use crate::draft::Draft;
use crate::job::{Job, JobId, Reason, UserId};
use crate::policy::Policy;
use crate::shares::Shares;
use crate::units::Time;
use accounts::Charges;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The order of a user's pending jobs.
type GrantRank = (Reverse<i8>, Reverse<i8>, JobId);

fn rank(job: &Job) -> GrantRank {
    (Reverse(job.spec.share.tier), Reverse(job.spec.priority), job.id())
}

/// The pending jobs of a user.
#[derive(Default)]
struct Pending {
    /// All, in order.
    jobs: BTreeSet<GrantRank>,
    /// Those that the policy knows of,
    offered: BTreeSet<JobId>,
    /// and the others.
    kept_back: BTreeSet<JobId>,
    /// Why the others wait.
    reason: Option<Reason>,
}

impl Pending {
    fn add(&mut self, job: &Job) {
        self.jobs.insert(rank(job));
        self.kept_back.insert(job.id());
    }
}

struct Gate {
    policy: Box<dyn Policy>,
    shares: Arc<Shares>,
    users: BTreeMap<UserId, Pending>,
    /// Pending jobs of reservations, by id.
    reserved: BTreeSet<JobId>,
    charges: Charges,
    /// Jobs are stopped for shares of others from then on.
    rebalance_at: Time,
    /// GPUs that are closed for reservations.
    held: BTreeSet<GpuId>,
}

impl Shares {
    /// Lets a policy respect the shares. They may change later, by
    /// [`Event::SharesChanged`](crate::Event::SharesChanged).
    pub fn gate(self: &Arc<Self>, policy: Box<dyn Policy>) -> Box<dyn Policy> {
        Box::new(Gate {
            policy,
            charges: Charges::new(self),
            shares: self.clone(),
            users: BTreeMap::new(),
            reserved: BTreeSet::new(),
            rebalance_at: Time(0),
            held: BTreeSet::new(),
        })
    }
}

impl Gate {
    /// Whether a job waits for a reservation that there is.
    fn is_reserved(&self, job: &Job) -> bool {
        let named = job.spec.share.reservation;
        named.is_some_and(|id| self.shares.reservations.iter().any(|one| one.id == id))
    }

    /// Lets the policy know of exactly these jobs.
    fn offer(&mut self, draft: &Draft<'_>, granted: &BTreeMap<UserId, BTreeSet<JobId>>) {
        let none = BTreeSet::new();
        for (user, pending) in &mut self.users {
            let granted = granted.get(user).unwrap_or(&none);
            for &job in pending.offered.difference(granted) {
                self.policy.dequeue(draft.job(job));
                pending.kept_back.insert(job);
            }
            for &job in granted.difference(&pending.offered) {
                self.policy.enqueue(draft.job(job));
                pending.kept_back.remove(&job);
            }
            pending.offered.clone_from(granted);
        }
    }

    /// Lets the policy know of all jobs.
    fn offer_all(&mut self, draft: &Draft<'_>) {
        for pending in self.users.values_mut() {
            for job in std::mem::take(&mut pending.kept_back) {
                self.policy.enqueue(draft.job(job));
                pending.offered.insert(job);
            }
        }
    }
}

impl Policy for Gate {
    fn enqueue(&mut self, job: &Job) {
        // A job that was stopped has used GPU time; one that waits has the same at any time.
        self.charges.settle(&self.shares, job, Time(0));
        if self.is_reserved(job) {
            self.reserved.insert(job.id());
        } else {
            self.users.entry(job.spec.user).or_default().add(job);
        }
    }

    fn dequeue(&mut self, job: &Job) {
        if self.reserved.remove(&job.id()) {
            return;
        }
        let Some(pending) = self.users.get_mut(&job.spec.user) else { return };
        pending.jobs.remove(&rank(job));
        pending.kept_back.remove(&job.id());
        if pending.offered.remove(&job.id()) {
            self.policy.dequeue(job);
        }
        if pending.jobs.is_empty() {
            self.users.remove(&job.spec.user);
        }
    }

    fn job_ended(&mut self, job: &Job, now: Time) {
        self.charges.settle(&self.shares, job, now);
        self.charges.forget(job.id());
        self.policy.job_ended(job, now);
    }

    fn shares_changed(&mut self, shares: &Arc<Shares>) {
        self.shares = shares.clone();
        if self.charges.is_new() {
            self.charges = Charges::new(shares);
        }
    }

    fn reason(&self, job: &Job) -> Option<Reason> {
        if self.reserved.contains(&job.id()) {
            return Some(Reason::Reserved);
        }
        let pending = self.users.get(&job.spec.user)?;
        let waits = !pending.offered.contains(&job.id());
        waits.then_some(pending.reason).flatten()
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        self.free_reserved(draft);
        self.close_reserved(draft);
        let shares = self.shares.clone();
        let mut contend = false;
        if shares.fair.is_some() || shares.has_limits() {
            self.charges.update(&shares, draft);
            contend = shares.fair.is_some() && self.contend(draft);
        }
        if contend || shares.has_limits() {
            let granted = self.grant(draft, contend);
            self.offer(draft, &granted);
        } else {
            self.offer_all(draft);
        }
        self.policy.plan(draft);
        if contend {
            self.wake_for_shares(draft);
        }
        self.place_reserved(draft);
    }
}
