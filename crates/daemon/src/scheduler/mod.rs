//! The scheduler between the engine and real processes. Inputs go in; operations for the back end,
//! messages for jobs and changed jobs come out. No clock, no files, no threads: the same inputs give
//! the same outcome, so the journal can be replayed.
//!
//! The engine plans as if everything happened at once, but processes take their time. So a plan requests
//! nothing directly: for every job that it touches, `reconcile` compares the phase of the process with what
//! the engine wants and requests the next operation, if none is under way.
//!
//! Five parts own the state; the rest of this module is what they do together:
//! - `jobs`: the jobs that have not ended, with dependencies, array limits and timers;
//! - `devices`: which processes use which devices, and which devices accept jobs;
//! - `planning`: the engine and what it is yet to be told;
//! - `processes`: the operations and messages of this step;
//! - `classes`: what was learned about classes of jobs.

mod active;
mod class_durations;
mod class_names;
mod classes;
mod cluster;
mod describe;
mod devices;
mod eligibility;
mod estimates;
mod exits;
mod input;
mod jobs;
mod launch;
mod learn;
mod planning;
mod processes;
mod rates;
mod reconcile;
mod recover;
mod relocate;
mod services;
mod sharing;
mod sharing_requests;
mod start;
mod sub_batch_trials;
mod unfolding;
mod user_commands;
mod view;
mod waiting;

pub use active::{Active, Phase};
pub use classes::{ClassTable, LearnedClass, memory};
pub use estimates::{Estimate, EstimateBasis};
pub use input::{Fact, Input, JobAction, Now, RateSource, Report, Submission};
pub use jobs::UserLoad;
pub(crate) use launch::socket;
pub use services::LatencyAlone;
pub use sharing::{Booking, People};
pub(crate) use start::drained_devices;
pub use start::{JOURNAL_VERSION, Kept, KeptRow, RecoveredRun, Start};
pub use unfolding::Unfinished;
pub(crate) use view::OutsideWork;
pub use view::View;
pub use waiting::{DeviceSummary, ShutCause, WaitCause, Waiting};

use crate::class::ClassRules;
use crate::job::{Ending, StoredJob};
use devices::DeviceTable;
use eligibility::Settlement;
use jobs::Jobs;
use planning::Planner;
use processes::Processes;
use serde::{Deserialize, Serialize};
use sharing::Sharing;
use std::cell::OnceCell;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use tandem_backends::{BackendEvent, Device, Op, OpId, ProcessLimits, RunId};
use tandem_core::{Action, Time};
use unfolding::Unfolding;

/// The configuration of the scheduler, fixed for the life of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The devices.
    pub devices: Vec<Device>,
    /// The policy, as on the command line.
    pub policy: String,
    /// Jobs may share devices, as far as the policy does.
    pub share: bool,
    /// A paused process frees its devices and can continue on others.
    pub pause_frees_device: bool,
    /// Processes may be paused at all.
    pub may_pause: bool,
    /// Jobs of unknown classes run alone until their memory was measured.
    pub learn: bool,
    /// Rates are predicted until they are measured; otherwise they are only reported.
    pub believe_rates: bool,
    /// Seconds to restore a checkpoint.
    pub restore_s: f64,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace_ms: u64,
    /// Time that a job has to save a checkpoint.
    pub stop_grace_ms: u64,
    /// The folder of the sockets of jobs.
    pub sockets: PathBuf,
    /// A device with processes that are not ours accepts no new jobs.
    pub foreign_avoid: bool,
    /// A job on several devices can share them.
    #[serde(default = "yes")]
    pub gangs_share: bool,
    /// A job can be stopped and continued on other devices.
    #[serde(default = "yes")]
    pub moves: bool,
    /// The memory of jobs is measured; otherwise it is as declared.
    #[serde(default = "yes")]
    pub measures_memory: bool,
    /// Jobs come from a cluster, which enforces their limits and retries them itself.
    #[serde(default)]
    pub keeps_queue: bool,
    /// The share of a device that a process may use can be changed while it runs.
    #[serde(default)]
    pub live_budgets: bool,
    /// Shares and limits between users.
    #[serde(default)]
    pub people: People,
    /// Mask and limits of the processes of jobs.
    #[serde(default)]
    pub process: ProcessLimits,
    /// The most jobs of a user that are planned at a time; all of them if absent.
    #[serde(default)]
    pub planned_per_user: Option<u32>,
    /// Tasks that one step adds.
    #[serde(default)]
    pub tasks_per_step: Option<u32>,
    /// Arguments that belong to the class of a job, or do not.
    #[serde(default)]
    pub class_rules: ClassRules,
}

impl Setup {
    /// The devices are cores, on which jobs take turns.
    pub(crate) fn are_cores(&self) -> bool {
        self.devices.iter().all(|device| device.kind == "cpu")
    }
}

fn yes() -> bool {
    true
}

/// A message to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToJob {
    /// Compute batches in this number of sub-batches.
    Accum(u32),
    /// Save a checkpoint and exit.
    Stop,
}

/// What a step asks for.
#[derive(Debug, Default)]
pub struct StepOutcome {
    /// What the engine decided.
    pub actions: Vec<Action>,
    /// For the back end, in this order.
    pub ops: Vec<(OpId, Op)>,
    /// For jobs.
    pub messages: Vec<(u64, ToJob)>,
    /// Jobs that changed, as they are now; for those that ended it is the last time.
    pub changed: Vec<StoredJob>,
    /// Jobs that were added.
    pub created: BTreeSet<u64>,
    /// Submissions of many jobs all of which have been added, by their first job.
    pub unfolded: Vec<u64>,
    /// Runs whose records are not needed any more.
    pub forget: Vec<RunId>,
    /// Requests all of whose jobs have ended, by their first job.
    pub ended_requests: Vec<u64>,
    /// Classes about which something was learned.
    pub classes: BTreeSet<String>,
    /// When to step again even if nothing happens.
    pub wake: Option<Time>,
}

impl StepOutcome {
    /// Whether anybody outside can see it: a process, a job or a user who waits for the end of one.
    pub(crate) fn is_visible(&self) -> bool {
        !self.ops.is_empty()
            || !self.messages.is_empty()
            || !self.forget.is_empty()
            || self.changed.iter().any(|job| job.state.is_over())
    }
}

/// Timers that strike in one step; the others strike in the next.
const TIMERS_PER_STEP: usize = 2048;

/// The scheduler.
pub struct Scheduler {
    setup: Setup,
    now: Now,
    jobs: Jobs,
    devices: DeviceTable,
    planner: Planner,
    processes: Processes,
    learning: ClassTable,
    sharing: Sharing,
    /// When relocation of jobs is tried again.
    relocate_at: Option<Time>,
    /// What the devices are busy with since the last step, once somebody has asked.
    summary: OnceCell<Arc<DeviceSummary>>,
    sharing_requests: sharing_requests::SharingRequests,
    trials: sub_batch_trials::SubBatchTrials,
    unfolding: Unfolding,
    /// What jobs waited for that has ended, to be settled in portions.
    settlements: VecDeque<Settlement>,
    /// Jobs that were added in this step.
    created: BTreeSet<u64>,
}

impl Scheduler {
    /// Takes in what happened up to `now` and decides what to do.
    pub fn step(&mut self, now: Now, inputs: &[Input]) -> StepOutcome {
        self.now = now;
        self.summary = OnceCell::new();
        inputs.iter().for_each(|input| self.apply(input));
        self.unfold();
        self.settle_dependents();
        self.fire_timers();
        self.refill();
        self.relocate_jobs();
        if self.pass_on_sharing_request() || self.trials.are_running() {
            self.try_sub_batches();
        }
        let is_news = !inputs.is_empty() || self.planner.has_events();
        self.plan();
        self.schedule_relocation(is_news);
        self.reconcile_processes();
        self.refresh_rates();
        self.take_outcome()
    }

    fn apply(&mut self, input: &Input) {
        match input {
            Input::Submit(submission) => self.submit(submission),
            Input::Cancel { job, by } => self.cancel(*job, by),
            Input::Change { action, jobs, by } => {
                jobs.iter().for_each(|&job| self.change(*action, job, by));
            }
            Input::Requeue { job, by } => self.requeue(*job, by),
            Input::Hold { job } => self.hold(*job),
            Input::Release { job } => self.release(*job),
            Input::Pause { job } => self.set_user_paused(*job, true),
            Input::Resume { job } => self.set_user_paused(*job, false),
            Input::Accum { job, accum } => self.set_accum(*job, *accum),
            Input::Drain { device, reason } => self.drain(*device, reason.clone()),
            Input::Undrain { device } => self.undrain(*device),
            Input::Reserve(booking) => self.book(booking),
            Input::Unreserve { id } => self.unbook(*id),
            Input::Backend(event) => self.backend(event),
            Input::Fact(fact) => self.learn(fact),
        }
    }

    fn fire_timers(&mut self) {
        let now = self.now.time();
        for _ in 0..TIMERS_PER_STEP {
            let Some(id) = self.jobs.next_expired(now) else { return };
            let Some(active) = self.jobs.get_mut(id) else { continue };
            if active.begin.is_some_and(|begin| begin <= now) {
                active.begin = None;
                self.try_enter(id);
            } else if active.service.alone_until.is_some_and(|until| until <= now) {
                self.unpart(id);
            } else if active.phase == Phase::Asked && active.leave_by.is_some_and(|by| by <= now) {
                active.leave_by = None;
                self.end_process(id);
            } else if let Some(limit) = active.job.request.time_limit_s
                && active.ran_us(now) as f64 >= limit * 1e6
                && active.job.ending.is_none()
                && active.phase != Phase::Absent
            {
                self.end_run(id, Ending::TimeUp);
            } else {
                self.check_estimate(id);
            }
        }
    }

    /// Lets the engine plan, and marks the processes that its plan touches.
    fn plan(&mut self) {
        let Self { planner, learning, now, .. } = self;
        let actions = planner.plan(now.time(), learning).to_vec();
        for action in actions {
            let (Action::Stop { job }
            | Action::Pause { job }
            | Action::Move { job, .. }
            | Action::Budget { job, .. }
            | Action::Start { job, .. }
            | Action::Resume { job }) = action;
            self.processes.mark(self.planner.job_of(job));
            if let Action::Start { placement, .. } | Action::Move { placement, .. } = action {
                placement.gpus.iter().for_each(|gpu| self.devices.touch(gpu.0));
            }
        }
    }

    fn take_outcome(&mut self) -> StepOutcome {
        let timers = [
            self.planner.wake(),
            self.jobs.next_timer(),
            self.relocate_at,
            self.sharing_requests.next(),
        ];
        // The rest follows in the next step.
        let has_more = self.unfolding.left() > 0 || !self.settlements.is_empty();
        let timers = timers.into_iter().flatten().chain(has_more.then(|| self.now.time()));
        let mut outcome = StepOutcome {
            created: std::mem::take(&mut self.created),
            unfolded: self.unfolding.take_completed(),
            actions: self.planner.take_actions(),
            changed: self.jobs.take_changed(self.now),
            ended_requests: self.jobs.take_ended_requests(),
            classes: self.learning.take_learned(),
            wake: timers.min(),
            ..StepOutcome::default()
        };
        self.processes.drain_into(&mut outcome);
        outcome
    }

    fn backend(&mut self, event: &BackendEvent) {
        match event {
            BackendEvent::Started { run, handle, enforcement, .. } => {
                if let Some(active) = self.jobs.of_run(*run) {
                    active.handle = Some(*handle);
                    active.enforcement = *enforcement;
                    self.reached(run.job, Phase::Starting, Phase::Running);
                    self.meet_starts(run.job);
                }
            }
            BackendEvent::Paused { run, .. } => {
                if self.jobs.of_run(*run).is_some() {
                    self.reached(run.job, Phase::Pausing, Phase::Stopped);
                }
            }
            BackendEvent::Resumed { run, .. } => {
                if self.jobs.of_run(*run).is_some() {
                    self.reached(run.job, Phase::Resuming, Phase::Running);
                }
            }
            BackendEvent::NotStarted { run, reason, transient, .. } => {
                self.not_started(*run, reason, *transient);
            }
            BackendEvent::Refused { run, reason, transient, .. } => {
                self.refused(*run, reason, *transient);
            }
            BackendEvent::Exited { run, exit } => self.exited(*run, exit),
            BackendEvent::Lost { run, reason } => self.lost(*run, reason),
            BackendEvent::Requeued { run } => self.requeued(*run),
            BackendEvent::Withdrawn { external, reason } => self.withdrawn(external, reason),
            BackendEvent::Waits { external, reason } => {
                self.waits_in_cluster(external, reason.as_deref());
            }
            BackendEvent::Placed { run, devices } => self.placed_elsewhere(*run, devices),
            BackendEvent::Device { device, unavailable } => {
                self.close(*device, unavailable.as_deref());
            }
            // Taken in as a submission, and as facts.
            BackendEvent::Imported(_) | BackendEvent::Sampled(_) => {}
        }
    }
}
