//! How long a place waits for Slurm to start the job. A place that Slurm will not give is given back, the job waits
//! longer after each try, and in the end it goes on as a plain Slurm job.

use super::admission::plain_request;
use super::{ListedJob, ManagedJob, Reconciled, Reconciler, SlurmRequest};
use crate::event::BackendEvent;
use crate::slurm::jobs::JobRecord;
use crate::slurm::licence;

/// Lists that may pass without the effect of a request.
const SENT_MAX: u32 = 2;
/// A job that Slurm has considered and refused for this long will not start.
const REFUSED_S: u64 = 3;
/// Jobs that Slurm starts in a second, if they are many.
const STARTS_PER_S: u64 = 5;
/// The niceness of a job that goes on as a plain one.
const LAST: u32 = 1_000_000;
/// The delay after the first try; it doubles with each further one.
const DELAY_S: u64 = 5;
const DELAY_MAX_S: u64 = 300;

/// Limits of patience, which operators set.
#[derive(Clone, Copy, Debug)]
pub(in crate::slurm) struct Patience {
    /// An admitted job that has not begun by then loses its place.
    pub(in crate::slurm) start_within_s: u64,
    /// After this many tries it goes on as a plain Slurm job.
    pub(in crate::slurm) tries_max: u32,
}

/// Why a place is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) kind: RefusalKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// Slurm keeps it waiting for a reason that has nothing to do with the place, such as a limit.
    Waits,
    /// Slurm does not start it there.
    Refused,
    /// No place of Tandem's will ever do.
    Never,
}

impl Refusal {
    pub(super) fn waits(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), kind: RefusalKind::Waits }
    }

    pub(super) fn never(reason: String) -> Self {
        Self { reason, kind: RefusalKind::Never }
    }

    fn refused(reason: String) -> Self {
        Self { reason, kind: RefusalKind::Refused }
    }
}

/// What was tried with a job that is pending.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    /// Places that Slurm did not give.
    tries: u32,
    /// Places given back for other reasons, in a row.
    waits: u32,
    /// No new place before this.
    pub(super) retry_s: u64,
    /// Why it waits, as last reported; `None` if it may be placed.
    pub(super) told: Option<String>,
    /// The last request, and how often it was sent in a row.
    sent: (String, u32),
    /// Since when it is admitted, and when Slurm had last considered it then.
    admitted: Option<(u64, u64)>,
    refused_since_s: Option<u64>,
    /// Since when no node can take it.
    pub(super) lacks_node_s: Option<u64>,
    /// Slurm was asked to suspend it.
    pub(super) suspends: bool,
    /// What Slurm said about the last request.
    message: String,
}

impl Attempts {
    /// Of a new job that waits for this reason.
    pub(super) fn told(reason: Option<String>) -> Self {
        Self { told: reason, ..Self::default() }
    }

    /// Takes note of a request that is sent; an error if Slurm has ignored it before.
    pub(super) fn send(&mut self, line: &str) -> Result<(), Refusal> {
        if self.sent.0 != line {
            self.sent = (line.to_owned(), 0);
        }
        self.sent.1 += 1;
        if self.sent.1 <= SENT_MAX {
            return Ok(());
        }
        let message = if self.message.is_empty() { "without a message" } else { &self.message };
        Err(Refusal::refused(format!("Slurm refused to place it: {message}")))
    }

    /// An error if an admitted job, one of so many, has waited for Slurm for too long.
    pub(super) fn wait(
        &mut self,
        record: &JobRecord,
        patience: &Patience,
        admitted: u64,
        now_s: u64,
    ) -> Result<(), Refusal> {
        let (since_s, considered_s) = *self.admitted.get_or_insert((now_s, record.evaluated_s));
        let is_refused = record.evaluated_s > considered_s
            && !matches!(record.reason.as_str(), "None" | "Priority" | "BeginTime");
        let refused_since_s = if is_refused { Some(now_s) } else { None };
        self.refused_since_s = self.refused_since_s.filter(|_| is_refused).or(refused_since_s);
        // Slurm starts many jobs one after the other.
        let is_over = now_s >= since_s + patience.start_within_s + admitted / STARTS_PER_S;
        if is_over || self.refused_since_s.is_some_and(|since_s| now_s >= since_s + REFUSED_S) {
            let waited_s = now_s - since_s;
            let reason = format!("Slurm did not start it within {waited_s} s ({})", record.reason);
            return Err(Refusal::refused(reason));
        }
        Ok(())
    }

    /// It has begun, or its place was given back.
    pub(super) fn settle(&mut self) {
        (self.sent, self.admitted, self.refused_since_s) = (<_>::default(), None, None);
    }
}

/// Makes a job a plain one, behind all others: Slurm starts no job of a partition before one of a higher priority
/// that waits for resources, unless it backfills.
fn last_request(listed: &ListedJob<'_>) -> String {
    format!("{} Nice={LAST}", plain_request(listed))
}

impl Reconciler {
    /// Takes the place from a job.
    pub(super) fn give_back(
        &mut self,
        job: &mut ManagedJob,
        listed: &ListedJob<'_>,
        refusal: Refusal,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        let Some(desired) = job.run.take() else { return };
        let (op, run) = (desired.op, desired.run);
        let Refusal { reason, kind } = refusal;
        let tries_max = self.patience.tries_max;
        let attempts = self.attempts.entry(listed.key.clone()).or_default();
        attempts.settle();
        match kind {
            RefusalKind::Waits => attempts.waits += 1,
            RefusalKind::Refused => attempts.tries += 1,
            RefusalKind::Never => attempts.tries = tries_max,
        }
        let external = listed.key.clone();
        let not_started =
            |reason: String| BackendEvent::NotStarted { op, run, reason, transient: true };
        if attempts.tries >= tries_max {
            let reason = format!("{reason}; it goes on as a plain Slurm job");
            tracing::warn!("Slurm job {}: {reason}", listed.job_id);
            attempts.retry_s = now_s + DELAY_S;
            result.requests.push(SlurmRequest::Control(last_request(listed)));
            result.events.push(not_started(reason.clone()));
            result.events.push(BackendEvent::Withdrawn { external, reason });
            (job.is_done, job.is_refused) = (true, true);
            return;
        }
        let doublings = (attempts.tries.max(1) - 1).max(attempts.waits.max(1) - 1).min(6);
        let delay_s = (DELAY_S << doublings).min(DELAY_MAX_S);
        attempts.retry_s = now_s + delay_s;
        if kind == RefusalKind::Refused {
            tracing::warn!("Slurm job {}: {reason}; tried again in {delay_s} s", listed.job_id);
        }
        attempts.told = Some(reason.clone());
        let line = self.gate_request(listed);
        result.requests.extend(line.map(SlurmRequest::Control));
        result.events.push(BackendEvent::Waits { external, reason: Some(reason.clone()) });
        result.events.push(not_started(reason));
    }

    /// Makes a job that goes on as a plain one stop waiting, also if a request was lost; whether it still waits.
    pub(super) fn leave_to_slurm(
        &mut self,
        job: &ManagedJob,
        listed: Option<&ListedJob<'_>>,
        now_s: u64,
        result: &mut Reconciled,
    ) -> bool {
        let waits = |listed: &&ListedJob<'_>| {
            listed.is_pending() && licence::is_gated(&listed.record.licenses)
        };
        let Some(listed) = listed.filter(waits).filter(|_| job.is_refused) else { return false };
        let attempts = self.attempts.entry(listed.key.clone()).or_default();
        if now_s >= attempts.retry_s {
            attempts.retry_s = now_s + DELAY_S;
            let is_last = attempts.tries >= self.patience.tries_max;
            let line = if is_last { last_request(listed) } else { plain_request(listed) };
            result.requests.push(SlurmRequest::Control(line));
        }
        true
    }

    /// Takes note of what Slurm said about requests, for the jobs that it names.
    pub(in crate::slurm) fn hear(&mut self, messages: &[String]) {
        for message in messages {
            for (key, attempts) in &mut self.attempts {
                let job = crate::cluster::short_id(key);
                // `Invalid feature specification for job 7`, or `7: Invalid job id specified`.
                let is_its = message.ends_with(&format!(" job {job}"))
                    || message.starts_with(&format!("{job}: "));
                if is_its {
                    attempts.message = message.chars().filter(|one| !one.is_control()).collect();
                }
            }
        }
    }
}
