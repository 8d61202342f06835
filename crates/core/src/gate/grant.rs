//! Who may run: pending jobs in fair order, within limits and the GPUs that there are.

use super::{Gate, Pending};
use crate::draft::Draft;
use crate::job::{Job, JobId, Reason, UserId};
use crate::shares::{Limit, LimitOf, Limits, Shares};
use crate::units::{Memory, Span, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// What the jobs of a user or an account have.
#[derive(Clone, Copy, Default)]
struct Holding {
    jobs: u32,
    gpus: u32,
    memory: u64,
}

impl Holding {
    fn add(&mut self, job: &Job) {
        self.jobs += 1;
        self.gpus += job.spec.gpus;
        self.memory += memory_of(job);
    }

    /// The limit that one more job would exceed.
    fn exceeds(&self, job: &Job, limits: &Limits, used: Span) -> Option<Limit> {
        let over = |most: Option<u32>, wanted: u32| most.is_some_and(|most| wanted > most);
        if over(limits.jobs, self.jobs + 1) {
            Some(Limit::Jobs)
        } else if over(limits.gpus, self.gpus.saturating_add(job.spec.gpus)) {
            Some(Limit::Gpus)
        } else if limits.memory.is_some_and(|most| self.memory + memory_of(job) > units(most)) {
            Some(Limit::Memory)
        } else if limits.gpu_time.is_some_and(|most| used >= most) {
            Some(Limit::GpuTime)
        } else {
            None
        }
    }
}

/// GPU memory of a job on all its GPUs, in the unit of [`units`].
fn memory_of(job: &Job) -> u64 {
    units(job.spec.profile.memory).saturating_mul(u64::from(job.spec.gpus))
}

fn units(memory: Memory) -> u64 {
    memory.mib() as u64
}

/// A user's jobs on the way through the grant.
struct Turn<'a> {
    /// Running jobs that can be stopped, in order.
    placed: std::vec::IntoIter<(i8, JobId)>,
    next_placed: Option<(i8, JobId)>,
    pending: Box<dyn Iterator<Item = JobId> + 'a>,
    next_pending: Option<JobId>,
    charged: u128,
}

/// The jobs that may run.
pub(super) struct Grants<'a> {
    shares: &'a Shares,
    holdings: BTreeMap<UserId, Holding>,
    by_account: BTreeMap<u32, Holding>,
    granted: BTreeMap<UserId, BTreeSet<JobId>>,
    reasons: BTreeMap<UserId, Reason>,
    /// Running jobs beyond the shares of their users, the first to be kept first.
    surplus: Vec<JobId>,
    /// GPUs of granted jobs that wait.
    wanted: u32,
}

impl Gate {
    /// Whether several users want GPUs. Takes note of who they are.
    pub(super) fn contend(&mut self, draft: &Draft<'_>) -> bool {
        let mut active: BTreeMap<UserId, Option<u32>> = BTreeMap::new();
        for job in draft.placed() {
            active.entry(job.spec.user).or_insert_with(|| self.account_of(job));
        }
        for (&user, pending) in &self.users {
            if let Some(&(.., first)) = pending.jobs.first() {
                active.entry(user).or_insert_with(|| self.account_of(draft.job(first)));
            }
        }
        let contend = active.len() > 1;
        let credit = self.credit(draft);
        self.charges.note_active(active, credit);
        contend
    }

    fn account_of(&self, job: &Job) -> Option<u32> {
        self.shares.account(&job.spec).map(|account| account.0)
    }

    /// Decides which pending jobs may run, and stops running jobs for them if it is time.
    pub(super) fn grant(
        &mut self,
        draft: &mut Draft<'_>,
        contend: bool,
    ) -> BTreeMap<UserId, BTreeSet<JobId>> {
        let shares = self.shares.clone();
        let mut grants = Grants::new(&shares, draft);
        if contend {
            let gpus = draft.up_count();
            let (mut turns, left) = self.turns(draft, &mut grants, gpus);
            self.share_out(draft, &mut grants, &mut turns, left);
            drop(turns);
            if grants.wanted == 0 {
                // Everybody has what is due; others may join as tenants of shared GPUs, in the same order.
                let tenants = u32::try_from(draft.rules().tenants_max).unwrap_or(u32::MAX);
                grants = Grants::new(&shares, draft);
                let (mut turns, left) =
                    self.turns(draft, &mut grants, gpus.saturating_mul(tenants));
                self.keep_back_leaders(draft, &mut turns);
                self.share_out(draft, &mut grants, &mut turns, left);
            } else {
                self.rebalance(draft, &grants);
            }
        } else {
            self.grant_all(draft, &mut grants);
        }
        self.wake_for_period(draft, &grants);
        for (user, pending) in &mut self.users {
            pending.reason = grants.reasons.get(user).copied().or(Some(Reason::FairShare));
        }
        grants.granted
    }

    /// Every user's jobs in order, with running jobs that cannot be stopped granted first.
    fn turns<'a>(
        &'a self,
        draft: &Draft<'_>,
        grants: &mut Grants<'_>,
        gpus: u32,
    ) -> (BTreeMap<UserId, Turn<'a>>, u32) {
        let mut left = gpus;
        let mut placed: BTreeMap<UserId, Vec<(i8, JobId)>> = BTreeMap::new();
        let mut charged: BTreeMap<UserId, u128> = BTreeMap::new();
        for job in draft.placed().filter(|job| draft.placement(job.id()).is_some()) {
            let user = job.spec.user;
            let charge = charged.entry(user).or_insert_with(|| self.charges.of(user));
            if job.spec.stoppable {
                placed.entry(user).or_default().push((job.spec.share.tier, job.id()));
            } else {
                left = left.saturating_sub(job.spec.gpus);
                *charge += self.slice_price(grants.shares, job);
            }
        }
        let mut turns = BTreeMap::new();
        let users: BTreeSet<UserId> = placed.keys().chain(self.users.keys()).copied().collect();
        for user in users {
            let mut own = placed.remove(&user).unwrap_or_default();
            own.sort_unstable_by_key(|&(tier, job)| (Reverse(tier), job));
            let mut own = own.into_iter();
            let next_placed = own.next();
            let mut pending: Box<dyn Iterator<Item = JobId> + 'a> = match self.users.get(&user) {
                Some(Pending { jobs, .. }) => Box::new(jobs.iter().map(|&(.., job)| job)),
                None => Box::new(std::iter::empty()),
            };
            let next_pending = pending.next();
            let charged = charged.get(&user).copied().unwrap_or_else(|| self.charges.of(user));
            turns.insert(user, Turn { placed: own, next_placed, pending, next_pending, charged });
        }
        (turns, left)
    }

    /// Users ahead of one who waits get no further jobs: a policy that prefers theirs would put the others
    /// back.
    fn keep_back_leaders(&self, draft: &Draft<'_>, turns: &mut BTreeMap<UserId, Turn<'_>>) {
        let waiting = turns.iter().filter(|(_, turn)| turn.next_pending.is_some());
        let Some(least) = waiting.map(|(&user, _)| self.charges.of(user)).min() else { return };
        let most = least + self.credit(draft);
        for (&user, turn) in turns {
            if self.charges.of(user) > most {
                turn.next_pending = None;
            }
        }
    }

    /// How far users may be apart, in charges: a quarter of a slice of all GPUs. History counts, and users
    /// with and without it are equal within a slice.
    fn credit(&self, draft: &Draft<'_>) -> u128 {
        let slice = self.shares.fair.map_or(0, |fair| fair.slice.0);
        u128::from(slice) * u128::from(draft.up_count()) / 4
    }

    /// What a slice on the GPUs of a job costs its user.
    fn slice_price(&self, shares: &Shares, job: &Job) -> u128 {
        let slice = shares.fair.map_or(0, |fair| fair.slice.0);
        self.charges.price(shares, job, u128::from(slice) * u128::from(job.spec.gpus))
    }

    /// Goes round the users, the least charged first, until the GPUs are given out.
    fn share_out(
        &self,
        draft: &Draft<'_>,
        grants: &mut Grants<'_>,
        turns: &mut BTreeMap<UserId, Turn<'_>>,
        mut left: u32,
    ) {
        let mut order: BinaryHeap<Reverse<(Reverse<i8>, u128, UserId)>> = BinaryHeap::new();
        let key = |turn: &Turn<'_>, user: UserId| {
            let pending = turn.next_pending.map(|job| draft.job(job).spec.share.tier);
            let tier = pending.max(turn.next_placed.map(|(tier, _)| tier))?;
            Some(Reverse((Reverse(tier), turn.charged, user)))
        };
        order.extend(turns.iter().filter_map(|(&user, turn)| key(turn, user)));
        while let Some(Reverse((_, _, user))) = order.pop() {
            let turn = turns.get_mut(&user).expect("everybody has a turn");
            let pending_tier = turn.next_pending.map(|job| draft.job(job).spec.share.tier);
            match turn.next_placed {
                // What runs goes on before what waits.
                Some((tier, job)) if pending_tier.is_none_or(|pending| pending <= tier) => {
                    turn.next_placed = turn.placed.next();
                    let running = draft.job(job);
                    if running.spec.gpus <= left {
                        left -= running.spec.gpus;
                        turn.charged += self.slice_price(grants.shares, running);
                    } else {
                        grants.surplus.push(job);
                    }
                }
                _ => {
                    let Some(job) = turn.next_pending else { continue };
                    let waiting = draft.job(job);
                    // Nothing of the same user overtakes a job that does not fit.
                    turn.next_pending = None;
                    if waiting.spec.gpus <= left && grants.allows(waiting, &self.charges) {
                        left -= waiting.spec.gpus;
                        turn.charged += self.slice_price(grants.shares, waiting);
                        grants.add(waiting);
                        grants.wanted += waiting.spec.gpus;
                        turn.next_pending = turn.pending.next();
                    }
                }
            }
            order.extend(key(turn, user));
        }
    }

    /// Grants all jobs that limits allow, users in turn.
    fn grant_all(&self, draft: &Draft<'_>, grants: &mut Grants<'_>) {
        let mut queues: Vec<_> = self.users.values().map(|user| user.jobs.iter()).collect();
        while !queues.is_empty() {
            queues.retain_mut(|queue| {
                let Some(&(.., job)) = queue.next() else { return false };
                let allowed = grants.allows(draft.job(job), &self.charges);
                if allowed {
                    grants.add(draft.job(job));
                }
                allowed
            });
        }
    }

    /// Stops running jobs beyond the shares of their users, at most once a slice, until the granted jobs
    /// have the GPUs that they want.
    fn rebalance(&mut self, draft: &mut Draft<'_>, grants: &Grants<'_>) {
        let Some(fair) = self.shares.fair else { return };
        let now = draft.now();
        if draft.free_count() >= grants.wanted
            || grants.surplus.is_empty()
            || now < self.rebalance_at
        {
            return;
        }
        self.rebalance_at = now + fair.slice.max(Span(1));
        // First those that are alone somewhere: stopping one of several tenants frees no GPU.
        for only_alone in [true, false] {
            for &job in grants.surplus.iter().rev() {
                if draft.free_count() >= grants.wanted {
                    return;
                }
                let is_alone = draft.placement(job).is_some_and(|placement| {
                    placement.gpus.iter().any(|&gpu| draft.tenants(gpu).len() == 1)
                });
                if is_alone || !only_alone {
                    draft.drop(job);
                }
            }
        }
    }

    /// Shares shift with time, as long as jobs wait and others run: who has had less is next.
    pub(super) fn wake_for_shares(&self, draft: &mut Draft<'_>) {
        let Some(fair) = self.shares.fair else { return };
        let now = draft.now();
        if !self.users.is_empty() && draft.free_count() < draft.up_count() {
            let next = now + fair.slice.max(Span(1));
            draft.wake_at(if self.rebalance_at > now { self.rebalance_at } else { next });
        }
    }

    /// The next period may let jobs start.
    fn wake_for_period(&self, draft: &mut Draft<'_>, grants: &Grants<'_>) {
        let is_used_up = |reason: &Reason| matches!(reason, Reason::Limit(_, Limit::GpuTime));
        if self.shares.period > Span::ZERO && grants.reasons.values().any(is_used_up) {
            let next = self.shares.period_of(draft.now()).saturating_add(1);
            draft.wake_at(Time(next.saturating_mul(self.shares.period.0)));
        }
    }
}

impl<'a> Grants<'a> {
    fn new(shares: &'a Shares, draft: &Draft<'_>) -> Self {
        let mut grants = Self {
            shares,
            holdings: BTreeMap::new(),
            by_account: BTreeMap::new(),
            granted: BTreeMap::new(),
            reasons: BTreeMap::new(),
            surplus: Vec::new(),
            wanted: 0,
        };
        for job in draft.placed() {
            grants.hold(job);
        }
        grants
    }

    fn hold(&mut self, job: &Job) {
        self.holdings.entry(job.spec.user).or_default().add(job);
        if let Some(account) = self.shares.account(&job.spec) {
            self.by_account.entry(account.0).or_default().add(job);
        }
    }

    fn add(&mut self, job: &Job) {
        self.hold(job);
        self.granted.entry(job.spec.user).or_default().insert(job.id());
    }

    /// Whether limits allow one more job; notes which one does not.
    fn allows(&mut self, job: &Job, charges: &super::Charges) -> bool {
        let user = job.spec.user;
        let holding = self.holdings.get(&user).copied().unwrap_or_default();
        let own = holding.exceeds(job, self.shares.limits_of(user), charges.used(user));
        let account = self.shares.account(&job.spec).and_then(|account| {
            let holding = self.by_account.get(&account.0).copied().unwrap_or_default();
            let limits = &self.shares.accounts[account.index()].limits;
            holding.exceeds(job, limits, charges.used_by_account(account.0))
        });
        let limit = own
            .map(|limit| Reason::Limit(LimitOf::User, limit))
            .or(account.map(|limit| Reason::Limit(LimitOf::Account, limit)));
        if let Some(limit) = limit {
            self.reasons.insert(user, limit);
        }
        limit.is_none()
    }
}
