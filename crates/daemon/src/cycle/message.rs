//! Messages to the cycle, and what others may read between two turns.

use crate::command::{Caller, CommandOutcome, Refusal, UserCommand};
use crate::history::History;
use crate::job_sockets::FromJob;
use crate::meter::Meter;
use crate::scheduler::{Input, Now, Scheduler};
use crate::store::{StoreError, StoreTransaction};
use std::time::Duration;
use tandem_backends::{BackendEvent, DeviceSample};
use tokio::sync::oneshot;

/// Receives the result of a command when it is durable.
pub(super) type Reply = oneshot::Sender<Result<CommandOutcome, Refusal>>;
/// Reads the present between two turns.
pub(super) type StateQuery = Box<dyn FnOnce(&Present<'_>) + Send>;

/// Writes to the store between two turns.
pub(super) type Write = Box<dyn FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError> + Send>;

/// A message for the cycle.
pub enum Message {
    /// A command of a user.
    Command {
        /// The caller.
        caller: Caller,
        /// The command.
        command: UserCommand,
        /// Receives the result when it is durable.
        reply: Reply,
    },
    /// A write to the store that the scheduler need not know.
    Write {
        /// The write.
        write: Write,
        /// Called when it is durable.
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// An event of the back end.
    Backend(BackendEvent),
    /// A message of a job.
    StoredJob {
        /// The job.
        job: u64,
        /// The message.
        said: FromJob,
    },
    /// The webhook of a job was called, or its last try failed.
    WebhookDone {
        /// The job.
        job: u64,
    },
    /// An input of the scheduler, for tests that simulate a machine.
    Input(Input),
    /// A request to read the present state.
    Ask {
        /// Who asks; the daemon's own questions are those of root.
        uid: u32,
        /// Reads it.
        question: StateQuery,
    },
    /// Stop.
    Stop,
}

/// The present state, readable between two turns.
pub struct Present<'a> {
    /// Jobs, devices and the engine.
    pub scheduler: &'a Scheduler,
    /// Now.
    pub now: Now,
    /// Usage of the devices.
    pub devices: &'a [DeviceSample],
    /// Measurements of jobs.
    pub meter: &'a Meter,
    /// Durations of turns.
    pub turns: &'a Turns,
    /// Placements over time, and series of jobs and devices.
    pub history: &'a History,
    /// Why the store cannot be written, if so.
    pub trouble: Option<&'a str>,
}

/// A histogram of the durations of turns.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Number of turns that took at most 2^n microseconds.
    pub buckets: [u64; 32],
    /// Sum of the durations in microseconds.
    pub sum_us: u64,
    /// Number of turns.
    pub count: u64,
    /// Number of failed writes to the store.
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
