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
mod classes;
mod describe;
mod devices;
mod eligibility;
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
mod start;
mod user_commands;
mod view;

pub use active::{Active, Phase};
pub use classes::{Class, Classes, memory};
pub use input::{Fact, Input, Now, Report, Submission};
pub(crate) use launch::socket;
pub use start::{JOURNAL_VERSION, Kept, RecoveredRun, Start};
pub use view::{View, Waiting};

use crate::job::{ArrayTask, Ending, Job, JobState};
use devices::Devices;
use jobs::Jobs;
use planning::Planner;
use processes::Processes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tandem_backends::{BackendEvent, Device, Op, OpId, RunId};
use tandem_core::{Action, Time};

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
    pub changed: Vec<Job>,
    /// Runs whose records are not needed any more.
    pub forget: Vec<RunId>,
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

/// The scheduler.
pub struct Scheduler {
    setup: Setup,
    now: Now,
    jobs: Jobs,
    devices: Devices,
    planner: Planner,
    processes: Processes,
    learning: Classes,
    /// When relocation of jobs is tried again.
    relocate_at: Option<Time>,
}

impl Scheduler {
    /// Takes in what happened up to `now` and decides what to do.
    pub fn step(&mut self, now: Now, inputs: &[Input]) -> StepOutcome {
        self.now = now;
        inputs.iter().for_each(|input| self.apply(input));
        self.fire_timers();
        self.relocate_jobs();
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
            Input::Hold { job } => self.hold(*job),
            Input::Release { job } => self.release(*job),
            Input::Pause { job } => self.set_user_paused(*job, true),
            Input::Resume { job } => self.set_user_paused(*job, false),
            Input::Accum { job, accum } => self.set_accum(*job, *accum),
            Input::Drain { device } => self.drain(*device, true),
            Input::Undrain { device } => self.drain(*device, false),
            Input::Backend(event) => self.backend(event),
            Input::Fact(fact) => self.learn(fact),
        }
    }

    fn fire_timers(&mut self) {
        let now = self.now.time();
        while let Some(id) = self.jobs.next_expired(now) {
            let Some(active) = self.jobs.get_mut(id) else { continue };
            if active.begin.is_some_and(|begin| begin <= now) {
                active.begin = None;
                self.try_enter(id);
            } else if active.phase == Phase::Asked && active.leave_by.is_some_and(|by| by <= now) {
                active.leave_by = None;
                self.end_process(id);
            } else if let Some(limit) = active.job.request.time_limit_s
                && active.ran_us(now) as f64 >= limit * 1e6
                && active.job.ending.is_none()
                && active.phase != Phase::Absent
            {
                active.job.ending = Some(Ending::TimeUp);
                self.jobs.mark_changed(id);
                self.processes.mark(id);
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
            | Action::Start { job, .. }
            | Action::Resume { job }) = action;
            self.processes.mark(self.planner.job_of(job));
            if let Action::Start { placement, .. } | Action::Move { placement, .. } = action {
                placement.gpus.iter().for_each(|gpu| self.devices.touch(gpu.0));
            }
        }
    }

    fn take_outcome(&mut self) -> StepOutcome {
        let timers = [self.planner.wake(), self.jobs.next_timer(), self.relocate_at];
        let mut outcome = StepOutcome {
            actions: self.planner.take_actions(),
            changed: self.jobs.take_changed(self.now),
            classes: self.learning.take_learned(),
            wake: timers.into_iter().flatten().min(),
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
            BackendEvent::Device { device, unavailable } => {
                self.close(*device, unavailable.as_deref());
            }
            // Taken in as a submission, and as facts.
            BackendEvent::Imported(_) | BackendEvent::Sampled(_) => {}
        }
    }
}

/// The jobs that a submission becomes.
pub fn new_jobs(submission: &Submission, now: Now) -> Vec<Job> {
    let request = Arc::new(submission.request.clone());
    // Both were checked before the submission was accepted.
    let Ok(tasks) = request.tasks() else { return Vec::new() };
    let dependencies = request.dependencies().unwrap_or_default();
    let class = crate::class::of_request(&request);
    let at_a_time = tasks.at_a_time;
    let job = |(id, task): (u64, crate::request::Task)| Job {
        id,
        uid: submission.uid,
        gid: submission.gid,
        user: submission.user.clone(),
        request: request.clone(),
        task: task.number.map(|number| ArrayTask { first: submission.first, number, at_a_time }),
        params: task.params,
        dependencies: dependencies.clone(),
        class: class.clone(),
        state: if request.hold { JobState::Held } else { JobState::Pending },
        reason: request.hold.then(|| "held".to_owned()),
        submit_us: submission.submit_unix_us.unwrap_or(now.unix_us),
        external: submission.external.clone(),
        sub_batches: 1,
        ..Job::default()
    };
    (submission.first..).zip(tasks.tasks).map(job).collect()
}
