//! Carries out operations, those on one run in the order in which they came.

use super::cgroup::RunCgroup;
use super::cgroups;
use super::probe::{Probe, probe};
use super::process::{Halt, threads};
use super::record::{self, ALLOCATION, AppliedAllocation, RunSpec, SPEC};
use super::run::{LocalRun, RunPhase, RunState, lock};
use super::shared::LocalShared;
use super::start_error::StartError;
use super::supervisor::cpu_set;
use crate::event::BackendEvent;
use crate::op::{DeviceAllocation, Launch, Op, OpId};
use crate::providers::{Enforcement, ProcessSetup};
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

impl LocalShared {
    /// The body of a thread: carries out what is to be done with a run, and ends.
    pub(super) fn work(&self, run: &Arc<LocalRun>) {
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
                Op::Pause { .. } => self.pause(run, id, asked).map_err(StartError::from),
                Op::Resume { allocation, .. } => {
                    self.resume(run, id, allocation).map_err(StartError::from)
                }
                Op::End { grace_ms, .. } => {
                    let deadline = asked + Duration::from_millis(grace_ms);
                    self.end(run, deadline).map_err(StartError::from)
                }
                Op::Withdraw { .. } => {
                    Err(StartError::from("there is no queue but the daemon's".to_owned()))
                }
            };
            if let Err(StartError { reason, transient }) = refused {
                self.emit(BackendEvent::Refused { op: id, run: run.id, reason, transient });
            }
        }
        self.workers.fetch_sub(1, Ordering::SeqCst);
    }

    fn start(&self, run: &Arc<LocalRun>, op: OpId, launch: Launch) -> Result<(), StartError> {
        {
            let mut state = run.state();
            state.op = Some(op);
            match state.phase {
                RunPhase::New => {}
                RunPhase::Starting | RunPhase::Over => return Ok(()),
                RunPhase::Running => {
                    state.phase = RunPhase::Starting;
                    self.begun(run, &mut state);
                    return Ok(());
                }
            }
        }
        // Only this thread begins the run; nobody has to wait for the provider.
        match probe(&self.options.state, run.id, &self.boot) {
            Probe::Unclaimed { dir } => self.begin(run, op, launch, &dir),
            Probe::Unknown { reason } => Err(reason.into()),
            // Somebody has begun it already; what became of it is news here.
            _ => {
                let mut state = run.state();
                state.phase = RunPhase::Starting;
                self.advance(run, &mut state);
                if let (RunPhase::Starting, Some(dir)) = (state.phase, state.dir.clone()) {
                    self.watcher.directory(run, &dir);
                    self.advance(run, &mut state);
                }
                Ok(())
            }
        }
    }

    /// Begins a run that nobody has.
    fn begin(
        &self,
        run: &Arc<LocalRun>,
        op: OpId,
        launch: Launch,
        dir: &Path,
    ) -> Result<(), StartError> {
        let uid = launch.owner.map_or_else(|| getuid().as_raw(), |owner| owner.uid);
        let setting = self.prepare(&launch.allocation, uid)?;
        let name = cgroups::name(&self.owner, run.id);
        let (cpu, memory) = (self.groups.cpu.as_ref().ok(), self.groups.memory.as_ref().ok());
        let group = RunCgroup::new(cpu, memory, &name, &launch);
        let mut spec = RunSpec {
            op,
            launch,
            cores: setting.cores,
            enforcement: setting.enforcement,
            group,
            arguments: self.arguments.clone(),
        };
        spec.launch.env.extend(setting.env);
        record::make_directory(dir).and_then(|()| record::write(dir, SPEC, &spec, false)).map_err(
            |error| StartError::new(format!("cannot write {}", dir.join(SPEC).display()), &error),
        )?;
        let mut state = run.state();
        state.phase = RunPhase::Starting;
        if let Err(error) = self.spawn(run, &mut state, dir) {
            let why = StartError::new("cannot start its supervisor", &error);
            self.give_up(run, &mut state, dir, why);
        }
        Ok(())
    }

    /// What a process needs in an allocation. One without cores of its own has those that the daemon began
    /// with, whatever the daemon did to itself since.
    fn prepare(&self, allocation: &DeviceAllocation, uid: u32) -> Result<ProcessSetup, String> {
        let mut setting =
            lock(&self.provider).prepare(allocation, uid).map_err(|error| error.to_string())?;
        if setting.cores.is_empty() {
            setting.cores.clone_from(&self.cores);
        }
        Ok(setting)
    }

    /// Sends a signal to every process of a run. `false` if its first process has ended.
    fn signal(&self, state: &RunState, signal: Signal) -> Result<bool, String> {
        let sent = state.signal(&self.boot, signal);
        sent.map_err(|error| format!("its processes take no signals: {}", io::Error::from(error)))
    }

    /// The state of a run that is no longer about to begin; `None` if it is over.
    fn settled<'a>(&self, run: &'a LocalRun) -> Result<Option<MutexGuard<'a, RunState>>, String> {
        let mut state = run.state();
        while state.phase == RunPhase::Starting && !self.stopping() {
            state = run.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.phase {
            RunPhase::New => Err(format!("run {} has not begun", run.id)),
            RunPhase::Running => Ok(Some(state)),
            RunPhase::Starting | RunPhase::Over => Ok(None),
        }
    }

    fn pause(&self, run: &LocalRun, op: OpId, asked: Instant) -> Result<(), String> {
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
        if state.phase == RunPhase::Running {
            self.emit(BackendEvent::Paused { op, run: run.id, took_us });
        }
        Ok(())
    }

    /// Makes every thread of a run stand still. `false` if it has ended.
    fn halt(&self, view: &RunState) -> Result<bool, String> {
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

    fn resume(&self, run: &LocalRun, op: OpId, allocation: DeviceAllocation) -> Result<(), String> {
        let Some(state) = self.settled(run)? else {
            return Ok(());
        };
        let before = state.applied.clone();
        drop(state);
        if before.as_ref().is_none_or(|before| before.allocation != allocation) {
            let setting = self.prepare(&allocation, getuid().as_raw())?;
            let elsewhere = before
                .as_ref()
                .is_none_or(|before| before.allocation.devices != allocation.devices);
            if elsewhere && !setting.movable {
                return Err(format!("run {} cannot be moved to other devices", run.id));
            }
            let applied = AppliedAllocation { allocation, cores: setting.cores };
            let mut state = run.state();
            if let Some(dir) = &state.dir {
                record::write(dir, ALLOCATION, &applied, false).map_err(|error| {
                    format!("cannot write {}: {error}", dir.join(ALLOCATION).display())
                })?;
            }
            self.settle(&state, before.as_ref(), &applied);
            // One without the controller's group has nothing to be told.
            if let Some(Err(error)) =
                state.group.as_ref().map(|group| group.reseat(&applied.allocation))
                && state.enforcement == Enforcement::Cgroup
            {
                tracing::warn!(run = %run.id, %error, "its control group keeps its share of before");
            }
            state.applied = Some(applied);
        }
        let state = run.state();
        if state.phase == RunPhase::Running && self.signal(&state, Signal::CONT)? {
            self.emit(BackendEvent::Resumed { op, run: run.id });
        }
        Ok(())
    }

    /// Gives every thread of a run its cores and niceness, as far as they have changed: what a program
    /// has chosen for its threads is otherwise left alone.
    fn settle(
        &self,
        state: &RunState,
        before: Option<&AppliedAllocation>,
        applied: &AppliedAllocation,
    ) {
        if before.is_some_and(|before| before.cores == applied.cores) {
            return;
        }
        let cores = cpu_set(&applied.cores);
        let all = state.members(&self.boot).into_iter().flat_map(|stat| threads(stat.pid));
        for thread in all.filter_map(super::process::raw) {
            let _ = sched_setaffinity(Some(thread), &cores);
        }
    }

    fn end(&self, run: &Arc<LocalRun>, mut deadline: Instant) -> Result<(), String> {
        let mut state = run.state();
        // One that is about to begin may finish that; it may also hang, on a file of a lost server.
        while state.phase == RunPhase::Starting && Instant::now() < deadline && !self.stopping() {
            state = self.nap(run, state, deadline);
        }
        if state.phase == RunPhase::New {
            return Err(format!("run {} has not begun", run.id));
        }
        self.signal(&state, Signal::TERM)?;
        // One that stands still cannot follow.
        self.signal(&state, Signal::CONT)?;
        let Some(state) = self.outlives(run, state, &mut deadline) else {
            return Ok(());
        };
        let pids: Vec<u32> = state.members(&self.boot).iter().map(|stat| stat.pid).collect();
        let allocation = state.applied.as_ref().map(|applied| applied.allocation.clone());
        drop(state);
        if let Some(allocation) = allocation.filter(|_| !pids.is_empty()) {
            let detached = lock(&self.provider).detach(&allocation, &pids);
            if let Err(error) = detached {
                tracing::warn!(run = %run.id, %error, "not detached from its devices");
            }
        }
        let last = Instant::now() + FORCE;
        while Instant::now() < last {
            let mut state = run.state();
            if state.phase == RunPhase::Starting {
                self.withdraw(run, &mut state);
            }
            if matches!(state.phase, RunPhase::Starting | RunPhase::Running) {
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
        run: &'a Arc<LocalRun>,
        mut state: MutexGuard<'a, RunState>,
        deadline: &mut Instant,
    ) -> Option<MutexGuard<'a, RunState>> {
        loop {
            if matches!(state.phase, RunPhase::New | RunPhase::Over) || self.stopping() {
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
        run: &LocalRun,
        state: MutexGuard<'a, RunState>,
        deadline: Instant,
    ) -> MutexGuard<'a, RunState> {
        let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
        run.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }
}
