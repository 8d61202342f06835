//! The tenants of every GPU, and the search for free GPUs. Every operation costs what it touches: the GPUs of
//! a gang, not of the cluster.

mod find;
mod nodes;

use crate::bitset::BitSet;
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::gpus::Gpus;
use crate::job::JobId;
use crate::units::Memory;
use nodes::NodeIndex;
use smallvec::SmallVec;
use std::sync::Arc;

/// Tenants of one GPU, by id.
pub type Tenants = SmallVec<[JobId; 2]>;

/// How GPUs of its own are chosen for a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementRule {
    /// On the fewest nodes, or not at all: best fit inside a node, wholly idle nodes above that.
    #[default]
    Strict,
    /// The first free GPUs, wherever they are.
    Scatter,
}

/// Whether a GPU is in service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GpuCondition {
    /// In service.
    #[default]
    Up,
    /// It keeps its tenants and takes no new ones.
    Drained,
    /// It has no tenants and takes none.
    Lost,
}

/// The current tenants of every GPU, with indexes of free GPUs.
#[derive(Clone, Debug)]
pub struct Occupancy {
    cluster: Arc<Cluster>,
    /// By GPU.
    by_gpu: Vec<GpuOccupancy>,
    /// GPUs that are up and have no tenant.
    free: BitSet,
    /// GPUs that are up and have exactly one tenant. `None` where a second tenant is not allowed: exclusive
    /// policies do not pay for the index.
    single_tenant: Option<BitSet>,
    nodes: NodeIndex,
    /// By partition: the smallest memory of a GPU that is not reserved.
    unreserved_memory_min: Vec<Memory>,
    /// Number of GPUs that are lost or drained.
    closed: usize,
    /// Number of GPUs with two tenants or more.
    shared: usize,
}

/// The tenants of one GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuOccupancy {
    pub(crate) tenants: Tenants,
    /// Memory of the tenants and reserved memory.
    pub(crate) memory_used: Memory,
    reserved: Memory,
    condition: GpuCondition,
    /// Closed to all but the jobs of a reservation.
    held: bool,
}

impl GpuOccupancy {
    fn is_open(&self) -> bool {
        self.condition == GpuCondition::Up && !self.held
    }

    /// Whether it can take a first tenant.
    fn is_free(&self) -> bool {
        self.tenants.is_empty() && self.is_open()
    }

    /// Whether it can take a second tenant.
    fn takes_second_tenant(&self) -> bool {
        self.tenants.len() == 1 && self.is_open()
    }

    /// Whether it has a tenant or can take one.
    fn is_in_service(&self) -> bool {
        self.is_open() || !self.tenants.is_empty()
    }

    /// Adds a job to other tenants.
    #[inline(never)]
    fn add_tenant(&mut self, job: JobId) {
        let position = self.tenants.partition_point(|&tenant| tenant < job);
        self.tenants.insert(position, job);
    }

    /// Removes a job from among other tenants.
    #[inline(never)]
    fn remove_tenant(&mut self, job: JobId) {
        let position = self.tenants.iter().position(|&tenant| tenant == job);
        self.tenants.remove(position.expect("a tenant of this GPU"));
    }
}

impl Occupancy {
    /// An empty cluster with one tenant per GPU.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self::for_tenants(cluster, 1)
    }

    /// An empty cluster with up to `tenants_max` tenants per GPU.
    pub(crate) fn for_tenants(cluster: Arc<Cluster>, tenants_max: usize) -> Self {
        let gpus = cluster.gpus().len();
        let mut free = BitSet::with_capacity(gpus);
        (0..gpus).for_each(|gpu| free.insert(gpu));
        let nodes = NodeIndex::of_idle(&cluster);
        let single_tenant = (tenants_max > 1).then(|| BitSet::with_capacity(gpus));
        let by_gpu = vec![GpuOccupancy::default(); gpus];
        let unreserved_memory_min = vec![Memory::default(); cluster.partitions().len()];
        let (closed, shared) = (0, 0);
        let mut idle = Self {
            by_gpu,
            free,
            single_tenant,
            nodes,
            unreserved_memory_min,
            closed,
            shared,
            cluster,
        };
        for partition in (0..).map(PartitionId).take(idle.unreserved_memory_min.len()) {
            idle.update_unreserved_memory_min(partition);
        }
        idle
    }

    fn update_unreserved_memory_min(&mut self, partition: PartitionId) {
        let gpus = self.cluster.partition(partition).gpus.clone().map(GpuId);
        let left =
            gpus.map(|gpu| self.cluster.gpu(gpu).memory.saturating_sub(self.memory_reserved(gpu)));
        self.unreserved_memory_min[partition.index()] = left.min().unwrap_or_default();
    }

    pub(crate) fn gpu(&self, gpu: GpuId) -> &GpuOccupancy {
        &self.by_gpu[gpu.index()]
    }

    /// Tenants of a GPU, by id.
    pub fn tenants(&self, gpu: GpuId) -> &[JobId] {
        &self.by_gpu[gpu.index()].tenants
    }

    /// Memory of the tenants of a GPU, contexts included, and reserved memory.
    pub fn memory_used(&self, gpu: GpuId) -> Memory {
        self.by_gpu[gpu.index()].memory_used
    }

    /// Memory of a GPU that processes outside the scheduler use.
    pub fn memory_reserved(&self, gpu: GpuId) -> Memory {
        self.by_gpu[gpu.index()].reserved
    }

    /// The smallest memory that a GPU of a partition has for all its tenants.
    pub(crate) fn unreserved_memory_min(&self, partition: PartitionId) -> Memory {
        self.unreserved_memory_min[partition.index()]
    }

    /// Whether a GPU has this much memory free.
    pub fn has_memory(&self, gpu: GpuId, memory: Memory) -> bool {
        self.memory_used(gpu) + memory <= self.cluster.gpu(gpu).memory
    }

    /// Whether a GPU is in service.
    pub(crate) fn condition(&self, gpu: GpuId) -> GpuCondition {
        self.by_gpu[gpu.index()].condition
    }

    /// Whether a GPU takes no new tenants: it is lost, or drained.
    pub fn is_closed(&self, gpu: GpuId) -> bool {
        !self.by_gpu[gpu.index()].is_open()
    }

    /// Whether no GPU is lost or drained.
    pub(crate) fn all_up(&self) -> bool {
        self.closed == 0
    }

    /// Whether no GPU has more than one tenant.
    pub fn none_shared(&self) -> bool {
        self.shared == 0
    }

    /// GPUs of a partition that are up and have no tenant.
    pub fn free_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].free_gpus
    }

    /// GPUs of a partition in service: all but lost ones, and drained ones without tenants.
    pub fn up_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].up_gpus
    }

    /// GPUs of a partition that are up and have exactly one tenant, where a second one is allowed.
    pub fn single_tenant_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].single_tenant_gpus
    }

    /// Free GPUs of a partition, in (node, GPU) order.
    pub fn free_gpus(&self, partition: PartitionId) -> impl Iterator<Item = GpuId> + '_ {
        self.members(&self.free, partition)
    }

    /// GPUs of a partition that are up and have exactly one tenant, where a second one is allowed, in
    /// (node, GPU) order.
    pub fn single_tenant_gpus(&self, partition: PartitionId) -> impl Iterator<Item = GpuId> + '_ {
        self.single_tenant
            .iter()
            .flat_map(move |single_tenant| self.members(single_tenant, partition))
    }

    fn members<'a>(
        &self,
        set: &'a BitSet,
        partition: PartitionId,
    ) -> impl Iterator<Item = GpuId> + use<'a> {
        let range = self.cluster.partition(partition).gpus.clone();
        set.iter_from(range.start as usize)
            .take_while(move |&gpu| gpu < range.end as usize)
            .map(gpu_id)
    }

    /// Adds a job to GPUs, with `memory` on each of them.
    pub(crate) fn occupy(&mut self, job: JobId, gpus: &Gpus, memory: Memory) {
        let Self { cluster, by_gpu, free, single_tenant, nodes, shared, .. } = self;
        for (node, range) in gpus.contiguous_ranges(cluster) {
            let mut reopened = 0;
            for gpu in &mut by_gpu[range.clone()] {
                gpu.memory_used += memory;
                if gpu.tenants.is_empty() {
                    reopened += u32::from(!gpu.is_open());
                    gpu.tenants = only_tenant(job);
                } else {
                    *shared += usize::from(gpu.tenants.len() == 1);
                    gpu.add_tenant(job);
                }
            }
            let taken = free.remove_range(range.clone());
            nodes.shift(cluster, node, |free| free - count(taken));
            if reopened > 0 {
                nodes.partition_mut(cluster, node).up_gpus += reopened;
            }
            if let Some(single_tenant) = single_tenant {
                nodes.update_single_tenant(cluster, node, single_tenant, range, by_gpu);
            }
        }
    }

    /// Removes a job from its GPUs.
    pub(crate) fn release(&mut self, job: JobId, gpus: &Gpus, memory: Memory) {
        let Self { cluster, by_gpu, free, single_tenant, nodes, shared, .. } = self;
        for (node, range) in gpus.contiguous_ranges(cluster) {
            let (mut freed, mut retired) = (0, 0);
            for gpu in &mut by_gpu[range.clone()] {
                gpu.memory_used = gpu.memory_used.saturating_sub(memory);
                if let [only] = gpu.tenants.as_slice() {
                    assert_eq!(*only, job, "a tenant of this GPU");
                    gpu.tenants = Tenants::new();
                    freed += usize::from(gpu.is_open());
                    retired += u32::from(!gpu.is_open());
                } else {
                    gpu.remove_tenant(job);
                    *shared -= usize::from(gpu.tenants.len() == 1);
                }
            }
            if freed == range.len() {
                free.insert_range(range.clone());
            } else {
                let is_free = |gpu: &usize| by_gpu[*gpu].is_free();
                range.clone().filter(is_free).for_each(|gpu| free.insert(gpu));
            }
            nodes.shift(cluster, node, |free| free + count(freed));
            if retired > 0 {
                nodes.partition_mut(cluster, node).up_gpus -= retired;
            }
            if let Some(single_tenant) = single_tenant {
                nodes.update_single_tenant(cluster, node, single_tenant, range, by_gpu);
            }
        }
    }

    /// Changes the condition of a GPU; its tenants stay.
    pub(crate) fn set_condition(&mut self, gpu: GpuId, condition: GpuCondition) {
        self.change(gpu, |occupancy| occupancy.condition = condition);
    }

    /// Closes a GPU to all but the jobs of a reservation, or opens it; its tenants stay.
    pub(crate) fn set_held(&mut self, gpu: GpuId, held: bool) {
        self.change(gpu, |occupancy| occupancy.held = held);
    }

    /// Whether a GPU is in service for the jobs of a reservation only.
    pub(crate) fn is_held(&self, gpu: GpuId) -> bool {
        let occupancy = &self.by_gpu[gpu.index()];
        occupancy.held && occupancy.condition == GpuCondition::Up
    }

    fn change(&mut self, gpu: GpuId, change: impl FnOnce(&mut GpuOccupancy)) {
        let Self { cluster, by_gpu, free, single_tenant, nodes, closed, .. } = self;
        let occupancy = &mut by_gpu[gpu.index()];
        let (was_free, was_in_service) = (occupancy.is_free(), occupancy.is_in_service());
        *closed -= usize::from(!occupancy.is_open());
        change(occupancy);
        *closed += usize::from(!occupancy.is_open());
        let (is_free, is_in_service) = (occupancy.is_free(), occupancy.is_in_service());
        let node = cluster.gpu(gpu).node;
        if let Some(single_tenant) = single_tenant {
            nodes.update_single_tenant(
                cluster,
                node,
                single_tenant,
                gpu.index()..gpu.index() + 1,
                by_gpu,
            );
        }
        match (was_free, is_free) {
            (false, true) => free.insert(gpu.index()),
            (true, false) => free.remove(gpu.index()),
            _ => {}
        }
        nodes.shift(cluster, node, |free| free + u32::from(is_free) - u32::from(was_free));
        let partition = nodes.partition_mut(cluster, node);
        partition.up_gpus =
            partition.up_gpus + u32::from(is_in_service) - u32::from(was_in_service);
    }

    /// Sets the memory of a GPU that processes outside the scheduler use.
    pub(crate) fn reserve(&mut self, gpu: GpuId, memory: Memory) {
        let memory = memory.min(self.cluster.gpu(gpu).memory);
        let occupancy = &mut self.by_gpu[gpu.index()];
        occupancy.memory_used = occupancy.memory_used.saturating_sub(occupancy.reserved) + memory;
        occupancy.reserved = memory;
        self.update_unreserved_memory_min(self.cluster.partition_of(gpu));
    }

    /// Recomputes every index from the tenants and compares.
    ///
    /// # Panics
    /// When an index disagrees: a bug in this module.
    pub fn assert_consistent(&self) {
        for (index, gpu) in self.by_gpu.iter().enumerate() {
            assert_eq!(self.free.contains(index), gpu.is_free(), "free index of GPU {index}");
            if let Some(listed) = &self.single_tenant {
                assert_eq!(
                    listed.contains(index),
                    gpu.takes_second_tenant(),
                    "single_tenant index of GPU {index}"
                );
            }
            assert!(gpu.tenants.is_sorted(), "tenants of GPU {index} in order");
        }
        let closed = self.by_gpu.iter().filter(|gpu| !gpu.is_open()).count();
        let shared = self.by_gpu.iter().filter(|gpu| gpu.tenants.len() > 1).count();
        assert_eq!((self.closed, self.shared), (closed, shared), "closed and shared GPUs");
        for (index, node) in self.cluster.nodes().iter().enumerate() {
            let free = node.gpus.clone().filter(|&gpu| self.free.contains(gpu as usize)).count();
            assert_eq!(self.nodes.free[index] as usize, free, "free GPUs of node {index}");
        }
        for (index, partition) in self.cluster.partitions().iter().enumerate() {
            let nodes = &self.nodes.partitions[index];
            let mut total = 0;
            for (local, node) in partition.nodes.clone().enumerate() {
                let free = self.nodes.free[node as usize];
                total += free;
                for (bucket, members) in nodes.by_free.iter().enumerate() {
                    let expected = bucket == free as usize;
                    assert_eq!(members.contains(local), expected, "bucket of node {node}");
                }
            }
            assert_eq!(nodes.free_gpus, total, "free GPUs of partition {index}");
            let gpus = partition.gpus.start as usize..partition.gpus.end as usize;
            let up = self.by_gpu[gpus].iter().filter(|gpu| gpu.is_in_service()).count();
            assert_eq!(nodes.up_gpus as usize, up, "GPUs of partition {index} in service");
            let single_tenant = self
                .single_tenant_gpus(PartitionId(u32::try_from(index).expect("partitions are u32")));
            assert_eq!(
                nodes.single_tenant_gpus as usize,
                single_tenant.count(),
                "single_tenant GPUs of partition {index}"
            );
        }
    }
}

/// The tenants of a GPU with one tenant. Most GPUs have at most one, and pushing to an empty list costs
/// several times as much.
pub fn only_tenant(job: JobId) -> Tenants {
    Tenants::from_buf_and_len([job; 2], 1)
}

fn count(gpus: usize) -> u32 {
    u32::try_from(gpus).expect("GPUs are counted in u32")
}

fn gpu_id(index: usize) -> GpuId {
    GpuId(count(index))
}

#[cfg(test)]
mod tests;
