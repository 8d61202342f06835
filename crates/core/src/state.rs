//! The present: jobs and occupancy, kept in step with each other.

use crate::bitset::BitSet;
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::job::{Job, JobId, JobSpec, State as JobState};
use crate::occupancy::{Occupancy, PlacementRule};
use crate::plan::{Change, Placement, Plan};
use crate::units::{Memory, Time, Work};
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
pub struct State {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) rules: Rules,
    pub(crate) jobs: Vec<Job>,
    pub(crate) occupancy: Occupancy,
    /// Jobs on GPUs, by partition.
    placed: Vec<BitSet>,
}

impl State {
    pub(crate) fn new(cluster: Arc<Cluster>, rules: Rules) -> Self {
        Self {
            occupancy: Occupancy::new(cluster.clone()),
            placed: vec![BitSet::default(); cluster.partitions().len()],
            jobs: Vec::new(),
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

    /// One job.
    pub fn job(&self, job: JobId) -> &Job {
        &self.jobs[job.index()]
    }

    /// All jobs ever submitted, by id.
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Jobs that sit on GPUs of a partition, by id.
    pub fn placed(&self, partition: PartitionId) -> impl Iterator<Item = &Job> + '_ {
        self.placed[partition.index()].iter_from(0).map(|job| &self.jobs[job])
    }

    /// What a job takes on each of its GPUs, context included.
    pub fn memory_on_gpu(&self, job: JobId) -> Memory {
        self.job(job).spec.profile.memory + self.rules.context
    }

    pub(crate) fn submit(&mut self, spec: JobSpec) -> JobId {
        assert_eq!(spec.id.index(), self.jobs.len(), "job ids are dense, in order of submission");
        let id = spec.id;
        self.jobs.push(Job::new(spec));
        id
    }

    /// Enters a job on GPUs in the occupancy alone, as a draft does. GPUs that the cluster does not
    /// have are passed over: the check names them.
    pub(crate) fn seat(&mut self, job: JobId, gpus: &[GpuId]) {
        if self.has_gpus(gpus) {
            self.occupancy.occupy(job, gpus, self.memory_on_gpu(job));
        }
    }

    /// Takes back [`State::seat`].
    pub(crate) fn unseat(&mut self, job: JobId, gpus: &[GpuId]) {
        if self.has_gpus(gpus) {
            self.occupancy.release(job, gpus, self.memory_on_gpu(job));
        }
    }

    fn has_gpus(&self, gpus: &[GpuId]) -> bool {
        let count = self.cluster.gpus().len();
        gpus.iter().all(|gpu| gpu.index() < count)
    }

    /// Takes the seats of a refused plan back: the occupancy follows the jobs again.
    pub(crate) fn roll_back(&mut self, plan: &Plan) {
        for (job, change) in plan.changes() {
            if let Change::Place(placement) = change {
                self.unseat(*job, &placement.gpus);
            }
        }
        for (job, _) in plan.changes() {
            if let Some(gpus) = self.job(*job).placement().map(|present| present.gpus.clone()) {
                self.seat(*job, &gpus);
            }
        }
    }

    /// Gives a job the placement in which a draft has seated it.
    pub(crate) fn place(&mut self, job: JobId, placement: Placement, now: Time) {
        let target = &mut self.jobs[job.index()];
        if target.placement().is_none() {
            self.placed[target.spec.partition.index()].insert(job.index());
        }
        target.place(placement, now);
    }

    /// Gives a job whose seats are empty already the state `next`.
    pub(crate) fn unplace(&mut self, job: JobId, next: JobState, now: Time) -> Option<Placement> {
        let target = &mut self.jobs[job.index()];
        let left = target.unplace(next, now)?;
        target.must_restore = true;
        self.placed[target.spec.partition.index()].remove(job.index());
        Some(left)
    }

    /// Takes a job off its GPUs, if it has any, and gives it the state `next`.
    pub(crate) fn remove(&mut self, job: JobId, next: JobState, now: Time) {
        if let Some(left) = self.unplace(job, next, now) {
            self.unseat(job, &left.gpus);
        }
    }

    pub(crate) fn keep_only(&mut self, job: JobId, kept: Work) {
        self.jobs[job.index()].progress.done = kept;
    }

    /// Re-checks all cross links.
    ///
    /// # Panics
    /// When jobs and occupancy disagree: a bug in the engine.
    pub fn assert_consistent(&self) {
        self.occupancy.assert_consistent();
        let mut seats = 0;
        for job in &self.jobs {
            let listed = self.placed[job.spec.partition.index()].contains(job.id().index());
            assert_eq!(listed, job.placement().is_some(), "{:?} in the placed set", job.id());
            for &gpu in job.placement().iter().flat_map(|placement| placement.gpus.iter()) {
                assert!(self.occupancy.tenants(gpu).contains(&job.id()), "{:?} sits", job.id());
                seats += 1;
            }
        }
        let gpus = (0..).map(GpuId).take(self.cluster.gpus().len());
        let tenants: usize = gpus.map(|gpu| self.occupancy.tenants(gpu).len()).sum();
        assert_eq!(seats, tenants, "every tenant is a placed job");
    }
}
