//! What a restarted daemon and its back end tell each other about earlier runs.

use crate::event::{Exit, RunHandle};
use crate::op::RunId;
use serde::{Deserialize, Serialize};

/// A job that the daemon knows from before its restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownJob {
    /// Its run; the last one if it has none at present.
    pub run: RunId,
    /// The run existed, or was about to start, when the daemon last recorded it.
    pub has_run: bool,
    /// The devices of that run.
    pub devices: Vec<u32>,
    /// The cluster's id of the job.
    pub external: Option<String>,
}

impl From<RunId> for KnownJob {
    fn from(run: RunId) -> Self {
        Self { run, has_run: true, devices: Vec::new(), external: None }
    }
}

/// What happened to a run while no daemon watched it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveredRun {
    /// It runs or is paused.
    Running {
        /// Its process, or its job in the cluster.
        #[serde(flatten)]
        handle: RunHandle,
        /// It is paused.
        paused: bool,
        /// How its share is enforced.
        #[serde(default)]
        enforcement: crate::Enforcement,
    },
    /// It is about to start: an event will follow.
    Starting,
    /// It ended.
    Exited(Exit),
    /// It never started and never will, unless it is started again.
    NeverStarted,
    /// Its program could not be executed.
    NotStarted {
        /// Why.
        reason: String,
        /// The cause may go away by itself, as a full disk does.
        #[serde(default, rename = "passing")]
        transient: bool,
    },
    /// It no longer exists and left no record of its end.
    Lost {
        /// What is known about it.
        reason: String,
    },
    /// The machine rebooted since.
    Rebooted,
}
