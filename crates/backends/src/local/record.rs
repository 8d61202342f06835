//! The directory of a run: what its supervisor needs, and what it records.
//!
//! | file | written by | content |
//! |---|---|---|
//! | `spec.json` | daemon | what to run |
//! | `claim` | the one supervisor that owns the run, or a daemon that gave it up | the owner |
//! | `started.json` | supervisor, before the program may start | its process |
//! | `running` | supervisor | nothing: the program runs |
//! | `seat.json` | daemon | the allocation since the run was moved |
//! | `exit.json` | supervisor | how it ended |
//!
//! Files are written atomically, and `claim` at most once. A claim that was given up, or whose supervisor died
//! before the program could start, stays: the next attempt has another directory. Names of files and fields
//! stay the same between versions, because runs survive an upgrade of the daemon.

use super::cgroup::RunCgroup;
use super::process::ProcessIdentity;
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
/// The owner of the run.
pub(super) const CLAIM: &str = "claim";
/// Its process.
pub(super) const STARTED: &str = "started.json";
/// Present if the program runs.
pub(super) const RUNNING: &str = "running";
/// The allocation since the run was moved.
pub(super) const ALLOCATION: &str = "seat.json";
/// How it ended.
pub(super) const EXIT: &str = "exit.json";

/// The input of a supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunSpec {
    /// The operation that started it.
    pub(super) op: OpId,
    /// What to run; the environment is complete.
    pub(super) launch: Launch,
    /// Cores that it may use; unchanged if empty.
    pub(super) cores: Vec<u32>,
    /// How its share is enforced without a control group.
    pub(super) enforcement: Enforcement,
    /// The control group that it should have. Recorded before it is created, so that it can be found.
    #[serde(default, rename = "group")]
    pub(super) cgroup: Option<RunCgroup>,
    /// Arguments before `enter` on the command line of the second stage.
    pub(super) arguments: Vec<String>,
}

/// The allocation of a run, as applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AppliedAllocation {
    /// The allocation.
    #[serde(rename = "seat")]
    pub(super) allocation: DeviceAllocation,
    /// Its cores.
    pub(super) cores: Vec<u32>,
}

/// The owner of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Claim {
    /// A supervisor.
    Supervisor(ProcessIdentity),
    /// No supervisor, for good.
    Void,
}

/// The process of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    /// It leads its process group.
    pub(super) process: ProcessIdentity,
    /// How its share is enforced.
    pub(super) enforcement: Enforcement,
    /// The control group that it is in, with the controllers that could be used.
    #[serde(default, rename = "group")]
    pub(super) cgroup: Option<RunCgroup>,
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
        /// The cause may go away by itself.
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

/// Creates a directory and its parents, with access for the owner only.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Writes a file atomically.
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

/// Claims the run of a directory. `false` if it is claimed already.
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

/// A unique name beside the file.
fn temporary(dir: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!(".{name}.{}.{count}", std::process::id()))
}

/// Writes a new file, or replaces one that a process with the same id left behind.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Writes a record of an earlier version, and reads it.
    fn read_back<T: DeserializeOwned>(name: &str, value: &serde_json::Value) -> T {
        let own = tempfile::tempdir().unwrap();
        fs::write(own.path().join(name), value.to_string()).unwrap();
        read(own.path(), name).unwrap().unwrap()
    }

    /// A run that an earlier version started survives an upgrade of the daemon.
    #[test]
    fn records_of_earlier_versions_are_readable() {
        let seat = json!({
            "devices": [1], "share_ppm": 500_000, "memory_bytes": 7, "sub_batches": 2, "nice": 0,
        });
        let group = json!({
            "cpu": { "dir": "/sys/fs/cgroup/cpu/tandem-1-2-3.1", "version": "v1" }, "memory": null,
            "processor": { "weight": 0.5, "most_ppm": 500_000 }, "memory_limit_bytes": 1024,
        });
        let process = json!({ "pid": 17, "start": 5, "boot": "b" });
        let spec: RunSpec = read_back(
            SPEC,
            &json!({
                "op": 9, "cores": [3], "nice": 0, "enforcement": "advisory", "group": group,
                "arguments": [],
                "launch": {
                    "run": { "job": 3, "run": 1 }, "command": ["true"], "env": {}, "dir": "/",
                    "stdout": "out", "stderr": null, "append": false, "owner": null,
                    "seat": seat, "memory_limit_bytes": null, "external": null, "exclusive": false,
                },
            }),
        );
        let written = serde_json::to_value(spec.cgroup.as_ref()).unwrap();
        assert_eq!((spec.op, &spec.cores[..], written), (OpId(9), &[3][..], group.clone()));
        let started: StartRecord = read_back(
            STARTED,
            &json!({ "process": process, "enforcement": "cgroup", "group": group }),
        );
        assert_eq!((started.process.pid, started.cgroup), (17, spec.cgroup));
        let applied: AppliedAllocation =
            read_back(ALLOCATION, &json!({ "seat": seat, "cores": [3], "nice": 0 }));
        assert_eq!(applied.allocation, spec.launch.allocation);
        let claim: Claim = read_back(CLAIM, &json!({ "supervisor": process }));
        assert_eq!(claim, Claim::Supervisor(started.process));
        let end: RunEnd =
            read_back(EXIT, &json!({ "not_started": { "reason": "full", "passing": true } }));
        assert_eq!(end, RunEnd::NotStarted { reason: "full".to_owned(), transient: true });
    }
}
