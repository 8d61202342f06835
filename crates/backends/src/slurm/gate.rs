//! Keeps the licences reserved for which jobs wait. The reservation runs out by itself: when the daemon has been
//! away for that long, Slurm starts everything that waits, as if there were no Tandem.

use super::commands::{self, CallError};
use super::licence::{COUNT, GATE, STRIPPED};
use std::time::{Duration, Instant};

/// Renewed this many times within its length.
const RENEWALS: u32 = 4;
/// After this time the plugin sees a change of reservations: Slurm counts in seconds.
const RELOAD: Duration = Duration::from_millis(1100);
/// The least time between two tries.
const RETRY: Duration = Duration::from_secs(2);

/// The reservations of the licences.
pub(super) struct Gate {
    length: Duration,
    /// Jobs may have been stripped of their GPU request.
    strips: bool,
    due: Option<Instant>,
    failure: Option<String>,
}

impl Gate {
    pub(super) fn new(length: Duration, strips: bool) -> Self {
        Self { length, strips, due: None, failure: None }
    }

    /// Extends the reservations if it is time, and makes them if they do not exist.
    pub(super) fn keep(&mut self) {
        if self.due.is_some_and(|due| Instant::now() < due) {
            return;
        }
        match self.renew() {
            Ok(()) => {
                if self.failure.take().is_some() {
                    tracing::info!("Slurm keeps jobs waiting for Tandem again");
                }
                self.due = Some(Instant::now() + self.length / RENEWALS);
            }
            Err(error) => {
                let error = error.to_string();
                if self.failure.as_ref() != Some(&error) {
                    tracing::warn!(
                        "GPU jobs start as plain Slurm jobs: the licence {GATE} cannot be reserved: {error}; \
                         see `tandem slurm install --print` for the line Licenses of slurm.conf"
                    );
                }
                self.failure = Some(error);
                self.due = Some(Instant::now() + RETRY.min(self.length / RENEWALS));
            }
        }
    }

    fn renew(&self) -> Result<(), CallError> {
        let is_new = self.reserve_all()?;
        if is_new {
            // The plugin sees no reservation that was made in the second in which it last looked for them.
            std::thread::sleep(RELOAD);
            self.reserve_all()?;
        }
        Ok(())
    }

    /// Whether a reservation is new.
    fn reserve_all(&self) -> Result<bool, CallError> {
        let stripped = self.strips.then(|| reserve(STRIPPED, "EndTime=now+365days"));
        let end = format!("EndTime=now+{}", self.length.as_secs().max(1));
        Ok(stripped.transpose()?.unwrap_or(false) | reserve(GATE, &end)?)
    }
}

/// Reserves all of a licence until some time; whether the reservation, which has its name, is new.
fn reserve(licence: &str, end: &str) -> Result<bool, CallError> {
    let name = format!("ReservationName={licence}");
    if commands::output("scontrol", &["update", &name, end]).is_ok() {
        return Ok(false);
    }
    let licenses = format!("Licenses={licence}:{COUNT}");
    let flags = "Flags=LICENSE_ONLY,ANY_NODES";
    let arguments = ["create", &name, "StartTime=now", end, "Users=root", &licenses, flags];
    commands::output("scontrol", &arguments)?;
    Ok(true)
}

/// Removes the reservations: everything that waits for them may start.
pub(super) fn open() -> Vec<String> {
    let remove = |licence: &str| {
        let name = format!("ReservationName={licence}");
        // It may have run out, or never have been made.
        commands::output("scontrol", &["delete", &name]).err()
    };
    let unexpected = |error: &CallError| !error.to_string().contains("reservation is invalid");
    let failed = [GATE, STRIPPED].into_iter().filter_map(remove).filter(unexpected);
    failed.map(|error| error.to_string()).collect()
}
