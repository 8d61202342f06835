//! The search for free GPUs for a gang.

use super::nodes::{StrictNodes, node_id};
use super::{GpuCondition, Occupancy, PlacementRule, gpu_id};
use crate::cluster::{GpuId, GpuTypeId, NodeId, PartitionId};
use crate::gpus::Gpus;
use crate::units::Memory;
use smallvec::SmallVec;

impl Occupancy {
    /// Whether [`Occupancy::find`] would succeed.
    pub fn has_room(
        &self,
        partition: PartitionId,
        gpus: u32,
        memory: Memory,
        rule: PlacementRule,
    ) -> bool {
        if gpus > self.free_count(partition) {
            return false;
        }
        if memory > self.unreserved_memory_min(partition) {
            return self.find_with_memory(partition, gpus, memory, rule).is_some();
        }
        rule == PlacementRule::Scatter
            || self.nodes.strict(&self.cluster, partition, gpus).is_some()
    }

    /// Free GPUs with this much memory each for a gang under `rule`; `None` if there are too few.
    pub fn find(
        &self,
        partition: PartitionId,
        gpus: u32,
        memory: Memory,
        rule: PlacementRule,
    ) -> Option<Gpus> {
        if gpus > self.free_count(partition) {
            return None;
        }
        if memory > self.unreserved_memory_min(partition) {
            return self.find_with_memory(partition, gpus, memory, rule);
        }
        match rule {
            PlacementRule::Scatter => Some(self.free_gpus(partition).take(gpus as usize).collect()),
            PlacementRule::Strict => {
                let nodes = self.nodes.strict(&self.cluster, partition, gpus)?;
                if let StrictNodes { whole: 0, part: Some((node, count)) } = nodes {
                    // Most gangs find consecutive GPUs, in one step.
                    let first = self.free_in(node).next().expect("a node with free GPUs");
                    if self.free.contains_range(first.index()..first.index() + count as usize) {
                        return Some(Gpus::contiguous(first, count));
                    }
                }
                let mut chosen: SmallVec<[GpuId; 16]> = SmallVec::with_capacity(gpus as usize);
                for node in self.whole_nodes(partition).take(nodes.whole as usize) {
                    chosen.extend(self.cluster.nodes()[node.index()].gpus.clone().map(GpuId));
                }
                if let Some((node, count)) = nodes.part {
                    chosen.extend(self.free_in(node).take(count as usize));
                }
                Some(chosen.as_slice().into())
            }
        }
    }

    /// [`Occupancy::find`] where not every GPU has the memory: the others count as drained. It scans all
    /// GPUs, which is acceptable in a rare case.
    #[cold]
    fn find_with_memory(
        &self,
        partition: PartitionId,
        gpus: u32,
        memory: Memory,
        rule: PlacementRule,
    ) -> Option<Gpus> {
        self.find_among(partition, gpus, memory, rule, |gpu| self.has_memory(gpu, memory))
    }

    /// [`Occupancy::find`] on GPUs of one type. It scans all GPUs.
    pub fn find_of_type(
        &self,
        partition: PartitionId,
        gpus: u32,
        memory: Memory,
        rule: PlacementRule,
        kind: GpuTypeId,
    ) -> Option<Gpus> {
        self.find_among(partition, gpus, memory, rule, |gpu| {
            self.cluster.gpu(gpu).kind == kind && self.has_memory(gpu, memory)
        })
    }

    /// [`Occupancy::find`] on suitable GPUs, which have the memory. The others count as drained.
    fn find_among(
        &self,
        partition: PartitionId,
        gpus: u32,
        memory: Memory,
        rule: PlacementRule,
        is_suitable: impl Fn(GpuId) -> bool,
    ) -> Option<Gpus> {
        let (suitable, others): (Vec<GpuId>, Vec<GpuId>) =
            self.free_gpus(partition).partition(|&gpu| is_suitable(gpu));
        if suitable.len() < gpus as usize {
            return None;
        }
        let mut open = self.clone();
        others.into_iter().for_each(|gpu| open.set_condition(gpu, GpuCondition::Drained));
        open.unreserved_memory_min[partition.index()] = memory;
        open.find(partition, gpus, memory, rule)
    }

    /// Idle nodes of the largest size, lowest index first.
    fn whole_nodes(&self, partition: PartitionId) -> impl Iterator<Item = NodeId> + '_ {
        let by_free = &self.nodes.partitions[partition.index()].by_free;
        let first = self.cluster.partition(partition).nodes.start;
        by_free[by_free.len() - 1].iter_from(0).map(move |local| node_id(first, local))
    }

    fn free_in(&self, node: NodeId) -> impl Iterator<Item = GpuId> + '_ {
        let range = &self.cluster.nodes()[node.index()].gpus;
        self.free.iter_within(range.start as usize..range.end as usize).map(gpu_id)
    }
}
