//! A plan while a policy writes it. The policy tries placements and sees at once what remains free: the
//! occupancy follows the draft, the jobs do not. The engine rolls the occupancy back if the finished plan is
//! illegal.

use crate::budget::{BudgetMode, Budgets, GpuTenants};
use crate::cluster::{Cluster, GpuId, GpuTypeId, PartitionId};
use crate::gpus::Gpus;
use crate::interference::Interference;
use crate::job::{Job, JobId, JobSpec, Reason};
use crate::occupancy::Occupancy;
use crate::plan::{Change, Placement, Plan};
use crate::rate::{GangGpu, Tenant, rate_on_gpu};
use crate::state::{ClusterState, Rules};
use crate::units::{Memory, Ppm, Ratio, Time};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// What a policy works with while it plans for one partition.
///
/// ```
/// use tandem_core::*;
///
/// /// Places a job on free GPUs, or beside the tenant of one GPU where the pair rates add up to more than 1.3.
/// fn place_or_share(draft: &mut Draft<'_>, job: JobId) -> bool {
///     if draft.place_exclusive(job) {
///         return true;
///     }
///     let rate_sum = |gpu: GpuId| {
///         let (kind, tenant) = (draft.cluster().gpu(gpu).kind, draft.job(draft.tenants(gpu)[0]));
///         let (one, other) = draft.pair_rates(draft.job(job), tenant, kind)?;
///         Some(one.0 + other.0)
///     };
///     let mut gpus = draft.occupancy().single_tenant_gpus(draft.partition());
///     let gpu = gpus.find(|&gpu| rate_sum(gpu).is_some_and(|sum| sum > 1_300_000));
///     drop(gpus);
///     let Some(gpu) = gpu.filter(|_| draft.job(job).spec.gpus == 1) else { return false };
///     draft.place(job, Placement::on([gpu]));
///     true
/// }
/// ```
pub struct Draft<'a> {
    state: &'a mut ClusterState,
    interference: &'a dyn Interference,
    /// [`Interference::is_pairwise`] of `interference`.
    is_pairwise: bool,
    now: Time,
    partition: PartitionId,
    beliefs_moved: bool,
    plan: &'a mut Plan,
    sharing_requested: bool,
    budgets: BudgetMode,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        state: &'a mut ClusterState,
        interference: &'a dyn Interference,
        now: Time,
        partition: PartitionId,
        beliefs_moved: bool,
        plan: &'a mut Plan,
    ) -> Self {
        let is_pairwise = interference.is_pairwise();
        let sharing_requested = false;
        Self {
            state,
            interference,
            is_pairwise,
            now,
            partition,
            beliefs_moved,
            plan,
            sharing_requested,
            budgets: BudgetMode::Off,
        }
    }

    pub(crate) fn set_sharing_requested(&mut self, requested: bool) {
        self.sharing_requested = requested;
    }

    /// Whether the driver asked for a decision about sharing, see [`Engine::request_sharing`].
    ///
    /// [`Engine::request_sharing`]: crate::Engine::request_sharing
    pub fn is_sharing_requested(&self) -> bool {
        self.sharing_requested
    }

    /// The time of this plan.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The partition of this plan.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The hardware.
    pub fn cluster(&self) -> &Cluster {
        self.state.cluster()
    }

    /// The limits that every plan has to respect.
    pub fn rules(&self) -> &Rules {
        self.state.rules()
    }

    /// The believed interference between co-located jobs.
    pub fn interference(&self) -> &dyn Interference {
        self.interference
    }

    /// Whether a believed pair rate has moved by more than its uncertainty since the last plan.
    pub fn beliefs_moved(&self) -> bool {
        self.beliefs_moved
    }

    /// A job as a tenant, within its budget under the plan so far.
    pub fn tenant<'j>(&self, job: &'j Job) -> Tenant<'j> {
        if self.is_pairwise {
            // Budgets do not matter to a pairwise model, and finding one costs a search.
            return Tenant::of(&job.spec, Ppm::ONE);
        }
        let budget = self.placement(job.id()).map_or(Ppm::ONE, |placement| placement.budget);
        Tenant::of(&job.spec, budget)
    }

    /// The believed rate of `job` on a GPU of `kind` beside `others`, relative to running alone there;
    /// `None` if they do not fit together or the job does not tolerate it.
    pub fn rate_beside<'j>(
        &self,
        job: &Job,
        others: impl IntoIterator<Item = &'j Job>,
        kind: GpuTypeId,
    ) -> Option<Ratio> {
        let others = others.into_iter();
        if self.budgets != BudgetMode::Off && self.state.has_promises() {
            let mut specs: SmallVec<[&JobSpec; 4]> = others.map(|other| &other.spec).collect();
            specs.push(&job.spec);
            return self.rate_among(job, &mut specs, kind);
        }
        let others = others.map(|other| self.tenant(other));
        let on = GangGpu { kind, factor: Ratio::ONE, others };
        let rate = rate_on_gpu(self.interference, self.tenant(job), on)?;
        job.spec.accepts(rate.ppm()).then_some(rate)
    }

    /// The rate of a job among tenants under the budgets that would be chosen for them.
    fn rate_among(&self, job: &Job, specs: &mut [&JobSpec], kind: GpuTypeId) -> Option<Ratio> {
        // All of them have to see the same choice.
        specs.sort_unstable_by_key(|spec| spec.id);
        let tenants = GpuTenants { specs, interference: self.interference, kind };
        let budgets = tenants.choose(self.budgets).ok()?;
        let index = specs.iter().position(|spec| spec.id == job.id())?;
        tenants.rate(index, &budgets).filter(|rate| job.spec.accepts(rate.ppm()))
    }

    /// Lets the plan choose budgets for jobs that share GPUs, where the driver can change them.
    pub fn set_budgets(&mut self, mode: BudgetMode) {
        self.budgets = if self.rules().live_budgets { mode } else { BudgetMode::Off };
    }

    /// Gives the tenants of every GPU that the plan touches, where somebody was promised something, or where
    /// somebody is capped, the budgets that keep their promises. Where none do, budgets stay as they are.
    pub fn settle_budgets(&mut self) {
        if self.budgets == BudgetMode::Off
            || !(self.state.has_promises() || self.state.capped().next().is_some())
        {
            return;
        }
        let mut touched: BTreeSet<JobId> = BTreeSet::new();
        let changed = self.plan.changes().iter().map(|(job, _)| *job);
        for job in changed.chain(self.state.capped()).chain(self.state.promised()) {
            let present = self.find(job).and_then(Job::placement);
            for gpu in present.into_iter().chain(self.placement(job)).flat_map(|at| at.gpus.iter())
            {
                touched.extend(self.tenants(*gpu));
            }
        }
        // The promise of a neighbour may have ended with it.
        let mut chosen: BTreeMap<GpuId, Option<Budgets>> = BTreeMap::new();
        for job in touched {
            if self.job(job).spec.partition != self.partition() {
                continue;
            }
            let Some(present) = self.placement(job).cloned() else { continue };
            // A gang has one budget: that of the GPU where it is least.
            let mut least: Option<Ppm> = None;
            for &gpu in present.gpus.iter() {
                let on_gpu = chosen.entry(gpu).or_insert_with(|| self.budgets_on(gpu));
                let index = self.tenants(gpu).iter().position(|&tenant| tenant == job);
                let budget = on_gpu.as_ref().zip(index).and_then(|(all, at)| all.get(at));
                least = budget.map(|&budget| least.map_or(budget, |l| l.min(budget))).or(least);
            }
            if let Some(budget) = least.filter(|&budget| budget != present.budget) {
                self.place(job, Placement { budget, ..present });
            }
        }
    }

    /// The budgets of the tenants of a GPU that keep their promises; `None` if none do.
    fn budgets_on(&self, gpu: GpuId) -> Option<Budgets> {
        let specs: SmallVec<[&JobSpec; 4]> =
            self.tenants(gpu).iter().map(|&tenant| &self.job(tenant).spec).collect();
        let kind = self.cluster().gpu(gpu).kind;
        let tenants = GpuTenants { specs: &specs, interference: self.interference, kind };
        tenants.choose(self.budgets).ok()
    }

    /// The believed rates of two jobs that share a GPU of `kind`; `None` if they do not fit or one of them
    /// does not tolerate its rate.
    pub fn pair_rates(&self, one: &Job, other: &Job, kind: GpuTypeId) -> Option<(Ppm, Ppm)> {
        let rate = |job, beside| Some(self.rate_beside(job, [beside], kind)?.ppm());
        Some((rate(one, other)?, rate(other, one)?))
    }

    /// The occupancy under the plan so far.
    pub fn occupancy(&self) -> &Occupancy {
        self.state.occupancy()
    }

    /// A job that has not ended, as it is now.
    pub fn job(&self, job: JobId) -> &Job {
        self.state.job(job)
    }

    /// A job as it is now; `None` if it has ended or was never submitted.
    pub fn find(&self, job: JobId) -> Option<&Job> {
        self.state.find(job)
    }

    /// Jobs that are placed in this partition now, by id.
    pub fn placed(&self) -> impl Iterator<Item = &Job> + '_ {
        self.state.placed(self.partition)
    }

    /// GPUs of this partition without a tenant under the plan so far.
    pub fn free_count(&self) -> u32 {
        self.occupancy().free_count(self.partition)
    }

    /// GPUs of this partition with exactly one tenant under the plan so far, where a second one is allowed.
    pub fn single_tenant_count(&self) -> u32 {
        self.occupancy().single_tenant_count(self.partition)
    }

    /// GPUs of this partition in service: all but lost ones, and drained ones without tenants.
    pub fn up_count(&self) -> u32 {
        self.occupancy().up_count(self.partition)
    }

    /// Whether free GPUs can hold the job under the plan so far.
    pub fn has_room(&self, job: JobId) -> bool {
        let (gpus, memory) = self.demand(job);
        let rule = self.rules().placement;
        self.occupancy().has_room(self.partition, gpus, memory, rule)
    }

    /// Whether every GPU of the partition has the memory for a job. If such a job finds no free GPUs, no
    /// other job of its size does.
    pub fn fits_every_gpu(&self, job: JobId) -> bool {
        self.occupancy().unreserved_memory_min(self.partition) >= self.demand(job).1
    }

    /// The number of GPUs of a job, and its memory on each of them in whole batches.
    pub(crate) fn demand(&self, job: JobId) -> (u32, Memory) {
        (self.job(job).spec.gpus, self.state.memory_on_gpu(job, 1))
    }

    /// The placement of a job under the plan so far.
    pub fn placement(&self, job: JobId) -> Option<&Placement> {
        match self.plan.change(job) {
            Some(Change::Place(placement)) => Some(placement),
            Some(Change::Drop) => None,
            None => self.find(job)?.placement(),
        }
    }

    /// Gives a job GPUs of its own by the placement rule; returns `false` and changes nothing if there are
    /// none.
    pub fn place_exclusive(&mut self, job: JobId) -> bool {
        let (gpus, memory) = self.demand(job);
        let found = self.occupancy().find(self.partition, gpus, memory, self.rules().placement);
        self.place_if(job, found)
    }

    /// [`Draft::place_exclusive`] on GPUs of one type.
    pub fn place_exclusive_on(&mut self, job: JobId, kind: GpuTypeId) -> bool {
        let (gpus, memory) = self.demand(job);
        let rule = self.rules().placement;
        let found = self.occupancy().find_of_type(self.partition, gpus, memory, rule, kind);
        self.place_if(job, found)
    }

    fn place_if(&mut self, job: JobId, found: Option<Gpus>) -> bool {
        let Some(gpus) = found else { return false };
        self.place(job, Placement::of(gpus));
        true
    }

    /// Places a job, wherever it was before. The engine checks legality later.
    pub fn place(&mut self, job: JobId, placement: Placement) {
        self.vacate(job);
        self.state.occupy(job, &placement);
        self.plan.set(job, Change::Place(placement));
    }

    /// Removes a job from its GPUs: it returns to the queue with its state saved.
    pub fn drop(&mut self, job: JobId) {
        self.vacate(job);
        if self.find(job).is_some_and(|job| job.placement().is_some()) {
            self.plan.set(job, Change::Drop);
        } else {
            self.plan.unset(job);
        }
    }

    /// Closes a GPU to new tenants for a reservation, or opens it again.
    pub(crate) fn hold(&mut self, gpu: GpuId, held: bool) {
        self.state.occupancy.set_held(gpu, held);
    }

    fn vacate(&mut self, job: JobId) {
        if let Some(placement) = self.placement(job).cloned() {
            self.state.release(job, &placement);
        }
    }

    /// States why a job waits.
    pub fn explain(&mut self, job: JobId, reason: Reason) {
        self.plan.reasons.push((job, reason));
    }

    /// States why all other jobs wait.
    pub fn explain_others(&mut self, reason: Reason) {
        self.plan.reason_for_others = Some(reason);
    }

    /// Requests a plan at `at` even if nothing happens before; the earliest request counts.
    pub fn wake_at(&mut self, at: Time) {
        self.plan.wake = Some(self.plan.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// Tenants of a GPU under the plan so far.
    pub fn tenants(&self, gpu: GpuId) -> &[JobId] {
        self.occupancy().tenants(gpu)
    }
}
