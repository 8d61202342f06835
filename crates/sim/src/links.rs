//! The links between nodes: which gangs meet on them, and what that costs. One link per node; gangs
//! inside a node do not use it.

use crate::workload::Workload;
use std::collections::BTreeMap;
use tandem_core::{ClassId, Cluster, Gpus, JobId, NodeId, Ratio};
use tandem_models::network;

/// How much of an iteration across nodes is communication.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// By model.
    pub shares: BTreeMap<String, f64>,
    /// Of every other one.
    pub default_share: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self { shares: BTreeMap::new(), default_share: network::DEFAULT_SHARE }
    }
}

pub(crate) struct Links {
    /// By `ClassId`.
    shares: Vec<f64>,
    default_share: f64,
    /// The gangs on the link of each node, running or paused.
    gangs: Vec<Vec<JobId>>,
}

impl Links {
    pub(crate) fn new(network: &Network, workload: &Workload) -> Self {
        let share = |model: &String| network.shares.get(model).copied();
        let classes = workload.trace.classes.iter();
        Self {
            shares: classes
                .map(|class| share(&class.model).unwrap_or(network.default_share))
                .collect(),
            default_share: network.default_share,
            gangs: vec![Vec::new(); workload.cluster.nodes().len()],
        }
    }

    /// A gang takes its place on the links of its nodes; whoever is there already becomes unsettled.
    #[cold]
    pub(crate) fn enter(&mut self, job: JobId, nodes: &[NodeId], unsettled: &mut Vec<JobId>) {
        self.touch(nodes, unsettled);
        for node in nodes {
            self.gangs[node.index()].push(job);
        }
    }

    #[cold]
    pub(crate) fn leave(&mut self, job: JobId, nodes: &[NodeId], unsettled: &mut Vec<JobId>) {
        for node in nodes {
            self.gangs[node.index()].retain(|&gang| gang != job);
        }
        self.touch(nodes, unsettled);
    }

    /// Marks every gang on the links of `nodes`.
    pub(crate) fn touch(&self, nodes: &[NodeId], unsettled: &mut Vec<JobId>) {
        for node in nodes {
            unsettled.extend_from_slice(&self.gangs[node.index()]);
        }
    }

    /// What a gang keeps of its rate: its slowest link counts.
    pub(crate) fn keeps(
        &self,
        class: Option<ClassId>,
        nodes: &[NodeId],
        fits_one_node: bool,
        runs: impl Fn(JobId) -> bool,
    ) -> Ratio {
        let share = class.map_or(self.default_share, |class| self.shares[class.index()]);
        let on_link =
            |node: &NodeId| self.gangs[node.index()].iter().filter(|&&gang| runs(gang)).count();
        let sharers = nodes.iter().map(on_link).max().unwrap_or(1);
        network::rate(share, u32::try_from(sharers).unwrap_or(u32::MAX), fits_one_node)
    }
}

/// The nodes of a placement, each once, in order; none if it stays inside one.
#[cold]
pub(crate) fn spanned_nodes(cluster: &Cluster, gpus: &Gpus) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = gpus.contiguous_ranges(cluster).map(|(node, _)| node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() < 2 {
        nodes.clear();
    }
    nodes
}
