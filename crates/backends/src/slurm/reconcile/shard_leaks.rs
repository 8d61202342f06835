//! Repairs leaked shards: shares of GPUs that Slurm counts as used and no job has.

use super::{ListedJob, Reconciled, Reconciler};
use crate::cluster::short_id;
use crate::op::RunId;
use crate::slurm::jobs::{JobList, SlurmState};
use crate::slurm::licence;
use std::collections::{BTreeMap, BTreeSet};

/// An admitted job that Slurm does not start within this time although its GPUs are idle points to a leak.
const IDLE_S: u64 = 2;
/// Least time between two repairs.
const REPAIR_INTERVAL_S: u64 = 60;

/// What is known about possible leaks.
#[derive(Debug, Default)]
pub(super) struct ShardLeaks {
    /// Since when admitted runs wait for resources.
    waiting_since_s: BTreeMap<RunId, u64>,
    /// Runs for which a repair was tried.
    repaired: BTreeSet<RunId>,
    last_repair_s: u64,
}

impl Reconciler {
    /// Makes Slurm recount its resources if it does not start a job although, according to the list, its GPUs
    /// are idle. Versions before 23.02.7 leak shards when the GPUs of a job are chosen twice.
    pub(super) fn repair_shard_leaks(
        &mut self,
        listed: &BTreeMap<String, ListedJob<'_>>,
        list: &JobList,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        // Later versions leak none, and `reconfigure` restarts slurmctld there.
        if self.gres_update_replaces {
            return;
        }
        let mut waiting = BTreeMap::new();
        let mut suspects = Vec::new();
        for (key, job) in &self.jobs.jobs {
            let Some(desired) = job.run.as_ref().filter(|_| !job.is_done) else { continue };
            if listed.get(key).is_some_and(waits_for_resources) {
                let since_s =
                    self.leaks.waiting_since_s.get(&desired.run).copied().unwrap_or(now_s);
                waiting.insert(desired.run, since_s);
                if now_s >= since_s + IDLE_S && !self.leaks.repaired.contains(&desired.run) {
                    suspects.push((key, desired));
                }
            }
        }
        if suspects.is_empty() || now_s < self.leaks.last_repair_s + REPAIR_INTERVAL_S {
            self.leaks.waiting_since_s = waiting;
            return;
        }
        let present = list.records.iter().filter(|record| record.state.has_devices());
        let used: BTreeSet<u32> = present.flat_map(|record| self.devices(record)).collect();
        let is_idle = |device: &u32| {
            let gpu = self.gpus.get(*device as usize);
            gpu.is_some_and(|gpu| self.unavailable[gpu.node].is_none()) && !used.contains(device)
        };
        let leak = suspects.into_iter().find(|(_, desired)| desired.devices.iter().all(is_idle));
        if let Some((key, desired)) = leak {
            tracing::warn!(
                "Slurm does not start job {} although its GPUs are idle: it has lost count of shards, or \
                 CPUs or memory are short; making it recount (scontrol reconfigure)",
                short_id(key)
            );
            let run = desired.run;
            self.leaks.repaired.insert(run);
            self.leaks.last_repair_s = now_s;
            result.control("reconfigure".to_owned());
        }
        self.leaks.waiting_since_s = waiting;
        let runs = self.jobs.jobs.values().filter_map(|job| Some(job.run.as_ref()?.run));
        let runs: BTreeSet<RunId> = runs.collect();
        self.leaks.repaired.retain(|run| runs.contains(run));
    }
}

fn waits_for_resources(listed: &ListedJob<'_>) -> bool {
    let record = listed.record;
    record.state == SlurmState::Pending
        && !licence::is_gated(&record.licenses)
        && matches!(record.reason.as_str(), "Resources" | "ReqNodeNotAvail" | "Priority")
}
