//! Probes a run: its state according to its records and `/proc`.

use super::process::ProcessIdentity;
use super::record::{self, CLAIM, Claim, EXIT, RUNNING, RunEnd, STARTED, StartRecord};
use crate::op::RunId;
use std::io;
use std::path::{Path, PathBuf};

/// The state of a run.
#[derive(Debug)]
pub(super) enum Probe {
    /// No supervisor has claimed it. The directory is that of the next attempt and need not exist.
    Unclaimed {
        /// The directory.
        dir: PathBuf,
    },
    /// Its supervisor is alive.
    Supervised {
        /// The directory.
        dir: PathBuf,
        /// The supervisor.
        supervisor: ProcessIdentity,
        /// Its process, if it was recorded.
        started: Option<StartRecord>,
        /// The program runs.
        running: bool,
    },
    /// Its supervisor died, its process is alive.
    Orphaned {
        /// The directory.
        dir: PathBuf,
        /// The supervisor that died.
        supervisor: ProcessIdentity,
        /// Its process.
        started: StartRecord,
    },
    /// It has ended.
    Ended {
        /// The directory.
        dir: PathBuf,
        /// How it ended.
        end: RunEnd,
        /// Its process, if there was one.
        started: Option<StartRecord>,
    },
    /// It no longer exists and left no record of its end.
    Lost {
        /// What is known about it.
        reason: String,
    },
    /// The probe failed, because the system is short of a resource.
    Unknown {
        /// The error.
        reason: String,
    },
    /// It was started before a reboot, and its end was not recorded.
    Rebooted,
}

/// Probes a run.
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

/// Probes one attempt; `None` if it was given up or its supervisor died before the program could start.
fn probe_attempt(dir: &Path, boot: &str) -> io::Result<Option<Probe>> {
    let dir = dir.to_owned();
    let supervisor = match record::read(&dir, CLAIM) {
        Ok(None) => return Ok(Some(Probe::Unclaimed { dir })),
        Ok(Some(Claim::Void)) => return Ok(None),
        Ok(Some(Claim::Supervisor(supervisor))) => supervisor,
        // A claim is linked when it is complete: only a crash of the machine leaves an incomplete one.
        Err(error) if malformed(&error) => return Ok(Some(Probe::Rebooted)),
        Err(error) => return Err(error),
    };
    // First the process, then the records: the records of a dead supervisor are final.
    let lives = supervisor.exists(boot)?;
    let started: Option<StartRecord> = match record::read(&dir, STARTED) {
        Err(error) if malformed(&error) => None,
        other => other?,
    };
    match record::read(&dir, EXIT) {
        Ok(Some(end)) => return Ok(Some(Probe::Ended { dir, end, started })),
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
    // A process without a record never got its order.
    let Some(started) = started else {
        return Ok(None);
    };
    if started.process.exists(boot)? {
        return Ok(Some(Probe::Orphaned { dir, supervisor, started }));
    }
    let reason = "its supervisor died; exit code not known".to_owned();
    Ok(Some(Probe::Lost { reason }))
}

/// Whether a file could be read but not parsed.
fn malformed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
