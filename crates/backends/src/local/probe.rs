//! What the records of a run and `/proc` say together.

use super::process::ProcessId;
use super::record::{self, CLAIM, Claim, EXIT, RUNNING, RunEnd, STARTED, StartRecord};
use crate::op::RunId;
use std::io;
use std::path::{Path, PathBuf};

/// Where a run stands.
#[derive(Debug)]
pub(super) enum Probe {
    /// Nobody has it. The directory is that of the next attempt and need not exist.
    Unclaimed {
        /// The directory.
        dir: PathBuf,
    },
    /// Its supervisor lives.
    Supervised {
        /// The directory.
        dir: PathBuf,
        /// The supervisor.
        supervisor: ProcessId,
        /// Its process, if that is to exist.
        started: Option<StartRecord>,
        /// Whether the program has begun.
        running: bool,
    },
    /// Its supervisor died, its process lives.
    Orphaned {
        /// The directory.
        dir: PathBuf,
        /// The supervisor that was.
        supervisor: ProcessId,
        /// Its process.
        started: StartRecord,
    },
    /// It is over.
    Ended {
        /// The directory.
        dir: PathBuf,
        /// How it ended.
        outcome: RunEnd,
        /// Its process, if there was one.
        started: Option<StartRecord>,
    },
    /// It is gone.
    Lost {
        /// What is known.
        reason: String,
    },
    /// It cannot be told: the system is short of something.
    Unknown {
        /// What is in the way.
        reason: String,
    },
    /// It was begun in another life of the machine, and its end was not recorded.
    Rebooted,
}

/// Looks at a run.
pub(super) fn probe(state: &Path, run: RunId, boot: &str) -> Probe {
    for attempt in 0.. {
        let dir = record::directory(state, run, attempt);
        match probe_attempt(&dir, boot) {
            Ok(Some(found)) => return found,
            Ok(None) => {}
            Err(error) => {
                let reason = format!("cannot read its records: {error}");
                return Probe::Unknown { reason };
            }
        }
    }
    Probe::Lost { reason: "there were too many attempts".to_owned() }
}

/// Looks at one attempt; `None` if it was given up or its supervisor died before the program could
/// begin.
fn probe_attempt(dir: &Path, boot: &str) -> io::Result<Option<Probe>> {
    let dir = dir.to_owned();
    let supervisor = match record::read(&dir, CLAIM) {
        Ok(None) => return Ok(Some(Probe::Unclaimed { dir })),
        Ok(Some(Claim::Void)) => return Ok(None),
        Ok(Some(Claim::Supervisor(supervisor))) => supervisor,
        // A claim is linked when it is complete: only a machine that went down leaves less.
        Err(error) if malformed(&error) => return Ok(Some(Probe::Rebooted)),
        Err(error) => return Err(error),
    };
    // In this order: of one that no longer lived at this point, the records are final.
    let lives = supervisor.exists(boot)?;
    let started: Option<StartRecord> = match record::read(&dir, STARTED) {
        Err(error) if malformed(&error) => None,
        other => other?,
    };
    match record::read(&dir, EXIT) {
        Ok(Some(outcome)) => return Ok(Some(Probe::Ended { dir, outcome, started })),
        Ok(None) => {}
        Err(error) if malformed(&error) => {}
        Err(error) => return Err(error),
    }
    if lives {
        let running = started.is_some() && dir.join(RUNNING).try_exists()?;
        return Ok(Some(Probe::Supervised { dir, supervisor, started, running }));
    }
    if supervisor.boot != boot {
        return Ok(Some(Probe::Rebooted));
    }
    // A process without a record was never allowed to go on.
    let Some(started) = started else {
        return Ok(None);
    };
    if started.process.exists(boot)? {
        return Ok(Some(Probe::Orphaned { dir, supervisor, started }));
    }
    let reason = "its supervisor died; exit code not known".to_owned();
    Ok(Some(Probe::Lost { reason }))
}

/// Whether a file could be read but makes no sense.
fn malformed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
