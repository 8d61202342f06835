//! Carries out operations, those on one run in the order in which they came.

use super::group::Group;
use super::groups;
use super::inner::Inner;
use super::look::{Look, look};
use super::obstacle::Obstacle;
use super::process::{Halt, threads};
use super::record::{self, SEAT, SPEC, Seated, Spec};
use super::run::{Phase, Run, State, lock};
use super::supervisor::cpu_set;
use crate::event::BackendEvent;
use crate::op::{Launch, Op, OpId, Seat};
use crate::providers::{Enforcement, Setting};
use rustix::process::{Signal, getuid};
use rustix::thread::sched_setaffinity;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest sleep between two looks at a run that is to stand still.
const LONGEST: Duration = Duration::from_millis(20);
/// The longest sleep of an operation for which another may wait.
const SLICE: Duration = Duration::from_millis(100);
/// How long a run may wait for the system before it is helped along.
const STUCK: Duration = Duration::from_millis(4);
/// How often a run that must end is killed again.
const AGAIN: Duration = Duration::from_millis(500);
/// How long that goes on; its end is reported whenever it comes.
const FORCE: Duration = Duration::from_secs(60);

impl Inner {
    /// The body of a thread: carries out what is to be done with a run, and ends.
    pub(super) fn work(&self, run: &Arc<Run>) {
        self.workers.fetch_add(1, Ordering::SeqCst);
        loop {
            let next = {
                let mut queue = lock(&run.queue);
                let next = queue.waiting.pop_front().filter(|_| !self.stopping());
                queue.busy = next.is_some();
                next
            };
            let Some((id, op, asked)) = next else { break };
            let refused = match op {
                Op::Start(launch) => self.start(run, id, *launch),
                Op::Pause { .. } => self.pause(run, id, asked).map_err(Obstacle::from),
                Op::Resume { seat, .. } => self.resume(run, id, seat).map_err(Obstacle::from),
                Op::End { grace_ms, .. } => {
                    let deadline = asked + Duration::from_millis(grace_ms);
                    self.end(run, deadline).map_err(Obstacle::from)
                }
                Op::Withdraw { .. } => {
                    Err(Obstacle::from("there is no queue but the daemon's".to_owned()))
                }
            };
            if let Err(Obstacle { reason, passing }) = refused {
                self.emit(BackendEvent::Refused { op: id, run: run.id, reason, passing });
            }
        }
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    fn start(&self, run: &Arc<Run>, op: OpId, launch: Launch) -> Result<(), Obstacle> {
        {
            let mut state = run.state();
            state.op = Some(op);
            match state.phase {
                Phase::New => {}
                Phase::Starting | Phase::Over => return Ok(()),
                Phase::Running => {
                    state.phase = Phase::Starting;
                    self.begun(run, &mut state);
                    return Ok(());
                }
            }
        }
        // Only this thread begins the run; nobody has to wait for the provider.
        match look(&self.options.state, run.id, &self.boot) {
            Look::Free { dir } => self.begin(run, op, launch, &dir),
            Look::Unknown { reason } => Err(reason.into()),
            // Somebody has begun it already; what became of it is news here.
            _ => {
                let mut state = run.state();
                state.phase = Phase::Starting;
                self.advance(run, &mut state);
                if let (Phase::Starting, Some(dir)) = (state.phase, state.dir.clone()) {
                    self.watcher.directory(run, &dir);
                    self.advance(run, &mut state);
                }
                Ok(())
            }
        }
    }

    /// Begins a run that nobody has.
    fn begin(&self, run: &Arc<Run>, op: OpId, launch: Launch, dir: &Path) -> Result<(), Obstacle> {
        let uid = launch.owner.map_or_else(|| getuid().as_raw(), |owner| owner.uid);
        let setting = self.prepare(&launch.seat, uid)?;
        let name = groups::name(&self.owner, run.id);
        let (cpu, memory) = (self.groups.cpu.as_ref().ok(), self.groups.memory.as_ref().ok());
        let group = Group::new(cpu, memory, &name, &launch);
        let mut spec = Spec {
            op,
            launch,
            cores: setting.cores,
            nice: setting.nice,
            enforcement: setting.enforcement,
            group,
            arguments: self.arguments.clone(),
        };
        spec.launch.env.extend(setting.env);
        record::make_directory(dir).and_then(|()| record::write(dir, SPEC, &spec, false)).map_err(
            |error| Obstacle::new(format!("cannot write {}", dir.join(SPEC).display()), &error),
        )?;
        let mut state = run.state();
        state.phase = Phase::Starting;
        if let Err(error) = self.spawn(run, &mut state, dir) {
            let why = Obstacle::new("cannot start its supervisor", &error);
            self.give_up(run, &mut state, dir, why);
        }
        Ok(())
    }

    /// What a process needs in a seat. One without cores of its own has those that the daemon began
    /// with, whatever the daemon did to itself since.
    fn prepare(&self, seat: &Seat, uid: u32) -> Result<Setting, String> {
        let mut setting =
            lock(&self.provider).prepare(seat, uid).map_err(|error| error.to_string())?;
        if setting.cores.is_empty() {
            setting.cores.clone_from(&self.cores);
        }
        Ok(setting)
    }

    /// Sends a signal to every process of a run. `false` if its first process has ended.
    fn signal(&self, state: &State, signal: Signal) -> Result<bool, String> {
        let sent = state.signal(&self.boot, signal);
        sent.map_err(|error| format!("its processes take no signals: {}", io::Error::from(error)))
    }

    /// The state of a run that is no longer about to begin; `None` if it is over.
    fn settled<'a>(&self, run: &'a Run) -> Result<Option<MutexGuard<'a, State>>, String> {
        let mut state = run.state();
        while state.phase == Phase::Starting && !self.stopping() {
            state = run.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.phase {
            Phase::New => Err(format!("run {} has not begun", run.id)),
            Phase::Running => Ok(Some(state)),
            Phase::Starting | Phase::Over => Ok(None),
        }
    }

    fn pause(&self, run: &Run, op: OpId, asked: Instant) -> Result<(), String> {
        let Some(state) = self.settled(run)? else {
            return Ok(());
        };
        if let Some(reason) = lock(&self.provider).pause_forbidden() {
            return Err(reason);
        }
        // The look at its processes takes time; the watcher must not wait for it.
        let view = state.clone();
        drop(state);
        if !self.halt(&view)? {
            return Ok(());
        }
        let took_us = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        let state = run.state();
        if state.phase == Phase::Running {
            self.emit(BackendEvent::Paused { op, run: run.id, took_us });
        }
        Ok(())
    }

    /// Makes every thread of a run stand still. `false` if it has ended.
    fn halt(&self, view: &State) -> Result<bool, String> {
        let deadline = Instant::now() + self.options.pause_within;
        let mut sleep = Duration::from_micros(50);
        let mut before = Vec::new();
        let mut released = Instant::now();
        let mut wait = STUCK;
        while Instant::now() < deadline {
            if !self.signal(view, Signal::STOP)? {
                return Ok(false);
            }
            let (halt, now) = view.halt(&self.boot);
            // A process that is born or ends during a look may hide others: two must agree.
            let agreed = now == before;
            before = now;
            if halt <= Halt::Still {
                if agreed {
                    return Ok(true);
                }
                continue;
            }
            // One that waits for a child that stands still never stops: both must go on a little.
            if halt == Halt::Waits && released.elapsed() > wait {
                self.signal(view, Signal::CONT)?;
                self.idle(wait / 4);
                released = Instant::now();
                wait = wait * 3 / 2;
                sleep = Duration::from_micros(50);
                continue;
            }
            self.idle(sleep);
            sleep = (sleep * 2).min(LONGEST);
        }
        self.signal(view, Signal::CONT)?;
        Err(format!("it did not stand still within {} ms", self.options.pause_within.as_millis()))
    }

    fn resume(&self, run: &Run, op: OpId, seat: Seat) -> Result<(), String> {
        let Some(state) = self.settled(run)? else {
            return Ok(());
        };
        let before = state.seated.clone();
        drop(state);
        if before.as_ref().is_none_or(|before| before.seat != seat) {
            let setting = self.prepare(&seat, getuid().as_raw())?;
            let elsewhere =
                before.as_ref().is_none_or(|before| before.seat.devices != seat.devices);
            if elsewhere && !setting.movable {
                return Err(format!("run {} cannot be moved to other devices", run.id));
            }
            let seated = Seated { seat, cores: setting.cores, nice: setting.nice };
            let mut state = run.state();
            if let Some(dir) = &state.dir {
                record::write(dir, SEAT, &seated, false).map_err(|error| {
                    format!("cannot write {}: {error}", dir.join(SEAT).display())
                })?;
            }
            self.settle(&state, before.as_ref(), &seated);
            // One without the controller's group has nothing to be told.
            if let Some(Err(error)) = state.group.as_ref().map(|group| group.reseat(&seated.seat))
                && state.enforcement == Enforcement::Cgroup
            {
                tracing::warn!(run = %run.id, %error, "its control group keeps its share of before");
            }
            state.seated = Some(seated);
        }
        let state = run.state();
        if state.phase == Phase::Running && self.signal(&state, Signal::CONT)? {
            self.emit(BackendEvent::Resumed { op, run: run.id });
        }
        Ok(())
    }

    /// Gives every thread of a run its cores and niceness, as far as they have changed: what a program
    /// has chosen for its threads is otherwise left alone.
    fn settle(&self, state: &State, before: Option<&Seated>, seated: &Seated) {
        let move_it = before.is_none_or(|before| before.cores != seated.cores);
        let renice = before.is_none_or(|before| before.nice != seated.nice);
        if !move_it && !renice {
            return;
        }
        let cores = cpu_set(&seated.cores);
        let all = state.members(&self.boot).into_iter().flat_map(|stat| threads(stat.pid));
        for thread in all.filter_map(super::process::raw) {
            if move_it {
                let _ = sched_setaffinity(Some(thread), &cores);
            }
            if renice {
                // To become more urgent takes privileges; a wish then.
                let _ = rustix::process::setpriority_process(Some(thread), seated.nice);
            }
        }
    }

    fn end(&self, run: &Arc<Run>, mut deadline: Instant) -> Result<(), String> {
        let mut state = run.state();
        // One that is about to begin may finish that; it may also hang, on a file of a lost server.
        while state.phase == Phase::Starting && Instant::now() < deadline && !self.stopping() {
            state = self.nap(run, state, deadline);
        }
        if state.phase == Phase::New {
            return Err(format!("run {} has not begun", run.id));
        }
        self.signal(&state, Signal::TERM)?;
        // One that stands still cannot follow.
        self.signal(&state, Signal::CONT)?;
        let Some(state) = self.outlives(run, state, &mut deadline) else {
            return Ok(());
        };
        let pids: Vec<u32> = state.members(&self.boot).iter().map(|stat| stat.pid).collect();
        let seat = state.seated.as_ref().map(|seated| seated.seat.clone());
        drop(state);
        if let Some(seat) = seat.filter(|_| !pids.is_empty()) {
            let detached = lock(&self.provider).detach(&seat, &pids);
            if let Err(error) = detached {
                tracing::warn!(run = %run.id, %error, "not detached from its devices");
            }
        }
        let last = Instant::now() + FORCE;
        while Instant::now() < last {
            let mut state = run.state();
            if state.phase == Phase::Starting {
                self.withdraw(run, &mut state);
            }
            if matches!(state.phase, Phase::Starting | Phase::Running) {
                self.signal(&state, Signal::KILL)?;
            }
            let mut again = Instant::now() + AGAIN;
            if self.outlives(run, state, &mut again).is_none() {
                return Ok(());
            }
        }
        tracing::warn!(run = %run.id, "does not end");
        Ok(())
    }

    /// Waits for the end of a run; its state if it is still there at the deadline. Another request
    /// to end it may bring the deadline forward.
    fn outlives<'a>(
        &self,
        run: &'a Arc<Run>,
        mut state: MutexGuard<'a, State>,
        deadline: &mut Instant,
    ) -> Option<MutexGuard<'a, State>> {
        loop {
            if matches!(state.phase, Phase::New | Phase::Over) || self.stopping() {
                return None;
            }
            for (_, op, asked) in &lock(&run.queue).waiting {
                if let Op::End { grace_ms, .. } = op {
                    *deadline = (*deadline).min(*asked + Duration::from_millis(*grace_ms));
                }
            }
            if Instant::now() >= *deadline {
                return Some(state);
            }
            state = self.nap(run, state, *deadline);
        }
    }

    /// Waits for news of a run, not for long: an operation may arrive unnoticed.
    fn nap<'a>(
        &self,
        run: &Run,
        state: MutexGuard<'a, State>,
        deadline: Instant,
    ) -> MutexGuard<'a, State> {
        let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
        run.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }
}
