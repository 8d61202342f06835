//! Slurm as the engine: it keeps the queue, starts, stops and accounts for jobs; we say which GPU a job
//! gets and when. Users go on with `sbatch`.
//!
//! A part of Slurm's plugin (`files/tandem.lua`) holds GPU jobs and leaves a `note`. One thread lists the
//! jobs (`jobs`), brings them in line with what is wanted (`book`, which is pure), and asks Slurm for what
//! is missing through its own programs (`commands`). Slurm is the truth: what a list shows is so.

mod admin_comment;
mod commands;
mod completions;
mod dependency;
mod jobs;
mod nodes;
mod reconcile;
mod release;
mod setup;
mod syntax;
#[cfg(test)]
mod testing;

pub use commands::CallError;
pub use nodes::NodeListError;
pub use release::{ReleaseReport, release_all};
pub use setup::{
    SetupCheck, SetupError, SetupFile, SetupOptions, check, default_slurm_uid, detect, files,
    gres_lines,
};

use crate::event::BackendEvent;
use crate::op::{Op, OpId, RunId};
use crate::providers::Device;
use crate::recovery::RecoveredRun;
use crate::{Backend, Sink};
use crate::{Capabilities, KnownJob};
use jobs::JobList;
use reconcile::{MissingRun, Reconciler};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The oldest version whose answers we can read.
const VERSION_MIN: (u32, u32) = (22, 5);
/// From this one on a second choice of GPUs replaces the first.
const VERSION_REPLACES: (u32, u32, u32) = (23, 2, 7);
/// Operations that come together are asked for together.
const GATHER: Duration = Duration::from_millis(20);
/// Slurm is asked again after a failure, at first after the first and at last after the second.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// What was asked for is looked at after this.
const SHOWS_AFTER: Duration = Duration::from_millis(100);

/// How a [`SlurmBackend`] does its work.
#[derive(Clone, Debug)]
pub struct SlurmOptions {
    /// The partition whose GPU jobs are ours.
    pub partition: String,
    /// The most jobs on a GPU.
    pub tenants_max: u64,
    /// Memory of each GPU, which Slurm does not know.
    pub gpu_memory_bytes: u64,
    /// Time between two lists.
    pub poll_every: Duration,
    /// The file in which Slurm writes down jobs that are over, if it does.
    pub completions: Option<PathBuf>,
}

/// Why there is no back end.
#[derive(Debug, Error)]
pub enum SlurmError {
    /// Slurm does not answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its GPUs cannot be used.
    #[error(transparent)]
    Cluster(#[from] NodeListError),
    /// Its answer cannot be read.
    #[error("squeue: its list of jobs cannot be read: {0}")]
    Unreadable(String),
    /// It is too old.
    #[error("Slurm {0}.{1:02} is too old; Tandem needs 22.05 or newer")]
    Old(u32, u32),
    /// No thread can be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Lets Slurm run its jobs where it is told.
pub struct SlurmBackend {
    shared: Arc<SlurmShared>,
    devices: Vec<Device>,
    sink: Option<Sink>,
    thread: Option<JoinHandle<()>>,
}

struct SlurmShared {
    options: SlurmOptions,
    desk: Mutex<ReconcilerState>,
    changed: Condvar,
}

struct ReconcilerState {
    book: Reconciler,
    /// Operations came since the last list.
    is_dirty: bool,
    is_over: bool,
}

impl SlurmShared {
    fn desk(&self) -> MutexGuard<'_, ReconcilerState> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlurmBackend {
    /// Makes one; Slurm has to answer. The sink is called from a thread of its own, and must not call the
    /// back end. Nothing is asked of Slurm before [`Backend::recover`].
    pub fn new(options: SlurmOptions, sink: Sink) -> Result<Self, SlurmError> {
        let listing = list()?;
        let (major, minor, micro) = listing.version.unwrap_or_default();
        if (major, minor) < VERSION_MIN {
            return Err(SlurmError::Old(major, minor));
        }
        let nodes = nodes::ours(nodes::list()?, &options.partition)?;
        let replaces = (major, minor, micro) >= VERSION_REPLACES;
        let book = Reconciler::new(options.partition.clone(), nodes, options.tenants_max, replaces);
        let device = |(index, place): (u32, &reconcile::ClusterGpu)| {
            let node = book.nodes()[place.node].name.clone();
            Device {
                index,
                name: format!("{node}:{}", place.kind),
                kind: "gpu".to_owned(),
                memory_bytes: options.gpu_memory_bytes,
                node,
            }
        };
        let devices = (0..).zip(&book.places).map(device).collect();
        let desk = Mutex::new(ReconcilerState { book, is_dirty: true, is_over: false });
        let shared = Arc::new(SlurmShared { options, desk, changed: Condvar::new() });
        Ok(Self { shared, devices, sink: Some(sink), thread: None })
    }

    fn begin(&mut self) {
        let Some(sink) = self.sink.take() else { return };
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("slurm".to_owned());
        match thread.spawn(move || ReconcileLoop { shared, sink }.go_on()) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::error!("cannot start a thread: {error}; Slurm is left alone"),
        }
    }
}

impl Backend for SlurmBackend {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause_forbidden: None,
            // A suspended job keeps its GPUs, in Slurm's books and in their memory.
            pause_frees_device: false,
            gangs_share: false,
            moves: false,
            measures_memory: false,
            keeps_queue: true,
        }
    }

    fn unavailable_devices(&mut self) -> Vec<(u32, String)> {
        let mut desk = self.shared.desk();
        let nodes = desk.book.nodes().to_vec();
        let closed = |event| match event {
            BackendEvent::Device { device, unavailable: closed } => Some((device, closed?)),
            _ => None,
        };
        desk.book.look_at(&nodes).into_iter().filter_map(closed).collect()
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let listing = persistently(list);
        let (mut found, forgotten) = self.shared.desk().book.recover(jobs, &listing);
        for run in forgotten {
            let told = match completions::look_up(&self.shared.options, &run) {
                Some(exit) => RecoveredRun::Exited(exit),
                None => RecoveredRun::Lost { reason: lost() },
            };
            found.push((run.run, told));
        }
        self.begin();
        found
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let mut desk = self.shared.desk();
        let is_known = match &op {
            Op::Start(launch) => match &launch.external {
                Some(external) => {
                    let devices = launch.allocation.devices.clone();
                    desk.book.start(id, external, launch.run, devices, launch.exclusive);
                    true
                }
                None => false,
            },
            Op::Pause { run } => desk.book.pause(id, *run, true),
            Op::Resume { run, .. } => desk.book.pause(id, *run, false),
            Op::End { run, .. } => desk.book.end(id, *run),
            Op::Withdraw { external, .. } => desk.book.withdraw(external),
        };
        if !is_known {
            // What is over or never was cannot be changed; how it ended was or will be told.
            tracing::warn!("run {} is none of Slurm's", op.run());
        }
        desk.is_dirty = true;
        self.shared.changed.notify_all();
    }

    fn forget(&mut self, run: RunId) {
        self.shared.desk().book.forget(run);
    }
}

impl Drop for SlurmBackend {
    fn drop(&mut self) {
        self.shared.desk().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that talks to Slurm.
struct ReconcileLoop {
    shared: Arc<SlurmShared>,
    sink: Sink,
}

impl ReconcileLoop {
    fn go_on(mut self) {
        let mut failures = 0;
        let mut wait = Duration::ZERO;
        while self.await_work(wait) {
            wait = match self.turn() {
                Ok(busy) => {
                    if failures > 0 {
                        tracing::info!("Slurm answers again");
                    }
                    failures = 0;
                    let poll = self.shared.options.poll_every;
                    if busy { poll.min(SHOWS_AFTER) } else { poll }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            "{error}; jobs go on, nothing is decided until Slurm answers"
                        );
                    }
                    failures += 1;
                    delay(failures)
                }
            };
        }
    }

    /// Waits for work or so long; `false` if the back end is over.
    fn await_work(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut desk = self.shared.desk();
        while !desk.is_over && !desk.is_dirty {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.shared.changed.wait_timeout(desk, left);
            desk = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if desk.is_over {
            return false;
        }
        drop(desk);
        std::thread::sleep(GATHER);
        true
    }

    /// Lists, brings in line, asks; whether anything was asked for.
    fn turn(&mut self) -> Result<bool, SlurmError> {
        // What comes from here on is for the next turn.
        self.shared.desk().is_dirty = false;
        let began = Instant::now();
        let (listing, nodes) = std::thread::scope(|scope| {
            let nodes = scope.spawn(nodes::list);
            let listing = list();
            (listing, nodes.join())
        });
        let listing = listing?;
        let Ok(nodes) = nodes else { return Ok(false) };
        let nodes = nodes?;
        let listed = began.elapsed();
        let turn = {
            let mut desk = self.shared.desk();
            let mut events = desk.book.look_at(&nodes);
            let mut turn = desk.book.turn(&listing, unix_s());
            events.append(&mut turn.events);
            reconcile::Reconciled { events, ..turn }
        };
        let decided = began.elapsed();
        for event in turn.events {
            (self.sink)(event);
        }
        for run in turn.forgotten {
            (self.sink)(self.recall(&run));
        }
        if turn.requests.is_empty() {
            return Ok(false);
        }
        for said in commands::ask(&turn.requests)? {
            tracing::debug!("Slurm says: {said}");
        }
        tracing::debug!(
            "listed {} records in {} ms, decided in {} ms, {} requests in {} ms",
            listing.records.len(),
            listed.as_millis(),
            (decided - listed).as_millis(),
            turn.requests.len(),
            (began.elapsed() - decided).as_millis()
        );
        Ok(true)
    }

    /// How a run ended that Slurm has forgotten.
    fn recall(&self, run: &MissingRun) -> BackendEvent {
        match completions::look_up(&self.shared.options, run) {
            Some(exit) => BackendEvent::Exited { run: run.run, exit },
            None => BackendEvent::Lost { run: run.run, reason: lost() },
        }
    }
}

fn lost() -> String {
    "Slurm does not know it any more and wrote nothing down".to_owned()
}

fn list() -> Result<JobList, SlurmError> {
    let json = commands::output("squeue", &["--json", "--all"])?;
    jobs::read(&json).map_err(SlurmError::Unreadable)
}

/// Asks until there is an answer: without one there is nothing to begin with.
fn persistently<T>(ask: impl Fn() -> Result<T, SlurmError>) -> T {
    let mut failures = 0;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) => {
                failures += 1;
                tracing::warn!("{error}; trying again");
                std::thread::sleep(delay(failures));
            }
        }
    }
}

/// Longer after every failure in a row.
fn delay(failures: u32) -> Duration {
    (AGAIN[0] * 2u32.saturating_pow(failures.saturating_sub(1).min(10))).min(AGAIN[1])
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
