//! The directory of a run: what its supervisor needs, and what it leaves behind.
//!
//! | file | written by | says |
//! |---|---|---|
//! | `spec.json` | daemon | what to run |
//! | `claim` | the one supervisor that has the run, or a daemon that gave it up | who has it |
//! | `started.json` | supervisor, before the program may begin | its process |
//! | `running` | supervisor | the program has begun |
//! | `seat.json` | daemon | where the run sits since it was moved |
//! | `exit.json` | supervisor | how it ended |
//!
//! Files appear whole or not at all, and `claim` at most once. A claim that was given up, or whose
//! supervisor died before the program could begin, stays: the next attempt has a directory of its own.

use super::cgroup::RunCgroup;
use super::process::ProcessId;
use crate::crash;
use crate::event::Exit;
use crate::op::{DeviceAllocation, Launch, OpId, RunId};
use crate::providers::Enforcement;
use rustix::fs::{AtFlags, CWD};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What to run.
pub(super) const SPEC: &str = "spec.json";
/// Who has the run.
pub(super) const CLAIM: &str = "claim";
/// Its process.
pub(super) const STARTED: &str = "started.json";
/// The program has begun.
pub(super) const RUNNING: &str = "running";
/// Where it sits since it was moved.
pub(super) const ALLOCATION: &str = "seat.json";
/// How it ended.
pub(super) const EXIT: &str = "exit.json";

/// What a supervisor needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunSpec {
    /// The operation that asked for it.
    pub(super) op: OpId,
    /// What to run; the environment is complete.
    pub(super) launch: Launch,
    /// Cores that it may use; as they are if empty.
    pub(super) cores: Vec<u32>,
    /// How strictly its share is kept without a control group.
    pub(super) enforcement: Enforcement,
    /// The control group that it is to have. Recorded before anybody makes it, so that it is found.
    #[serde(default)]
    pub(super) group: Option<RunCgroup>,
    /// Arguments that come before `enter` on the command line of the second stage.
    pub(super) arguments: Vec<String>,
}

/// Where a run sits, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppliedAllocation {
    /// The allocation.
    #[serde(rename = "seat")]
    pub(super) allocation: DeviceAllocation,
    /// Its cores.
    pub(super) cores: Vec<u32>,
}

/// Who has a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Claim {
    /// A supervisor.
    Supervisor(ProcessId),
    /// Nobody, for good.
    Void,
}

/// The process of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    /// It leads its process group.
    pub(super) process: ProcessId,
    /// How strictly its share is kept.
    pub(super) enforcement: Enforcement,
    /// The control group that it is in, as much of it as could be had.
    #[serde(default)]
    pub(super) group: Option<RunCgroup>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunEnd {
    /// It ran.
    Exited(Exit),
    /// It never ran.
    NotStarted {
        /// Why.
        reason: String,
        /// It may pass.
        #[serde(default, rename = "passing")]
        transient: bool,
    },
}

/// The directory of an attempt at a run.
pub(super) fn directory(state: &Path, run: RunId, attempt: u32) -> PathBuf {
    let name = if attempt == 0 { run.to_string() } else { format!("{run}~{attempt}") };
    state.join("runs").join(name)
}

/// The run of the directory of an attempt.
pub(super) fn run_of(name: &str) -> Option<RunId> {
    let (run, _) = name.split_once('~').unwrap_or((name, ""));
    let (job, run) = run.split_once('.')?;
    Some(RunId { job: job.parse().ok()?, run: run.parse().ok()? })
}

/// Makes a directory, and those above it, for nobody else to look into.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file that appears whole or not at all.
pub(super) fn write(
    dir: &Path,
    name: &str,
    value: &impl Serialize,
    durable: bool,
) -> io::Result<()> {
    let temporary = temporary(dir, name);
    crash::point();
    let written = write_new(&temporary, value, durable);
    crash::point();
    let result = written.and_then(|()| fs::rename(&temporary, dir.join(name)));
    crash::point();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    if durable && result.is_ok() {
        let _ = File::open(dir).and_then(|dir| dir.sync_all());
    }
    result
}

/// Claims the run of a directory. `false` if somebody else has it.
pub(super) fn claim(dir: &Path, claim: &Claim) -> io::Result<bool> {
    let temporary = temporary(dir, CLAIM);
    write_new(&temporary, claim, false)?;
    crash::point();
    let linked = rustix::fs::linkat(CWD, &temporary, CWD, dir.join(CLAIM), AtFlags::empty());
    crash::point();
    let _ = fs::remove_file(&temporary);
    match linked {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> io::Result<Option<T>> {
    match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A name next to the file that nobody else uses.
fn temporary(dir: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!(".{name}.{}.{count}", std::process::id()))
}

/// Writes a file that was not there, or was left behind by one that had the same id.
fn write_new(path: &Path, value: &impl Serialize, durable: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if durable {
        file.sync_all()?;
    }
    Ok(())
}
