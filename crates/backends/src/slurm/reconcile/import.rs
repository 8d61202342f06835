//! Imports pending jobs: those that Tandem may place.

use super::{ListedJob, ManagedJob, Reconciled, Reconciler};
use crate::cluster::ClusterJob;
use crate::event::BackendEvent;
use crate::op::Owner;
use crate::slurm::commands::SlurmRequest;
use crate::slurm::dependency::{DependencyState, dependency_state};
use crate::slurm::jobs::{JobList, JobRecord, SlurmState};
use crate::slurm::syntax;
use std::collections::BTreeMap;

impl Reconciler {
    /// Imports pending jobs that may start and are not managed yet.
    pub(super) fn import(
        &mut self,
        listed: &BTreeMap<String, ListedJob<'_>>,
        list: &JobList,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        let mut active_tasks = self.active_tasks(listed);
        let is_new = |job: &&ListedJob<'_>| {
            is_held(job.record)
                && job.record.eligible_s <= now_s
                && !self.jobs.jobs.contains_key(&job.key)
        };
        let mut pending: Vec<&ListedJob<'_>> = listed.values().filter(is_new).collect();
        pending.sort_by_key(|job| (job.record.array.unwrap_or(job.record.id), job.task));
        for job in pending {
            let record = job.record;
            match dependency_state(&record.dependency, job.task, &list.records, now_s) {
                DependencyState::Satisfied => {}
                DependencyState::Pending => continue,
                DependencyState::NeverSatisfied => {
                    result.requests.extend(return_to_slurm(job));
                    continue;
                }
            }
            if let (Some(array), Some(limit)) = (record.array, record.array_limit) {
                let active = active_tasks.entry(array).or_default();
                if *active >= limit {
                    continue;
                }
                *active += 1;
            }
            let Some(gpus) = self.occupied_gpus(record) else { continue };
            self.jobs.insert(job.key.clone(), ManagedJob::pending(Some(record.id)));
            result.events.push(BackendEvent::Imported(Box::new(cluster_job(job, gpus))));
        }
    }

    /// Tasks of each array that count in its limit: those that Tandem manages and those that Slurm may run.
    fn active_tasks(&self, listed: &BTreeMap<String, ListedJob<'_>>) -> BTreeMap<u64, u32> {
        let mut active: BTreeMap<u64, u32> = BTreeMap::new();
        for job in listed.values() {
            let record = job.record;
            let is_managed = self.jobs.jobs.get(&job.key).is_some_and(|job| !job.is_refused);
            if let Some(array) = record.array
                && (is_managed || !is_held(record))
                && !matches!(record.state, SlurmState::Ended(_))
            {
                *active.entry(array).or_default() += 1;
            }
        }
        active
    }

    /// GPUs that a job occupies, including those that no other job can use beside it. A job on several
    /// nodes has these nodes to itself, because Slurm gives it the same GPUs on each.
    fn occupied_gpus(&self, record: &JobRecord) -> Option<u32> {
        let comment = record.admin_comment.as_ref()?;
        let per_node = if comment.nodes > 1 {
            let sizes = self.nodes.iter().map(|node| node.gpu_types.len());
            u32::try_from(sizes.max().unwrap_or(0)).expect("the GPUs of a node fit in u32")
        } else {
            comment.gpus_per_node
        };
        comment.nodes.checked_mul(per_node)
    }
}

fn is_held(record: &JobRecord) -> bool {
    record.state == SlurmState::Pending && record.is_held
}

fn cluster_job(job: &ListedJob<'_>, gpus: u32) -> ClusterJob {
    let record = job.record;
    ClusterJob {
        external: job.key.clone(),
        owner: Owner { uid: record.uid, gid: record.gid },
        user: record.user.clone(),
        name: record.name.clone(),
        gpus,
        limit_s: record.limit_min.map(|minutes| minutes as f64 * 60.0),
        hints: record.comment.clone(),
        // srun requests a whole GPU again for the step within its own job.
        exclusive: !record.is_batch,
        submit_unix_us: record.submit_s.saturating_mul(1_000_000),
    }
}

/// Makes a job a plain Slurm job again: restores its GPU request, then releases it. For a job whose
/// dependency is never satisfied, which Slurm will not start.
fn return_to_slurm(job: &ListedJob<'_>) -> Vec<SlurmRequest> {
    let Some(comment) = &job.record.admin_comment else { return Vec::new() };
    let job_id = &job.job_id;
    let restore = format!("update jobid={job_id} {}", comment.requested);
    // Only once: versions before 23.02.7 would merge a second request with the first.
    let restore = syntax::gres(&job.record.requested_gres).is_empty().then_some(restore);
    let release = format!("release {job_id}");
    restore.into_iter().chain([release]).map(SlurmRequest::Control).collect()
}
