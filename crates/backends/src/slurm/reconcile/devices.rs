//! Devices as Slurm's lists show them: which job is on which GPU, and which nodes accept jobs.

use super::{ListedJob, Reconciler};
use crate::event::{BackendEvent, UsageSample};
use crate::providers::DeviceSample;
use crate::slurm::jobs::{JobList, JobRecord};
use crate::slurm::nodes::SlurmNode;
use crate::slurm::syntax;
use std::collections::{BTreeMap, BTreeSet};

impl Reconciler {
    /// The devices that Slurm has allocated to a job.
    pub(super) fn devices(&self, record: &JobRecord) -> Vec<u32> {
        let mut devices = Vec::new();
        for (name, allocated) in record.nodes.iter().zip(&record.allocated_gres) {
            let Some(index) = self.nodes.iter().position(|node| node.name == *name) else {
                continue;
            };
            let types = &self.nodes[index].gpu_types;
            let used = syntax::gres(allocated).into_iter().filter(|gres| gres.count > 0);
            for gres in used.filter(|gres| gres.name == "gpu" || gres.name == "shard") {
                let typed = gres.gres_type.as_ref();
                let typed = typed.and_then(|of| types.iter().position(|known| known == of));
                let indices: Vec<usize> = match typed {
                    Some(gpu) => vec![gpu],
                    None => gres.used_indices(),
                };
                let here = indices.into_iter().filter(|&gpu| gpu < types.len());
                devices.extend(here.map(|gpu| self.first_device[index] + gpu as u32));
            }
        }
        devices
    }

    /// A sample that shows the jobs which Tandem did not place, as foreign processes of their devices.
    pub(super) fn foreign_jobs(
        &self,
        list: &JobList,
        listed: &BTreeMap<String, ListedJob<'_>>,
    ) -> UsageSample {
        let has_run = |key: &str| self.jobs.jobs.get(key).is_some_and(|job| job.run.is_some());
        let ours: BTreeSet<u64> =
            listed.values().filter(|job| has_run(&job.key)).map(|job| job.record.id).collect();
        let mut devices = vec![DeviceSample::default(); self.gpus.len()];
        let foreign = list.records.iter().filter(|record| !ours.contains(&record.id));
        for record in foreign.filter(|record| record.state.has_devices()) {
            for device in self.devices(record) {
                let id = u32::try_from(record.id).unwrap_or(u32::MAX);
                devices[device as usize].processes.push((id, 0));
            }
        }
        UsageSample { devices, runs: Vec::new() }
    }

    /// Takes over the present state of the nodes, and reports devices that became available or unavailable.
    pub(in crate::slurm) fn update_nodes(&mut self, nodes: &[SlurmNode]) -> Vec<BackendEvent> {
        let mut events = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let now = nodes.iter().find(|now| now.name == node.name);
            if let Some(now) = now.filter(|now| now.gpu_types == node.gpu_types) {
                update_shards(node, now);
                (node.free_cpus, node.free_memory_mib) = (now.free_cpus, now.free_memory_mib);
                node.features.clone_from(&now.features);
                node.is_idle = now.is_idle;
            }
            let unavailable = match now {
                Some(now) => now.unavailable.clone(),
                None => Some("Slurm no longer lists it".to_owned()),
            };
            if self.unavailable[index].is_some() != unavailable.is_some() {
                for device in (self.first_device[index]..).take(node.gpu_types.len()) {
                    let unavailable = unavailable.clone();
                    events.push(BackendEvent::Device { device, unavailable });
                }
            }
            node.unavailable.clone_from(&unavailable);
            self.unavailable[index] = unavailable;
        }
        events
    }
}

fn update_shards(node: &mut SlurmNode, now: &SlurmNode) {
    // A restart of slurmctld loses shards in use in versions before 23.02.
    if now.shards.iter().zip(&node.shards).any(|(now, before)| now < before) {
        tracing::error!(
            "node {}: Slurm has lost shards of its GPUs ({:?} of {:?}); jobs get whole GPUs there until \
             slurmctld is restarted while the node is idle",
            node.name,
            now.shards,
            node.shards
        );
    }
    node.shards.clone_from(&now.shards);
}
