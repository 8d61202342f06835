//! The hardware: partitions of nodes of GPUs. Ids are dense and global; those of a partition or a node are
//! contiguous, so that a range describes them.

use crate::units::{Memory, Ratio};
use std::ops::Range;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// For indexing a dense vector.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
pub(crate) use id;

id!(
    /// A partition: an isolated part of the cluster with a queue of its own.
    PartitionId
);
id!(
    /// A node; ids count through the whole cluster.
    NodeId
);
id!(
    /// A GPU; ids count through the whole cluster.
    GpuId
);
id!(
    /// A GPU type.
    GpuTypeId
);

/// A GPU type and its speed relative to the reference type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuType {
    /// Such as `v100`.
    pub name: String,
    /// Solo speed relative to the reference type, for which durations are stated.
    pub factor: Ratio,
}

/// One GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its type.
    pub kind: GpuTypeId,
    /// Its memory.
    pub memory: Memory,
    /// Its node.
    pub node: NodeId,
}

/// One node: a contiguous range of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Global ids of its GPUs.
    pub gpus: Range<u32>,
    /// The partition it belongs to.
    pub partition: PartitionId,
}

/// One partition: a contiguous range of nodes, and so of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its name, by which jobs choose it.
    pub name: String,
    /// Global ids of its nodes.
    pub nodes: Range<u32>,
    /// Global ids of its GPUs.
    pub gpus: Range<u32>,
    /// Sizes of its nodes in GPUs, largest first, for [`Partition::fewest_nodes`].
    node_sizes: Vec<u32>,
}

impl Partition {
    /// Number of GPUs.
    pub fn gpu_count(&self) -> u32 {
        self.gpus.end - self.gpus.start
    }

    /// GPUs of its largest node.
    pub fn node_size_max(&self) -> u32 {
        self.node_sizes.first().copied().unwrap_or(0)
    }

    /// The fewest nodes that hold a gang of `gpus` when everything is free.
    pub fn fewest_nodes(&self, gpus: u32) -> u32 {
        let mut left = gpus;
        let mut nodes = 0;
        for &size in &self.node_sizes {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(size);
            nodes += 1;
        }
        nodes
    }
}

/// A cluster as described; jobs and occupancy are in [`ClusterState`](crate::ClusterState).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    types: Vec<GpuType>,
    gpus: Vec<Gpu>,
    nodes: Vec<Node>,
    partitions: Vec<Partition>,
    /// The only partition takes every job, whatever partition the job names.
    takes_all: bool,
}

impl Cluster {
    /// A cluster of `nodes` equal nodes in one partition that takes every job.
    pub fn uniform(nodes: u32, gpus_per_node: u32, memory: Memory) -> Self {
        let mut builder = ClusterBuilder::default();
        let kind = builder.gpu_type("gpu", Ratio::ONE);
        builder.partition("all");
        for _ in 0..nodes {
            builder.node(gpus_per_node, kind, memory);
        }
        builder.taking_every_job().build()
    }

    /// All GPUs, by id.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All partitions, by id.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// All GPU types, by id.
    pub fn types(&self) -> &[GpuType] {
        &self.types
    }

    /// One GPU.
    pub fn gpu(&self, gpu: GpuId) -> &Gpu {
        &self.gpus[gpu.index()]
    }

    /// One partition.
    pub fn partition(&self, partition: PartitionId) -> &Partition {
        &self.partitions[partition.index()]
    }

    /// The partition of a GPU.
    pub fn partition_of(&self, gpu: GpuId) -> PartitionId {
        self.nodes[self.gpu(gpu).node.index()].partition
    }

    /// The smallest GPU memory of a partition. A job that needs more does not fit every GPU.
    pub fn memory_min(&self, partition: PartitionId) -> Memory {
        let range = &self.partition(partition).gpus;
        let gpus = &self.gpus[range.start as usize..range.end as usize];
        gpus.iter().map(|gpu| gpu.memory).min().unwrap_or_default()
    }

    /// The partition of a job that names `name`, or none.
    pub fn partition_named(&self, name: Option<&str>) -> Option<PartitionId> {
        let only = (self.partitions.len() == 1).then_some(PartitionId(0));
        if self.takes_all {
            return only;
        }
        match name {
            None | Some("") => only,
            Some(name) => {
                let index = self.partitions.iter().position(|partition| partition.name == name)?;
                Some(PartitionId(u32::try_from(index).expect("partitions are counted in u32")))
            }
        }
    }
}

/// Builds a [`Cluster`] from the top down: a partition, then its nodes, then the next one.
///
/// ```
/// use tandem_core::{ClusterBuilder, Memory, PartitionId, Ratio};
///
/// let mut builder = ClusterBuilder::default();
/// let v100 = builder.gpu_type("v100", Ratio::ONE);
/// let research = builder.partition("research");
/// builder.node(8, v100, Memory::from_mib(32_768));
/// builder.node(4, v100, Memory::from_mib(32_768));
/// let cluster = builder.build();
/// assert_eq!(cluster.gpus().len(), 12);
/// assert_eq!(cluster.partition_named(Some("research")), Some(research));
/// assert_eq!(cluster.partition(research).fewest_nodes(9), 2);
/// ```
#[derive(Default)]
pub struct ClusterBuilder {
    types: Vec<GpuType>,
    gpus: Vec<Gpu>,
    nodes: Vec<Node>,
    partitions: Vec<Partition>,
    takes_all: bool,
}

impl ClusterBuilder {
    /// Adds a GPU type.
    pub fn gpu_type(&mut self, name: &str, factor: Ratio) -> GpuTypeId {
        self.types.push(GpuType { name: name.to_owned(), factor });
        GpuTypeId(count(self.types.len()) - 1)
    }

    /// Begins a partition; nodes added from now on belong to it.
    pub fn partition(&mut self, name: &str) -> PartitionId {
        let (nodes, gpus) = (count(self.nodes.len()), count(self.gpus.len()));
        self.partitions.push(Partition {
            name: name.to_owned(),
            nodes: nodes..nodes,
            gpus: gpus..gpus,
            node_sizes: Vec::new(),
        });
        PartitionId(count(self.partitions.len()) - 1)
    }

    /// Adds a node of `gpus` equal GPUs to the current partition.
    pub fn node(&mut self, gpus: u32, kind: GpuTypeId, memory: Memory) {
        let node = NodeId(count(self.nodes.len()));
        let first = count(self.gpus.len());
        let partition_id = PartitionId(count(self.partitions.len()) - 1);
        let partition = self.partitions.last_mut().expect("a partition comes before its nodes");
        self.gpus.extend((0..gpus).map(|_| Gpu { kind, memory, node }));
        self.nodes.push(Node { gpus: first..first + gpus, partition: partition_id });
        partition.nodes.end += 1;
        partition.gpus.end += gpus;
        partition.node_sizes.push(gpus);
    }

    /// Makes the only partition take every job.
    #[must_use]
    pub fn taking_every_job(mut self) -> Self {
        self.takes_all = true;
        self
    }

    /// Finishes the cluster.
    pub fn build(mut self) -> Cluster {
        for partition in &mut self.partitions {
            partition.node_sizes.sort_unstable_by(|a, b| b.cmp(a));
        }
        Cluster {
            types: self.types,
            gpus: self.gpus,
            nodes: self.nodes,
            partitions: self.partitions,
            takes_all: self.takes_all,
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).expect("clusters are counted in u32")
}
