//! The scheduler between the engine and real processes. Inputs go in; operations for the back end,
//! messages for jobs and changed jobs come out. No clock, no files, no threads: the same inputs give
//! the same outcome, which is what a replay of the journal rests on.
//!
//! The engine decides who sits where as if everything happened at once; processes take their time. So
//! nothing is commanded when a plan changes: for every job that is touched, `settle` compares what the
//! engine wants with the phase of the process and asks for the next step, if none is under way.

mod active;
mod classes;
mod exits;
mod input;
mod settle;
mod start;
mod view;

pub use active::{Active, Caps, Phase};
pub use classes::{Beliefs, Class, Classes, memory};
pub use input::{Fact, Input, Now, Report, Submission};
pub(crate) use settle::socket;
pub use start::{Found, Kept, Start};
pub use view::{View, Waiting};

use crate::job::{ArrayTask, Ending, Going, Job, JobState};
use crate::request::{After, Dependency};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use tandem_backends::{BackendEvent, Device, Op, OpId, RunId};
use tandem_core::{
    Action, ClassId, Description, Engine, Event, GpuId, JobId, JobSpec, PartitionId, Ppm, Profile,
    Progress, Span, SubBatches, Time, Tolerance, UserId, Utilisation,
};

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
        self.plan();
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
        let events = std::mem::take(&mut self.events);
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
        outcome.wake = match (self.engine_wake, timer) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
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

    fn submit(&mut self, submission: &Submission) {
        let known: BTreeMap<u64, JobState> = submission.over.iter().copied().collect();
        for job in new_jobs(submission, self.now) {
            let id = job.id;
            self.next_job = self.next_job.max(id + 1);
            let over = |dependency: &Dependency| {
                let job = dependency.job;
                let before = known.get(&job).map(|&state| (job, state));
                // One that was not over when this was accepted may have ended in this very step.
                let just_now = |ended: &&Job| ended.id == job && ended.state.is_over();
                let ended = || self.outcome.changed.iter().find(just_now);
                before.or_else(|| ended().map(|ended| (job, ended.state)))
            };
            let over: Vec<(u64, JobState)> = job.dependencies.iter().filter_map(over).collect();
            self.admit(Active::new(job));
            for (other, state) in over {
                self.depend(id, other, state);
            }
            self.try_enter(id);
        }
    }

    /// Takes a job in that may have to wait before the engine hears of it.
    fn admit(&mut self, mut active: Active) {
        let id = active.job.id;
        for dependency in &active.unmet {
            self.dependents.entry(dependency.job).or_default().insert(id);
        }
        if let Some(begin) = active.job.request.begin_unix_s {
            let begin_us = (begin * 1e6) as u64;
            let wait = begin_us.saturating_sub(self.now.unix_us);
            if wait > 0 {
                let at = self.now.time() + Span(wait);
                active.begin = Some(at);
                self.timers.insert((at, id));
            }
        }
        if let Some(ArrayTask { first, at_a_time: Some(limit), .. }) = active.job.task {
            let turns = self.arrays.entry(first).or_default();
            turns.at_a_time = limit as usize;
            turns.waiting.insert(id);
        }
        self.jobs.insert(id, active);
        self.changed.insert(id);
    }

    /// Tells the engine of a job if nothing stands in its way, and says what does otherwise.
    fn try_enter(&mut self, id: u64) {
        let Some(active) = self.jobs.get(&id) else { return };
        if active.entry.is_some() || active.job.ending.is_some() {
            return;
        }
        let obstacle = if active.job.state == JobState::Held {
            Some("held".to_owned())
        } else if let Some(first) = active.unmet.first() {
            Some(format!("waits for job {}", first.job))
        } else if active.begin.is_some_and(|begin| begin > self.now.time()) {
            Some("waits for its time".to_owned())
        } else if !self.takes_turn(id) {
            Some("waits for other tasks of its array".to_owned())
        } else {
            None
        };
        match obstacle {
            Some(reason) => self.set_reason(id, Some(reason)),
            None => self.enter(id),
        }
    }

    /// Whether a task may go on now, which it then does.
    fn takes_turn(&mut self, id: u64) -> bool {
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) = self.jobs[&id].job.task else {
            return true;
        };
        let Some(turns) = self.arrays.get_mut(&first) else { return true };
        if turns.going.contains(&id) {
            return true;
        }
        if turns.going.len() >= turns.at_a_time {
            return false;
        }
        turns.waiting.remove(&id);
        turns.going.insert(id)
    }

    fn enter(&mut self, id: u64) {
        let entry = JobId(u32::try_from(self.entries.len()).expect("entries are counted in u32"));
        self.entries.push(id);
        let spec = self.spec(id, entry);
        let entered = spec.submit.0;
        let active = self.jobs.get_mut(&id).expect("it was just looked at");
        active.entry = Some(entry);
        active.job.entered_us = Some(entered);
        active.job.reason = None;
        self.events.push(Event::Submitted(spec));
        self.changed.insert(id);
    }

    /// What the engine is told about a job.
    fn spec(&mut self, id: u64, entry: JobId) -> JobSpec {
        let active = &self.jobs[&id];
        let count = u32::try_from(self.users.len()).expect("users are counted in u32");
        let user = *self.users.entry(active.job.uid).or_insert(UserId(count));
        let class = Some(self.classes.number(&active.job.class));
        let submit = active.job.entered_us.map_or(self.now.time(), Time);
        self.spec_of(&self.jobs[&id], user, class, entry, submit)
    }

    fn spec_of(
        &self,
        active: &Active,
        user: UserId,
        class: Option<ClassId>,
        id: JobId,
        submit: Time,
    ) -> JobSpec {
        let description = self.description(active, user, class);
        let Description { estimate, profile, sub_batches, tolerance, stoppable } = description;
        JobSpec {
            id,
            user,
            partition: PartitionId(0),
            submit,
            gpus: active.job.request.gang(),
            estimate,
            profile,
            sub_batches,
            tolerance,
            priority: active.job.request.priority,
            stoppable,
            restore: Span((self.setup.restore_s * 1e6) as u64),
        }
    }

    /// What is known about a job at present.
    fn description(&self, active: &Active, user: UserId, class: Option<ClassId>) -> Description {
        let (job, request) = (&active.job, &active.job.request);
        let gang = request.gang();
        let seconds = |seconds: f64| Span((seconds * 1e6).round() as u64);
        let limit = request.time_limit_s.map(seconds);
        let estimate = request.estimate_s.map(seconds).unwrap_or_else(|| {
            let learned = self.classes.estimate(&job.class, user, gang);
            match (learned, limit) {
                (Some(learned), Some(limit)) => learned.min(limit),
                (one, other) => one.or(other).unwrap_or_else(|| self.classes.unknown(user, gang)),
            }
        });
        let declared = request.gpu_memory_bytes.map(memory);
        let measured = self.classes.memory(&job.class);
        let is_known = !self.setup.learn || self.is_known(active);
        let tolerance = match request.tolerance() {
            _ if job.oom_retried || !is_known => Tolerance::Alone,
            tolerance => tolerance,
        };
        let share = request.share_ppm();
        let sub_batches =
            if active.caps.accum { self.classes.ways(&job.class) } else { SubBatches::default() };
        Description {
            estimate: estimate.max(Span(1)),
            profile: Profile {
                class,
                memory: declared.or(measured).unwrap_or_default(),
                // A part of a GPU is all that it wants of it.
                gpu_util: (share < Ppm::ONE.0).then_some(Utilisation(share / 10)),
                bandwidth_util: None,
            },
            sub_batches,
            tolerance,
            stoppable: self.setup.pause_frees_device || active.caps.stop,
        }
    }

    /// Whether enough is known about a job's class to put others beside it.
    fn is_known(&self, active: &Active) -> bool {
        let Some(class) = self.classes.get(&active.job.class) else { return false };
        // Who speaks has shown its speed alone; of who does not, the memory has to do.
        !class.memory.is_empty() && (!active.caps.speaks || !class.solo.is_empty())
    }

    /// Tells the engine what has become known about a job.
    fn describe(&mut self, id: u64) {
        let Some(active) = self.jobs.get(&id) else { return };
        if let Some(job) = active.entry {
            let user = self.users.get(&active.job.uid).copied().unwrap_or(UserId(0));
            let class = self.classes.find(&active.job.class);
            let description = self.description(active, user, class);
            self.events.push(Event::Described { job, description });
        }
    }

    fn describe_class(&mut self, class: &str) {
        let of_class = |active: &&Active| active.job.class == class && active.entry.is_some();
        let jobs: Vec<u64> =
            self.jobs.values().filter(of_class).map(|active| active.job.id).collect();
        for id in jobs {
            self.describe(id);
        }
    }

    fn cancel(&mut self, id: u64, by: &str) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.job.ending.is_some() {
            return;
        }
        active.job.ending = Some(Ending::Cancelled { by: by.to_owned() });
        self.changed.insert(id);
        let active = &self.jobs[&id];
        if active.phase == Phase::Absent {
            self.end_job(id, JobState::Cancelled, Some(format!("cancelled by {by}")));
        } else {
            self.dirty.insert(id);
        }
    }

    fn hold(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.phase != Phase::Absent || active.job.ending.is_some() {
            return;
        }
        active.job.state = JobState::Held;
        if let Some(entry) = active.entry.take() {
            active.job.entered_us = None;
            self.events.push(Event::Cancelled { job: entry });
        }
        self.give_turn_back(id);
        self.set_reason(id, Some("held".to_owned()));
    }

    fn release(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        if active.job.state == JobState::Held {
            active.job.state = JobState::Pending;
            self.set_reason(id, None);
            self.try_enter(id);
        }
    }

    fn set_user_paused(&mut self, id: u64, paused: bool) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        active.job.user_paused = paused;
        self.changed.insert(id);
        self.dirty.insert(id);
    }

    fn set_accum(&mut self, id: u64, accum: Option<u32>) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        active.job.accum = accum;
        let parts = accum.unwrap_or(active.job.sub_batches);
        if let Some(seat) = &mut active.seat {
            seat.sub_batches = parts;
        }
        if active.caps.accum {
            self.outcome.messages.push((id, ToJob::Accum(parts)));
        }
        self.changed.insert(id);
    }

    fn drain(&mut self, device: u32, drained: bool) {
        let changed =
            if drained { self.drained.insert(device) } else { self.drained.remove(&device) };
        if changed && !self.avoids(device) {
            let gpu = GpuId(device);
            self.events.push(if drained {
                Event::GpuDrained { gpu }
            } else {
                Event::GpuUp { gpu }
            });
        }
    }

    /// Whether strangers keep everybody from a device.
    fn avoids(&self, device: u32) -> bool {
        self.setup.foreign_avoid && self.foreign.contains_key(&device)
    }

    fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::Hello { job, accum, stop, .. } => {
                let Some(active) = self.jobs.get_mut(job) else { return };
                active.caps = Caps { speaks: true, accum: *accum, stop: *stop };
                active.job.caps = [true, *accum, *stop];
                let parts = active.job.accum.unwrap_or(active.job.sub_batches);
                if *accum && parts != 1 {
                    self.outcome.messages.push((*job, ToJob::Accum(parts)));
                }
                // One that was asked while nobody listened to it is asked again.
                if active.phase == Phase::Asked {
                    self.outcome.messages.push((*job, ToJob::Stop));
                }
                self.changed.insert(*job);
                self.describe(*job);
            }
            Fact::Bye { job, done } => {
                if let Some(active) = self.jobs.get_mut(job) {
                    active.bye = Some(*done);
                }
            }
            Fact::Progress { job, report } => self.report(*job, *report),
            Fact::Memory { class, accum, bytes } => {
                self.classes.set_memory(class, *accum, *bytes);
                self.outcome.classes.insert(class.clone());
                self.describe_class(class);
            }
            Fact::Solo { class, accum, steps_per_s } => {
                self.classes.set_solo(class, *accum, *steps_per_s);
                self.outcome.classes.insert(class.clone());
                self.describe_class(class);
            }
            Fact::Pair { class, beside, rate, noise } => {
                self.classes.observe(class, beside, *rate, *noise);
                self.outcome.classes.insert(class.clone());
                // A pair may turn out to gain nothing although nothing else happens.
                self.engine.touch(PartitionId(0));
            }
            Fact::Foreign { device, bytes, processes } => {
                let device = *device;
                let before = self.avoids(device);
                if *processes == 0 {
                    self.foreign.remove(&device);
                } else {
                    self.foreign.insert(device, *bytes);
                }
                let gpu = GpuId(device);
                self.events.push(Event::GpuReserved { gpu, memory: memory(*bytes) });
                let after = self.avoids(device);
                if before != after && !self.drained.contains(&device) {
                    self.events.push(if after {
                        Event::GpuDrained { gpu }
                    } else {
                        Event::GpuUp { gpu }
                    });
                }
            }
        }
    }

    fn report(&mut self, id: u64, report: Report) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        let rate = if active.phase == Phase::Running { Ppm(report.rate_ppm) } else { Ppm::ZERO };
        let progress = Progress { done: report.done(), at: Time(report.at_us), rate };
        active.pace = active::Pace { progress, measured: true };
        self.tell_progress(id);
    }

    fn tell_progress(&mut self, id: u64) {
        let Some(active) = self.jobs.get(&id) else { return };
        if let Some(job) = active.entry {
            self.events.push(Event::Progress { job, progress: active.pace.progress });
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

    fn set_reason(&mut self, id: u64, reason: Option<String>) {
        if let Some(active) = self.jobs.get_mut(&id)
            && active.job.reason != reason
        {
            active.job.reason = reason;
            self.changed.insert(id);
        }
    }

    fn give_turn_back(&mut self, id: u64) {
        let Some(ArrayTask { first, at_a_time: Some(_), .. }) =
            self.jobs.get(&id).and_then(|active| active.job.task)
        else {
            return;
        };
        let Some(turns) = self.arrays.get_mut(&first) else { return };
        if turns.going.remove(&id) {
            turns.waiting.insert(id);
        }
    }

    /// A job on which `id` depends is over.
    fn depend(&mut self, id: u64, other: u64, state: JobState) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        let holds = |dependency: &Dependency| match dependency.after {
            After::Any => true,
            After::Ok => state == JobState::Completed,
            After::NotOk => state != JobState::Completed,
        };
        let fails = active.unmet.iter().any(|unmet| unmet.job == other && !holds(unmet));
        active.unmet.retain(|unmet| unmet.job != other);
        active.job.dependencies.retain(|dependency| dependency.job != other);
        self.changed.insert(id);
        if fails {
            let reason = format!("depends on job {other}, which is {}", state.name());
            self.end_job(id, JobState::Cancelled, Some(reason));
        } else {
            self.try_enter(id);
        }
    }

    fn backend(&mut self, event: &BackendEvent) {
        match event {
            BackendEvent::Started { run, pid, enforcement, .. } => {
                if let Some(active) = self.of_run(*run) {
                    active.pid = Some(*pid);
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
            BackendEvent::NotStarted { run, reason, .. } => self.not_started(*run, reason),
            BackendEvent::Refused { run, reason, .. } => self.refused(*run, reason),
            BackendEvent::Exited { run, exit } => self.exited(*run, exit),
            BackendEvent::Lost { run, reason } => self.lost(*run, reason),
            BackendEvent::Sampled(_) => {}
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
    let class = crate::class::of(&request);
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
        submit_us: now.unix_us,
        sub_batches: 1,
        ..Job::default()
    };
    (submission.first..).zip(tasks.tasks).map(job).collect()
}
