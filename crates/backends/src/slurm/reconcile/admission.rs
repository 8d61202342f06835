//! Admits a pending job: tells Slurm its nodes and GPUs, and takes the licence for which it waits from its request.

use super::patience::Refusal;
use super::{DesiredRun, ListedJob, Reconciler};
use crate::slurm::admin_comment::{AdminComment, JobForm};
use crate::slurm::jobs::JobRecord;
use crate::slurm::{licence, syntax};
use std::collections::{BTreeMap, BTreeSet};

/// A requeued job starts no earlier than this after the requeue. A node that gets it in the second in which
/// its last run ended takes it for that run, and it fails.
const REQUEUE_DELAY_S: u64 = 3;

/// Nodes and generic resources of a run, as Slurm writes them.
struct Pin {
    nodes: Vec<String>,
    /// `None` if Slurm chooses the GPUs of the nodes.
    gres: Option<String>,
}

impl Reconciler {
    /// The next `scontrol` line on the way from pending to running; `None` if Slurm has all it needs.
    pub(super) fn admission_request(
        &self,
        desired: &DesiredRun,
        listed: &ListedJob<'_>,
        now_s: u64,
    ) -> Result<Option<String>, Refusal> {
        let (record, comment) = (listed.record, listed.comment);
        let exists = |&device: &u32| (device as usize) < self.gpus.len();
        if desired.devices.is_empty() || !desired.devices.iter().all(exists) {
            return Err(Refusal::waits("Slurm no longer has its GPUs"));
        }
        let mut fields = Vec::new();
        if let Some(Pin { nodes, gres }) = self.pin(desired, record, comment) {
            if let Some(gres) = gres {
                fields.extend(self.gres_field(&gres, record)?);
            }
            let required = syntax::nodes(&record.required_nodes).unwrap_or_default();
            let is_same = BTreeSet::from_iter(&required) == BTreeSet::from_iter(&nodes);
            if !is_same && !comment.has_nodes {
                fields.push(format!("ReqNodeList={}", nodes.join(",")));
            }
        }
        // Without its GPU request a job must not start before the list shows its GPU.
        let may_admit = fields.is_empty() || comment.form != JobForm::Stripped;
        if may_admit && licence::is_gated(&record.licenses) {
            fields.push(format!("Licenses={}", licence::of_user(&record.licenses)));
        }
        // After a requeue, which sets a new submit time, Slurm would delay it by two minutes.
        let may_start = now_s >= record.submit_s + REQUEUE_DELAY_S;
        if record.restarts > 0 && record.reason == "BeginTime" && may_start {
            fields.push("StartTime=now".to_owned());
        }
        let line = || format!("update jobid={} {}", listed.job_id, fields.join(" "));
        Ok((!fields.is_empty()).then(line))
    }

    /// The field that changes the generic resources of a job to these, if they differ.
    fn gres_field(&self, gres: &str, record: &JobRecord) -> Result<Option<String>, Refusal> {
        let (present, wanted) = (gres_types(&record.requested_gres), gres_types(gres));
        if present == wanted {
            return Ok(None);
        }
        if !present.is_empty() && !self.gres_update_replaces {
            let before = &record.requested_gres;
            let reason =
                format!("this version of Slurm cannot change its Gres from {before} to {gres}");
            return Err(Refusal::never(reason));
        }
        Ok(Some(format!("Gres={gres}")))
    }

    /// Where a run goes; `None` if Slurm chooses its nodes and GPUs.
    fn pin(&self, desired: &DesiredRun, record: &JobRecord, comment: &AdminComment) -> Option<Pin> {
        let mut by_node: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for &device in &desired.devices {
            let gpu = &self.gpus[device as usize];
            by_node.entry(gpu.node).or_default().push(&gpu.gres_type);
        }
        let has_form = by_node.len() == comment.nodes as usize
            && by_node.values().all(|types| types.len() == comment.gpus_per_node as usize);
        if !has_form || !self.is_pinned(comment.form) {
            return None;
        }
        let nodes = by_node.keys().map(|&node| self.nodes[node].name.clone()).collect();
        // Slurm would give a job the same GPUs on each of its nodes.
        let is_named = by_node.len() == 1
            && match comment.form {
                JobForm::Share | JobForm::Stripped => true,
                JobForm::Whole => self.gres_update_replaces,
                JobForm::Slurm => false,
            };
        let types = by_node.into_values().next().unwrap_or_default();
        let gres = is_named.then(|| self.gres(desired, record, comment.form, types));
        Some(Pin { nodes, gres })
    }

    /// Whether Tandem says where a job of this form goes.
    fn is_pinned(&self, form: JobForm) -> bool {
        match form {
            JobForm::Share => self.gres_update_replaces,
            JobForm::Stripped | JobForm::Whole | JobForm::Slurm => true,
        }
    }

    fn gres(
        &self,
        desired: &DesiredRun,
        record: &JobRecord,
        form: JobForm,
        mut types: Vec<&str>,
    ) -> String {
        types.sort_unstable();
        let may_share =
            form != JobForm::Whole && desired.devices.iter().all(|&one| self.has_shards(one));
        // After a restart of the daemon only the record says that the job is interactive.
        let is_exclusive = desired.is_exclusive || !record.is_batch;
        match types[..] {
            [of] if may_share && !is_exclusive => format!("shard:{of}:{}", self.shards_per_job),
            _ => types.iter().map(|of| format!("gpu:{of}:1")).collect::<Vec<_>>().join(","),
        }
    }

    /// Whether the GPUs of a device's node can be shared. Where Slurm has lost the shards of one GPU, it
    /// grants shards of the others without a GPU.
    fn has_shards(&self, device: u32) -> bool {
        let node = &self.nodes[self.gpus[device as usize].node];
        node.shards.iter().all(|&shards| shards >= self.shards_per_job)
    }

    /// The request that makes a job wait again, with its own request of GPUs and nodes; `None` if it does.
    pub(super) fn gate_request(&self, listed: &ListedJob<'_>) -> Option<String> {
        let record = listed.record;
        let mut fields = unpin(listed);
        if !licence::is_gated(&record.licenses) {
            let licenses = licence::gated(&record.licenses, listed.comment.form);
            fields.insert(0, format!("Licenses={licenses}"));
        }
        let line = || format!("update jobid={} {}", listed.job_id, fields.join(" "));
        (!fields.is_empty()).then(line)
    }
}

/// The request that makes a job a plain Slurm job.
pub(in crate::slurm) fn plain_request(listed: &ListedJob<'_>) -> String {
    let record = listed.record;
    let mut fields = unpin(listed);
    let is_stripped = syntax::gres(&record.requested_gres).is_empty();
    if listed.comment.form == JobForm::Stripped && is_stripped {
        fields.push("TresPerNode=gres:gpu:1".to_owned());
    }
    if record.restarts > 0 {
        fields.push("StartTime=now".to_owned());
    }
    fields.push(format!("Licenses={}", licence::of_user(&record.licenses)));
    format!("update jobid={} {}", listed.job_id, fields.join(" "))
}

/// The fields that undo what Tandem changed in the request of a job. A version that merges requests keeps the GPU
/// of a job that had none.
fn unpin(listed: &ListedJob<'_>) -> Vec<String> {
    let (record, comment) = (listed.record, listed.comment);
    let mut fields = Vec::new();
    let is_named = !gres_types(&record.requested_gres).is_empty();
    if is_named && matches!(comment.form, JobForm::Share | JobForm::Whole) {
        fields.push(format!("Gres=gpu:{}", comment.gpus_per_node));
    }
    if !comment.has_nodes && !record.required_nodes.is_empty() {
        fields.push("ReqNodeList=".to_owned());
    }
    fields
}

/// The GPU Types that a request names.
fn gres_types(request: &str) -> BTreeSet<String> {
    syntax::gres(request).into_iter().filter_map(|gres| gres.gres_type).collect()
}
