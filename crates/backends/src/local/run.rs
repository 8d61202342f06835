//! The state of one run.

use super::cgroup::RunCgroup;
use super::process::{self, ProcStat, ProcessIdentity, StopState};
use super::record::AppliedAllocation;
use crate::crash;
use crate::op::{Op, OpId, RunId};
use crate::providers::Enforcement;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process_group};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One run.
#[derive(Debug)]
pub(super) struct LocalRun {
    /// Its id.
    pub(super) id: RunId,
    /// Operations that wait for execution.
    pub(super) queue: Mutex<OpQueue>,
    /// Its state.
    state: Mutex<RunState>,
    /// Notified when its phase changes or an operation arrives.
    pub(super) changed: Condvar,
}

/// Operations in the order in which they arrived.
#[derive(Debug, Default)]
pub(super) struct OpQueue {
    /// Operations that wait.
    pub(super) waiting: VecDeque<(OpId, Op, Instant)>,
    /// A thread executes them.
    pub(super) busy: bool,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// It was not started.
    #[default]
    New,
    /// Its supervisor starts.
    Starting,
    /// Its program runs.
    Running,
    /// Its end was reported.
    Ended,
}

/// The state of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunState {
    /// Its phase.
    pub(super) phase: RunPhase,
    /// The operation that started it.
    pub(super) op: Option<OpId>,
    /// Its directory.
    pub(super) dir: Option<PathBuf>,
    /// The process whose end the watcher waits for.
    pub(super) watched: Option<ProcessIdentity>,
    /// Its supervisor, which may have died.
    pub(super) supervisor: Option<ProcessIdentity>,
    /// Its process.
    pub(super) process: Option<ProcessIdentity>,
    /// How its share is enforced.
    pub(super) enforcement: Enforcement,
    /// Its allocation, as applied.
    pub(super) applied: Option<AppliedAllocation>,
    /// Its control group, if it has one.
    pub(super) cgroup: Option<RunCgroup>,
    /// Supervisors that died before they claimed the run.
    pub(super) failures: u32,
}

impl LocalRun {
    /// A new run.
    pub(super) fn new(id: RunId) -> Self {
        LocalRun { id, queue: Mutex::default(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Its state.
    pub(super) fn state(&self) -> MutexGuard<'_, RunState> {
        lock(&self.state)
    }
}

impl RunState {
    /// The processes of the run that have not ended; none if its first process has.
    pub(super) fn members(&self, boot: &str) -> Vec<ProcStat> {
        match &self.process {
            Some(process) if process.lives(boot) => self.survivors(boot),
            _ => Vec::new(),
        }
    }

    /// The processes of the run that have not ended. Only to be called while its first process lives or
    /// when it has just ended: the id of an empty session may be reused.
    pub(super) fn survivors(&self, boot: &str) -> Vec<ProcStat> {
        let (Some(supervisor), Some(process)) = (&self.supervisor, &self.process) else {
            return Vec::new();
        };
        if supervisor.lives(boot)
            && let Some(found) = process::descendants(supervisor.pid)
        {
            return found;
        }
        process::all()
            .filter(|stat| stat.session == supervisor.pid && stat.start >= process.start)
            .collect()
    }

    /// Sends a signal to every process of the run. `false` if its first process has ended.
    pub(super) fn signal(&self, boot: &str, signal: Signal) -> Result<bool, Errno> {
        let Some(process) = &self.process else {
            return Ok(false);
        };
        let Some(group) = process.raw().filter(|_| process.lives(boot)) else {
            return Ok(false);
        };
        crash::point();
        match kill_process_group(group, signal) {
            Ok(()) => {}
            Err(Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error),
        }
        crash::point();
        for stat in self.members(boot).into_iter().filter(|stat| stat.group != process.pid) {
            let stray = ProcessIdentity { pid: stat.pid, start: stat.start, boot: boot.to_owned() };
            stray.signal(boot, signal);
        }
        Ok(true)
    }

    /// Sends a signal to the processes of the run that catch it; if none does, to all but a shell that waits
    /// for the others. A data loader or a shell that does not expect the signal would end, and the end of the
    /// first process ends the run.
    pub(super) fn signal_programs(&self, boot: &str, signal: Signal) {
        let Some(first) = &self.process else { return };
        let members = self.members(boot);
        let catches = |stat: &&ProcStat| process::catches(stat.pid, signal);
        let mut programs: Vec<&ProcStat> = members.iter().filter(catches).collect();
        if programs.is_empty() {
            let waits = members.len() > 1 && process::is_shell(first.pid);
            programs = members.iter().filter(|stat| !waits || stat.pid != first.pid).collect();
        }
        crash::point();
        for stat in programs {
            let one = ProcessIdentity { pid: stat.pid, start: stat.start, boot: boot.to_owned() };
            one.signal(boot, signal);
        }
    }

    /// Whether the run is stopped, and its processes.
    pub(super) fn stop_state(&self, boot: &str) -> (StopState, Vec<u32>) {
        let mut pids: Vec<u32> = self.members(boot).iter().map(|stat| stat.pid).collect();
        pids.sort_unstable();
        let state = pids.iter().map(|&pid| process::stop_state(pid)).max();
        (state.unwrap_or(StopState::Ended), pids)
    }
}

/// Locks, also after a panic of another thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
