//! The scheduler between the engine and real processes. Inputs go in; operations for the back end,
//! messages for jobs and changed jobs come out. No clock, no files, no threads: the same inputs give
//! the same outcome, which is what a replay of the journal rests on.
//!
//! The engine decides who sits where as if everything happened at once; processes take their time. So
//! nothing is commanded when a plan changes: for every job that is touched, `settle` compares what the
//! engine wants with the phase of the process and asks for the next step, if none is under way.

mod active;
mod classes;
mod describe;
mod devices;
mod eligible;
mod exits;
mod input;
mod learn;
mod rates;
mod settle;
mod start;
mod stranded;
mod view;
mod wishes;

pub use active::{Active, Caps, Phase};
pub use classes::{Class, Classes, memory};
pub use input::{Fact, Input, Now, Report, Submission};
pub(crate) use settle::socket;
pub use start::{JOURNAL_VERSION, Kept, RecoveredRun, Start};
pub use view::{View, Waiting};

use crate::job::{ArrayTask, Ending, Going, Job, JobState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use tandem_backends::{BackendEvent, Device, Op, OpId, RunId};
use tandem_core::{Action, Engine, Event, Span, Time, UserId};

/// Jobs that have to begin elsewhere are thought of again so long after something happened.
const RELOCATE_AGAIN: Span = Span(1_000_000);

/// What the scheduler works with; fixed for the life of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The devices.
    pub devices: Vec<Device>,
    /// The policy, as on the command line.
    pub policy: String,
    /// Several jobs may sit on a device, as far as the policy likes.
    pub share: bool,
    /// A paused process leaves its device to others and can go on at another one.
    pub pause_frees_device: bool,
    /// Processes may be paused at all.
    pub may_pause: bool,
    /// Classes of which nothing is known run alone until they have shown what they need.
    pub learn: bool,
    /// Rates are believed until they are measured; otherwise they are only ever reported.
    pub believe_rates: bool,
    /// What going on after a stop costs.
    pub restore_s: f64,
    /// Time between the request to end and the end by force.
    pub kill_grace_ms: u64,
    /// Time that a job has to save its state.
    pub stop_grace_ms: u64,
    /// Where the sockets of jobs are.
    pub sockets: PathBuf,
    /// A device that strangers use takes no new jobs.
    pub foreign_avoid: bool,
    /// A job on several devices can share them.
    #[serde(default = "yes")]
    pub gangs_share: bool,
    /// A job can end and begin again on other devices.
    #[serde(default = "yes")]
    pub moves: bool,
    /// The memory of jobs is measured; otherwise it counts what they say.
    #[serde(default = "yes")]
    pub measures_memory: bool,
    /// Jobs come from the engine, which sees to their limits and tries them again itself.
    #[serde(default)]
    pub keeps_queue: bool,
}

fn yes() -> bool {
    true
}

/// Something to tell a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToJob {
    /// Compute batches in so many parts.
    Accum(u32),
    /// Save the state and leave.
    Stop,
}

/// What a step asks for.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What the engine decided.
    pub actions: Vec<Action>,
    /// For the back end, in this order.
    pub ops: Vec<(OpId, Op)>,
    /// For jobs.
    pub messages: Vec<(u64, ToJob)>,
    /// Jobs that changed, as they are now; those that are over for the last time.
    pub changed: Vec<Job>,
    /// Runs whose records are not needed any more.
    pub forget: Vec<RunId>,
    /// Classes about which something was learned.
    pub classes: BTreeSet<String>,
    /// When to step again even if nothing happens.
    pub wake: Option<Time>,
}

impl Outcome {
    /// Whether anybody outside gets to know of it: a process, a job or whoever waits for one to be over.
    pub(crate) fn shows(&self) -> bool {
        !self.ops.is_empty()
            || !self.messages.is_empty()
            || !self.forget.is_empty()
            || self.changed.iter().any(|job| job.state.is_over())
    }
}

/// The scheduler.
pub struct Scheduler {
    setup: Setup,
    engine: Engine,
    now: Now,
    jobs: BTreeMap<u64, Active>,
    /// Jobs by their numbers in the engine.
    entries: Vec<u64>,
    users: BTreeMap<u32, UserId>,
    classes: Classes,
    /// Jobs whose processes may use a device, by device.
    present: Vec<BTreeSet<u64>>,
    drained: BTreeSet<u32>,
    /// Devices that the back end has closed, and why.
    closed: BTreeMap<u32, String>,
    /// Jobs that have to begin again elsewhere, and the devices that are kept free for them.
    stranded: BTreeMap<u64, Vec<u32>>,
    /// When they are thought of again.
    relocate_at: Option<Time>,
    /// Jobs by what the engine calls them.
    externals: BTreeMap<String, u64>,
    /// Memory of strangers, by device.
    foreign: BTreeMap<u32, u64>,
    /// Who waits for a job to be over.
    dependents: BTreeMap<u64, BTreeSet<u64>>,
    /// Tasks of a submission with a limit that are eligible, and those that wait for their turn.
    arrays: BTreeMap<u64, Turns>,
    timers: BTreeSet<(Time, u64)>,
    next_job: u64,
    next_op: u64,
    /// For the engine, at this step or the next.
    events: Vec<Event>,
    /// Jobs to settle.
    dirty: BTreeSet<u64>,
    changed: BTreeSet<u64>,
    outcome: Outcome,
    engine_wake: Option<Time>,
    /// Devices whose company changed in this step.
    touched: BTreeSet<u32>,
    /// Jobs that stopped using their devices in this step.
    left: Vec<u64>,
}

/// The tasks of a submission of which only some may run at a time.
#[derive(Clone, Debug, Default)]
struct Turns {
    at_a_time: usize,
    going: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

impl Scheduler {
    /// Takes in what happened up to `now` and says what to do.
    pub fn step(&mut self, now: Now, inputs: &[Input]) -> Outcome {
        self.now = now;
        for input in inputs {
            self.apply(input);
        }
        self.fire_timers();
        self.relocate();
        let is_news = !inputs.is_empty() || !self.events.is_empty();
        self.plan();
        self.relocate_again(is_news);
        self.settle();
        self.refresh_rates();
        self.finish_step()
    }

    /// Lets the engine decide. A policy that asked to be woken is woken at exactly that instant on its
    /// clock, as its slices are counted from there, although a real clock strikes a little later.
    fn plan(&mut self) {
        let now = self.now.time();
        self.step_engine(self.engine_wake.filter(|&wake| wake <= now).unwrap_or(now));
        if self.engine_wake.is_some_and(|wake| wake <= now) {
            // Whole slices were missed, as after the machine slept: they are not made up for.
            self.step_engine(now);
        }
    }

    fn step_engine(&mut self, at: Time) {
        let new_classes = self.classes.take_new();
        let mut events: Vec<Event> =
            new_classes.map(|(class, name)| Event::ClassAdded { class, name }).collect();
        events.append(&mut self.events);
        let step = self.engine.step(at, &events);
        self.engine_wake = step.wake;
        for action in step.actions {
            let (Action::Stop { job }
            | Action::Pause { job }
            | Action::Move { job, .. }
            | Action::Start { job, .. }
            | Action::Resume { job }) = action;
            self.dirty.insert(self.entries[job.index()]);
            if let Action::Start { placement, .. } | Action::Move { placement, .. } = action {
                self.touched.extend(placement.gpus.iter().map(|gpu| gpu.0));
            }
        }
        self.outcome.actions.extend_from_slice(step.actions);
    }

    /// Devices that become free in a step are seen to be in the next. If nothing happened there is none:
    /// a job that fits nowhere may wait for days.
    fn relocate_again(&mut self, is_news: bool) {
        let now = self.now.time();
        if self.stranded.is_empty() {
            self.relocate_at = None;
        } else if self.relocate_at.is_none_or(|at| at <= now) {
            let happened = is_news || !self.outcome.actions.is_empty();
            self.relocate_at = happened.then(|| now + RELOCATE_AGAIN);
        }
    }

    fn finish_step(&mut self) -> Outcome {
        for id in std::mem::take(&mut self.changed) {
            if let Some(active) = self.jobs.get_mut(&id) {
                active.job.state = active.state();
                let now = self.now.time();
                active.job.done_us = active.pace.done_us(now);
                if let Some((_, shared)) = active.since {
                    settle::account(active, now);
                    active.since = Some((now, shared));
                }
                let rate_ppm = active.pace.progress.rate.0;
                active.job.going =
                    active.since.map(|(since, shared)| Going { at_us: since.0, shared, rate_ppm });
                self.outcome.changed.push(active.job.clone());
            }
        }
        let timer = self.timers.first().map(|&(at, _)| at);
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.wake = [self.engine_wake, timer, self.relocate_at].into_iter().flatten().min();
        outcome
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
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(active) = self.jobs.get_mut(&id) else { continue };
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
                self.changed.insert(id);
                self.dirty.insert(id);
            }
        }
    }

    fn backend(&mut self, event: &BackendEvent) {
        match event {
            BackendEvent::Started { run, handle, enforcement, .. } => {
                if let Some(active) = self.of_run(*run) {
                    active.handle = Some(*handle);
                    active.enforcement = *enforcement;
                    self.reached(run.job, Phase::Starting, Phase::Running);
                }
            }
            BackendEvent::Paused { run, .. } => {
                if self.of_run(*run).is_some() {
                    self.reached(run.job, Phase::Pausing, Phase::Stopped);
                }
            }
            BackendEvent::Resumed { run, .. } => {
                if self.of_run(*run).is_some() {
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
            BackendEvent::Requeued { run } => self.begins_again(*run),
            BackendEvent::Withdrawn { external, reason } => self.withdrawn(external, reason),
            BackendEvent::Device { device, unavailable } => {
                self.close(*device, unavailable.as_deref());
            }
            // Taken in as a submission, and as facts.
            BackendEvent::Imported(_) | BackendEvent::Sampled(_) => {}
        }
    }

    fn of_run(&mut self, run: RunId) -> Option<&mut Active> {
        self.jobs.get_mut(&run.job).filter(|active| active.job.runs == run.run)
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
