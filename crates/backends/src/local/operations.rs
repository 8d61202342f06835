//! Executes operations, those of one run in the order in which they arrived.

use super::cgroup::RunCgroup;
use super::cgroups;
use super::probe::{Probe, probe};
use super::process::{StopState, threads};
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

/// The longest time between two probes of a run that is being paused.
const PROBE_INTERVAL_MAX: Duration = Duration::from_millis(20);
/// The longest wait for an event, because another operation may arrive meanwhile.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// How long a thread may stay uninterruptible before the run is continued for a moment.
const UNINTERRUPTIBLE_MAX: Duration = Duration::from_millis(4);
/// Time between two SIGKILLs of a run that must end.
const KILL_INTERVAL: Duration = Duration::from_millis(500);
/// How long SIGKILL is repeated. The end of the run is reported whenever it comes.
const KILL_FOR: Duration = Duration::from_secs(60);

impl LocalShared {
    /// The body of a thread: executes the operations of a run, and ends when there are none left.
    pub(super) fn run_operations(&self, run: &Arc<LocalRun>) {
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
                Op::Signal { signal, .. } => {
                    self.stop_signal(run, signal).map_err(StartError::from)
                }
                Op::End { grace_ms, .. } => {
                    let deadline = asked + Duration::from_millis(grace_ms);
                    self.end(run, deadline).map_err(StartError::from)
                }
                Op::Place { .. } | Op::Withdraw { .. } => {
                    Err(StartError::from("a local run has no cluster"))
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
                RunPhase::Starting | RunPhase::Ended => return Ok(()),
                RunPhase::Running => {
                    state.phase = RunPhase::Starting;
                    self.started(run, &mut state);
                    return Ok(());
                }
            }
        }
        // Only this thread starts the run, so that the state need not be locked while the provider works.
        match probe(&self.options.state, run.id, &self.boot) {
            Probe::Unclaimed { dir } => self.launch(run, op, launch, &dir),
            Probe::Unknown { reason } => Err(reason.into()),
            // An earlier daemon has started it already.
            _ => {
                let mut state = run.state();
                state.phase = RunPhase::Starting;
                self.advance(run, &mut state);
                if let (RunPhase::Starting, Some(dir)) = (state.phase, state.dir.clone()) {
                    self.watcher.watch_directory(run, &dir);
                    self.advance(run, &mut state);
                }
                Ok(())
            }
        }
    }

    /// Starts a run that no supervisor has claimed.
    fn launch(
        &self,
        run: &Arc<LocalRun>,
        op: OpId,
        launch: Launch,
        dir: &Path,
    ) -> Result<(), StartError> {
        let uid = launch.owner.map_or_else(|| getuid().as_raw(), |owner| owner.uid);
        let setup = self.prepare(&launch.allocation, uid)?;
        let name = cgroups::name(&self.cgroup_prefix, run.id);
        let (cpu, memory) = (self.cgroups.cpu.as_ref().ok(), self.cgroups.memory.as_ref().ok());
        let cgroup = RunCgroup::new(cpu, memory, &name, &launch);
        let mut spec = RunSpec {
            op,
            launch,
            cores: setup.cores,
            enforcement: setup.enforcement,
            cgroup,
            arguments: self.arguments.clone(),
        };
        spec.launch.env.extend(setup.env);
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

    /// What a process needs for an allocation. Without cores of its own it gets those that the daemon started
    /// with.
    fn prepare(&self, allocation: &DeviceAllocation, uid: u32) -> Result<ProcessSetup, String> {
        let mut setup =
            lock(&self.provider).prepare(allocation, uid).map_err(|error| error.to_string())?;
        if setup.cores.is_empty() {
            setup.cores.clone_from(&self.cores);
        }
        Ok(setup)
    }

    /// Sends a signal to every process of a run. `false` if its first process has ended.
    fn signal(&self, state: &RunState, signal: Signal) -> Result<bool, String> {
        let sent = state.signal(&self.boot, signal);
        sent.map_err(|error| format!("cannot signal its processes: {}", io::Error::from(error)))
    }

    /// Waits until a run has started, and returns its state; `None` if it has ended.
    fn await_start<'a>(
        &self,
        run: &'a LocalRun,
    ) -> Result<Option<MutexGuard<'a, RunState>>, String> {
        let mut state = run.state();
        while state.phase == RunPhase::Starting && !self.stopping() {
            state = run.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.phase {
            RunPhase::New => Err(format!("run {} has not started", run.id)),
            RunPhase::Running => Ok(Some(state)),
            RunPhase::Starting | RunPhase::Ended => Ok(None),
        }
    }

    fn pause(&self, run: &LocalRun, op: OpId, asked: Instant) -> Result<(), String> {
        let Some(state) = self.await_start(run)? else {
            return Ok(());
        };
        if let Some(reason) = lock(&self.provider).pause_forbidden() {
            return Err(reason);
        }
        // Stopping takes time, and the watcher must not wait for the state.
        let view = state.clone();
        drop(state);
        if !self.stop_all(&view)? {
            return Ok(());
        }
        let took_us = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        let state = run.state();
        if state.phase == RunPhase::Running {
            self.emit(BackendEvent::Paused { op, run: run.id, took_us });
        }
        Ok(())
    }

    /// Stops every thread of a run. `false` if it has ended.
    fn stop_all(&self, view: &RunState) -> Result<bool, String> {
        let deadline = Instant::now() + self.options.pause_within;
        let mut sleep = Duration::from_micros(50);
        let mut before = Vec::new();
        let mut released = Instant::now();
        let mut wait = UNINTERRUPTIBLE_MAX;
        while Instant::now() < deadline {
            if !self.signal(view, Signal::STOP)? {
                return Ok(false);
            }
            let (stop_state, now) = view.stop_state(&self.boot);
            // A process that starts or ends during a probe may hide others: two probes must agree.
            let agreed = now == before;
            before = now;
            if stop_state <= StopState::Stopped {
                if agreed {
                    return Ok(true);
                }
                continue;
            }
            // A thread that waits in vfork for a stopped child never stops: both must continue for a moment.
            if stop_state == StopState::Uninterruptible && released.elapsed() > wait {
                self.signal(view, Signal::CONT)?;
                self.idle(wait / 4);
                released = Instant::now();
                wait = wait * 3 / 2;
                sleep = Duration::from_micros(50);
                continue;
            }
            self.idle(sleep);
            sleep = (sleep * 2).min(PROBE_INTERVAL_MAX);
        }
        self.signal(view, Signal::CONT)?;
        Err(format!("it did not stop within {} ms", self.options.pause_within.as_millis()))
    }

    fn resume(&self, run: &LocalRun, op: OpId, allocation: DeviceAllocation) -> Result<(), String> {
        let Some(state) = self.await_start(run)? else {
            return Ok(());
        };
        let before = state.applied.clone();
        drop(state);
        if before.as_ref().is_none_or(|before| before.allocation != allocation) {
            let setup = self.prepare(&allocation, getuid().as_raw())?;
            let elsewhere = before
                .as_ref()
                .is_none_or(|before| before.allocation.devices != allocation.devices);
            if elsewhere && !setup.movable {
                return Err(format!("run {} cannot be moved to other devices", run.id));
            }
            let applied = AppliedAllocation { allocation, cores: setup.cores };
            let mut state = run.state();
            if let Some(dir) = &state.dir {
                record::write(dir, ALLOCATION, &applied, false).map_err(|error| {
                    format!("cannot write {}: {error}", dir.join(ALLOCATION).display())
                })?;
            }
            self.set_cores(&state, before.as_ref(), &applied);
            if let Some(Err(error)) =
                state.cgroup.as_ref().map(|cgroup| cgroup.update(&applied.allocation))
                && state.enforcement == Enforcement::Cgroup
            {
                tracing::warn!(run = %run.id, %error, "its control group keeps its previous share");
            }
            state.applied = Some(applied);
        }
        let state = run.state();
        if state.phase == RunPhase::Running && self.signal(&state, Signal::CONT)? {
            self.emit(BackendEvent::Resumed { op, run: run.id });
        }
        Ok(())
    }

    /// Sets the cores of every thread of a run, if they changed. Otherwise the affinity that a program has set
    /// for its threads stays.
    fn set_cores(
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

    /// Sends the signal on which the program saves a checkpoint.
    fn stop_signal(&self, run: &LocalRun, signal: i32) -> Result<(), String> {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return Err(format!("there is no signal {signal}"));
        };
        if let Some(state) = self.await_start(run)? {
            state.signal_programs(&self.boot, signal);
        }
        Ok(())
    }

    fn end(&self, run: &Arc<LocalRun>, mut deadline: Instant) -> Result<(), String> {
        let mut state = run.state();
        // A run that is starting gets time to do so. It may hang, for example on a file of a lost server.
        while state.phase == RunPhase::Starting && Instant::now() < deadline && !self.stopping() {
            state = self.await_change(run, state, deadline);
        }
        if state.phase == RunPhase::New {
            return Err(format!("run {} has not started", run.id));
        }
        self.signal(&state, Signal::TERM)?;
        // A stopped process cannot handle SIGTERM.
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
        let last = Instant::now() + KILL_FOR;
        while Instant::now() < last {
            let mut state = run.state();
            if state.phase == RunPhase::Starting {
                self.end_unstarted(run, &mut state);
            }
            if matches!(state.phase, RunPhase::Starting | RunPhase::Running) {
                self.signal(&state, Signal::KILL)?;
            }
            let mut again = Instant::now() + KILL_INTERVAL;
            if self.outlives(run, state, &mut again).is_none() {
                return Ok(());
            }
        }
        tracing::warn!(run = %run.id, "did not end after SIGKILL");
        Ok(())
    }

    /// Waits for the end of a run; its state if it still runs at the deadline. Another request to end it may
    /// bring the deadline forward.
    fn outlives<'a>(
        &self,
        run: &'a Arc<LocalRun>,
        mut state: MutexGuard<'a, RunState>,
        deadline: &mut Instant,
    ) -> Option<MutexGuard<'a, RunState>> {
        loop {
            if matches!(state.phase, RunPhase::New | RunPhase::Ended) || self.stopping() {
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
            state = self.await_change(run, state, *deadline);
        }
    }

    /// Waits for a change of a run, at most [`WAIT_MAX`].
    fn await_change<'a>(
        &self,
        run: &LocalRun,
        state: MutexGuard<'a, RunState>,
        deadline: Instant,
    ) -> MutexGuard<'a, RunState> {
        let left = deadline.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        run.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }
}
