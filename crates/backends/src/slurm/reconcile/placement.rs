//! Where runs sit: what Slurm has to be told for that, and what a list says about it.

use super::{DesiredRun, ListedJob, PlacementError, Reconciler};
use crate::event::{BackendEvent, UsageSample};
use crate::providers::DeviceSample;
use crate::slurm::jobs::{JobList, JobRecord, SlurmState};
use crate::slurm::nodes::SlurmNode;
use crate::slurm::syntax;
use std::collections::{BTreeMap, BTreeSet};

/// A job that was put back may begin again after this: a node takes one that begins in the second in which
/// its last run ended for that run, and it fails.
const REST_S: u64 = 3;

impl Reconciler {
    /// The line that brings a job that waits closer to its place.
    pub(super) fn release(
        &self,
        wanted: &DesiredRun,
        entry: &ListedJob<'_>,
        now_s: u64,
    ) -> Result<Option<String>, PlacementError> {
        let (address, record) = (&entry.address, entry.record);
        let is_there = |&device: &u32| (device as usize) < self.places.len();
        if wanted.devices.is_empty() || !wanted.devices.iter().all(is_there) {
            let reason = "Slurm does not have its GPUs any more".to_owned();
            return Err(PlacementError { reason, transient: true });
        }
        let (nodes, gres) = self.allocation(wanted, record);
        let mut fields = Vec::new();
        let (chosen, wished) = (kinds(&record.asked), kinds(&gres));
        if chosen.is_empty() || (chosen != wished && self.replaces) {
            fields.push(format!("Gres={gres}"));
        } else if chosen != wished {
            let asked = &record.asked;
            let reason = format!(
                "this Slurm cannot give it {gres} after {asked}; cancel it and submit it anew"
            );
            return Err(PlacementError { reason, transient: false });
        }
        let mut sorted = syntax::nodes(&record.required_nodes).unwrap_or_default();
        sorted.sort();
        let mut wants = nodes.clone();
        wants.sort();
        if sorted != wants {
            fields.push(format!("ReqNodeList={}", nodes.join(",")));
        }
        // After a requeue, which counts as handing it in anew, it would wait for two minutes.
        let is_rested = now_s >= record.submit_s + REST_S;
        if record.restarts > 0 && record.reason == "BeginTime" && is_rested {
            fields.push("StartTime=now".to_owned());
        }
        // Released only when the list shows it placed: without its GPUs it must not begin.
        Ok(match () {
            () if !fields.is_empty() => {
                Some(format!("update jobid={address} {}", fields.join(" ")))
            }
            () if record.is_held => Some(format!("release {address}")),
            () => None,
        })
    }

    /// Nodes and resources of a run, as Slurm is to be told.
    fn allocation(&self, wanted: &DesiredRun, record: &JobRecord) -> (Vec<String>, String) {
        let mut by_node: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for &device in &wanted.devices {
            let place = &self.places[device as usize];
            by_node.entry(place.node).or_default().push(&place.kind);
        }
        let nodes = by_node.keys().map(|&node| self.nodes[node].name.clone()).collect();
        let mut kinds = by_node.into_values().next().unwrap_or_default();
        kinds.sort_unstable();
        let each = record.note.as_ref().map_or(1, |note| note.gpus_per_node) as usize;
        kinds.truncate(each);
        // A gang has its GPUs to itself: a job cannot have shards of several.
        let can_share = wanted.devices.iter().all(|&device| self.shares(device));
        // After a restart of the daemon only the record says that srun needs a whole one.
        let is_exclusive = wanted.is_exclusive || !record.is_batch;
        let gres = match kinds[..] {
            [kind] if wanted.devices.len() == 1 && can_share && !is_exclusive => {
                format!("shard:{kind}:{}", self.share)
            }
            _ => kinds.iter().map(|kind| format!("gpu:{kind}:1")).collect::<Vec<_>>().join(","),
        };
        (nodes, gres)
    }

    /// Whether Slurm can share the GPUs of a device's node. Where it has lost shares of one, it gives those
    /// of the others out without a GPU.
    fn shares(&self, device: u32) -> bool {
        let node = &self.nodes[self.places[device as usize].node];
        node.shards.iter().all(|&shards| shards >= self.share)
    }

    /// Slurm should have put it where it was told to.
    pub(super) fn check_place(&self, wanted: &DesiredRun, record: &JobRecord) {
        let sits: BTreeSet<u32> = self.devices(record).into_iter().collect();
        let is_planned = sits.iter().all(|device| wanted.devices.contains(device));
        if !is_planned || sits.is_empty() {
            let (id, planned) = (record.id, &wanted.devices);
            tracing::error!("Slurm job {id} is on devices {sits:?} and was to be on {planned:?}");
        }
    }

    /// The devices that a job has.
    pub(super) fn devices(&self, record: &JobRecord) -> Vec<u32> {
        let mut devices = Vec::new();
        for (name, detail) in record.nodes.iter().zip(&record.allocated) {
            let Some(node) = self.nodes.iter().position(|node| node.name == *name) else {
                continue;
            };
            let count = self.nodes[node].types.len();
            let used = syntax::gres(detail).into_iter().filter(|gres| gres.count > 0);
            for gres in used.filter(|gres| gres.name == "gpu" || gres.name == "shard") {
                let typed = gres.kind.as_ref();
                let typed =
                    typed.and_then(|kind| self.nodes[node].types.iter().position(|of| of == kind));
                let told = gres.indices.iter().map(|&index| index as usize);
                let of_each = gres.of_each.iter().enumerate().filter(|(_, part)| **part > 0);
                let indices: Vec<usize> = match typed {
                    Some(index) => vec![index],
                    None => told.chain(of_each.map(|(index, _)| index)).collect(),
                };
                let here = indices.into_iter().filter(|&index| index < count);
                devices.extend(here.map(|index| self.first[node] + index as u32));
            }
        }
        devices
    }

    /// Devices that jobs of others use.
    pub(super) fn strangers(
        &self,
        listing: &JobList,
        entries: &BTreeMap<String, ListedJob<'_>>,
    ) -> UsageSample {
        let ours: BTreeSet<u64> = entries
            .values()
            .filter(|entry| {
                let ours = self.jobs.get(&entry.key);
                ours.is_some_and(|ours| ours.wanted.is_some())
            })
            .map(|entry| entry.record.id)
            .collect();
        let mut devices = vec![DeviceSample::default(); self.places.len()];
        let present = |state: &SlurmState| {
            matches!(state, SlurmState::Running | SlurmState::Suspended | SlurmState::Other)
        };
        for record in listing.records.iter().filter(|record| present(&record.state)) {
            if !ours.contains(&record.id) {
                for device in self.devices(record) {
                    let id = u32::try_from(record.id).unwrap_or(u32::MAX);
                    devices[device as usize].processes.push((id, 0));
                }
            }
        }
        UsageSample { devices, runs: Vec::new() }
    }

    /// Takes in the present state of the nodes.
    pub(in crate::slurm) fn look_at(&mut self, nodes: &[SlurmNode]) -> Vec<BackendEvent> {
        let mut events = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let now = nodes.iter().find(|now| now.name == node.name);
            if let Some(now) =
                now.filter(|now| now.types == node.types && now.shards != node.shards)
            {
                // A restart of slurmctld does this to versions before 23.02 while shares are in use.
                if now.shards.iter().zip(&node.shards).any(|(now, before)| now < before) {
                    tracing::error!(
                        "node {}: Slurm has lost shares of its GPUs ({:?} of {:?}); jobs run \
                         there one at a time until slurmctld is started anew while the node is idle",
                        node.name,
                        now.shards,
                        node.shards
                    );
                }
                node.shards.clone_from(&now.shards);
            }
            let closed = now.map_or(Some("Slurm does not know it any more".to_owned()), |now| {
                now.closed.clone()
            });
            if self.closed[index].is_some() != closed.is_some() {
                let first = self.first[index];
                for device in (first..).take(node.types.len()) {
                    events.push(BackendEvent::Device { device, unavailable: closed.clone() });
                }
            }
            self.closed[index] = closed;
        }
        events
    }
}

/// Which GPUs of a node a request names.
fn kinds(request: &str) -> BTreeSet<String> {
    syntax::gres(request).into_iter().filter_map(|gres| gres.kind).collect()
}
