//! The current jobs and occupancy, kept consistent with each other.

use crate::bitset::BitSet;
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::gpus::Gpus;
use crate::job::{Job, JobDescription, JobId, JobSpec, Progress};
use crate::job_map::JobMap;
use crate::occupancy::{Occupancy, PlacementRule};
use crate::plan::{Change, Placement, Plan};
use crate::units::{Memory, Ppm, Time, Work};
use std::collections::BTreeSet;
use std::ops::Add;
use std::sync::Arc;

/// The limits that every plan has to respect.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How GPUs are chosen for a job of its own.
    pub placement: PlacementRule,
    /// Tenants per GPU.
    pub tenants_max: usize,
    /// Memory of each tenant's context on a GPU, beyond its own.
    pub context: Memory,
    /// Budgets can be changed while jobs run. Where they cannot, no policy sets any.
    pub live_budgets: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            placement: PlacementRule::Strict,
            tenants_max: 1,
            context: Memory::default(),
            live_budgets: false,
        }
    }
}

/// Jobs and occupancy.
#[derive(Clone, Debug)]
pub struct ClusterState {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) rules: Rules,
    jobs: JobMap<Job>,
    /// Number of jobs submitted so far.
    submitted: usize,
    pub(crate) occupancy: Occupancy,
    /// Placed jobs, by partition.
    placed: Vec<BitSet>,
    /// Jobs that were promised something beside others.
    promised: BTreeSet<JobId>,
    /// Placed jobs with a budget below the whole.
    capped: BTreeSet<JobId>,
}

impl ClusterState {
    pub(crate) fn new(cluster: Arc<Cluster>, rules: Rules) -> Self {
        Self {
            occupancy: Occupancy::for_tenants(cluster.clone(), rules.tenants_max),
            placed: vec![BitSet::default(); cluster.partitions().len()],
            jobs: JobMap::default(),
            submitted: 0,
            promised: BTreeSet::new(),
            capped: BTreeSet::new(),
            cluster,
            rules,
        }
    }

    /// The hardware.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The limits that every plan has to respect.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The tenants of every GPU.
    pub fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// A job that has not ended.
    pub fn job(&self, job: JobId) -> &Job {
        &self.jobs[job]
    }

    /// A job; `None` if it has ended or was never submitted.
    pub fn find(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    pub(crate) fn job_mut(&mut self, job: JobId) -> &mut Job {
        &mut self.jobs[job]
    }

    /// Placed jobs of a partition, by id.
    pub fn placed(&self, partition: PartitionId) -> impl Iterator<Item = &Job> + '_ {
        let id = |index| JobId(u32::try_from(index).expect("jobs are counted in u32"));
        self.placed[partition.index()].iter_from(0).map(move |index| self.job(id(index)))
    }

    /// Memory of a job on each of its GPUs, context included, in this number of sub-batches. A number that
    /// the job does not have counts as whole batches: the check reports it.
    #[inline]
    pub fn memory_on_gpu(&self, job: JobId, sub_batches: u32) -> Memory {
        let spec = &self.job(job).spec;
        let memory =
            spec.sub_batch_option(sub_batches).map_or(spec.profile.memory, |option| option.memory);
        memory + self.rules.context
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) -> JobId {
        assert_eq!(spec.id.index(), self.submitted, "job ids are dense, in order of submission");
        self.submitted += 1;
        let id = spec.id;
        if spec.has_promise() {
            self.promised.insert(id);
        }
        self.jobs.insert(id, Job::new(spec));
        id
    }

    /// Adds a job that existed before: placed on GPUs of its partition, otherwise waiting with its state
    /// saved.
    #[cold]
    pub(crate) fn adopt(
        &mut self,
        spec: JobSpec,
        placement: Option<Placement>,
        done: Work,
        now: Time,
    ) -> JobId {
        let placement = placement.filter(|placement| placement.is_valid_for(&spec, &self.cluster));
        let job = self.submit(spec);
        self.jobs[job].progress = Progress { done, at: now, rate: Ppm::ZERO };
        match placement {
            Some(placement) => {
                self.occupy(job, &placement);
                self.place(job, placement, now);
            }
            None => self.jobs[job].must_restore = true,
        }
        job
    }

    /// Changes the description of a job, and the memory that it occupies.
    pub(crate) fn describe(&mut self, job: JobId, description: JobDescription) {
        self.vacate(job);
        self.jobs[job].spec.describe(description);
        match self.jobs[job].spec.has_promise() {
            true => self.promised.insert(job),
            false => self.promised.remove(&job),
        };
        if let Some(present) = self.job(job).placement().cloned() {
            self.occupy(job, &present);
        }
    }

    /// Adds a job to the occupancy only, as a draft does. Unknown jobs and GPUs are ignored: the check
    /// reports them.
    pub(crate) fn occupy(&mut self, job: JobId, placement: &Placement) {
        if self.has(job, &placement.gpus) {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.occupy(job, &placement.gpus, memory);
        }
    }

    /// Reverts [`ClusterState::occupy`].
    pub(crate) fn release(&mut self, job: JobId, placement: &Placement) {
        if self.has(job, &placement.gpus) {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.release(job, &placement.gpus, memory);
        }
    }

    fn has(&self, job: JobId, gpus: &Gpus) -> bool {
        let count = u32::try_from(self.cluster.gpus().len()).expect("GPUs are counted in u32");
        self.find(job).is_some() && gpus.are_within(&(0..count))
    }

    /// Reverts the occupancy of a refused plan.
    pub(crate) fn roll_back(&mut self, plan: &Plan) {
        for (job, change) in plan.changes() {
            if let Change::Place(placement) = change {
                self.release(*job, placement);
            }
        }
        for (job, _) in plan.changes() {
            if let Some(present) = self.find(*job).and_then(Job::placement).cloned() {
                self.occupy(*job, &present);
            }
        }
    }

    /// Sets the placement of a job that the draft has added to the occupancy.
    pub(crate) fn place(&mut self, job: JobId, placement: Placement, now: Time) {
        let target = &mut self.jobs[job];
        if target.placement().is_none() {
            self.placed[target.spec.partition.index()].insert(job.index());
        }
        let budget = placement.budget;
        target.place(placement, now);
        self.note_budget(job, budget);
    }

    /// Changes the budget of a placed job, which goes on.
    pub(crate) fn set_budget(&mut self, job: JobId, budget: Ppm) {
        self.jobs[job].set_budget(budget);
        self.note_budget(job, budget);
    }

    fn note_budget(&mut self, job: JobId, budget: Ppm) {
        if budget < Ppm::ONE {
            self.capped.insert(job);
        } else if !self.capped.is_empty() {
            self.capped.remove(&job);
        }
    }

    /// Whether a job that has not ended was promised something beside others.
    pub fn has_promises(&self) -> bool {
        !self.promised.is_empty()
    }

    /// Jobs that have not ended and were promised something beside others, by id.
    pub fn promised(&self) -> impl Iterator<Item = JobId> + '_ {
        self.promised.iter().copied()
    }

    /// Placed jobs with a budget below the whole, by id.
    pub fn capped(&self) -> impl Iterator<Item = JobId> + '_ {
        self.capped.iter().copied()
    }

    /// Returns a placed job, already removed from the occupancy, to the queue.
    pub(crate) fn unplace(&mut self, job: JobId, now: Time) {
        let target = &mut self.jobs[job];
        target.unplace(now);
        self.placed[target.spec.partition.index()].remove(job.index());
        self.note_budget(job, Ppm::ONE);
    }

    /// Removes a job from the occupancy, if it is placed.
    pub(crate) fn vacate(&mut self, job: JobId) {
        if let Some(present) = self.job(job).placement().cloned() {
            self.release(job, &present);
        }
    }

    /// Removes a job that has ended.
    pub(crate) fn end(&mut self, job: JobId) {
        let ended = &self.jobs[job];
        if let Some(placement) = ended.placement() {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.release(job, &placement.gpus, memory);
            self.placed[ended.spec.partition.index()].remove(job.index());
        }
        self.promised.remove(&job);
        self.note_budget(job, Ppm::ONE);
        self.jobs.remove(job);
    }

    /// Checks jobs against occupancy.
    ///
    /// # Panics
    /// When jobs and occupancy disagree: a bug in the engine.
    pub fn assert_consistent(&self) {
        self.occupancy.assert_consistent();
        let mut placed = 0;
        for job in self.jobs.values() {
            let listed = self.placed[job.spec.partition.index()].contains(job.id().index());
            assert_eq!(listed, job.placement().is_some(), "{:?} in the placed set", job.id());
            for &gpu in job.placement().iter().flat_map(|placement| placement.gpus.iter()) {
                assert!(
                    self.occupancy.tenants(gpu).contains(&job.id()),
                    "{:?} is a tenant",
                    job.id()
                );
                placed += 1;
            }
        }
        let gpus = || (0..).map(GpuId).take(self.cluster.gpus().len());
        let memory = |job: &JobId| {
            let parts = self.job(*job).placement().map_or(1, |placement| placement.sub_batches);
            self.memory_on_gpu(*job, parts)
        };
        for gpu in gpus() {
            let tenants = self.occupancy.tenants(gpu).iter().map(memory);
            let used = tenants.fold(self.occupancy.memory_reserved(gpu), Add::add);
            assert_eq!(self.occupancy.memory_used(gpu), used, "memory of {gpu:?}");
        }
        let tenants: usize = gpus().map(|gpu| self.occupancy.tenants(gpu).len()).sum();
        assert_eq!(placed, tenants, "every tenant is a placed job");
    }
}
