//! Jobs that come from the engine, not from us: it keeps the queue, we say who sits where.

use crate::op::Owner;
use serde::{Deserialize, Serialize};

/// A job that waits in the engine until it is given a place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// What the engine calls it, unique for all time.
    pub external: String,
    /// Whose it is.
    pub owner: Owner,
    /// The user's name.
    pub user: String,
    /// Its name, as the user gave it.
    pub name: String,
    /// GPUs that it needs, those that it shuts others out of counted.
    pub gpus: u32,
    /// The most time it may take, which the engine sees to.
    pub limit_s: Option<f64>,
    /// It cannot have anybody beside it.
    pub exclusive: bool,
    /// What the user says about it, as written.
    pub hints: String,
    /// When it was handed in, in microseconds since 1970.
    pub submit_unix_us: u64,
}

/// What an engine calls a job in front of people: what is unique for all time has a tag behind it.
pub fn shown(external: &str) -> &str {
    external.split('#').next().unwrap_or(external)
}

/// A job that the daemon knows from before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its run; the last one if it has none at present.
    pub run: crate::op::RunId,
    /// It has a process, or had one when the daemon last looked, or was about to.
    pub has_run: bool,
    /// The devices of that run.
    pub devices: Vec<u32>,
    /// What the engine calls it.
    pub external: Option<String>,
}

impl From<crate::op::RunId> for Known {
    fn from(run: crate::op::RunId) -> Self {
        Self { run, has_run: true, devices: Vec::new(), external: None }
    }
}

/// What can be done with the runs of a back end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Why runs must not be paused; `None` if they may be.
    pub pause_forbidden: Option<String>,
    /// Whether a paused run leaves its devices to others but for its memory.
    pub pause_frees_device: bool,
    /// Whether a run on several devices can share them.
    pub gangs_share: bool,
    /// Whether a run can end and begin again on other devices.
    pub moves: bool,
    /// Whether the memory of runs is measured.
    pub measures_memory: bool,
    /// Whether jobs come from the engine, which keeps the queue, the limits and the environment.
    pub keeps_queue: bool,
}
