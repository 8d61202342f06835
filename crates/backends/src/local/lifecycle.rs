//! What the records and processes of a run mean for it, from its start to its end.

use super::THIS;
use super::probe::{Probe, probe};
use super::process::ProcessId;
use super::record::{
    self, ALLOCATION, AppliedAllocation, Claim, RunEnd, RunSpec, SPEC, StartRecord,
};
use super::run::{LocalRun, RunPhase, RunState};
use super::shared::LocalShared;
use super::start_error::{StartError, is_full};
use crate::crash;
use crate::event::BackendEvent;
use rustix::process::Signal;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// How many supervisors may die before they have a run.
const FAILURES: u32 = 3;

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
        self.watcher.directory(run, dir);
        state.dir = Some(dir.to_owned());
        crash::point();
        let child = command.spawn()?;
        crash::point();
        let child = ProcessId::of(child.id(), &self.boot).ok_or(io::ErrorKind::NotFound)?;
        self.attend(run, state, &child);
        Ok(())
    }

    /// Waits for the end of a process of a run. `false` if it is over already.
    fn attend(&self, run: &Arc<LocalRun>, state: &mut RunState, process: &ProcessId) -> bool {
        if state.watched.as_ref() == Some(process) {
            return true;
        }
        let watched = match process.open(&self.boot) {
            Some(fd) => self.watcher.process(run, process, fd).is_ok(),
            None if matches!(process.exists(&self.boot), Ok(false)) => return false,
            None => false,
        };
        if watched {
            state.watched = Some(process.clone());
        } else {
            tracing::warn!(run = %run.id, "its process cannot be watched at present");
            self.watcher.later(run);
        }
        true
    }

    /// Looks at a run until what lives of it is being watched.
    pub(super) fn follow(&self, run: &Arc<LocalRun>, state: &mut RunState) -> Probe {
        loop {
            let found = probe(&self.options.state, run.id, &self.boot);
            let known = match &found {
                Probe::Supervised { dir, supervisor, started, .. } => {
                    self.learn(state, dir, Some(supervisor), started.as_ref());
                    self.attend(run, state, supervisor)
                }
                Probe::Orphaned { dir, supervisor, started } => {
                    self.learn(state, dir, Some(supervisor), Some(started));
                    self.attend(run, state, &started.process)
                }
                Probe::Ended { dir, started, .. } => {
                    self.learn(state, dir, None, started.as_ref());
                    true
                }
                Probe::Unknown { reason } => {
                    tracing::warn!(run = %run.id, reason, "not known how it does");
                    self.watcher.later(run);
                    true
                }
                Probe::Unclaimed { .. } | Probe::Lost { .. } | Probe::Rebooted => true,
            };
            if known {
                return found;
            }
        }
    }

    /// Takes over what the records say.
    fn learn(
        &self,
        state: &mut RunState,
        dir: &Path,
        supervisor: Option<&ProcessId>,
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
            state.group.clone_from(&started.group);
        }
    }

    /// Reports what is new about a run that was started.
    pub(super) fn advance(&self, run: &Arc<LocalRun>, state: &mut RunState) {
        if matches!(state.phase, RunPhase::New | RunPhase::Over) {
            return;
        }
        match self.follow(run, state) {
            Probe::Unclaimed { dir } => self.unclaimed(run, state, &dir),
            Probe::Supervised { running, .. } => {
                if running {
                    self.begun(run, state);
                }
            }
            Probe::Orphaned { .. } => self.begun(run, state),
            Probe::Unknown { .. } => {}
            Probe::Ended { outcome: RunEnd::Exited(exit), .. } => {
                self.begun(run, state);
                self.over(run, state, BackendEvent::Exited { run: run.id, exit });
            }
            Probe::Ended { outcome: RunEnd::NotStarted { reason, transient }, .. } => {
                let event = match state.op {
                    Some(op) => BackendEvent::NotStarted { op, run: run.id, reason, transient },
                    None => BackendEvent::Lost { run: run.id, reason },
                };
                self.over(run, state, event);
            }
            Probe::Lost { reason } => {
                // Nobody else ends what it left behind.
                for stat in state.survivors(&self.boot) {
                    let left =
                        ProcessId { pid: stat.pid, start: stat.start, boot: self.boot.clone() };
                    left.signal(&self.boot, Signal::KILL);
                }
                self.over(run, state, BackendEvent::Lost { run: run.id, reason });
            }
            Probe::Rebooted => {
                let reason = "the machine was started again".to_owned();
                self.over(run, state, BackendEvent::Lost { run: run.id, reason });
            }
        }
    }

    /// The program has begun.
    pub(super) fn begun(&self, run: &LocalRun, state: &mut RunState) {
        if state.phase != RunPhase::Starting {
            return;
        }
        state.phase = RunPhase::Running;
        self.watcher.leave_directory(run);
        if let (Some(op), Some(process)) = (state.op, &state.process) {
            let (pid, enforcement) = (process.pid, state.enforcement);
            self.emit(BackendEvent::Started { op, run: run.id, pid, enforcement });
        }
        run.changed.notify_all();
        self.idle.1.notify_all();
    }

    /// The end of a run.
    fn over(&self, run: &LocalRun, state: &mut RunState, event: BackendEvent) {
        state.phase = RunPhase::Over;
        self.watcher.leave_directory(run);
        self.emit(event);
        run.changed.notify_all();
    }

    /// A run that should have a supervisor by now or soon, and has none.
    fn unclaimed(&self, run: &Arc<LocalRun>, state: &mut RunState, dir: &Path) {
        if state.watched.as_ref().is_some_and(|child| child.lives(&self.boot)) {
            return;
        }
        state.failures += 1;
        let mut failure = StartError::from("its supervisor ended before it began");
        if state.failures < FAILURES {
            let ready = match state.dir.clone() {
                // The last attempt had a directory of its own.
                Some(before) if before != dir => {
                    self.watcher.leave_directory(run);
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

    /// Makes sure that nobody begins a run, and says so.
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
            // A supervisor cannot say that it had no room to write; we have none either.
            Err(error) => transient |= is_full(&error),
        }
        tracing::warn!(run = %run.id, reason, "not begun");
        self.watcher.leave_directory(run);
        state.phase = RunPhase::New;
        state.failures = 0;
        if let Some(op) = state.op {
            self.emit(BackendEvent::Refused { op, run: run.id, reason, transient });
        }
        run.changed.notify_all();
    }

    /// Ends a run that has not begun: whoever was to begin it finds it taken.
    pub(super) fn withdraw(&self, run: &Arc<LocalRun>, state: &mut RunState) {
        if let Probe::Unclaimed { dir } = probe(&self.options.state, run.id, &self.boot)
            && let (Ok(true), Some(op)) = (record::claim(&dir, &Claim::Void), state.op)
        {
            if let Some(child) = &state.watched {
                child.signal(&self.boot, Signal::KILL);
            }
            let (reason, transient) = ("it was ended before it began".to_owned(), false);
            self.over(run, state, BackendEvent::NotStarted { op, run: run.id, reason, transient });
        } else {
            self.advance(run, state);
        }
    }
}
