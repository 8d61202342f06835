//! What Slurm demands of the place of a job: nodes, features, CPUs and memory. What is not understood here is left
//! to Slurm.

use super::{DesiredRun, ListedJob, Reconciler};
use crate::slurm::admin_comment::JobForm;
use crate::slurm::jobs::{JobList, JobRecord};
use crate::slurm::nodes::SlurmNode;
use crate::slurm::{licence, syntax};
use std::collections::{BTreeMap, BTreeSet};

/// Reasons of pending jobs that do not keep them from being placed.
const PASSING: [&str; 8] = [
    "None",
    "Licenses",
    "Priority",
    "Resources",
    "BeginTime",
    "ReqNodeNotAvail",
    "Dependency",
    "Prolog",
];

/// Why Slurm keeps a job waiting, wherever it would be placed.
pub(super) fn blocked(record: &JobRecord) -> Option<String> {
    let reason = record.reason.as_str();
    match reason {
        "JobHeldAdmin" => Some("held by an operator of Slurm".to_owned()),
        _ if record.is_held => Some("held in Slurm".to_owned()),
        _ if reason.is_empty() || PASSING.contains(&reason) => None,
        _ => Some(format!("Slurm: {reason}")),
    }
}

/// What is free at a time, less what was given to jobs that have not begun.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// CPUs and memory in MiB of each node.
    nodes: Vec<(u64, u64)>,
    /// Devices that a job has or is about to get.
    used: BTreeSet<u32>,
    /// Jobs that are admitted and have not begun.
    pub(super) admitted: u64,
}

impl Room {
    /// Devices of these that no job has.
    pub(super) fn idle<'a>(&'a self, devices: impl Iterator<Item = u32> + 'a) -> Vec<u32> {
        devices.filter(|device| !self.used.contains(device)).collect()
    }
}

impl Reconciler {
    /// What is free according to a list.
    pub(super) fn room(&self, list: &JobList, listed: &BTreeMap<String, ListedJob<'_>>) -> Room {
        let mut room = Room::default();
        room.nodes.extend(self.nodes.iter().map(|node| (node.free_cpus, node.free_memory_mib)));
        for record in list.records.iter().filter(|record| record.state.has_devices()) {
            room.used.extend(self.devices(record));
        }
        for (key, job) in &self.jobs.jobs {
            let Some(desired) = job.run.as_ref().filter(|_| !job.is_done) else { continue };
            let Some(listed) = listed.get(key).filter(|listed| listed.is_pending()) else {
                continue;
            };
            room.used.extend(&desired.devices);
            if !licence::is_gated(&listed.record.licenses) {
                room.admitted += 1;
                self.charge(&mut room, desired, listed);
            }
        }
        room
    }

    /// Charges the CPUs and memory of a job on one node, which the list of nodes does not show yet.
    pub(super) fn charge(&self, room: &mut Room, desired: &DesiredRun, listed: &ListedJob<'_>) {
        let first = desired.devices.first().and_then(|&device| self.gpus.get(device as usize));
        let Some(gpu) = first.filter(|_| listed.comment.nodes == 1) else { return };
        let needs = Needs::of(listed);
        let (cpus, memory) = &mut room.nodes[gpu.node];
        *cpus = cpus.saturating_sub(needs.cpus);
        *memory = memory.saturating_sub(needs.memory_mib);
    }

    /// Why no node can take a job at present; `None` if one can, or if that is not known.
    pub(super) fn lacks_node(&self, listed: &ListedJob<'_>, room: &Room) -> Option<String> {
        let allowed = self.allowed_nodes(listed.record);
        let fitting: Vec<usize> =
            allowed.iter().copied().filter(|&node| self.fits(listed, room, node)).collect();
        let comment = listed.comment;
        if !allowed.is_empty() && fitting.is_empty() {
            let Needs { cpus, memory_mib } = Needs::of(listed);
            return Some(match comment.is_alone {
                true => "none of its nodes is idle".to_owned(),
                false => format!("none of its nodes has {cpus} CPUs and {memory_mib} MiB free"),
            });
        }
        // A job that may go anywhere waits in the queue of the policy.
        if allowed.len() == self.nodes.len() && fitting.len() == allowed.len() {
            return None;
        }
        let idle = |node: &usize| room.idle(self.devices_of(*node)).len();
        let (each, count) = (comment.gpus_per_node as usize, comment.nodes as usize);
        let is_enough = if self.is_on_one_node(listed) || comment.form != JobForm::Slurm {
            fitting.iter().filter(|node| idle(node) >= each).count() >= count
        } else {
            fitting.iter().map(idle).sum::<usize>() >= each * count
        };
        (!is_enough).then(|| "the nodes that it may use have no free GPUs".to_owned())
    }

    /// GPUs for a job whose chosen ones are on a node that it may not use or that lacks CPUs or memory: idle ones
    /// of another node. `None` if the chosen ones will do.
    pub(super) fn other_devices(
        &self,
        desired: &DesiredRun,
        listed: &ListedJob<'_>,
        room: &Room,
    ) -> Option<Vec<u32>> {
        let comment = listed.comment;
        if !self.is_on_one_node(listed) {
            return None;
        }
        let allowed = self.allowed_nodes(listed.record);
        let nodes: BTreeSet<usize> = desired
            .devices
            .iter()
            .filter_map(|&device| Some(self.gpus.get(device as usize)?.node))
            .collect();
        let will_do = |node: usize| allowed.contains(&node) && self.fits(listed, room, node);
        if nodes.iter().all(|&node| will_do(node)) {
            return None;
        }
        let count = comment.gpus_per_node as usize;
        let elsewhere = allowed.iter().filter(|&&node| self.fits(listed, room, node));
        let mut elsewhere = elsewhere.map(|&node| room.idle(self.devices_of(node)));
        let found = elsewhere.find(|idle| idle.len() >= count).unwrap_or_default();
        Some(found.into_iter().take(count).collect())
    }

    /// Whether a job goes to one node, as far as that is known.
    pub(super) fn is_on_one_node(&self, listed: &ListedJob<'_>) -> bool {
        let sizes = self.nodes.iter().map(|node| node.gpu_types.len());
        let largest = sizes.max().unwrap_or(0);
        listed.comment.nodes == 1 && listed.comment.gpus_per_node as usize <= largest
    }

    /// Whether a node has the CPUs and the memory of a job. Unknown for a job of several nodes.
    fn fits(&self, listed: &ListedJob<'_>, room: &Room, node: usize) -> bool {
        if !self.is_on_one_node(listed) {
            return true;
        }
        let Needs { cpus, memory_mib } = Needs::of(listed);
        let (free_cpus, free_memory_mib) = room.nodes[node];
        let is_idle = self.nodes[node].is_idle
            && room.idle(self.devices_of(node)).len() == self.devices_of(node).len();
        cpus <= free_cpus && memory_mib <= free_memory_mib && (is_idle || !listed.comment.is_alone)
    }

    fn devices_of(&self, node: usize) -> std::ops::Range<u32> {
        let count = self.nodes[node].gpu_types.len() as u32;
        self.first_device[node]..self.first_device[node] + count
    }

    /// The nodes that a job may use by its user's request.
    fn allowed_nodes(&self, record: &JobRecord) -> BTreeSet<usize> {
        let names = |text: &str| syntax::nodes(text).unwrap_or_default();
        let excluded = names(&record.excluded_nodes);
        let is_fixed = record.admin_comment.as_ref().is_some_and(|comment| comment.has_nodes);
        let required = if is_fixed { names(&record.required_nodes) } else { Vec::new() };
        let may_use = |(_, node): &(usize, &SlurmNode)| {
            node.unavailable.is_none()
                && !excluded.contains(&node.name)
                && (required.is_empty() || required.contains(&node.name))
                && has_features(&node.features, &record.features)
        };
        self.nodes.iter().enumerate().filter(may_use).map(|(index, _)| index).collect()
    }
}

/// CPUs and memory in MiB that a job on one node needs there.
struct Needs {
    cpus: u64,
    memory_mib: u64,
}

impl Needs {
    fn of(listed: &ListedJob<'_>) -> Self {
        let (record, gpus) = (listed.record, u64::from(listed.comment.gpus_per_node));
        Self {
            cpus: record.cpus.max(record.cpus_per_gpu.saturating_mul(gpus)),
            memory_mib: record.memory_mib.max(record.memory_mib_per_gpu.saturating_mul(gpus)),
        }
    }
}

/// Whether a node has the features of `a&b|c`. Other expressions are left to Slurm.
fn has_features(present: &[String], wanted: &str) -> bool {
    let is_simple = |one: char| one.is_ascii_alphanumeric() || "_-.&|,".contains(one);
    if wanted.is_empty() || !wanted.chars().all(is_simple) {
        return true;
    }
    let has = |name: &str| name.is_empty() || present.iter().any(|feature| feature == name);
    wanted.split('|').any(|all| all.split(['&', ',']).all(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_alternatives_of_lists() {
        let present = ["big".to_owned(), "a100".to_owned()];
        for wanted in ["", "big", "big&a100", "big,a100", "h100|big", "[rack1|rack2]", "big*2"] {
            assert!(has_features(&present, wanted), "{wanted}");
        }
        for wanted in ["h100", "big&h100", "h100|small"] {
            assert!(!has_features(&present, wanted), "{wanted}");
        }
    }
}
