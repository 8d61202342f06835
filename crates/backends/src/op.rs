//! The operations of a back end.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// One attempt to run a job. A job that is retried or preempted has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// The job.
    pub job: u64,
    /// The number of the attempt, from one.
    pub run: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.run)
    }
}

/// Identifies an operation, also after a restart of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId(pub u64);

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Start a process of this machine.
    Start(Box<Launch>),
    /// Start a job that is pending in the cluster, on these devices.
    Place {
        /// The run.
        run: RunId,
        /// The cluster's id of the job.
        external: String,
        /// Indices of its devices.
        devices: Vec<u32>,
        /// It never shares its devices.
        exclusive: bool,
    },
    /// Pause a run. It keeps its memory.
    Pause {
        /// The run.
        run: RunId,
    },
    /// Resume a run, on other devices if they differ and the provider can move a process.
    Resume {
        /// The run.
        run: RunId,
        /// Its devices and its share of them.
        allocation: DeviceAllocation,
    },
    /// Send a run the signal on which it saves a checkpoint and exits. Nothing follows if it ignores it.
    Signal {
        /// The run.
        run: RunId,
        /// The number of the signal.
        signal: i32,
    },
    /// End a run: SIGTERM first, SIGKILL after the grace period.
    End {
        /// The run.
        run: RunId,
        /// How long it may take to end by itself.
        grace_ms: u64,
    },
    /// Cancel a job that is pending in the cluster's queue and has no run. The event that follows is the
    /// same as when a user cancels it there.
    Withdraw {
        /// Its last run, which has ended or never existed.
        run: RunId,
        /// The cluster's id of the job.
        external: String,
    },
}

impl Op {
    /// The run that it concerns.
    pub fn run(&self) -> RunId {
        match self {
            Op::Start(launch) => launch.run,
            Op::Place { run, .. }
            | Op::Pause { run }
            | Op::Resume { run, .. }
            | Op::Signal { run, .. }
            | Op::End { run, .. }
            | Op::Withdraw { run, .. } => *run,
        }
    }
}

/// The devices of a run and how much of them it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAllocation {
    /// Indices of its devices.
    pub devices: Vec<u32>,
    /// Its share of each device, an upper limit, in parts per million.
    pub share_ppm: u32,
    /// Memory that it is expected to need on each device, in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// The number of sub-batches in which it computes each batch.
    pub sub_batches: u32,
    /// Other runs on the same devices get the time that this one leaves.
    #[serde(default)]
    pub goes_first: bool,
}

/// Everything that the start of a process needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The run.
    pub run: RunId,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The whole environment, to which the provider adds the variables of the allocation.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub dir: PathBuf,
    /// File for standard output.
    pub stdout: PathBuf,
    /// File for standard error; that of standard output if absent.
    pub stderr: Option<PathBuf>,
    /// Append to the files instead of replacing them: for later runs of the same job.
    pub append: bool,
    /// The user to run as; the daemon's user if absent.
    pub owner: Option<Owner>,
    /// Its devices and its share of them.
    #[serde(rename = "seat")]
    pub allocation: DeviceAllocation,
    /// Hard limit of its resident memory in bytes, where the system can enforce one. A run that exceeds it is
    /// killed and ends as out of memory.
    pub memory_limit_bytes: Option<u64>,
    /// The mask of permissions for files that it makes, and its resource limits.
    #[serde(default)]
    pub process: ProcessLimits,
}

/// What a process may do that does not follow from its user. None of it is taken from the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// The mask of permissions for files that it makes.
    pub umask: u32,
    /// Open files; the limit of the daemon if absent.
    pub open_files: Option<u64>,
    /// Processes of its user; the limit of the daemon if absent.
    pub processes: Option<u64>,
    /// Bytes of memory that a process locks; the limit of the daemon if absent.
    #[serde(default)]
    pub locked_bytes: Option<u64>,
    /// Bytes of a core dump; the limit of the daemon if absent.
    pub core_bytes: Option<u64>,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            umask: 0o022,
            open_files: None,
            processes: None,
            locked_bytes: None,
            core_bytes: None,
        }
    }
}

/// A user of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}
