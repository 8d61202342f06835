//! The thread that lists Slurm's jobs and nodes, reconciles, and sends requests.

use super::commands;
use super::completions;
use super::reconcile::{MissingRun, Reconciled, Reconciler};
use super::{LOST, SlurmError, SlurmOptions, list_jobs, nodes};
use crate::Sink;
use crate::cluster::desired::ManagedJobs;
use crate::event::BackendEvent;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Operations that arrive within this time are sent together.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The first and the longest delay after failures in a row.
const BACK_OFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// After requests the next list comes this soon, to see their effect.
const AFTER_REQUESTS: Duration = Duration::from_millis(100);

/// What the back end and its thread share.
pub(super) struct SlurmShared {
    pub(super) options: SlurmOptions,
    state: Mutex<LoopState>,
    changed: Condvar,
}

pub(super) struct LoopState {
    pub(super) reconciler: Reconciler,
    /// The desired state changed since the last list.
    is_changed: bool,
    is_stopping: bool,
}

impl SlurmShared {
    pub(super) fn new(options: SlurmOptions, reconciler: Reconciler) -> Self {
        let state = LoopState { reconciler, is_changed: true, is_stopping: false };
        Self { options, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LoopState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the desired state and wakes the thread.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut ManagedJobs) -> T) -> T {
        let mut state = self.state();
        state.is_changed = true;
        self.changed.notify_all();
        change(state.reconciler.jobs())
    }

    /// Makes the thread end.
    pub(super) fn stop(&self) {
        self.state().is_stopping = true;
        self.changed.notify_all();
    }
}

/// The thread.
pub(super) struct ControlLoop {
    pub(super) shared: Arc<SlurmShared>,
    pub(super) sink: Sink,
}

impl ControlLoop {
    pub(super) fn run(self) {
        let mut failures = 0;
        let mut wait = Duration::ZERO;
        while self.await_change(wait) {
            wait = match self.step() {
                Ok(has_requests) => {
                    if failures > 0 {
                        tracing::info!("Slurm answers again");
                    }
                    failures = 0;
                    let poll = self.shared.options.poll_every;
                    if has_requests { poll.min(AFTER_REQUESTS) } else { poll }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            "{error}; jobs keep running, none is placed until Slurm answers"
                        );
                    }
                    failures += 1;
                    back_off(failures)
                }
            };
        }
    }

    /// Waits until the desired state changes, at most for this long; `false` if the back end is dropped.
    fn await_change(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.shared.state();
        while !state.is_stopping && !state.is_changed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_stopping {
            return false;
        }
        drop(state);
        std::thread::sleep(BATCH_DELAY);
        true
    }

    /// Lists, reconciles and sends requests; whether there were any.
    fn step(&self) -> Result<bool, SlurmError> {
        // A change from here on is for the next step.
        self.shared.state().is_changed = false;
        let began = Instant::now();
        let (list, nodes) = std::thread::scope(|scope| {
            let nodes = scope.spawn(nodes::list);
            let list = list_jobs();
            (list, nodes.join())
        });
        let list = list?;
        let Ok(nodes) = nodes else { return Ok(false) };
        let nodes = nodes?;
        let listed = began.elapsed();
        let (node_events, Reconciled { requests, events, missing }) = {
            let mut state = self.shared.state();
            let events = state.reconciler.update_nodes(&nodes);
            (events, state.reconciler.reconcile(&list, unix_s()))
        };
        let decided = began.elapsed();
        let ended = missing.iter().map(|missing| self.end_of(missing));
        for event in node_events.into_iter().chain(events).chain(ended) {
            (self.sink)(event);
        }
        if requests.is_empty() {
            return Ok(false);
        }
        for message in commands::send(&requests)? {
            tracing::debug!("Slurm says: {message}");
        }
        tracing::debug!(
            "listed {} records in {} ms, decided in {} ms, {} requests in {} ms",
            list.records.len(),
            listed.as_millis(),
            (decided - listed).as_millis(),
            requests.len(),
            (began.elapsed() - decided).as_millis()
        );
        Ok(true)
    }

    /// How a run ended that Slurm no longer lists.
    fn end_of(&self, missing: &MissingRun) -> BackendEvent {
        let run = missing.run;
        match completions::look_up(&self.shared.options, missing) {
            Some(exit) => BackendEvent::Exited { run, exit },
            None => BackendEvent::Lost { run, reason: LOST.to_owned() },
        }
    }
}

/// Calls Slurm until it answers.
pub(super) fn retry<T>(call: impl Fn() -> Result<T, SlurmError>) -> T {
    let mut failures = 0;
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(error) => {
                failures += 1;
                tracing::warn!("{error}; trying again");
                std::thread::sleep(back_off(failures));
            }
        }
    }
}

/// The delay after this many failures in a row; it doubles up to a limit.
fn back_off(failures: u32) -> Duration {
    (BACK_OFF[0] * 2u32.saturating_pow(failures.saturating_sub(1).min(10))).min(BACK_OFF[1])
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
