//! Reconciles Slurm with the desired state of its jobs. Pure: a list of jobs goes in, requests and events
//! come out. Every request follows from the latest list alone. A request that was lost, or undone by a crash
//! of Slurm, is made again; a request whose effect the list shows is not.

mod admission;
mod constraints;
mod devices;
mod import;
mod patience;
mod shard_leaks;
mod window;

use super::admin_comment::AdminComment;
use super::commands::SlurmRequest;
use super::jobs::{JobList, JobRecord, SlurmEnd, SlurmState};
use super::licence;
use super::nodes::SlurmNode;
use crate::cluster::control_loop::HoldsJobs;
use crate::cluster::desired::{DesiredRun, DesiredState, ManagedJob, ManagedJobs, ReportedState};
use crate::cluster::short_id;
use crate::event::{BackendEvent, Exit, ExitCause, ExitStatus, RunHandle};
use crate::op::{OpId, RunId};
use crate::providers::Enforcement;
use crate::recovery::{KnownJob, RecoveredRun};
pub(super) use admission::plain_request;
use constraints::{Room, blocked};
pub(super) use patience::Patience;
use patience::{Attempts, Refusal};
use shard_leaks::ShardLeaks;
use std::collections::{BTreeMap, BTreeSet};

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
pub(super) struct ListedJob<'a> {
    key: String,
    pub(super) job_id: String,
    task: Option<u32>,
    pub(super) record: &'a JobRecord,
    pub(super) comment: &'a AdminComment,
}

impl ListedJob<'_> {
    fn is_pending(&self) -> bool {
        self.record.state == SlurmState::Pending
    }
}

/// What a reconciler needs to know of the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReconcilerOptions {
    /// The most jobs on a GPU.
    pub(super) tenants_max: u64,
    /// A second `Gres=` of a job replaces the first. Before 23.02.7 Slurm merges them.
    pub(super) gres_update_replaces: bool,
    pub(super) patience: Patience,
    /// A job may start before others whose priority is higher by up to this part.
    pub(super) priority_window: f64,
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
    patience: Patience,
    priority_window: f64,
    jobs: ManagedJobs,
    /// What was tried with pending jobs, by the key of the job.
    attempts: BTreeMap<String, Attempts>,
    /// Since when there have been idle GPUs beside jobs that wait.
    idle_since_s: Option<u64>,
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
        options: ReconcilerOptions,
    ) -> Self {
        let ReconcilerOptions { tenants_max, gres_update_replaces, patience, priority_window } =
            options;
        let tenants_max = tenants_max.max(1);
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
            shards_per_job: (shards / tenants_max).max(1),
            gres_update_replaces,
            patience,
            priority_window,
            attempts: BTreeMap::new(),
            idle_since_s: None,
            jobs: ManagedJobs::default(),
            unavailable: vec![None; nodes.len()],
            leaks: ShardLeaks::default(),
            nodes,
        }
    }

    /// Whether a managed job was missing in the last list.
    pub(super) fn misses_jobs(&self) -> bool {
        self.jobs.jobs.values().any(|job| job.missed > 0 && !job.is_done)
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
            // It started elsewhere meanwhile: an event will say where.
            SlurmState::Running | SlurmState::Suspended
                if self.is_elsewhere(&job.devices, record) =>
            {
                ReportedState::NotStarted
            }
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
            if self.partition == record.partition {
                let of_record = listed_jobs(record);
                jobs.extend(of_record.into_iter().map(|listed| (listed.key.clone(), listed)));
            }
        }
        jobs
    }

    /// Compares a list with the desired state.
    pub(super) fn reconcile(&mut self, list: &JobList, now_s: u64) -> Reconciled {
        let mut result = Reconciled::default();
        let listed = self.listed(list);
        let mut room = self.room(list, &listed);
        for (key, mut job) in std::mem::take(&mut self.jobs.jobs) {
            let listed = listed.get(&key);
            if job.is_done
                && job.run.is_none()
                && !self.leave_to_slurm(&job, listed, now_s, &mut result)
            {
                continue;
            }
            match listed {
                Some(listed) => {
                    self.reconcile_job(&mut job, listed, &mut room, now_s, &mut result);
                }
                None => missed(&mut job, &key, list, &mut result),
            }
            self.jobs.jobs.insert(key, job);
        }
        self.repair_shard_leaks(&listed, list, now_s, &mut result);
        self.import(&listed, list, &room, now_s, &mut result);
        self.report_waits(&listed, &room, now_s, &mut result);
        let jobs = &self.jobs.jobs;
        self.attempts.retain(|key, _| jobs.contains_key(key));
        result.events.push(BackendEvent::Sampled(self.foreign_jobs(list, &listed)));
        result
    }

    fn reconcile_job(
        &mut self,
        job: &mut ManagedJob,
        listed: &ListedJob<'_>,
        room: &mut Room,
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
            Some(desired) => match self.reconcile_run(desired, listed, room, now_s, result) {
                Ok(is_done) => job.is_done = is_done,
                Err(refusal) => self.give_back(job, listed, refusal, now_s, result),
            },
        }
    }

    /// Brings a run closer to its desired state; whether it has ended. An error if its place is to be given back.
    fn reconcile_run(
        &mut self,
        desired: &mut DesiredRun,
        listed: &ListedJob<'_>,
        room: &mut Room,
        now_s: u64,
        result: &mut Reconciled,
    ) -> Result<bool, Refusal> {
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
            SlurmState::Pending => self.admit(desired, listed, room, now_s, result)?,
            SlurmState::Running => {
                match desired.reported {
                    ReportedState::NotStarted => self.started(desired, listed, result),
                    ReportedState::Paused => result.events.push(BackendEvent::Resumed { op, run }),
                    ReportedState::Running => {}
                }
                desired.reported = ReportedState::Running;
                let attempts = self.attempts.entry(listed.key.clone()).or_default();
                attempts.suspends = desired.state == DesiredState::Paused;
                if attempts.suspends {
                    result.control(format!("suspend {}", listed.job_id));
                }
            }
            SlurmState::Suspended => {
                // It may have started and been suspended between two lists.
                if desired.reported == ReportedState::NotStarted {
                    self.started(desired, listed, result);
                    desired.reported = ReportedState::Running;
                }
                let is_ours = desired.reported == ReportedState::Paused
                    || desired.state == DesiredState::Paused
                    || self.attempts.get(&listed.key).is_some_and(|attempts| attempts.suspends);
                if !is_ours {
                    // An operator has suspended it, who will resume it.
                    return Ok(false);
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

    /// Brings a pending job closer to its start.
    fn admit(
        &mut self,
        desired: &mut DesiredRun,
        listed: &ListedJob<'_>,
        room: &mut Room,
        now_s: u64,
        result: &mut Reconciled,
    ) -> Result<(), Refusal> {
        if let Some(reason) = blocked(listed.record) {
            return Err(Refusal::waits(reason));
        }
        let is_gated = licence::is_gated(&listed.record.licenses);
        if is_gated && let Some(others) = self.other_devices(desired, listed, room) {
            if others.is_empty() {
                return Err(Refusal::waits("the nodes that it may use are busy"));
            }
            place(desired, others, result);
        }
        let line = self.admission_request(desired, listed, now_s)?;
        if is_gated {
            self.charge(room, desired, listed);
        }
        let is_lost = desired.devices.iter().any(|&device| {
            let gpu = self.gpus.get(device as usize);
            gpu.is_some_and(|gpu| self.nodes[gpu.node].unavailable.is_some())
        });
        let attempts = self.attempts.entry(listed.key.clone()).or_default();
        match line {
            Some(line) => {
                attempts.send(&line)?;
                result.control(line);
                Ok(())
            }
            // The daemon looks for other GPUs, and nobody else can use these.
            None if is_lost => Ok(()),
            None => attempts.wait(listed.record, &self.patience, room.admitted, now_s),
        }
    }

    /// Whether a job has other devices than were planned.
    fn is_elsewhere(&self, planned: &[u32], record: &JobRecord) -> bool {
        let present: BTreeSet<u32> = self.devices(record).into_iter().collect();
        !present.is_empty() && present != planned.iter().copied().collect()
    }

    /// A run has started, maybe on other devices than it was told.
    fn started(
        &mut self,
        desired: &mut DesiredRun,
        listed: &ListedJob<'_>,
        result: &mut Reconciled,
    ) {
        let record = listed.record;
        if let Some(attempts) = self.attempts.get_mut(&listed.key) {
            attempts.settle();
        }
        if self.is_elsewhere(&desired.devices, record) {
            let present: BTreeSet<u32> = self.devices(record).into_iter().collect();
            place(desired, present.into_iter().collect(), result);
        }
        let (op, run, enforcement) = (desired.op, desired.run, Enforcement::None);
        let handle = RunHandle::ClusterJob(record.id);
        result.events.push(BackendEvent::Started { op, run, handle, enforcement });
    }
}

impl Reconciled {
    fn control(&mut self, line: String) {
        self.requests.push(SlurmRequest::Control(line));
    }
}

/// The jobs that a record stands for.
pub(super) fn listed_jobs(record: &JobRecord) -> Vec<ListedJob<'_>> {
    let Some(comment) = &record.admin_comment else { return Vec::new() };
    let job = |job_id: String, task: Option<u32>| {
        let key = format!("{job_id}#{}", comment.tag);
        ListedJob { key, job_id, task, record, comment }
    };
    match (record.array, record.task) {
        // The last task of an array has the array's id, which in a request would mean all tasks.
        (Some(array), Some(task)) => vec![job(format!("{array}_{task}"), Some(task))],
        (Some(array), None) => {
            let tasks = record.pending_tasks.iter();
            tasks.map(|&task| job(format!("{array}_{task}"), Some(task))).collect()
        }
        (None, _) => vec![job(record.id.to_string(), None)],
    }
}

/// A run gets other devices than the daemon chose.
fn place(desired: &mut DesiredRun, devices: Vec<u32>, result: &mut Reconciled) {
    desired.devices.clone_from(&devices);
    result.events.push(BackendEvent::Placed { run: desired.run, devices });
}

/// A job without a run: it must wait for its licence until it is placed or withdrawn.
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
        (SlurmState::Pending, None) if licence::is_gated(&listed.record.licenses) => return,
        _ => "Slurm starts it itself",
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
