//! The thread of a cluster's back end: it waits for a change of the desired state or for the time of the next
//! list, takes a step, and backs off while the cluster does not answer.

use super::desired::ManagedJobs;
use crate::Sink;
use std::fmt::Display;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Operations that arrive within this time are sent together.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// The delay after the first failure; it doubles with each further one.
const BACK_OFF_MIN: Duration = Duration::from_secs(1);

/// What differs between clusters.
pub(crate) trait Cluster: Send + 'static {
    /// Compares lists with the desired state, which it holds.
    type Reconciler: HoldsJobs + Send + 'static;
    /// Why a step failed.
    type Error: Display;

    /// The cluster's name in messages and of the thread.
    const NAME: &'static str;
    /// What its jobs are called.
    const JOBS: &'static str;
    /// The longest delay after failures in a row.
    const BACK_OFF_MAX: Duration;
    /// After requests the next list comes this soon, to see their effect.
    const AFTER_REQUESTS: Duration;

    /// Time until the next list after one that took this long.
    fn poll_after(&self, took: Duration) -> Duration;

    /// Lists, reconciles and sends requests; whether there were any.
    fn step(&mut self, state: &Shared<Self::Reconciler>, sink: &Sink) -> Result<bool, Self::Error>;
}

/// A reconciler, as the control loop sees it.
pub(crate) trait HoldsJobs {
    /// The desired state, which operations change.
    fn jobs(&mut self) -> &mut ManagedJobs;
}

/// What a back end and its thread share.
pub(crate) struct Shared<R> {
    state: Mutex<State<R>>,
    changed: Condvar,
}

struct State<R> {
    reconciler: R,
    /// The desired state changed since the last step began.
    is_changed: bool,
    is_stopping: bool,
}

impl<R> Shared<R> {
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the reconciler that does not change the desired state.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut R) -> T) -> T {
        work(&mut self.state().reconciler)
    }

    /// Waits until the desired state changes, at most for this long; `false` if the back end is dropped.
    fn await_change(&self, wait: Duration) -> bool {
        let until = Instant::now() + wait;
        let mut state = self.state();
        while !state.is_stopping && !state.is_changed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_stopping {
            return false;
        }
        drop(state);
        std::thread::sleep(BATCH_DELAY);
        // A change from here on is for the step after the next one.
        self.state().is_changed = false;
        true
    }
}

/// The reconciler of a cluster and, once started, the thread that steps it. Ends the thread when dropped.
pub(crate) struct ControlLoop<R> {
    shared: Arc<Shared<R>>,
    sink: Option<Sink>,
    thread: Option<JoinHandle<()>>,
}

impl<R: HoldsJobs + Send + 'static> ControlLoop<R> {
    pub(crate) fn new(reconciler: R, sink: Sink) -> Self {
        let state = State { reconciler, is_changed: true, is_stopping: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, sink: Some(sink), thread: None }
    }

    /// Does something with the reconciler that does not change the desired state.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut R) -> T) -> T {
        self.shared.with(work)
    }

    /// Changes the desired state and wakes the thread.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut ManagedJobs) -> T) -> T {
        let mut state = self.shared.state();
        state.is_changed = true;
        self.shared.changed.notify_all();
        change(state.reconciler.jobs())
    }

    /// Starts the thread, once.
    pub(crate) fn start<C: Cluster<Reconciler = R>>(&mut self, cluster: C) {
        let Some(sink) = self.sink.take() else { return };
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name(C::NAME.to_lowercase());
        match thread.spawn(move || run(cluster, &shared, &sink)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                tracing::error!("cannot start a thread: {error}; no {} will be placed", C::JOBS);
            }
        }
    }
}

impl<R> Drop for ControlLoop<R> {
    fn drop(&mut self) {
        self.shared.state().is_stopping = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<C: Cluster>(mut cluster: C, shared: &Shared<C::Reconciler>, sink: &Sink) {
    let mut failures = 0;
    let mut wait = Duration::ZERO;
    while shared.await_change(wait) {
        let began = Instant::now();
        wait = match cluster.step(shared, sink) {
            Ok(has_requests) => {
                if failures > 0 {
                    tracing::info!("{} answers again", C::NAME);
                }
                failures = 0;
                let poll = cluster.poll_after(began.elapsed());
                if has_requests { poll.min(C::AFTER_REQUESTS) } else { poll }
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(
                        "{error}; {} keep running, none is placed until {} answers",
                        C::JOBS,
                        C::NAME
                    );
                }
                failures += 1;
                back_off(failures, C::BACK_OFF_MAX)
            }
        };
    }
}

/// Calls the cluster until it answers.
pub(crate) fn retry<C: Cluster, T>(call: impl Fn() -> Result<T, C::Error>) -> T {
    let mut failures = 0;
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(error) => {
                failures += 1;
                tracing::warn!("{error}; trying again");
                std::thread::sleep(back_off(failures, C::BACK_OFF_MAX));
            }
        }
    }
}

/// The delay after this many failures in a row.
fn back_off(failures: u32, longest: Duration) -> Duration {
    BACK_OFF_MIN.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::desired::DesiredRun;
    use crate::op::{OpId, RunId};
    use std::sync::mpsc::{Receiver, Sender, channel};

    #[test]
    fn delays_double_up_to_the_longest() {
        let longest = Duration::from_secs(60);
        let delays = [1, 2, 3, 7, 40].map(|failures| back_off(failures, longest).as_secs());
        assert_eq!(delays, [1, 2, 4, 60, 60]);
    }

    /// A cluster that says when it is stepped.
    struct Counted {
        steps: Sender<usize>,
        fail: bool,
    }

    impl Cluster for Counted {
        type Reconciler = Jobs;
        type Error = &'static str;
        const NAME: &'static str = "Counted";
        const JOBS: &'static str = "jobs";
        const BACK_OFF_MAX: Duration = Duration::from_millis(1);
        const AFTER_REQUESTS: Duration = Duration::ZERO;

        fn poll_after(&self, _: Duration) -> Duration {
            Duration::from_secs(3600)
        }

        fn step(&mut self, state: &Shared<Jobs>, _: &Sink) -> Result<bool, &'static str> {
            let _ = self.steps.send(state.with(|jobs| jobs.0.jobs.len()));
            if std::mem::take(&mut self.fail) { Err("it is away") } else { Ok(false) }
        }
    }

    #[derive(Default)]
    struct Jobs(ManagedJobs);

    impl HoldsJobs for Jobs {
        fn jobs(&mut self) -> &mut ManagedJobs {
            &mut self.0
        }
    }

    fn started(fail: bool) -> (ControlLoop<Jobs>, Receiver<usize>) {
        let (steps, stepped) = channel();
        let mut control_loop = ControlLoop::new(Jobs::default(), Box::new(|_| ()));
        control_loop.start(Counted { steps, fail });
        (control_loop, stepped)
    }

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_change_is_seen_long_before_the_next_poll_and_a_drop_ends_the_thread() {
        let (control_loop, stepped) = started(false);
        assert_eq!(stepped.recv_timeout(SOON), Ok(0));
        control_loop.change(|jobs| {
            jobs.start("1#a", DesiredRun::new(RunId { job: 1, run: 1 }, OpId(1), vec![0]));
        });
        assert_eq!(stepped.recv_timeout(SOON), Ok(1));
        drop(control_loop);
        assert!(stepped.recv().is_err());
    }

    #[test]
    fn a_failed_step_is_taken_again() {
        let (_control_loop, stepped) = started(true);
        assert_eq!(stepped.recv_timeout(SOON), Ok(0));
        assert_eq!(stepped.recv_timeout(SOON), Ok(0));
    }
}
