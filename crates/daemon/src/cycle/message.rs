//! Messages to the cycle, and what others may read between two turns.

use crate::command::{Caller, CommandOutcome, Refusal, UserCommand};
use crate::history::History;
use crate::job_sockets::FromJob;
use crate::meter::Meter;
use crate::scheduler::{Input, Now, Phase, Scheduler};
use crate::store::{StoreError, StoreTransaction};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
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
    /// The latest count of jobs.
    pub(super) tally: &'a RefCell<Arc<Tally>>,
}

/// The jobs that have not ended, counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Their number by state.
    pub by_state: BTreeMap<String, u64>,
    /// Those that have a process.
    pub with_process: Vec<u64>,
    /// Services.
    pub services: Vec<u64>,
    counted: Option<(Instant, Duration)>,
}

/// Counting takes at most this part of the time, one to so many.
const TALLY_FACTOR: u32 = 20;

impl Present<'_> {
    /// The jobs that have not ended, counted a moment ago: whoever asks for it again and again does not keep the
    /// scheduler busy.
    pub fn tally(&self) -> Arc<Tally> {
        let is_fresh = |(at, took): (Instant, Duration)| at.elapsed() < took * TALLY_FACTOR;
        if !self.tally.borrow().counted.is_some_and(is_fresh) {
            let began = Instant::now();
            let mut tally = Tally::default();
            let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
            for active in self.scheduler.jobs() {
                *states.entry(active.job.state.name()).or_default() += 1;
                if active.phase != Phase::Absent {
                    tally.with_process.push(active.job.id);
                }
                if active.job.request.is_service() {
                    tally.services.push(active.job.id);
                }
            }
            let named = states.into_iter().map(|(name, count)| (name.to_owned(), count));
            tally.by_state = named.collect();
            let now = Instant::now();
            tally.counted = Some((now, now - began));
            self.tally.replace(Arc::new(tally));
        }
        self.tally.borrow().clone()
    }
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
