//! The lifecycle of a run: from the start of its supervisor to the report of its end.

use super::THIS;
use super::probe::{Probe, probe};
use super::process::ProcessIdentity;
use super::record::{
    self, ALLOCATION, AppliedAllocation, Claim, RunEnd, RunSpec, SPEC, StartRecord,
};
use super::run::{LocalRun, RunPhase, RunState};
use super::shared::LocalShared;
use super::start_error::{StartError, is_full};
use crate::crash;
use crate::event::{BackendEvent, RunHandle};
use rustix::process::Signal;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Supervisors of a run that may die before one claims it.
const FAILURES_MAX: u32 = 3;

impl LocalShared {
    /// Starts a supervisor for the run of a directory.
    pub(super) fn spawn(
        &self,
        run: &Arc<LocalRun>,
        state: &mut RunState,
        dir: &Path,
    ) -> io::Result<()> {
        let (program, arguments) =
            self.options.supervisor.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).arg("supervise").arg(dir);
        if program == THIS {
            command.arg0("tandem");
        }
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.watcher.watch_directory(run, dir);
        state.dir = Some(dir.to_owned());
        crash::point();
        let child = command.spawn()?;
        crash::point();
        let child = ProcessIdentity::of(child.id(), &self.boot).ok_or(io::ErrorKind::NotFound)?;
        self.watch_process(run, state, &child);
        Ok(())
    }

    /// Watches a process of a run for its end. `false` if it has ended already.
    fn watch_process(
        &self,
        run: &Arc<LocalRun>,
        state: &mut RunState,
        process: &ProcessIdentity,
    ) -> bool {
        if state.watched.as_ref() == Some(process) {
            return true;
        }
        let watched = match process.open(&self.boot) {
            Some(fd) => self.watcher.watch_process(run, process, fd).is_ok(),
            None if matches!(process.exists(&self.boot), Ok(false)) => return false,
            None => false,
        };
        if watched {
            state.watched = Some(process.clone());
        } else {
            tracing::warn!(run = %run.id, "cannot watch its process at present; will try again");
            self.watcher.retry_later(run);
        }
        true
    }

    /// Probes a run until its supervisor or its process is watched.
    pub(super) fn follow(&self, run: &Arc<LocalRun>, state: &mut RunState) -> Probe {
        loop {
            let found = probe(&self.options.state, run.id, &self.boot);
            let known = match &found {
                Probe::Supervised { dir, supervisor, started, .. } => {
                    self.read_records(state, dir, Some(supervisor), started.as_ref());
                    self.watch_process(run, state, supervisor)
                }
                Probe::Orphaned { dir, supervisor, started } => {
                    self.read_records(state, dir, Some(supervisor), Some(started));
                    self.watch_process(run, state, &started.process)
                }
                Probe::Ended { dir, started, .. } => {
                    self.read_records(state, dir, None, started.as_ref());
                    true
                }
                Probe::Unknown { reason } => {
                    tracing::warn!(run = %run.id, reason, "its state is unknown; will try again");
                    self.watcher.retry_later(run);
                    true
                }
                Probe::Unclaimed { .. } | Probe::Lost { .. } | Probe::Rebooted => true,
            };
            if known {
                return found;
            }
        }
    }

    /// Updates the state from the records.
    fn read_records(
        &self,
        state: &mut RunState,
        dir: &Path,
        supervisor: Option<&ProcessIdentity>,
        started: Option<&StartRecord>,
    ) {
        if state.applied.is_none() || state.op.is_none() {
            let moved: Option<AppliedAllocation> = record::read(dir, ALLOCATION).unwrap_or(None);
            let spec: Option<RunSpec> = record::read(dir, SPEC).unwrap_or(None);
            if let Some(spec) = spec {
                state.op = state.op.or(Some(spec.op));
                let first =
                    AppliedAllocation { allocation: spec.launch.allocation, cores: spec.cores };
                state.applied = Some(moved.unwrap_or(first));
            }
        }
        state.dir = Some(dir.to_owned());
        if let Some(supervisor) = supervisor {
            state.supervisor = Some(supervisor.clone());
        }
        if let Some(started) = started {
            state.process = Some(started.process.clone());
            state.enforcement = started.enforcement;
            state.cgroup.clone_from(&started.cgroup);
        }
    }

    /// Probes a run that was started, and reports what changed.
    pub(super) fn advance(&self, run: &Arc<LocalRun>, state: &mut RunState) {
        if matches!(state.phase, RunPhase::New | RunPhase::Ended) {
            return;
        }
        match self.follow(run, state) {
            Probe::Unclaimed { dir } => self.unclaimed(run, state, &dir),
            Probe::Supervised { running, .. } => {
                if running {
                    self.started(run, state);
                }
            }
            Probe::Orphaned { .. } => self.started(run, state),
            Probe::Unknown { .. } => {}
            Probe::Ended { end: RunEnd::Exited(exit), .. } => {
                self.started(run, state);
                self.ended(run, state, BackendEvent::Exited { run: run.id, exit });
            }
            Probe::Ended { end: RunEnd::NotStarted { reason, transient }, .. } => {
                let event = match state.op {
                    Some(op) => BackendEvent::NotStarted { op, run: run.id, reason, transient },
                    None => BackendEvent::Lost { run: run.id, reason },
                };
                self.ended(run, state, event);
            }
            Probe::Lost { reason } => {
                // No supervisor is left to end its other processes.
                for stat in state.survivors(&self.boot) {
                    let left = ProcessIdentity {
                        pid: stat.pid,
                        start: stat.start,
                        boot: self.boot.clone(),
                    };
                    left.signal(&self.boot, Signal::KILL);
                }
                self.ended(run, state, BackendEvent::Lost { run: run.id, reason });
            }
            Probe::Rebooted => {
                let reason = "the machine rebooted".to_owned();
                self.ended(run, state, BackendEvent::Lost { run: run.id, reason });
            }
        }
    }

    /// Reports that the program runs.
    pub(super) fn started(&self, run: &LocalRun, state: &mut RunState) {
        if state.phase != RunPhase::Starting {
            return;
        }
        state.phase = RunPhase::Running;
        self.watcher.unwatch_directory(run);
        if let (Some(op), Some(process)) = (state.op, &state.process) {
            let (handle, enforcement) = (RunHandle::Process(process.pid), state.enforcement);
            self.emit(BackendEvent::Started { op, run: run.id, handle, enforcement });
        }
        run.changed.notify_all();
        self.idle.1.notify_all();
    }

    /// Reports the end of a run.
    fn ended(&self, run: &LocalRun, state: &mut RunState, event: BackendEvent) {
        state.phase = RunPhase::Ended;
        self.watcher.unwatch_directory(run);
        // Nobody asks for the end of a run that belongs to no job.
        if !self.release(run.id) {
            self.emit(event);
        }
        run.changed.notify_all();
    }

    /// No supervisor has claimed the run. Starts another one if the last one died.
    fn unclaimed(&self, run: &Arc<LocalRun>, state: &mut RunState, dir: &Path) {
        if state.watched.as_ref().is_some_and(|child| child.lives(&self.boot)) {
            return;
        }
        state.failures += 1;
        let mut failure = StartError::from("its supervisor died before it started");
        if state.failures < FAILURES_MAX {
            let ready = match state.dir.clone() {
                // The last attempt had another directory.
                Some(before) if before != dir => {
                    self.watcher.unwatch_directory(run);
                    record::make_directory(dir)
                        .and_then(|()| record::read::<RunSpec>(&before, SPEC))
                        .and_then(|spec| record::write(dir, SPEC, &spec, false))
                }
                _ => Ok(()),
            };
            match ready.and_then(|()| self.spawn(run, state, dir)) {
                Ok(()) => return,
                Err(error) => failure = StartError::new("cannot start its supervisor", &error),
            }
        }
        self.give_up(run, state, dir, failure);
    }

    /// Makes sure that no supervisor starts a run, and reports the failure.
    pub(super) fn give_up(
        &self,
        run: &Arc<LocalRun>,
        state: &mut RunState,
        dir: &Path,
        why: StartError,
    ) {
        let StartError { reason, mut transient } = why;
        match record::claim(dir, &Claim::Void) {
            Ok(false) => return self.advance(run, state),
            Ok(true) => {}
            // A supervisor cannot report that the disk is full, but the same error occurs here.
            Err(error) => transient |= is_full(&error),
        }
        tracing::warn!(run = %run.id, reason, "not started");
        self.watcher.unwatch_directory(run);
        state.phase = RunPhase::New;
        state.failures = 0;
        if let Some(op) = state.op {
            self.emit(BackendEvent::Refused { op, run: run.id, reason, transient });
        }
        run.changed.notify_all();
    }

    /// Ends a run that has not started: its supervisor finds it claimed.
    pub(super) fn end_unstarted(&self, run: &Arc<LocalRun>, state: &mut RunState) {
        if let Probe::Unclaimed { dir } = probe(&self.options.state, run.id, &self.boot)
            && let (Ok(true), Some(op)) = (record::claim(&dir, &Claim::Void), state.op)
        {
            if let Some(child) = &state.watched {
                child.signal(&self.boot, Signal::KILL);
            }
            let (reason, transient) = ("it was ended before it started".to_owned(), false);
            self.ended(run, state, BackendEvent::NotStarted { op, run: run.id, reason, transient });
        } else {
            self.advance(run, state);
        }
    }
}
