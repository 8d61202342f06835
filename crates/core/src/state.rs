//! The present: jobs and occupancy, kept in step with each other.

use crate::bitset::BitSet;
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::gpus::Gpus;
use crate::job::{Job, JobDescription, JobId, JobSpec, Progress};
use crate::job_map::JobMap;
use crate::occupancy::{Occupancy, PlacementRule};
use crate::plan::{Change, Placement, Plan};
use crate::units::{Memory, Ppm, Time, Work};
use std::ops::Add;
use std::sync::Arc;

/// What every plan has to respect.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How whole GPUs are chosen.
    pub placement: PlacementRule,
    /// How many jobs may sit on one GPU.
    pub tenants_max: usize,
    /// Memory that each tenant takes on a GPU beyond its own.
    pub context: Memory,
}

impl Default for Rules {
    fn default() -> Self {
        Self { placement: PlacementRule::Strict, tenants_max: 1, context: Memory::default() }
    }
}

/// Jobs, occupancy and who is placed where.
#[derive(Clone, Debug)]
pub struct ClusterState {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) rules: Rules,
    jobs: JobMap<Job>,
    /// How many jobs were ever submitted.
    submitted: usize,
    pub(crate) occupancy: Occupancy,
    /// Jobs on GPUs, by partition.
    placed: Vec<BitSet>,
}

impl ClusterState {
    pub(crate) fn new(cluster: Arc<Cluster>, rules: Rules) -> Self {
        Self {
            occupancy: Occupancy::for_tenants(cluster.clone(), rules.tenants_max),
            placed: vec![BitSet::default(); cluster.partitions().len()],
            jobs: JobMap::default(),
            submitted: 0,
            cluster,
            rules,
        }
    }

    /// The machines.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What every plan has to respect.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Who sits where.
    pub fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// A job that is not over.
    pub fn job(&self, job: JobId) -> &Job {
        &self.jobs[job]
    }

    /// A job, unless it is over or was never submitted.
    pub fn find(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(job)
    }

    pub(crate) fn job_mut(&mut self, job: JobId) -> &mut Job {
        &mut self.jobs[job]
    }

    /// Jobs that sit on GPUs of a partition, by id.
    pub fn placed(&self, partition: PartitionId) -> impl Iterator<Item = &Job> + '_ {
        let id = |index| JobId(u32::try_from(index).expect("jobs are counted in u32"));
        self.placed[partition.index()].iter_from(0).map(move |index| self.job(id(index)))
    }

    /// What a job takes on each of its GPUs, context included, with its batches in `sub_batches`
    /// parts. A number of parts in which it cannot run saves nothing: the check names it.
    #[inline]
    pub fn memory_on_gpu(&self, job: JobId, sub_batches: u32) -> Memory {
        let spec = &self.job(job).spec;
        let memory =
            spec.sub_batch_option(sub_batches).map_or(spec.profile.memory, |way| way.memory);
        memory + self.rules.context
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) -> JobId {
        assert_eq!(spec.id.index(), self.submitted, "job ids are dense, in order of submission");
        self.submitted += 1;
        let id = spec.id;
        self.jobs.insert(id, Job::new(spec));
        id
    }

    /// Enters a job that was there before: on GPUs of its partition it sits at once, otherwise it waits
    /// with its state saved.
    #[cold]
    pub(crate) fn adopt(
        &mut self,
        spec: JobSpec,
        placement: Option<Placement>,
        done: Work,
        now: Time,
    ) -> JobId {
        let placement = placement.filter(|placement| placement.suits(&spec, &self.cluster));
        let job = self.submit(spec);
        self.jobs[job].progress = Progress { done, at: now, rate: Ppm::ZERO };
        match placement {
            Some(placement) => {
                self.seat(job, &placement);
                self.place(job, placement, now);
            }
            None => self.jobs[job].must_restore = true,
        }
        job
    }

    /// Changes what is known about a job; the memory that it takes where it sits follows.
    pub(crate) fn describe(&mut self, job: JobId, description: JobDescription) {
        self.vacate(job);
        self.jobs[job].spec.describe(description);
        if let Some(present) = self.job(job).placement().cloned() {
            self.seat(job, &present);
        }
    }

    /// Enters a job on GPUs in the occupancy alone, as a draft does. A job that is not there and GPUs
    /// that the cluster does not have are passed over: the check names them.
    pub(crate) fn seat(&mut self, job: JobId, placement: &Placement) {
        if self.has(job, &placement.gpus) {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.occupy(job, &placement.gpus, memory);
        }
    }

    /// Takes back [`ClusterState::seat`].
    pub(crate) fn unseat(&mut self, job: JobId, placement: &Placement) {
        if self.has(job, &placement.gpus) {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.release(job, &placement.gpus, memory);
        }
    }

    fn has(&self, job: JobId, gpus: &Gpus) -> bool {
        let count = u32::try_from(self.cluster.gpus().len()).expect("GPUs are counted in u32");
        self.find(job).is_some() && gpus.are_within(&(0..count))
    }

    /// Takes the seats of a refused plan back: the occupancy follows the jobs again.
    pub(crate) fn roll_back(&mut self, plan: &Plan) {
        for (job, change) in plan.changes() {
            if let Change::Place(placement) = change {
                self.unseat(*job, placement);
            }
        }
        for (job, _) in plan.changes() {
            if let Some(present) = self.find(*job).and_then(Job::placement).cloned() {
                self.seat(*job, &present);
            }
        }
    }

    /// Gives a job the placement in which a draft has seated it.
    pub(crate) fn place(&mut self, job: JobId, placement: Placement, now: Time) {
        let target = &mut self.jobs[job];
        if target.placement().is_none() {
            self.placed[target.spec.partition.index()].insert(job.index());
        }
        target.place(placement, now);
    }

    /// Puts a placed job whose seats are empty already back into the queue.
    pub(crate) fn unplace(&mut self, job: JobId, now: Time) {
        let target = &mut self.jobs[job];
        target.unplace(now);
        self.placed[target.spec.partition.index()].remove(job.index());
    }

    /// Takes the seats of a job away, if it has any.
    pub(crate) fn vacate(&mut self, job: JobId) {
        if let Some(present) = self.job(job).placement().cloned() {
            self.unseat(job, &present);
        }
    }

    /// Forgets a job.
    pub(crate) fn end(&mut self, job: JobId) {
        let ended = &self.jobs[job];
        if let Some(placement) = ended.placement() {
            let memory = self.memory_on_gpu(job, placement.sub_batches);
            self.occupancy.release(job, &placement.gpus, memory);
            self.placed[ended.spec.partition.index()].remove(job.index());
        }
        self.jobs.remove(job);
    }

    /// Re-checks all cross links.
    ///
    /// # Panics
    /// When jobs and occupancy disagree: a bug in the engine.
    pub fn assert_consistent(&self) {
        self.occupancy.assert_consistent();
        let mut seats = 0;
        for job in self.jobs.values() {
            let listed = self.placed[job.spec.partition.index()].contains(job.id().index());
            assert_eq!(listed, job.placement().is_some(), "{:?} in the placed set", job.id());
            for &gpu in job.placement().iter().flat_map(|placement| placement.gpus.iter()) {
                assert!(self.occupancy.tenants(gpu).contains(&job.id()), "{:?} sits", job.id());
                seats += 1;
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
        assert_eq!(seats, tenants, "every tenant is a placed job");
    }
}
