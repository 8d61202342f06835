//! What a back end is asked to do.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// One life of a job's process; a job that is tried again has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// The job.
    pub job: u64,
    /// Counted from one.
    pub run: u32,
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.run)
    }
}

/// Names an operation through restarts of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpId(pub u64);

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Begin a run.
    Start(Box<Launch>),
    /// Make no progress, keep the memory.
    Pause {
        /// The run.
        run: RunId,
    },
    /// Go on, in this seat, which may be another one where the provider can move a process.
    Resume {
        /// The run.
        run: RunId,
        /// Its seat.
        seat: Seat,
    },
    /// End the run: a request first, force when the grace is over.
    End {
        /// The run.
        run: RunId,
        /// How long it may take to end by itself.
        grace_ms: u64,
    },
    /// End a job that waits in the engine's queue and has no run. That it is gone is told as for one that
    /// somebody else withdrew.
    Withdraw {
        /// Its last run, which is over or never was.
        run: RunId,
        /// What the engine calls it.
        external: String,
    },
}

impl Op {
    /// The run that it concerns.
    pub fn run(&self) -> RunId {
        match self {
            Op::Start(launch) => launch.run,
            Op::Pause { run }
            | Op::Resume { run, .. }
            | Op::End { run, .. }
            | Op::Withdraw { run, .. } => *run,
        }
    }
}

/// Where a run sits and how much it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Indices of its devices.
    pub devices: Vec<u32>,
    /// The most of each device that it may use, in parts per million.
    pub share_ppm: u32,
    /// Memory that it is expected to need on each device, in bytes; 0 if not known.
    pub memory_bytes: u64,
    /// The parts in which it computes each batch.
    pub sub_batches: u32,
    /// Behind its neighbours where the provider knows priorities: 0 is usual, more is less urgent.
    pub nice: i32,
}

/// Everything that a start needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The run.
    pub run: RunId,
    /// Program and arguments.
    pub command: Vec<String>,
    /// The whole environment; what the provider adds for the seat comes on top.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub dir: PathBuf,
    /// File for standard output.
    pub stdout: PathBuf,
    /// File for standard error; that of standard output if absent.
    pub stderr: Option<PathBuf>,
    /// Add to the files instead of replacing them: for later runs of the same job.
    pub append: bool,
    /// As whom it runs; as the daemon's user if absent.
    pub owner: Option<Owner>,
    /// Where it sits.
    pub seat: Seat,
    /// Hard limit of its resident memory in bytes where the system can enforce one: beyond it the run is
    /// ended, and its end says that it ran out of memory.
    pub memory_limit_bytes: Option<u64>,
    /// What the engine calls the job, if that keeps the queue.
    #[serde(default)]
    pub external: Option<String>,
    /// Nobody ever comes beside it.
    #[serde(default)]
    pub exclusive: bool,
}

/// A user of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}
