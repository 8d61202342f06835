//! How a scheduler begins: from what was stored and from what the back end found.

use super::classes::{ClassTable, LearnedClass};
use super::devices::DeviceTable;
use super::jobs::Jobs;
use super::planning::Planner;
use super::processes::Processes;
use super::recover::Recovery;
use super::sharing::{Booking, Sharing};
use super::sharing_requests::SharingRequests;
use super::sub_batch_trials::SubBatchTrials;
use super::unfolding::{NewTasks, Unfinished, Unfolding};
use super::{Now, Scheduler, Setup, StepOutcome};
use crate::job::{JobState, StoredJob};
use crate::request::JobRequest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tandem_core::{
    ClusterBuilder, Engine, Event, Learner, Memory, OnIllegal, PlacementRule, Ratio, Rules, Shares,
};
use tandem_policies::PolicySpec;

pub use tandem_backends::RecoveredRun;

/// The version of the journal that this program writes: since 2 the engine learns from observations, and
/// the rate of a gang is that of its slowest GPU; since 3 a job that can save a checkpoint is asked to before
/// it is ended, a dependency on an array is one on all of its tasks, jobs follow their start in records of their
/// own, estimates stay within their class, and sharing is decided as soon as something about it is known; since 4
/// what jobs have to do and what running ones of a class show belongs to estimates, and on cores nobody shares
/// before it has shown how much it uses them; since 5 the jobs of large submissions are added in portions.
pub const JOURNAL_VERSION: u32 = 5;

/// Everything that a scheduler begins with: the first record of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The version of the journal; the first one did not say.
    #[serde(default = "first_version")]
    pub version: u32,
    /// When.
    pub now: Now,
    /// With what.
    pub setup: Setup,
    /// Jobs that have not ended, in order.
    pub jobs: Vec<Kept>,
    /// What is known about classes.
    pub classes: BTreeMap<String, LearnedClass>,
    /// The number of the next job.
    pub next_job: u64,
    /// The number of the first operation.
    pub next_op: u64,
    /// Drained devices.
    #[serde(deserialize_with = "drained_devices")]
    pub drained: Vec<(u32, Option<String>)>,
    /// Devices that are unavailable by the back end, with the reason.
    #[serde(default)]
    pub closed: Vec<(u32, String)>,
    /// States of jobs that have ended and that others depend on.
    #[serde(default)]
    pub over: BTreeMap<u64, JobState>,
    /// Arrays on which others depend and of which a task did not complete.
    #[serde(default)]
    pub failed_arrays: BTreeSet<u64>,
    /// Submissions of which tasks are still to be added.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Reservations.
    #[serde(default)]
    pub bookings: Vec<Booking>,
    /// GPU time of users by uid, of jobs that have ended: in this period of limits, and within a half-life.
    #[serde(default)]
    pub used: BTreeMap<u32, (u64, u64)>,
}

/// Drained devices as they are stored: before version 3 of the journal without reasons.
#[derive(Deserialize)]
#[serde(untagged)]
enum Drained {
    Device(u32),
    WithReason(u32, Option<String>),
}

impl From<Drained> for (u32, Option<String>) {
    fn from(drained: Drained) -> Self {
        match drained {
            Drained::Device(device) => (device, None),
            Drained::WithReason(device, reason) => (device, reason),
        }
    }
}

impl Start {
    /// All but the jobs.
    pub(crate) fn without_jobs(&self) -> Start {
        Start {
            version: self.version,
            now: self.now,
            setup: self.setup.clone(),
            jobs: Vec::new(),
            classes: self.classes.clone(),
            next_job: self.next_job,
            next_op: self.next_op,
            drained: self.drained.clone(),
            closed: self.closed.clone(),
            over: self.over.clone(),
            failed_arrays: self.failed_arrays.clone(),
            unfinished: self.unfinished.clone(),
            bookings: self.bookings.clone(),
            used: self.used.clone(),
        }
    }
}

/// Reads drained devices with and without reasons.
pub(crate) fn drained_devices<'de, D: serde::Deserializer<'de>>(
    stored: D,
) -> Result<Vec<(u32, Option<String>)>, D::Error> {
    let drained = Vec::<Drained>::deserialize(stored)?;
    Ok(drained.into_iter().map(Into::into).collect())
}

fn first_version() -> u32 {
    1
}

/// A job that has not ended and what the back end found of its run; or several tasks of an array that have
/// nothing of their own but their numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// As it was stored.
    pub job: StoredJob,
    /// Its request, without the environment, which influences no decision.
    pub request: Arc<JobRequest>,
    /// What was found, if it had a run.
    pub found: Option<RecoveredRun>,
    /// How many tasks follow that are like this one.
    #[serde(default)]
    pub alike: u64,
}

/// What the journal keeps of one [`Kept`]; the record of its request comes before it.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptRow {
    /// As it was stored.
    pub job: StoredJob,
    /// What was found, if it had a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<RecoveredRun>,
    /// How many tasks follow that are like this one.
    #[serde(default)]
    pub alike: u64,
}

impl Kept {
    /// A job that had no run.
    pub fn new(job: StoredJob) -> Self {
        Self { request: job.request.clone(), job, found: None, alike: 0 }
    }

    /// The last job.
    pub fn last(&self) -> u64 {
        self.job.id + self.alike
    }

    /// Takes in the job that follows if it is alike: it has not run, and differs only in its number.
    pub fn take_in(&mut self, next: &StoredJob) -> bool {
        let is_next = next.id == self.last() + 1
            && next.runs == 0
            && self.job.runs == 0
            && next.task.is_some()
            && Arc::ptr_eq(&next.request, &self.request)
            && self.job.task.map(|task| task.first) == next.task.map(|task| task.first);
        if !is_next {
            return false;
        }
        let (id, task) = (self.job.id, self.job.task);
        (self.job.id, self.job.task) = (next.id, next.task);
        let is_alike = self.job == *next;
        (self.job.id, self.job.task) = (id, task);
        self.alike += u64::from(is_alike);
        is_alike
    }

    /// The jobs one by one.
    pub fn jobs(mut self) -> impl Iterator<Item = (StoredJob, Option<RecoveredRun>)> {
        self.job.request = self.request;
        let (job, mut found) = (self.job, self.found);
        let tasks = if self.alike == 0 { None } else { job.request.tasks().ok() };
        (0..=self.alike).map(move |offset| {
            let mut one = job.clone();
            one.id += offset;
            if let (Some(task), Some(tasks)) = (&mut one.task, &tasks) {
                let index = usize::try_from(one.id - task.first).unwrap_or(usize::MAX);
                task.number = tasks.number(index).unwrap_or(task.number);
            }
            (one, found.take())
        })
    }
}

impl Scheduler {
    /// Begins; the first step follows from it at once. The engine plans with `learner` and corrects it
    /// by what was observed, in this life and before.
    pub fn begin(
        start: Start,
        policy: &PolicySpec,
        learner: Box<dyn Learner>,
    ) -> (Self, StepOutcome) {
        let cluster = Arc::new(cluster(&start.setup));
        let rules = rules(policy, start.setup.share, start.setup.live_budgets);
        let shares = Arc::new(Shares::default());
        let gated = || shares.gate(policy.build());
        let engine = Engine::new(cluster, rules, learner, OnIllegal::Refuse, gated);
        let mut scheduler = Self {
            now: start.now,
            jobs: Jobs::new(start.next_job),
            devices: DeviceTable::new(start.setup.devices.len(), start.setup.foreign_avoid),
            planner: Planner::new(engine),
            processes: Processes::new(start.next_op),
            learning: ClassTable::new(start.classes),
            sharing: Sharing { bookings: start.bookings, told: shares.clone(), used: start.used },
            relocate_at: None,
            summary: std::cell::OnceCell::new(),
            sharing_requests: SharingRequests::default(),
            trials: SubBatchTrials::new(policy.accumulates()),
            unfolding: Unfolding::default(),
            settlements: VecDeque::new(),
            created: BTreeSet::new(),
            setup: start.setup,
        };
        scheduler.tell_shares();
        for (class, traits) in scheduler.learning.all_traits() {
            scheduler.planner.tell(Event::ClassDescribed { class, traits });
        }
        for observation in scheduler.learning.observations() {
            scheduler.planner.tell(Event::Observed(observation));
        }
        scheduler.jobs.set_failed_arrays(start.failed_arrays);
        for Unfinished { submission, added } in &start.unfinished {
            let mut tasks = NewTasks::new(submission, start.now);
            tasks.added = (*added).min(tasks.count());
            scheduler.add_later(tasks);
        }
        let recovery = scheduler.recover(start.jobs, &start.over);
        for (device, reason) in start.drained {
            scheduler.drain(device, reason);
        }
        for (device, reason) in start.closed {
            scheduler.close(device, Some(&reason));
        }
        // The policy plans once it knows all jobs.
        scheduler.plan();
        let Recovery { runs, inputs } = recovery;
        for (id, phase, allocation) in runs {
            scheduler.set_phase(id, phase, Some(allocation));
            scheduler.processes.mark(id);
            scheduler.relocate_if_closed(id);
        }
        let outcome = scheduler.step(start.now, &inputs);
        (scheduler, outcome)
    }
}

/// What every plan has to respect.
fn rules(policy: &PolicySpec, share: bool, live_budgets: bool) -> Rules {
    Rules {
        placement: PlacementRule::Strict,
        tenants_max: if share { policy.entry.tenants_max } else { 1 },
        context: Memory::default(),
        live_budgets,
    }
}

/// The devices as the engine sees them, by node; one partition.
pub(super) fn cluster(setup: &Setup) -> tandem_core::Cluster {
    let mut builder = ClusterBuilder::default();
    builder.partition("local");
    // A node has GPUs of one type and size; where memory differs, the smallest counts.
    let memory = setup.devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
    let kind = setup.devices.first().map_or("none", |device| device.kind.as_str());
    let kind = builder.gpu_type(kind, Ratio::ONE);
    for node in setup.devices.chunk_by(|one, other| one.node == other.node) {
        let count = u32::try_from(node.len()).expect("devices are counted in u32");
        builder.node(count, kind, Memory::from_mib(memory >> 20));
    }
    builder.taking_every_job().build()
}
