//! What the cycle is sent, and what others may read between its turns.

use crate::command::{Caller, CommandOutcome, Refusal, UserCommand};
use crate::history::History;
use crate::job_sockets::FromJob;
use crate::meter::Meter;
use crate::scheduler::{Input, Now, Scheduler};
use crate::store::{StoreError, StoreTransaction};
use std::time::Duration;
use tandem_backends::{BackendEvent, DeviceSample};
use tokio::sync::oneshot;

/// Told when a command is durable: what became of it.
pub(super) type Reply = oneshot::Sender<Result<CommandOutcome, Refusal>>;
/// Reads the present between two turns.
pub(super) type StateQuery = Box<dyn FnOnce(&Present<'_>) + Send>;

/// Writes to the store between two turns.
pub(super) type Write = Box<dyn FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError> + Send>;

/// A message for the cycle.
pub enum Message {
    /// A user's command.
    Command {
        /// Who.
        caller: Caller,
        /// What.
        command: UserCommand,
        /// Told when it is durable.
        reply: Reply,
    },
    /// Something that the scheduler need not know is to be kept.
    Write {
        /// What.
        write: Write,
        /// Told when it is durable.
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// The back end reports.
    Backend(BackendEvent),
    /// A job speaks.
    StoredJob {
        /// The job.
        job: u64,
        /// What it says.
        said: FromJob,
    },
    /// The webhook of a job was called, or that was given up.
    WebhookDone {
        /// The job.
        job: u64,
    },
    /// An input of the scheduler, as a simulated machine sends it.
    Input(Input),
    /// Somebody reads the present.
    Ask(StateQuery),
    /// Stop.
    Stop,
}

/// The present, to be read between two turns.
pub struct Present<'a> {
    /// Jobs, devices and the engine.
    pub scheduler: &'a Scheduler,
    /// Now.
    pub now: Now,
    /// Usage of the devices.
    pub devices: &'a [DeviceSample],
    /// Measurements of jobs.
    pub meter: &'a Meter,
    /// How long turns took.
    pub turns: &'a Turns,
    /// Placements over time, and series of jobs and devices.
    pub history: &'a History,
    /// Why the store cannot be written, if it cannot.
    pub trouble: Option<&'a str>,
}

/// How long turns took, in buckets.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Histogram of turn times: turns of at most 2^n microseconds.
    pub buckets: [u64; 32],
    /// Their sum in microseconds.
    pub sum_us: u64,
    /// Their number.
    pub count: u64,
    /// Times that the store could not be written.
    pub store_failures: u64,
}

impl Turns {
    pub(super) fn add(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let power = 64 - micros.leading_zeros() as usize;
        self.buckets[power.min(self.buckets.len() - 1)] += 1;
        self.sum_us += micros;
        self.count += 1;
    }
}
