//! Places a pending job: tells Slurm its nodes and GPUs, then releases it.

use super::{DesiredRun, ListedJob, PlacementError, Reconciler};
use crate::slurm::jobs::JobRecord;
use crate::slurm::syntax;
use std::collections::{BTreeMap, BTreeSet};

/// A requeued job starts no earlier than this after the requeue. A node that gets it in the second in which
/// its last run ended takes it for that run, and it fails.
const REQUEUE_DELAY_S: u64 = 3;

impl Reconciler {
    /// The next `scontrol` line on the way from pending to running; `None` if Slurm has all it needs.
    pub(super) fn placement_request(
        &self,
        desired: &DesiredRun,
        listed: &ListedJob<'_>,
        now_s: u64,
    ) -> Result<Option<String>, PlacementError> {
        let (job_id, record) = (&listed.job_id, listed.record);
        let exists = |&device: &u32| (device as usize) < self.gpus.len();
        if desired.devices.is_empty() || !desired.devices.iter().all(exists) {
            let reason = "Slurm no longer has its GPUs".to_owned();
            return Err(PlacementError { reason, transient: true });
        }
        let (nodes, gres) = self.nodes_and_gres(desired, record);
        let mut fields = Vec::new();
        let (present, wanted) = (gres_types(&record.requested_gres), gres_types(&gres));
        if present.is_empty() || (present != wanted && self.gres_update_replaces) {
            fields.push(format!("Gres={gres}"));
        } else if present != wanted {
            let before = &record.requested_gres;
            let reason = format!(
                "this version of Slurm cannot change its Gres from {before} to {gres}; cancel it and submit it again"
            );
            return Err(PlacementError { reason, transient: false });
        }
        let required = syntax::nodes(&record.required_nodes).unwrap_or_default();
        let same_nodes = BTreeSet::from_iter(&required) == BTreeSet::from_iter(&nodes);
        if !same_nodes {
            fields.push(format!("ReqNodeList={}", nodes.join(",")));
        }
        // After a requeue, which sets a new submit time, Slurm would delay it by two minutes.
        let may_start = now_s >= record.submit_s + REQUEUE_DELAY_S;
        if record.restarts > 0 && record.reason == "BeginTime" && may_start {
            fields.push("StartTime=now".to_owned());
        }
        // Released only when the list shows its GPUs: it must not start without them.
        Ok(if !fields.is_empty() {
            Some(format!("update jobid={job_id} {}", fields.join(" ")))
        } else if record.is_held {
            Some(format!("release {job_id}"))
        } else {
            None
        })
    }

    /// Nodes and generic resources of a run, as Slurm writes them.
    fn nodes_and_gres(&self, desired: &DesiredRun, record: &JobRecord) -> (Vec<String>, String) {
        let mut by_node: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for &device in &desired.devices {
            let gpu = &self.gpus[device as usize];
            by_node.entry(gpu.node).or_default().push(&gpu.gres_type);
        }
        let nodes = by_node.keys().map(|&node| self.nodes[node].name.clone()).collect();
        // Slurm gives a job the same GPUs on each of its nodes.
        let mut types = by_node.into_values().next().unwrap_or_default();
        types.sort_unstable();
        let per_node = record.admin_comment.as_ref().map_or(1, |comment| comment.gpus_per_node);
        types.truncate(per_node as usize);
        // A gang never shares: a job cannot have shards of several GPUs.
        let can_share = desired.devices.iter().all(|&device| self.has_shards(device));
        // After a restart of the daemon only the record says that the job is interactive.
        let is_exclusive = desired.is_exclusive || !record.is_batch;
        let gres = match types[..] {
            [of] if desired.devices.len() == 1 && can_share && !is_exclusive => {
                format!("shard:{of}:{}", self.shards_per_job)
            }
            _ => types.iter().map(|of| format!("gpu:{of}:1")).collect::<Vec<_>>().join(","),
        };
        (nodes, gres)
    }

    /// Whether the GPUs of a device's node can be shared. Where Slurm has lost the shards of one GPU, it
    /// grants shards of the others without a GPU.
    fn has_shards(&self, device: u32) -> bool {
        let node = &self.nodes[self.gpus[device as usize].node];
        node.shards.iter().all(|&shards| shards >= self.shards_per_job)
    }
}

/// The GPU Types that a request names.
fn gres_types(request: &str) -> BTreeSet<String> {
    syntax::gres(request).into_iter().filter_map(|gres| gres.gres_type).collect()
}
