//! Reconciles Slurm with the desired state of its jobs. Pure: a list of jobs goes in, requests and events
//! come out. Every request follows from the latest list alone. A request that was lost, or undone by a crash
//! of Slurm, is made again; a request whose effect the list shows is not.

mod devices;
mod import;
mod placement;
mod shard_leaks;

use super::commands::SlurmRequest;
use super::jobs::{JobList, JobRecord, SlurmEnd, SlurmState};
use super::nodes::SlurmNode;
use crate::cluster::control_loop::HoldsJobs;
use crate::cluster::desired::{DesiredRun, DesiredState, ManagedJob, ManagedJobs, ReportedState};
use crate::cluster::short_id;
use crate::event::{BackendEvent, Exit, ExitCause, ExitStatus, RunHandle};
use crate::op::{OpId, RunId};
use crate::providers::Enforcement;
use crate::recovery::{KnownJob, RecoveredRun};
use shard_leaks::ShardLeaks;
use std::collections::BTreeMap;

/// A job is considered gone when this many lists in a row lack it.
const MISSED_MAX: u32 = 2;
/// A cancel request is repeated after this time.
const CANCEL_AGAIN_S: u64 = 5;

const NODE_FAILED: &str = "its node failed";

/// One GPU of the cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterGpu {
    /// Index of its node.
    pub(super) node: usize,
    /// Its Type in Slurm's Gres, which tells the GPUs of a node apart.
    pub(super) gres_type: String,
}

/// A managed job as a list has it: its id in requests, and its record.
struct ListedJob<'a> {
    key: String,
    job_id: String,
    task: Option<u32>,
    record: &'a JobRecord,
}

/// Why a job cannot have the GPUs that were chosen, and whether others may do.
struct PlacementError {
    reason: String,
    transient: bool,
}

/// The result of a reconciliation.
#[derive(Debug, Default)]
pub(super) struct Reconciled {
    pub(super) requests: Vec<SlurmRequest>,
    pub(super) events: Vec<BackendEvent>,
    /// Runs that Slurm no longer lists. Their end may be in the job completion log.
    pub(super) missing: Vec<MissingRun>,
}

/// A run that Slurm no longer lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingRun {
    pub(super) run: RunId,
    /// Its Slurm id; 0, which no job has, if records under its id may belong to another job.
    pub(super) id: u64,
}

/// The managed jobs, and the GPUs of the partition.
pub(super) struct Reconciler {
    partition: String,
    nodes: Vec<SlurmNode>,
    pub(super) gpus: Vec<ClusterGpu>,
    /// The first device of each node.
    first_device: Vec<u32>,
    /// Shards of a GPU that one job takes.
    shards_per_job: u64,
    /// A second `Gres=` of a job replaces the first. Before 23.02.7 Slurm merges them.
    pub(super) gres_update_replaces: bool,
    jobs: ManagedJobs,
    /// Why each node accepts no jobs, as last reported.
    unavailable: Vec<Option<String>>,
    leaks: ShardLeaks,
}

impl HoldsJobs for Reconciler {
    fn jobs(&mut self) -> &mut ManagedJobs {
        &mut self.jobs
    }
}

impl Reconciler {
    pub(super) fn new(
        partition: String,
        nodes: Vec<SlurmNode>,
        tenants: u64,
        gres_update_replaces: bool,
    ) -> Self {
        let mut gpus = Vec::new();
        let mut first_device = Vec::new();
        for (node, of) in nodes.iter().enumerate() {
            first_device.push(u32::try_from(gpus.len()).expect("device indices fit in u32"));
            let types = of.gpu_types.iter().cloned();
            gpus.extend(types.map(|gres_type| ClusterGpu { node, gres_type }));
        }
        let shards = nodes.iter().flat_map(|node| &node.shards).filter(|&&shards| shards > 0).min();
        let shards = shards.copied().unwrap_or(1);
        Self {
            partition,
            gpus,
            first_device,
            shards_per_job: (shards / tenants.max(1)).max(1),
            gres_update_replaces,
            jobs: ManagedJobs::default(),
            unavailable: vec![None; nodes.len()],
            leaks: ShardLeaks::default(),
            nodes,
        }
    }

    pub(super) fn nodes(&self) -> &[SlurmNode] {
        &self.nodes
    }

    /// What happened to jobs that an earlier daemon knew. Runs that Slurm no longer lists are separate.
    pub(super) fn recover(
        &mut self,
        known: &[KnownJob],
        list: &JobList,
    ) -> (Vec<(RunId, RecoveredRun)>, Vec<MissingRun>) {
        let listed = self.listed(list);
        let (mut recovered, mut missing) = (Vec::new(), Vec::new());
        for job in known {
            let Some(key) = &job.external else { continue };
            let record = listed.get(key.as_str()).map(|listed| listed.record);
            match record {
                record if !job.has_run => {
                    let pending = ManagedJob::pending(record.map(|record| record.id));
                    self.jobs.insert(key.clone(), pending);
                }
                None => missing.push(missing_run(job.run, key, None, list)),
                Some(record) => recovered.push((job.run, self.recover_run(job, key, record))),
            }
        }
        (recovered, missing)
    }

    fn recover_run(&mut self, job: &KnownJob, key: &str, record: &JobRecord) -> RecoveredRun {
        let reported = match record.state {
            SlurmState::Ended(SlurmEnd::NodeFailed) => {
                return RecoveredRun::Lost { reason: NODE_FAILED.to_owned() };
            }
            SlurmState::Ended(end) => return RecoveredRun::Exited(exit(end, record)),
            SlurmState::Running => ReportedState::Running,
            SlurmState::Suspended => ReportedState::Paused,
            SlurmState::Pending | SlurmState::Other => ReportedState::NotStarted,
        };
        let paused = reported == ReportedState::Paused;
        let desired = DesiredRun {
            state: if paused { DesiredState::Paused } else { DesiredState::Running },
            reported,
            requeues: Some(record.restarts),
            ..DesiredRun::new(job.run, OpId(0), job.devices.clone())
        };
        let managed = ManagedJob { run: Some(desired), ..ManagedJob::pending(Some(record.id)) };
        self.jobs.insert(key.to_owned(), managed);
        if reported == ReportedState::NotStarted {
            return RecoveredRun::Starting;
        }
        let (handle, enforcement) = (RunHandle::ClusterJob(record.id), Enforcement::None);
        RecoveredRun::Running { handle, paused, enforcement }
    }

    /// The jobs of a list with our admin comment, by their key.
    fn listed<'a>(&self, list: &'a JobList) -> BTreeMap<String, ListedJob<'a>> {
        let mut jobs = BTreeMap::new();
        for record in &list.records {
            let Some(comment) = &record.admin_comment else { continue };
            if self.partition != record.partition {
                continue;
            }
            let mut add = |job_id: String, task: Option<u32>| {
                let key = format!("{job_id}#{}", comment.tag);
                jobs.insert(key.clone(), ListedJob { key, job_id, task, record });
            };
            match (record.array, record.task) {
                // The last task of an array has the array's id, which in a request would mean all tasks.
                (Some(array), Some(task)) => add(format!("{array}_{task}"), Some(task)),
                (Some(array), None) => {
                    for &task in &record.pending_tasks {
                        add(format!("{array}_{task}"), Some(task));
                    }
                }
                (None, _) => add(record.id.to_string(), None),
            }
        }
        jobs
    }

    /// Compares a list with the desired state.
    pub(super) fn reconcile(&mut self, list: &JobList, now_s: u64) -> Reconciled {
        let mut result = Reconciled::default();
        let listed = self.listed(list);
        for (key, mut job) in std::mem::take(&mut self.jobs.jobs) {
            let listed = listed.get(&key);
            let is_alive =
                listed.is_some_and(|job| !matches!(job.record.state, SlurmState::Ended(_)));
            if job.is_refused && job.run.is_none() && !is_alive {
                continue;
            }
            match listed {
                Some(listed) => self.reconcile_job(&mut job, listed, now_s, &mut result),
                None => missed(&mut job, &key, list, &mut result),
            }
            self.jobs.jobs.insert(key, job);
        }
        self.repair_shard_leaks(&listed, list, now_s, &mut result);
        self.import(&listed, list, now_s, &mut result);
        result.events.push(BackendEvent::Sampled(self.foreign_jobs(list, &listed)));
        result
    }

    fn reconcile_job(
        &self,
        job: &mut ManagedJob,
        listed: &ListedJob<'_>,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        job.missed = 0;
        job.cluster_id = Some(listed.record.id);
        if job.is_done {
            return;
        }
        match &mut job.run {
            None => reconcile_pending(job, listed, now_s, result),
            Some(desired) => match self.reconcile_run(desired, listed, now_s, result) {
                Ok(is_done) => job.is_done = is_done,
                Err(PlacementError { reason, transient }) => {
                    let (op, run) = (desired.op, desired.run);
                    (job.is_done, job.is_refused) = (true, true);
                    result.events.push(BackendEvent::NotStarted { op, run, reason, transient });
                }
            },
        }
    }

    /// Brings a run closer to its desired state; whether it has ended.
    fn reconcile_run(
        &self,
        desired: &mut DesiredRun,
        listed: &ListedJob<'_>,
        now_s: u64,
        result: &mut Reconciled,
    ) -> Result<bool, PlacementError> {
        let record = listed.record;
        let (op, run) = (desired.op, desired.run);
        let was_requeued = desired.was_requeued(record.restarts);
        if was_requeued && desired.reported != ReportedState::NotStarted {
            desired.reported = ReportedState::NotStarted;
            result.events.push(BackendEvent::Requeued { run });
        }
        if let SlurmState::Ended(end) = record.state {
            result.events.push(match end {
                SlurmEnd::NodeFailed => BackendEvent::Lost { run, reason: NODE_FAILED.to_owned() },
                end => BackendEvent::Exited { run, exit: exit(end, record) },
            });
            return Ok(true);
        }
        if let DesiredState::Ended { requested_s } = &mut desired.state {
            cancel(requested_s, listed, now_s, result);
            return Ok(false);
        }
        match record.state {
            SlurmState::Pending => {
                let line = self.placement_request(desired, listed, now_s)?;
                result.requests.extend(line.map(SlurmRequest::Control));
            }
            SlurmState::Running => {
                match desired.reported {
                    ReportedState::NotStarted => result.events.push(self.started(desired, record)),
                    ReportedState::Paused => result.events.push(BackendEvent::Resumed { op, run }),
                    ReportedState::Running => {}
                }
                desired.reported = ReportedState::Running;
                if desired.state == DesiredState::Paused {
                    result.control(format!("suspend {}", listed.job_id));
                }
            }
            SlurmState::Suspended => {
                // It may have started and been suspended between two lists.
                if desired.reported == ReportedState::NotStarted {
                    result.events.push(self.started(desired, record));
                }
                if desired.reported != ReportedState::Paused {
                    desired.reported = ReportedState::Paused;
                    result.events.push(BackendEvent::Paused { op, run, took_us: 0 });
                }
                if desired.state == DesiredState::Running {
                    result.control(format!("resume {}", listed.job_id));
                }
            }
            SlurmState::Ended(_) | SlurmState::Other => {}
        }
        Ok(false)
    }

    fn started(&self, desired: &DesiredRun, record: &JobRecord) -> BackendEvent {
        self.check_placement(desired, record);
        let (op, run, enforcement) = (desired.op, desired.run, Enforcement::None);
        let handle = RunHandle::ClusterJob(record.id);
        BackendEvent::Started { op, run, handle, enforcement }
    }
}

impl Reconciled {
    fn control(&mut self, line: String) {
        self.requests.push(SlurmRequest::Control(line));
    }
}

/// A job without a run: it must stay held until it is placed or withdrawn.
fn reconcile_pending(
    job: &mut ManagedJob,
    listed: &ListedJob<'_>,
    now_s: u64,
    result: &mut Reconciled,
) {
    let reason = match (&listed.record.state, &mut job.withdraw_requested_s) {
        (SlurmState::Ended(SlurmEnd::Cancelled), _) => "cancelled in Slurm",
        (SlurmState::Ended(_), _) => "it has ended in Slurm",
        (_, Some(requested_s)) => return cancel(requested_s, listed, now_s, result),
        (SlurmState::Pending, None) if listed.record.is_held => return,
        _ => "released by an operator",
    };
    job.is_done = true;
    let (external, reason) = (listed.key.clone(), reason.to_owned());
    result.events.push(BackendEvent::Withdrawn { external, reason });
}

/// Cancels a job, at most once every [`CANCEL_AGAIN_S`].
fn cancel(requested_s: &mut u64, listed: &ListedJob<'_>, now_s: u64, result: &mut Reconciled) {
    if now_s >= *requested_s + CANCEL_AGAIN_S {
        *requested_s = now_s;
        result.requests.push(SlurmRequest::Cancel(listed.job_id.clone()));
    }
}

/// A job that is not in the list.
fn missed(job: &mut ManagedJob, key: &str, list: &JobList, result: &mut Reconciled) {
    job.missed += 1;
    if job.missed < MISSED_MAX || job.is_done {
        return;
    }
    job.is_done = true;
    match &job.run {
        Some(desired) => {
            result.missing.push(missing_run(desired.run, key, job.cluster_id, list));
        }
        None => {
            let (external, reason) = (key.to_owned(), "Slurm no longer lists it".to_owned());
            result.events.push(BackendEvent::Withdrawn { external, reason });
        }
    }
}

/// A run that is not in the list. The id of an array task that was never listed is unknown, and an id that
/// the list has was reused for another job.
fn missing_run(run: RunId, key: &str, cluster_id: Option<u64>, list: &JobList) -> MissingRun {
    let id = cluster_id.unwrap_or_else(|| short_id(key).parse().unwrap_or(0));
    let is_reused = list.records.iter().any(|record| record.id == id);
    MissingRun { run, id: if is_reused { 0 } else { id } }
}

fn exit(end: SlurmEnd, record: &JobRecord) -> Exit {
    let (code, signal) = record.exit;
    let status = match (code, signal) {
        // A job that failed before its program started, as in a prolog, must not look successful.
        (0, 0) if end == SlurmEnd::Failed => ExitStatus::Code(1),
        (code, 0) => ExitStatus::Code(code),
        (_, signal) => ExitStatus::Signal(signal),
    };
    let cause = match end {
        SlurmEnd::Cancelled => Some(ExitCause::Cancelled),
        SlurmEnd::TimedOut => Some(ExitCause::TimedOut),
        SlurmEnd::OutOfMemory => Some(ExitCause::OutOfMemory),
        SlurmEnd::Completed | SlurmEnd::Failed | SlurmEnd::NodeFailed => None,
    };
    Exit {
        status,
        cpu_s: 0.0,
        rss_max_bytes: 0,
        oom: end == SlurmEnd::OutOfMemory,
        at_unix_us: record.end_s.saturating_mul(1_000_000),
        cause,
    }
}

#[cfg(test)]
mod tests;
