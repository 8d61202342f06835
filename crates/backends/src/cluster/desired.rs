//! The desired state of the jobs that Tandem manages in a cluster. Operations of the daemon change it; the
//! reconciler of a back end compares it with what the cluster lists.

use crate::op::{Op, OpId, RunId};
use std::collections::BTreeMap;

/// The state that a run should be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DesiredState {
    Running,
    Paused,
    Ended {
        /// When the cluster was last asked to cancel it; 0 before the first time.
        requested_s: u64,
    },
}

/// The state of a run that the daemon was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedState {
    NotStarted,
    Running,
    Paused,
}

/// A run that the daemon asked for.
#[derive(Clone, Debug)]
pub(crate) struct DesiredRun {
    pub(crate) run: RunId,
    pub(crate) op: OpId,
    pub(crate) devices: Vec<u32>,
    pub(crate) is_exclusive: bool,
    pub(crate) state: DesiredState,
    pub(crate) reported: ReportedState,
    /// How often the cluster had requeued the job when it was last listed; `None` before.
    pub(crate) requeues: Option<u64>,
}

impl DesiredRun {
    pub(crate) fn new(run: RunId, op: OpId, devices: Vec<u32>) -> Self {
        Self {
            run,
            op,
            devices,
            is_exclusive: false,
            state: DesiredState::Running,
            reported: ReportedState::NotStarted,
            requeues: None,
        }
    }

    /// Whether the job was requeued since it was last listed.
    pub(crate) fn was_requeued(&mut self, requeues: u64) -> bool {
        let before = *self.requeues.get_or_insert(requeues);
        self.requeues = Some(before.max(requeues));
        requeues > before
    }
}

/// A job that Tandem manages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManagedJob {
    /// `None` while it is pending.
    pub(crate) run: Option<DesiredRun>,
    /// The daemon withdrew it while it was pending; when the cluster was last asked to cancel it, 0 before.
    pub(crate) withdraw_requested_s: Option<u64>,
    /// Lists in a row in which it was missing.
    pub(crate) missed: u32,
    /// The id by which the cluster keeps its records, when it was last listed.
    pub(crate) cluster_id: Option<u64>,
    /// Its end was reported: there is nothing left to do.
    pub(crate) is_done: bool,
    /// It cannot have the devices that were chosen. It stays pending in the cluster and is not imported again.
    pub(crate) is_refused: bool,
}

impl ManagedJob {
    /// A pending job.
    pub(crate) fn pending(cluster_id: Option<u64>) -> Self {
        Self { cluster_id, ..Self::default() }
    }
}

/// The jobs that Tandem manages, by the id that [`crate::ClusterJob`] calls `external`.
#[derive(Debug, Default)]
pub(crate) struct ManagedJobs {
    pub(crate) jobs: BTreeMap<String, ManagedJob>,
    /// Operations so far.
    pub(crate) operations: u64,
    keys: BTreeMap<RunId, String>,
}

impl ManagedJobs {
    /// Manages a job from here on.
    pub(crate) fn insert(&mut self, key: String, job: ManagedJob) {
        if let Some(desired) = &job.run {
            self.keys.insert(desired.run, key.clone());
        }
        self.jobs.insert(key, job);
    }

    /// Takes an operation; `false` if it is for a run that is not managed. A process of this machine is not
    /// the cluster's, and jobs of a cluster are asked through the job protocol.
    pub(crate) fn apply(&mut self, id: OpId, op: Op) -> bool {
        self.operations += 1;
        match op {
            Op::Place { run, external, devices, exclusive } => {
                let desired =
                    DesiredRun { is_exclusive: exclusive, ..DesiredRun::new(run, id, devices) };
                self.start(&external, desired);
                true
            }
            Op::Pause { run } => self.pause(id, run, true),
            Op::Resume { run, .. } => self.pause(id, run, false),
            Op::End { run, .. } => self.end(id, run),
            Op::Withdraw { external, .. } => self.withdraw(&external),
            Op::Start(_) | Op::Signal { .. } => false,
        }
    }

    /// A run should start.
    pub(crate) fn start(&mut self, key: &str, desired: DesiredRun) {
        let job = self.jobs.entry(key.to_owned()).or_default();
        if let Some(present) = &mut job.run {
            if present.run == desired.run {
                present.op = desired.op;
                return;
            }
            self.keys.remove(&present.run);
        }
        self.keys.insert(desired.run, key.to_owned());
        job.run = Some(desired);
        (job.is_done, job.is_refused) = (false, false);
    }

    /// A run should be paused or resumed; `false` if there is none.
    pub(crate) fn pause(&mut self, op: OpId, run: RunId, paused: bool) -> bool {
        let Some(desired) = self.desired(run) else { return false };
        desired.op = op;
        desired.state = if paused { DesiredState::Paused } else { DesiredState::Running };
        true
    }

    /// A run should end; `false` if there is none.
    pub(crate) fn end(&mut self, op: OpId, run: RunId) -> bool {
        let Some(desired) = self.desired(run) else { return self.end_given_back(run) };
        desired.op = op;
        if !matches!(desired.state, DesiredState::Ended { .. }) {
            desired.state = DesiredState::Ended { requested_s: 0 };
        }
        true
    }

    /// Ends a run whose place was given back before the daemon knew: the pending job is cancelled.
    fn end_given_back(&mut self, run: RunId) -> bool {
        let Some(key) = self.keys.get(&run).cloned() else { return false };
        self.withdraw(&key)
    }

    /// A pending job should be cancelled; `false` if there is none.
    pub(crate) fn withdraw(&mut self, key: &str) -> bool {
        let Some(job) = self.jobs.get_mut(key).filter(|job| job.run.is_none()) else {
            return false;
        };
        job.withdraw_requested_s.get_or_insert(0);
        true
    }

    /// Forgets a run that has ended. A refused job stays, so that it is not imported again.
    pub(crate) fn forget(&mut self, run: RunId) {
        let Some(key) = self.keys.remove(&run) else { return };
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if job.run.as_ref().is_some_and(|desired| desired.run == run) {
            job.run = None;
            if !job.is_refused {
                self.jobs.remove(&key);
            }
        }
    }

    fn desired(&mut self, run: RunId) -> Option<&mut DesiredRun> {
        let key = self.keys.get(&run)?;
        self.jobs.get_mut(key)?.run.as_mut().filter(|desired| desired.run == run)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.keys.is_empty()
    }
}
