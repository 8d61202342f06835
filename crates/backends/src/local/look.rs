//! What the records of a run and `/proc` say together.

use super::process::Identity;
use super::record::{self, CLAIM, Claim, EXIT, Outcome, RUNNING, STARTED, Started};
use crate::op::RunId;
use std::path::{Path, PathBuf};

/// Where a run stands.
#[derive(Debug)]
pub(super) enum Look {
    /// Nobody has it. The directory is that of the next attempt and need not exist.
    Free {
        /// The directory.
        dir: PathBuf,
    },
    /// Its supervisor lives.
    Attended {
        /// The directory.
        dir: PathBuf,
        /// The supervisor.
        supervisor: Identity,
        /// Its process, if that is to exist.
        started: Option<Started>,
        /// Whether the program has begun.
        running: bool,
    },
    /// Its supervisor died, its process lives.
    Orphan {
        /// The directory.
        dir: PathBuf,
        /// The supervisor that was.
        supervisor: Identity,
        /// Its process.
        started: Started,
    },
    /// It is over.
    Over {
        /// The directory.
        dir: PathBuf,
        /// How it ended.
        outcome: Outcome,
        /// Its process, if there was one.
        started: Option<Started>,
    },
    /// It is gone.
    Gone {
        /// What is known.
        reason: String,
    },
    /// It was begun in another life of the machine, and its end was not recorded.
    Rebooted,
}

/// Looks at a run.
pub(super) fn look(state: &Path, run: RunId, boot: &str) -> Look {
    for attempt in 0.. {
        let dir = record::directory(state, run, attempt);
        let supervisor = match record::read(&dir, CLAIM) {
            Ok(None) => return Look::Free { dir },
            Ok(Some(Claim::Void)) => continue,
            Ok(Some(Claim::Supervisor(supervisor))) => supervisor,
            // A claim is linked when it is complete: only a machine that went down leaves less.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => return Look::Rebooted,
            Err(error) => {
                return Look::Gone { reason: format!("cannot read its records: {error}") };
            }
        };
        // In this order: of one that no longer lived at this point, the records are final.
        let lives = supervisor.lives(boot);
        let started: Option<Started> = record::read(&dir, STARTED).unwrap_or(None);
        if let Ok(Some(outcome)) = record::read(&dir, EXIT) {
            return Look::Over { dir, outcome, started };
        }
        if lives {
            let running = started.is_some() && dir.join(RUNNING).exists();
            return Look::Attended { dir, supervisor, started, running };
        }
        if supervisor.boot != boot {
            return Look::Rebooted;
        }
        // A process without a record was never allowed to go on.
        let Some(started) = started else { continue };
        if started.process.lives(boot) {
            return Look::Orphan { dir, supervisor, started };
        }
        return Look::Gone { reason: "its supervisor died; exit code not known".to_owned() };
    }
    Look::Gone { reason: "too many attempts".to_owned() }
}
