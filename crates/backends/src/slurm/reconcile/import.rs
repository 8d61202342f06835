//! Imports pending jobs: those that Tandem may place.

use super::constraints::{Room, blocked};
use super::patience::Attempts;
use super::{ListedJob, ManagedJob, Reconciled, Reconciler};
use crate::cluster::ClusterJob;
use crate::event::BackendEvent;
use crate::op::Owner;
use crate::slurm::admin_comment::JobForm;
use crate::slurm::dependency::{DependencyState, dependency_state};
use crate::slurm::jobs::{JobList, JobRecord, SlurmState};
use crate::slurm::licence;
use std::collections::BTreeMap;

impl Reconciler {
    /// Imports pending jobs that may start and are not managed yet.
    pub(super) fn import(
        &mut self,
        listed: &BTreeMap<String, ListedJob<'_>>,
        list: &JobList,
        room: &Room,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        let mut active_tasks = self.active_tasks(listed);
        let is_new = |job: &&ListedJob<'_>| {
            is_waiting(job.record)
                && job.record.eligible_s <= now_s
                && !self.jobs.jobs.contains_key(&job.key)
        };
        let mut pending: Vec<&ListedJob<'_>> = listed.values().filter(is_new).collect();
        pending.sort_by_key(|job| (job.record.array.unwrap_or(job.record.id), job.task));
        for job in pending {
            let record = job.record;
            match dependency_state(&record.dependency, job.task, &list.records, now_s) {
                DependencyState::Satisfied => {}
                DependencyState::Pending | DependencyState::NeverSatisfied => continue,
            }
            if let (Some(array), Some(limit)) = (record.array, record.array_limit) {
                let active = active_tasks.entry(array).or_default();
                if *active >= limit {
                    continue;
                }
                *active += 1;
            }
            let Some(gpus) = job.comment.nodes.checked_mul(job.comment.gpus_per_node) else {
                continue;
            };
            let waits = blocked(record).or_else(|| self.lacks_node(job, room));
            self.jobs.insert(job.key.clone(), ManagedJob::pending(Some(record.id)));
            self.attempts.insert(job.key.clone(), Attempts::told(waits.clone()));
            let imported = ClusterJob { waits, ..cluster_job(job, gpus) };
            result.events.push(BackendEvent::Imported(Box::new(imported)));
        }
    }

    /// Tasks of each array that count in its limit: those that Tandem manages and those that Slurm may run.
    fn active_tasks(&self, listed: &BTreeMap<String, ListedJob<'_>>) -> BTreeMap<u64, u32> {
        let mut active: BTreeMap<u64, u32> = BTreeMap::new();
        for job in listed.values() {
            let record = job.record;
            let is_managed = self.jobs.jobs.get(&job.key).is_some_and(|job| !job.is_refused);
            if let Some(array) = record.array
                && (is_managed || !is_waiting(record))
                && !matches!(record.state, SlurmState::Ended(_))
            {
                *active.entry(array).or_default() += 1;
            }
        }
        active
    }
}

/// Whether a job waits for Tandem, and for nobody else.
fn is_waiting(record: &JobRecord) -> bool {
    record.state == SlurmState::Pending && !record.is_held && licence::is_gated(&record.licenses)
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
        exclusive: !record.is_batch || matches!(job.comment.form, JobForm::Whole | JobForm::Slurm),
        waits: None,
        submit_unix_us: record.submit_s.saturating_mul(1_000_000),
    }
}
