//! What the back end knows of one run.

use super::cgroup::RunCgroup;
use super::process::{self, Halt, ProcStat, ProcessId};
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
    /// Its name.
    pub(super) id: RunId,
    /// What is to be done with it.
    pub(super) queue: Mutex<OpQueue>,
    /// Where it stands.
    state: Mutex<RunState>,
    /// Told whenever its phase changes, or an operation arrives.
    pub(super) changed: Condvar,
}

/// Operations in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct OpQueue {
    /// Those that wait.
    pub(super) waiting: VecDeque<(OpId, Op, Instant)>,
    /// Whether a thread carries them out.
    pub(super) busy: bool,
}

/// The life of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RunPhase {
    /// Nothing was begun.
    #[default]
    New,
    /// A supervisor is on its way.
    Starting,
    /// The program has begun.
    Running,
    /// Its end was reported.
    Over,
}

/// Where a run stands.
#[derive(Clone, Debug, Default)]
pub(super) struct RunState {
    /// Its phase.
    pub(super) phase: RunPhase,
    /// The operation that started it.
    pub(super) op: Option<OpId>,
    /// Its directory.
    pub(super) dir: Option<PathBuf>,
    /// The process whose end is being waited for.
    pub(super) watched: Option<ProcessId>,
    /// Its supervisor, dead or alive.
    pub(super) supervisor: Option<ProcessId>,
    /// Its process.
    pub(super) process: Option<ProcessId>,
    /// How strictly its share is kept.
    pub(super) enforcement: Enforcement,
    /// Its allocation.
    pub(super) applied: Option<AppliedAllocation>,
    /// Its control group, if it has one.
    pub(super) group: Option<RunCgroup>,
    /// How many supervisors died before they had the run.
    pub(super) failures: u32,
}

impl LocalRun {
    /// A run of which nothing is known.
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

    /// The processes of the run that have not ended. To be asked only while its first process lives or
    /// when it has just ended: the name of an empty session may be given to others.
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
            let stray = ProcessId { pid: stat.pid, start: stat.start, boot: boot.to_owned() };
            stray.signal(boot, signal);
        }
        Ok(true)
    }

    /// How far the run has come to a halt, and its processes.
    pub(super) fn halt(&self, boot: &str) -> (Halt, Vec<u32>) {
        let mut pids: Vec<u32> = self.members(boot).iter().map(|stat| stat.pid).collect();
        pids.sort_unstable();
        let halt = pids.iter().map(|&pid| process::halt(pid)).max();
        (halt.unwrap_or(Halt::Ended), pids)
    }
}

/// A lock that outlives a panic of another thread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
