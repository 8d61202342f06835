//! Who sits on which GPU, and where a gang finds room. Every operation costs what it touches: GPUs
//! of the gang, not of the cluster.

use crate::bitset::BitSet;
use crate::cluster::{Cluster, GpuId, NodeId, PartitionId};
use crate::job::JobId;
use crate::units::Memory;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// GPUs of a placement, in the order in which the allocation touches them. Shared, because plan,
/// job, action and back end all hold on to it.
pub type Gpus = Arc<[GpuId]>;
/// Tenants of one GPU, by id.
pub type Tenants = SmallVec<[JobId; 2]>;

/// How whole GPUs are chosen for a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementRule {
    /// On the fewest nodes, or not at all: best fit inside a node, wholly idle nodes above that.
    #[default]
    Strict,
    /// The first free GPUs, wherever they are.
    Scatter,
}

/// The present tenants of every GPU, with indexes of what is free.
#[derive(Clone, Debug)]
pub struct Occupancy {
    cluster: Arc<Cluster>,
    /// By GPU.
    seats: Vec<Seats>,
    /// GPUs that are up and have no tenant.
    free: BitSet,
    /// GPUs that are up and have exactly one tenant, where a second one is allowed: who shares nothing
    /// does not pay for the index.
    lone: Option<BitSet>,
    nodes: NodeIndex,
}

/// One GPU: who sits on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seats {
    pub(crate) tenants: Tenants,
    pub(crate) memory_used: Memory,
    pub(crate) down: bool,
}

/// Every node by its number of free GPUs.
#[derive(Clone, Debug)]
struct NodeIndex {
    /// By node.
    free: Vec<u32>,
    partitions: Vec<FreeNodes>,
}

/// The nodes of one partition, by number of free GPUs.
#[derive(Clone, Debug)]
struct FreeNodes {
    /// `by_free[f]`: nodes (counted within the partition) with exactly `f` free GPUs.
    by_free: Vec<BitSet>,
    free_gpus: u32,
    lone_gpus: u32,
    up_gpus: u32,
}

impl Occupancy {
    /// An empty cluster whose GPUs take one tenant each.
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self::for_tenants(cluster, 1)
    }

    /// An empty cluster whose GPUs take up to `tenants_max` tenants each.
    pub fn for_tenants(cluster: Arc<Cluster>, tenants_max: usize) -> Self {
        let gpus = cluster.gpus().len();
        let mut free = BitSet::with_capacity(gpus);
        (0..gpus).for_each(|gpu| free.insert(gpu));
        let node_free: Vec<u32> =
            cluster.nodes().iter().map(|node| node.gpus.end - node.gpus.start).collect();
        let partitions = cluster
            .partitions()
            .iter()
            .map(|partition| {
                let nodes = partition.nodes.len();
                let mut by_free =
                    vec![BitSet::with_capacity(nodes); partition.node_size_max() as usize + 1];
                for (index, node) in partition.nodes.clone().enumerate() {
                    by_free[node_free[node as usize] as usize].insert(index);
                }
                let gpus = partition.gpu_count();
                FreeNodes { by_free, free_gpus: gpus, lone_gpus: 0, up_gpus: gpus }
            })
            .collect();
        let nodes = NodeIndex { free: node_free, partitions };
        let lone = (tenants_max > 1).then(|| BitSet::with_capacity(gpus));
        Self { seats: vec![Seats::default(); gpus], free, lone, nodes, cluster }
    }

    pub(crate) fn seats(&self, gpu: GpuId) -> &Seats {
        &self.seats[gpu.index()]
    }

    /// Tenants of a GPU, by id.
    pub fn tenants(&self, gpu: GpuId) -> &[JobId] {
        &self.seats[gpu.index()].tenants
    }

    /// Memory that the tenants of a GPU take, contexts included.
    pub fn memory_used(&self, gpu: GpuId) -> Memory {
        self.seats[gpu.index()].memory_used
    }

    /// Whether a GPU is lost.
    pub fn is_down(&self, gpu: GpuId) -> bool {
        self.seats[gpu.index()].down
    }

    /// GPUs of a partition that are up and have no tenant.
    pub fn free_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].free_gpus
    }

    /// GPUs of a partition that are not lost.
    pub fn up_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].up_gpus
    }

    /// GPUs of a partition that are up and have exactly one tenant, where a second one is allowed.
    pub fn lone_count(&self, partition: PartitionId) -> u32 {
        self.nodes.partitions[partition.index()].lone_gpus
    }

    /// Free GPUs of a partition, in (node, GPU) order.
    pub fn free_gpus(&self, partition: PartitionId) -> impl Iterator<Item = GpuId> + '_ {
        self.members(&self.free, partition)
    }

    /// GPUs of a partition that are up and have exactly one tenant, where a second one is allowed, in
    /// (node, GPU) order.
    pub fn lone_gpus(&self, partition: PartitionId) -> impl Iterator<Item = GpuId> + '_ {
        self.lone.iter().flat_map(move |lone| self.members(lone, partition))
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

    /// Puts a job on GPUs; `memory` is what it takes on each of them.
    pub(crate) fn occupy(&mut self, job: JobId, gpus: &[GpuId], memory: Memory) {
        let Self { cluster, seats, free, lone, nodes } = self;
        for (node, stretch) in stretches(cluster, gpus) {
            for seats in &mut seats[stretch.clone()] {
                seats.memory_used += memory;
                if seats.tenants.is_empty() {
                    seats.tenants = only_tenant(job);
                } else {
                    let position = seats.tenants.partition_point(|&tenant| tenant < job);
                    seats.tenants.insert(position, job);
                }
            }
            let taken = free.remove_range(stretch.clone());
            nodes.shift(cluster, node, |free| free - count(taken));
            if let Some(lone) = lone {
                nodes.relist_lone(cluster, node, lone, stretch, seats);
            }
        }
    }

    /// Takes a job off its GPUs.
    pub(crate) fn release(&mut self, job: JobId, gpus: &[GpuId], memory: Memory) {
        let Self { cluster, seats, free, lone, nodes } = self;
        for (node, stretch) in stretches(cluster, gpus) {
            let mut freed = 0;
            for seats in &mut seats[stretch.clone()] {
                seats.memory_used.0 -= memory.0;
                if let [only] = seats.tenants.as_slice() {
                    assert_eq!(*only, job, "a tenant of this GPU");
                    seats.tenants = Tenants::new();
                    freed += usize::from(!seats.down);
                } else {
                    let seat = seats.tenants.iter().position(|&tenant| tenant == job);
                    seats.tenants.remove(seat.expect("a tenant of this GPU"));
                }
            }
            if freed == stretch.len() {
                free.insert_range(stretch.clone());
            } else {
                let vacant = |gpu: &usize| seats[*gpu].tenants.is_empty() && !seats[*gpu].down;
                stretch.clone().filter(vacant).for_each(|gpu| free.insert(gpu));
            }
            nodes.shift(cluster, node, |free| free + count(freed));
            if let Some(lone) = lone {
                nodes.relist_lone(cluster, node, lone, stretch, seats);
            }
        }
    }

    pub(crate) fn set_down(&mut self, gpu: GpuId, down: bool) {
        if self.is_down(gpu) == down {
            return;
        }
        let vacant = self.seats[gpu.index()].tenants.is_empty();
        self.seats[gpu.index()].down = down;
        let Self { cluster, seats, free: free_gpus, lone, nodes } = self;
        let node = cluster.gpu(gpu).node;
        if let Some(lone) = lone {
            nodes.relist_lone(cluster, node, lone, gpu.index()..gpu.index() + 1, seats);
        }
        let partition = &mut nodes.partitions[cluster.partition_of(gpu).index()];
        if down {
            partition.up_gpus -= 1;
            if vacant {
                free_gpus.remove(gpu.index());
                nodes.shift(cluster, node, |free| free - 1);
            }
        } else {
            partition.up_gpus += 1;
            if vacant {
                free_gpus.insert(gpu.index());
                nodes.shift(cluster, node, |free| free + 1);
            }
        }
    }

    /// Whether [`Occupancy::find`] would succeed.
    pub fn has_room(&self, partition: PartitionId, gpus: u32, rule: PlacementRule) -> bool {
        gpus <= self.free_count(partition)
            && (rule == PlacementRule::Scatter || self.strict_nodes(partition, gpus).is_some())
    }

    /// Free GPUs for a gang under `rule`, or `None` if there is no room.
    pub fn find(&self, partition: PartitionId, gpus: u32, rule: PlacementRule) -> Option<Gpus> {
        if gpus > self.free_count(partition) {
            return None;
        }
        match rule {
            PlacementRule::Scatter => Some(self.free_gpus(partition).take(gpus as usize).collect()),
            PlacementRule::Strict => {
                let nodes = self.strict_nodes(partition, gpus)?;
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

    /// Wholly idle nodes of the largest size, lowest index first.
    fn whole_nodes(&self, partition: PartitionId) -> impl Iterator<Item = NodeId> + '_ {
        let by_free = &self.nodes.partitions[partition.index()].by_free;
        let first = self.cluster.partition(partition).nodes.start;
        by_free[by_free.len() - 1].iter_from(0).map(move |local| node_id(first, local))
    }

    /// Which nodes the strict rule takes: so many whole ones, and a part of one more.
    fn strict_nodes(&self, partition: PartitionId, gpus: u32) -> Option<StrictNodes> {
        let described = self.cluster.partition(partition);
        let first = described.nodes.start;
        let size = described.node_size_max();
        let by_free = &self.nodes.partitions[partition.index()].by_free;
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
        // The next node in descending order of free GPUs: another idle one, else the fullest rest.
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

    fn free_in(&self, node: NodeId) -> impl Iterator<Item = GpuId> + '_ {
        let range = &self.cluster.nodes()[node.index()].gpus;
        self.free.iter_within(range.start as usize..range.end as usize).map(gpu_id)
    }

    /// Recomputes every index from the tenants alone and compares.
    ///
    /// # Panics
    /// When an index disagrees: a bug in this module.
    pub fn assert_consistent(&self) {
        for (index, seats) in self.seats.iter().enumerate() {
            let vacant = seats.tenants.is_empty() && !seats.down;
            assert_eq!(self.free.contains(index), vacant, "free index of GPU {index}");
            if let Some(listed) = &self.lone {
                let lone = seats.tenants.len() == 1 && !seats.down;
                assert_eq!(listed.contains(index), lone, "lone index of GPU {index}");
            }
            assert!(seats.tenants.is_sorted(), "tenants of GPU {index} in order");
        }
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
            let lone =
                self.lone_gpus(PartitionId(u32::try_from(index).expect("partitions are u32")));
            assert_eq!(nodes.lone_gpus as usize, lone.count(), "lone GPUs of partition {index}");
        }
    }
}

impl NodeIndex {
    fn shift(&mut self, cluster: &Cluster, node: NodeId, change: impl Fn(u32) -> u32) {
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

    /// Lists those of a stretch of GPUs in `node` that have one tenant, after the seats changed.
    fn relist_lone(
        &mut self,
        cluster: &Cluster,
        node: NodeId,
        lone: &mut BitSet,
        stretch: Range<usize>,
        seats: &[Seats],
    ) {
        let before = lone.remove_range(stretch.clone());
        let mut after = 0;
        for gpu in stretch.filter(|&gpu| seats[gpu].tenants.len() == 1 && !seats[gpu].down) {
            lone.insert(gpu);
            after += 1;
        }
        let partition = &mut self.partitions[cluster.nodes()[node.index()].partition.index()];
        partition.lone_gpus = partition.lone_gpus + after - count(before);
    }
}

struct StrictNodes {
    whole: u32,
    part: Option<(NodeId, u32)>,
}

/// Somebody who has a GPU to himself. Most GPUs have one tenant at most, and pushing costs several
/// times as much.
pub fn only_tenant(job: JobId) -> Tenants {
    Tenants::from_buf_and_len([job; 2], 1)
}

/// Splits GPUs into stretches of consecutive ones in one node: gangs mostly sit on such, and what is
/// done to a stretch at once costs less than GPU by GPU.
fn stretches<'a>(
    cluster: &'a Cluster,
    gpus: &'a [GpuId],
) -> impl Iterator<Item = (NodeId, Range<usize>)> + 'a {
    let mut rest = gpus;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let node = cluster.gpu(first).node;
        let consecutive = first.0..cluster.nodes()[node.index()].gpus.end;
        let length = rest.iter().zip(consecutive).take_while(|(gpu, next)| gpu.0 == *next).count();
        rest = &rest[length..];
        Some((node, first.index()..first.index() + length))
    })
}

fn count(gpus: usize) -> u32 {
    u32::try_from(gpus).expect("GPUs are counted in u32")
}

fn gpu_id(index: usize) -> GpuId {
    GpuId(count(index))
}

fn node_id(first: u32, local: usize) -> NodeId {
    NodeId(first + u32::try_from(local).expect("nodes are counted in u32"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterBuilder;
    use crate::units::Ratio;
    use proptest::prelude::*;

    fn cluster(sizes: &[u32]) -> Arc<Cluster> {
        let mut builder = ClusterBuilder::default();
        let kind = builder.gpu_type("gpu", Ratio::ONE);
        builder.partition("all");
        for &size in sizes {
            builder.node(size, kind, Memory::from_mib(24_576));
        }
        Arc::new(builder.build())
    }

    /// The rule as the design states it, in the plainest way.
    fn strict_plainly(occupancy: &Occupancy, sizes: &[u32], gpus: u32) -> Option<Vec<u32>> {
        let mut first = 0;
        let nodes: Vec<(usize, Vec<u32>)> = sizes
            .iter()
            .map(|&size| {
                let range = first..first + size;
                first += size;
                let free = |&gpu: &u32| {
                    occupancy.tenants(GpuId(gpu)).is_empty() && !occupancy.is_down(GpuId(gpu))
                };
                range.filter(free).collect()
            })
            .enumerate()
            .collect();
        let size = *sizes.iter().max().unwrap();
        if gpus <= size {
            let fitting = nodes.iter().filter(|(_, free)| free.len() >= gpus as usize);
            let (_, free) = fitting.min_by_key(|(index, free)| (free.len(), *index))?;
            return Some(free[..gpus as usize].to_vec());
        }
        let mut order = nodes.clone();
        order.sort_by_key(|(index, free)| (std::cmp::Reverse(free.len()), *index));
        let (whole, rest) = ((gpus / size) as usize, (gpus % size) as usize);
        let mut chosen = Vec::new();
        for position in 0..whole {
            let (_, free) = order.get(position)?;
            if free.len() != size as usize {
                return None;
            }
            chosen.extend(free);
        }
        if rest > 0 {
            let (_, free) = order.get(whole)?;
            if free.len() < rest {
                return None;
            }
            chosen.extend(&free[..rest]);
        }
        Some(chosen)
    }

    proptest! {
        #[test]
        fn strict_placement_equals_its_plain_statement(
            sizes in proptest::collection::vec(1u32..9, 1..7),
            taken in proptest::collection::vec(any::<bool>(), 64),
            down in proptest::collection::vec(0u32..48, 0..4),
            gpus in 1u32..30,
        ) {
            let cluster = cluster(&sizes);
            let total = u32::try_from(cluster.gpus().len()).unwrap();
            let mut occupancy = Occupancy::for_tenants(cluster, 2);
            for gpu in (0..total).filter(|&gpu| taken[gpu as usize]) {
                occupancy.occupy(JobId(gpu), &[GpuId(gpu)], Memory(1));
            }
            let everywhere: Vec<GpuId> = (0..total).map(GpuId).collect();
            occupancy.occupy(JobId(total), &everywhere, Memory(1));
            occupancy.assert_consistent();
            occupancy.release(JobId(total), &everywhere, Memory(1));
            for gpu in down.into_iter().filter(|&gpu| gpu < total) {
                occupancy.set_down(GpuId(gpu), true);
            }
            occupancy.assert_consistent();
            let found = occupancy.find(PartitionId(0), gpus, PlacementRule::Strict);
            prop_assert_eq!(
                occupancy.has_room(PartitionId(0), gpus, PlacementRule::Strict),
                found.is_some()
            );
            let found = found.map(|gpus| gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>());
            prop_assert_eq!(found, strict_plainly(&occupancy, &sizes, gpus));
        }
    }

    #[test]
    fn scatter_takes_the_first_free_gpus_across_nodes() {
        let mut occupancy = Occupancy::new(cluster(&[2, 2, 2]));
        occupancy.occupy(JobId(0), &[GpuId(1)], Memory(0));
        let found = occupancy.find(PartitionId(0), 3, PlacementRule::Scatter).unwrap();
        assert_eq!(*found, [GpuId(0), GpuId(2), GpuId(3)]);
        assert_eq!(occupancy.find(PartitionId(0), 6, PlacementRule::Scatter), None);
    }

    #[test]
    fn a_lost_gpu_is_neither_free_nor_freed_by_its_last_tenant() {
        let mut occupancy = Occupancy::new(cluster(&[2]));
        occupancy.occupy(JobId(0), &[GpuId(0)], Memory(5));
        occupancy.set_down(GpuId(0), true);
        occupancy.release(JobId(0), &[GpuId(0)], Memory(5));
        assert_eq!(occupancy.free_count(PartitionId(0)), 1);
        occupancy.set_down(GpuId(0), false);
        assert_eq!(occupancy.free_count(PartitionId(0)), 2);
        occupancy.assert_consistent();
    }
}
