//! The links between nodes: which gangs share them, and what that costs. One link per node; gangs within one
//! node do not use it.

use crate::workload::Workload;
use std::collections::BTreeMap;
use tandem_core::{ClassId, Cluster, Gpus, JobId, NodeId, Ratio};
use tandem_models::network;

/// The share of communication in an iteration across nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// By model.
    pub shares: BTreeMap<String, f64>,
    /// For all other models.
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

    /// Adds a gang to the links of its nodes; the gangs there need new rates.
    #[cold]
    pub(crate) fn place(&mut self, job: JobId, nodes: &[NodeId], stale_rates: &mut Vec<JobId>) {
        self.touch(nodes, stale_rates);
        for node in nodes {
            self.gangs[node.index()].push(job);
        }
    }

    #[cold]
    pub(crate) fn remove(&mut self, job: JobId, nodes: &[NodeId], stale_rates: &mut Vec<JobId>) {
        for node in nodes {
            self.gangs[node.index()].retain(|&gang| gang != job);
        }
        self.touch(nodes, stale_rates);
    }

    /// Marks every gang on the links of `nodes`.
    pub(crate) fn touch(&self, nodes: &[NodeId], stale_rates: &mut Vec<JobId>) {
        for node in nodes {
            stale_rates.extend_from_slice(&self.gangs[node.index()]);
        }
    }

    /// What remains of the rate of a gang; the slowest link counts.
    pub(crate) fn rate(
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

/// The nodes of a placement, each once, in order; none for a placement within one node.
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
