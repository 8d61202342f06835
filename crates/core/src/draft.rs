//! A plan in the making: a policy tries placements against the present and sees their effect on
//! what is left. The occupancy follows the draft at once; jobs do not, and the engine takes the
//! occupancy back if the finished plan is illegal.

use crate::cluster::{Cluster, GpuId, GpuTypeId, PartitionId};
use crate::interference::Interference;
use crate::job::{Job, JobId, Reason};
use crate::occupancy::Occupancy;
use crate::plan::{Change, Placement, Plan};
use crate::rate::{GangGpu, Tenant, rate_on_gpu};
use crate::state::{ClusterState, Rules};
use crate::units::{Memory, Ppm, Ratio, Time};

/// What a policy works with while it plans for one partition.
pub struct Draft<'a> {
    state: &'a mut ClusterState,
    interference: &'a dyn Interference,
    /// [`Interference::is_pairwise`] of `interference`.
    is_pairwise: bool,
    now: Time,
    partition: PartitionId,
    plan: &'a mut Plan,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        state: &'a mut ClusterState,
        interference: &'a dyn Interference,
        now: Time,
        partition: PartitionId,
        plan: &'a mut Plan,
    ) -> Self {
        let is_pairwise = interference.is_pairwise();
        Self { state, interference, is_pairwise, now, partition, plan }
    }

    /// The instant of this plan.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The partition of this plan.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The machines.
    pub fn cluster(&self) -> &Cluster {
        self.state.cluster()
    }

    /// What every plan has to respect.
    pub fn rules(&self) -> &Rules {
        self.state.rules()
    }

    /// What is believed about co-location.
    pub fn interference(&self) -> &dyn Interference {
        self.interference
    }

    /// A job as a tenant, within its budget under the plan so far.
    pub fn tenant<'j>(&self, job: &'j Job) -> Tenant<'j> {
        let profile = &job.spec.profile;
        if self.is_pairwise {
            // Budgets do not count, and finding one costs a search.
            return Tenant::uncapped(profile);
        }
        let budget = self.placement(job.id()).map_or(Ppm::ONE, |placement| placement.budget);
        Tenant { profile, budget }
    }

    /// The believed rate of `job` on a GPU of `kind` beside `others`, relative to running alone there;
    /// `None` if they do not fit together or the job does not tolerate it.
    pub fn rate_beside<'j>(
        &self,
        job: &Job,
        others: impl IntoIterator<Item = &'j Job>,
        kind: GpuTypeId,
    ) -> Option<Ratio> {
        let others = others.into_iter().map(|other| self.tenant(other));
        let on = GangGpu { kind, factor: Ratio::ONE, others };
        let rate = rate_on_gpu(self.interference, self.tenant(job), on)?;
        job.spec.tolerance.accepts(rate.ppm()).then_some(rate)
    }

    /// The believed rates of two jobs side by side on a GPU of `kind`; `None` if they do not fit or one
    /// of them does not tolerate it.
    pub fn pair_rates(&self, one: &Job, other: &Job, kind: GpuTypeId) -> Option<(Ppm, Ppm)> {
        let rate = |job, beside| Some(self.rate_beside(job, [beside], kind)?.ppm());
        Some((rate(one, other)?, rate(other, one)?))
    }

    /// Who would sit where if the plan so far were carried out.
    pub fn occupancy(&self) -> &Occupancy {
        self.state.occupancy()
    }

    /// A job that is not over, as it is at present.
    pub fn job(&self, job: JobId) -> &Job {
        self.state.job(job)
    }

    /// A job as it is at present, unless it is over or was never submitted.
    pub fn find(&self, job: JobId) -> Option<&Job> {
        self.state.find(job)
    }

    /// Jobs that sit on GPUs of this partition at present, by id.
    pub fn placed(&self) -> impl Iterator<Item = &Job> + '_ {
        self.state.placed(self.partition)
    }

    /// GPUs of this partition that nobody holds under the plan so far.
    pub fn free_count(&self) -> u32 {
        self.occupancy().free_count(self.partition)
    }

    /// GPUs of this partition that exactly one job holds under the plan so far.
    pub fn single_tenant_count(&self) -> u32 {
        self.occupancy().single_tenant_count(self.partition)
    }

    /// GPUs of this partition that serve: all but those that are lost, and drained ones without tenants.
    pub fn up_count(&self) -> u32 {
        self.occupancy().up_count(self.partition)
    }

    /// Whether a job would find whole GPUs under the plan so far.
    pub fn has_room(&self, job: JobId) -> bool {
        let (gpus, memory) = self.wants(job);
        let rule = self.rules().placement;
        self.occupancy().has_room(self.partition, gpus, memory, rule)
    }

    /// Whether every GPU of the partition has the memory for a job, so that no other of its size finds
    /// whole GPUs where it finds none.
    pub fn fits_every_gpu(&self, job: JobId) -> bool {
        self.occupancy().memory_least(self.partition) >= self.wants(job).1
    }

    /// The GPUs of a job, and what it takes on each of them in whole batches.
    fn wants(&self, job: JobId) -> (u32, Memory) {
        (self.job(job).spec.gpus, self.state.memory_on_gpu(job, 1))
    }

    /// Where a job would sit if the plan so far were carried out.
    pub fn placement(&self, job: JobId) -> Option<&Placement> {
        match self.plan.change(job) {
            Some(Change::Place(placement)) => Some(placement),
            Some(Change::Drop) => None,
            None => self.find(job)?.placement(),
        }
    }

    /// Gives a job whole GPUs by the rule in force; `false` and no change if there is no room.
    pub fn place_exclusive(&mut self, job: JobId) -> bool {
        let (gpus, memory) = self.wants(job);
        match self.occupancy().find(self.partition, gpus, memory, self.rules().placement) {
            Some(gpus) => {
                self.place(job, Placement::of(gpus));
                true
            }
            None => false,
        }
    }

    /// Seats a job, wherever it sat before. Legality is the engine's to check.
    pub fn place(&mut self, job: JobId, placement: Placement) {
        self.vacate(job);
        self.state.seat(job, &placement);
        self.plan.set(job, Change::Place(placement));
    }

    /// Takes a job off its GPUs: back to the queue with its state saved.
    pub fn drop(&mut self, job: JobId) {
        self.vacate(job);
        if self.find(job).is_some_and(|job| job.placement().is_some()) {
            self.plan.set(job, Change::Drop);
        } else {
            self.plan.unset(job);
        }
    }

    fn vacate(&mut self, job: JobId) {
        if let Some(placement) = self.placement(job).cloned() {
            self.state.unseat(job, &placement);
        }
    }

    /// Says why a job waits.
    pub fn explain(&mut self, job: JobId, reason: Reason) {
        self.plan.reasons.push((job, reason));
    }

    /// Says why the jobs that were not looked at wait.
    pub fn explain_others(&mut self, reason: Reason) {
        self.plan.reason_for_others = Some(reason);
    }

    /// Asks to plan again at `at` even if nothing happens; the earliest request counts.
    pub fn wake_at(&mut self, at: Time) {
        self.plan.wake = Some(self.plan.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// Tenants of a GPU under the plan so far.
    pub fn tenants(&self, gpu: GpuId) -> &[JobId] {
        self.occupancy().tenants(gpu)
    }
}
