//! Replays a journal: the same inputs must give the same actions.

use crate::request::JobRequest;
use crate::scheduler::{Input, JOURNAL_VERSION, Kept, KeptRow, Now, Scheduler, Setup, Start};
use rusqlite::Connection;
use std::path::Path;
use std::sync::Arc;
use tandem_core::{Action, Placement};
use tandem_models::interference::{Beliefs, Online};
use tandem_policies::PolicySpec;
use tandem_sim::interference::ModelFile;
use thiserror::Error;

/// Why a journal cannot be replayed.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// The file.
    #[error("{file}: {cause}; give the store of a daemon, state.db in its state folder")]
    Open {
        /// The file.
        file: String,
        /// Why.
        cause: rusqlite::Error,
    },
    /// A record that cannot be read.
    #[error("{file}: record {seq}: {cause}")]
    Record {
        /// The file.
        file: String,
        /// Its number.
        seq: i64,
        /// Why.
        cause: serde_json::Error,
    },
    /// Written by another version, and this one decides otherwise.
    #[error(
        "{file}: record {seq}: the journal has version {version}, this program replays version {}, \
         which learns and counts rates otherwise; replay it with the program that wrote it",
        JOURNAL_VERSION
    )]
    Version {
        /// The file.
        file: String,
        /// The record.
        seq: i64,
        /// Its version.
        version: u32,
    },
    /// A policy that this program does not know.
    #[error("{file}: record {seq}: {cause}")]
    Policy {
        /// The file.
        file: String,
        /// Its number.
        seq: i64,
        /// Why.
        cause: String,
    },
}

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Starts of the daemon.
    pub starts: u64,
    /// Cycles.
    pub cycles: u64,
    /// Inputs.
    pub inputs: u64,
    /// Actions.
    pub actions: u64,
    /// Cycles with other actions: record, journalled actions, replayed actions.
    pub differences: Vec<(i64, Vec<String>, Vec<String>)>,
}

/// Replays the journal of a store.
pub fn replay(file: &Path) -> Result<ReplayReport, ReplayError> {
    let name = file.display().to_string();
    let open = |cause| ReplayError::Open { file: name.clone(), cause };
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = Connection::open_with_flags(file, flags).map_err(open)?;
    let mut select = connection
        .prepare("SELECT seq, at_us, unix_us, kind, body FROM journal ORDER BY seq")
        .map_err(open)?;
    let mut rows = select.query([]).map_err(open)?;
    let mut replay = ReplayReport::default();
    let mut scheduler: Option<Scheduler> = None;
    let mut inputs: Vec<Input> = Vec::new();
    // A start, while the jobs follow that it began with.
    let mut starting: Option<Start> = None;
    let mut request: Arc<JobRequest> = Arc::default();
    // Of the last start.
    let mut version = JOURNAL_VERSION;
    // Actions of a start; the record with its journalled actions follows.
    let mut start_actions: Option<Vec<String>> = None;
    while let Some(row) = rows.next().map_err(open)? {
        let seq: i64 = row.get(0).map_err(open)?;
        let at_us = row.get::<_, i64>(1).map_err(open)? as u64;
        let unix_us = row.get::<_, i64>(2).map_err(open)? as u64;
        let kind: String = row.get(3).map_err(open)?;
        let body: String = row.get(4).map_err(open)?;
        let record = |cause| ReplayError::Record { file: name.clone(), seq, cause };
        match kind.as_str() {
            "start" => {
                inputs.clear();
                scheduler = None;
                replay.starts += 1;
                let start: Start = serde_json::from_str(&body).map_err(record)?;
                version = start.version;
                if version > JOURNAL_VERSION {
                    return Err(ReplayError::Version { file: name, seq, version });
                }
                starting = Some(start);
            }
            "request" => request = Arc::new(serde_json::from_str(&body).map_err(record)?),
            "job" => {
                let KeptRow { job, found, alike } = serde_json::from_str(&body).map_err(record)?;
                let kept = Kept { job, request: request.clone(), found, alike };
                starting.iter_mut().for_each(|start| start.jobs.push(kept.clone()));
            }
            // What follows was not journalled.
            "cut" => (scheduler, starting) = (None, None),
            "input" => {
                replay.inputs += 1;
                inputs.push(serde_json::from_str(&body).map_err(record)?);
            }
            _ => {
                let written: Vec<String> = serde_json::from_str(&body).map_err(record)?;
                if let Some(start) = starting.take() {
                    let policy = PolicySpec::parse(&start.setup.policy).map_err(|error| {
                        ReplayError::Policy { file: name.clone(), seq, cause: error.to_string() }
                    })?;
                    let beliefs = beliefs_on(&start.setup);
                    let (next, outcome) = Scheduler::begin(start, &policy, Box::new(beliefs));
                    scheduler = Some(next);
                    start_actions = Some(action_texts(&outcome.actions));
                }
                let Some(scheduler) = &mut scheduler else { continue };
                replay.cycles += 1;
                let now = Now { at_us, unix_us };
                let replayed = start_actions.take().unwrap_or_else(|| {
                    action_texts(&scheduler.step(now, &std::mem::take(&mut inputs)).actions)
                });
                replay.actions += replayed.len() as u64;
                if replayed != written && version != JOURNAL_VERSION {
                    return Err(ReplayError::Version { file: name, seq, version });
                }
                if replayed != written {
                    replay.differences.push((seq, written, replayed));
                }
            }
        }
    }
    Ok(replay)
}

/// The prior beliefs about pair rates on GPUs, before any observation.
pub fn beliefs() -> Beliefs {
    Beliefs::growing(prior())
}

/// The same with these devices: on cores, jobs take turns.
pub(crate) fn beliefs_on(setup: &Setup) -> Beliefs {
    Beliefs::growing(if setup.are_cores() { prior().taking_turns() } else { prior() })
}

fn prior() -> Online {
    let shipped = ModelFile::shipped();
    let model = shipped.for_gpu(Some("v100"), "shipped");
    let model = model.expect("the shipped model contains the V100");
    Online::new(model.offline.clone())
}

/// The journalled text of each action.
pub fn action_texts(actions: &[Action]) -> Vec<String> {
    actions.iter().map(action_text).collect()
}

fn action_text(action: &Action) -> String {
    let at = |placement: &Placement| {
        let gpus: Vec<String> = placement.gpus.iter().map(|gpu| gpu.0.to_string()).collect();
        let Placement { sub_batches, budget, .. } = placement;
        format!("{} x{sub_batches} {}", gpus.join(","), budget.0)
    };
    match action {
        Action::Stop { job } => format!("stop {}", job.0),
        Action::Budget { job, placement } => {
            format!("cap {} to {} ppm", job.0, placement.budget.0)
        }
        Action::Pause { job } => format!("pause {}", job.0),
        Action::Resume { job } => format!("resume {}", job.0),
        Action::Move { job, placement } => format!("move {} to {}", job.0, at(placement)),
        Action::Start { job, placement, restore } => {
            let again = if *restore { " again" } else { "" };
            format!("start {}{again} on {}", job.0, at(placement))
        }
    }
}
