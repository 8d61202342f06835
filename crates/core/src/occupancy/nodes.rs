//! Nodes by their number of free GPUs.

use super::{GpuOccupancy, count};
use crate::bitset::BitSet;
use crate::cluster::{Cluster, NodeId, PartitionId};
use std::ops::Range;

/// Every node by its number of free GPUs.
#[derive(Clone, Debug)]
pub(super) struct NodeIndex {
    /// By node.
    pub(super) free: Vec<u32>,
    pub(super) partitions: Vec<FreeNodes>,
}

/// The nodes of one partition, by number of free GPUs.
#[derive(Clone, Debug)]
pub(super) struct FreeNodes {
    /// `by_free[f]`: nodes (counted within the partition) with exactly `f` free GPUs.
    pub(super) by_free: Vec<BitSet>,
    pub(super) free_gpus: u32,
    pub(super) single_tenant_gpus: u32,
    /// All but lost ones, and drained ones without tenants.
    pub(super) up_gpus: u32,
}

/// The nodes of a gang under the strict rule.
pub(super) struct StrictNodes {
    pub(super) whole: u32,
    pub(super) part: Option<(NodeId, u32)>,
}

impl NodeIndex {
    /// All GPUs are free.
    pub(super) fn of_idle(cluster: &Cluster) -> Self {
        let free: Vec<u32> =
            cluster.nodes().iter().map(|node| node.gpus.end - node.gpus.start).collect();
        let partitions = cluster
            .partitions()
            .iter()
            .map(|partition| {
                let nodes = partition.nodes.len();
                let mut by_free =
                    vec![BitSet::with_capacity(nodes); partition.node_size_max() as usize + 1];
                for (index, node) in partition.nodes.clone().enumerate() {
                    by_free[free[node as usize] as usize].insert(index);
                }
                let gpus = partition.gpu_count();
                FreeNodes { by_free, free_gpus: gpus, single_tenant_gpus: 0, up_gpus: gpus }
            })
            .collect();
        Self { free, partitions }
    }

    pub(super) fn shift(&mut self, cluster: &Cluster, node: NodeId, change: impl Fn(u32) -> u32) {
        let before = self.free[node.index()];
        let after = change(before);
        if before == after {
            return;
        }
        let partition = cluster.nodes()[node.index()].partition;
        let local = (node.0 - cluster.partition(partition).nodes.start) as usize;
        let nodes = &mut self.partitions[partition.index()];
        nodes.by_free[before as usize].remove(local);
        nodes.by_free[after as usize].insert(local);
        nodes.free_gpus = nodes.free_gpus + after - before;
        self.free[node.index()] = after;
    }

    /// The counts of the partition of `node`.
    pub(super) fn partition_mut(&mut self, cluster: &Cluster, node: NodeId) -> &mut FreeNodes {
        &mut self.partitions[cluster.nodes()[node.index()].partition.index()]
    }

    /// Updates the index of single-tenant GPUs for a range of GPUs in `node` whose tenants changed.
    #[inline(never)]
    pub(super) fn update_single_tenant(
        &mut self,
        cluster: &Cluster,
        node: NodeId,
        single_tenant: &mut BitSet,
        range: Range<usize>,
        by_gpu: &[GpuOccupancy],
    ) {
        let before = single_tenant.remove_range(range.clone());
        let mut after = 0;
        for gpu in range.filter(|&gpu| by_gpu[gpu].takes_second_tenant()) {
            single_tenant.insert(gpu);
            after += 1;
        }
        let partition = self.partition_mut(cluster, node);
        partition.single_tenant_gpus = partition.single_tenant_gpus + after - count(before);
    }

    /// The nodes of a gang under the strict rule: whole nodes, and a part of one more.
    pub(super) fn strict(
        &self,
        cluster: &Cluster,
        partition: PartitionId,
        gpus: u32,
    ) -> Option<StrictNodes> {
        let described = cluster.partition(partition);
        let first = described.nodes.start;
        let size = described.node_size_max();
        let by_free = &self.partitions[partition.index()].by_free;
        if gpus <= size {
            let fitting = &by_free[gpus as usize..];
            let local = fitting.iter().find(|nodes| nodes.len() > 0)?.first()?;
            return Some(StrictNodes { whole: 0, part: Some((node_id(first, local), gpus)) });
        }
        let (whole, rest) = (gpus / size, gpus % size);
        let idle = &by_free[size as usize];
        if idle.len() < whole as usize {
            return None;
        }
        if rest == 0 {
            return Some(StrictNodes { whole, part: None });
        }
        // The next node in descending order of free GPUs: another idle one, else the one with most free GPUs.
        let next = match idle.iter_from(0).nth(whole as usize) {
            Some(local) => Some(local),
            None => {
                let roomiest =
                    by_free[..size as usize].iter().rposition(|nodes| nodes.len() > 0)?;
                (roomiest >= rest as usize).then(|| by_free[roomiest].first()).flatten()
            }
        };
        Some(StrictNodes { whole, part: Some((node_id(first, next?), rest)) })
    }
}

pub(super) fn node_id(first: u32, local: usize) -> NodeId {
    NodeId(first + u32::try_from(local).expect("nodes are counted in u32"))
}
