//! The thread that lists pods and claims, reconciles, and sends requests.

use super::KubernetesOptions;
use super::client::{KubeClient, KubeError};
use super::lease::Lease;
use super::reconcile::{KubeReconciled, KubeReconciler};
use crate::Sink;
use crate::cluster::desired::ManagedJobs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Operations that arrive within this time are sent together.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The first and the longest delay after failures in a row.
const BACK_OFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Delay of the next list after requests, to see their effect soon.
const AFTER_REQUESTS: Duration = Duration::from_millis(50);

/// What the back end and its thread share.
pub(super) struct KubeShared {
    options: KubernetesOptions,
    pub(super) client: KubeClient,
    state: Mutex<KubeLoopState>,
    changed: Condvar,
}

pub(super) struct KubeLoopState {
    pub(super) reconciler: KubeReconciler,
    /// The desired state changed since the last list.
    is_changed: bool,
    is_stopping: bool,
}

impl KubeShared {
    pub(super) fn new(
        options: KubernetesOptions,
        client: KubeClient,
        reconciler: KubeReconciler,
    ) -> Self {
        let state = KubeLoopState { reconciler, is_changed: true, is_stopping: false };
        Self { options, client, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, KubeLoopState> {
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
pub(super) struct KubeControlLoop {
    shared: Arc<KubeShared>,
    sink: Sink,
    lease: Lease,
    /// Another daemon held the lease at the last step; logged once.
    is_standby: bool,
}

impl KubeControlLoop {
    pub(super) fn new(shared: Arc<KubeShared>, sink: Sink) -> Self {
        let lease = Lease::new(&shared.options.namespace);
        Self { shared, sink, lease, is_standby: false }
    }

    pub(super) fn run(mut self) {
        let mut failures = 0;
        let mut wait = Duration::ZERO;
        while self.await_change(wait) {
            wait = match self.step() {
                Ok(has_requests) => {
                    if failures > 0 {
                        tracing::info!("Kubernetes answers again");
                    }
                    failures = 0;
                    let poll = self.shared.options.poll_every;
                    if has_requests { poll.min(AFTER_REQUESTS) } else { poll }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            "{error}; pods keep running, none is placed until it answers"
                        );
                    }
                    failures += 1;
                    back_off(failures)
                }
            };
        }
    }

    /// Waits until the desired state changes, or for `wait`. Returns `false` when the back end is dropped.
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

    /// Lists, reconciles and sends requests. Returns whether there were requests.
    fn step(&mut self) -> Result<bool, KubeError> {
        // A later change is seen by the next step.
        self.shared.state().is_changed = false;
        let client = &self.shared.client;
        let is_holder = self.lease.hold(client)?;
        if !is_holder && !self.is_standby {
            tracing::warn!("another daemon holds the lease of Tandem; waiting, nothing is changed");
        }
        self.is_standby = !is_holder;
        if !is_holder {
            return Ok(false);
        }
        let list = client.list()?;
        let KubeReconciled { requests, events } =
            self.shared.state().reconciler.reconcile(&list, unix_s());
        for event in events {
            (self.sink)(event);
        }
        client.send(&requests)?;
        Ok(!requests.is_empty())
    }
}

/// Repeats a call until the cluster answers.
pub(super) fn retry<T>(call: impl Fn() -> Result<T, KubeError>) -> T {
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
