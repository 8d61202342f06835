//! What a back end reports.

use crate::offer::Offer;
use crate::op::{OpId, RunId};
use crate::providers::DeviceSample;
use serde::{Deserialize, Serialize};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendEvent {
    /// The process exists and runs the job's program.
    Started {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// Its process, which leads a process group.
        pid: u32,
        /// How strictly its share is kept.
        enforcement: crate::Enforcement,
    },
    /// The run will never exist: the program cannot be executed, a file cannot be opened.
    NotStarted {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// What is wrong, in one line.
        reason: String,
        /// It may pass, as a full disk does: another run is worth a try later.
        #[serde(default)]
        passing: bool,
    },
    /// Every thread of the run stands still.
    Paused {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// From the request to the confirmation.
        took_us: u64,
    },
    /// The run goes on.
    Resumed {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
    },
    /// An operation could not be carried out; the run is as it was.
    Refused {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// Why, in one line.
        reason: String,
        /// It may pass, as a full disk does.
        #[serde(default)]
        passing: bool,
    },
    /// A run ended.
    Exited {
        /// The run.
        run: RunId,
        /// How.
        exit: Exit,
    },
    /// A run is gone and left no record of how it ended.
    Lost {
        /// The run.
        run: RunId,
        /// What is known, in one line.
        reason: String,
    },
    /// A run was put back into the engine's queue, its work lost; it begins again in its seat.
    Requeued {
        /// The run.
        run: RunId,
    },
    /// A job waits in the engine for a place.
    Offered(Box<Offer>),
    /// A job that waited for a place does not any more.
    Withdrawn {
        /// What the engine calls it.
        external: String,
        /// What is known, in one line.
        reason: String,
    },
    /// A device takes jobs again, or none for the time being.
    Device {
        /// The device.
        device: u32,
        /// Why it takes none.
        closed: Option<String>,
    },
    /// How runs and devices do.
    Sampled(Sample),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code or signal.
    pub status: Status,
    /// Processor time of the run and its children.
    pub cpu_s: f64,
    /// The most memory that one of its processes held.
    pub rss_max_bytes: u64,
    /// It ended for want of memory, as far as the system or its own messages say.
    pub oom: bool,
    /// When, in microseconds since 1970.
    pub at_unix_us: u64,
    /// What the engine says about it, which is final.
    #[serde(default)]
    pub verdict: Option<Verdict>,
}

/// Why an engine ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Somebody withdrew it.
    Cancelled,
    /// Its time was up.
    TimedOut,
    /// It took more memory than it may.
    OutOfMemory,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It exited by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Status {
    /// The code a shell would show: 128 + signal for a signal.
    pub fn code(self) -> i32 {
        match self {
            Status::Code(code) => code,
            Status::Signal(signal) => 128 + signal,
        }
    }
}

/// What became of a run while nobody watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It runs, or stands still.
    Running {
        /// Its process.
        pid: u32,
        /// Whether it stands still.
        paused: bool,
        /// How strictly its share is kept.
        #[serde(default)]
        enforcement: crate::Enforcement,
    },
    /// It is about to run: an event will follow.
    Starting,
    /// It ended.
    Exited(Exit),
    /// It never began and never will, unless it is started again.
    NeverStarted,
    /// It could not be executed.
    NotStarted {
        /// Why.
        reason: String,
        /// It may pass, as a full disk does.
        #[serde(default)]
        passing: bool,
    },
    /// It is gone and left no record.
    Lost {
        /// What is known.
        reason: String,
    },
    /// The machine was started again since.
    Rebooted,
}

/// How runs and devices do at an instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// By index.
    pub devices: Vec<DeviceSample>,
    /// Runs whose processes exist.
    pub runs: Vec<RunSample>,
}

/// How one run does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSample {
    /// The run.
    pub run: RunId,
    /// Processor time so far of the processes that exist, and of the children they have waited for.
    pub cpu_s: f64,
    /// Memory that counts against its devices at present: of the device, or resident.
    pub memory_bytes: u64,
    /// Every thread stands still.
    pub stopped: bool,
}
