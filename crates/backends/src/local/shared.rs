//! The state that the threads of the back end share.

use super::cgroups::{self, Cgroups};
use super::process::boot_id;
use super::record;
use super::run::{LocalRun, lock};
use super::watch::{WatchEvent, Watcher};
use super::{LocalError, LocalOptions};
use crate::Sink;
use crate::event::BackendEvent;
use crate::op::RunId;
use crate::providers::{Device, Provider};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The shared state.
pub(super) struct LocalShared {
    pub(super) options: LocalOptions,
    /// Arguments before the subcommand of the second stage.
    pub(super) arguments: Vec<String>,
    /// The boot id.
    pub(super) boot: String,
    /// The cores on which the daemon could run when it started.
    pub(super) cores: Vec<u32>,
    /// By index.
    pub(super) devices: Vec<Device>,
    /// The provider of the devices.
    pub(super) provider: Mutex<Box<dyn Provider>>,
    /// Where control groups can be created.
    pub(super) cgroups: Cgroups,
    /// The prefix of the names of our control groups.
    pub(super) cgroup_prefix: String,
    /// Waits for processes and directories.
    pub(super) watcher: Watcher,
    /// Threads that execute operations.
    pub(super) workers: AtomicUsize,
    sink: Sink,
    pub(super) runs: Mutex<BTreeMap<RunId, Arc<LocalRun>>>,
    /// Runs that belong to no job, with the devices that they hold and why.
    pub(super) held: Mutex<BTreeMap<RunId, (Vec<u32>, String)>>,
    stopping: AtomicBool,
    /// Wakes sleeping threads when the back end stops.
    pub(super) idle: (Mutex<()>, Condvar),
}

impl LocalShared {
    /// Starts no threads yet.
    pub(super) fn new(
        mut options: LocalOptions,
        mut provider: Box<dyn Provider>,
        sink: Sink,
    ) -> Result<Self, LocalError> {
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| LocalError::System { what, source }
        };
        let (_, arguments) = options.supervisor.split_first().ok_or(LocalError::Supervisor)?;
        let arguments = arguments
            .iter()
            .map(|word| word.to_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>();
        record::make_directory(&options.state.join("runs"))
            .and_then(|()| options.state.canonicalize())
            .map(|state| options.state = state)
            .map_err(system(&format!("cannot use {}", options.state.display())))?;
        let cgroup_prefix = cgroups::prefix(&options.state)
            .map_err(system(&format!("cannot use {}", options.state.display())))?;
        let cgroups = if !options.cgroups {
            Cgroups::none("switched off")
        } else if !provider.limited_by_cgroups() {
            Cgroups::none("they do not limit these devices")
        } else {
            Cgroups::find()
        };
        cgroups.remove_leftovers(&options.state, &cgroup_prefix);
        Ok(LocalShared {
            cgroups,
            cgroup_prefix,
            arguments: arguments.ok_or(LocalError::Supervisor)?,
            boot: boot_id().map_err(system("cannot read the boot id"))?,
            cores: crate::providers::cpu::allowed_cores(),
            devices: provider.list()?,
            provider: Mutex::new(provider),
            watcher: Watcher::new().map_err(system("cannot watch processes"))?,
            workers: AtomicUsize::new(0),
            sink,
            runs: Mutex::default(),
            held: Mutex::default(),
            stopping: AtomicBool::new(false),
            idle: (Mutex::new(()), Condvar::new()),
            options,
        })
    }

    /// Reports an event.
    pub(super) fn emit(&self, event: BackendEvent) {
        if !self.stopping() {
            (self.sink)(event);
        }
    }

    /// The back end is being dropped.
    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Sleeps, or until the back end stops.
    pub(super) fn idle(&self, time: Duration) {
        let guard = lock(&self.idle.0);
        if !self.stopping() {
            drop(self.idle.1.wait_timeout(guard, time));
        }
    }

    /// Makes the threads end.
    pub(super) fn stop(&self) {
        {
            let _guard = lock(&self.idle.0);
            self.stopping.store(true, Ordering::SeqCst);
        }
        self.idle.1.notify_all();
        for run in self.runs() {
            // With the lock, so that no thread is between its check of the flag and its sleep.
            drop(run.state());
            run.changed.notify_all();
        }
        self.watcher.wake();
    }

    /// Waits for threads that execute operations.
    pub(super) fn await_workers(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.workers.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
    }

    /// All runs.
    pub(super) fn runs(&self) -> Vec<Arc<LocalRun>> {
        lock(&self.runs).values().cloned().collect()
    }

    /// A run, if it is known.
    pub(super) fn known(&self, run: RunId) -> Option<Arc<LocalRun>> {
        lock(&self.runs).get(&run).cloned()
    }

    /// A run, which is known from here on.
    pub(super) fn add(&self, run: RunId) -> Arc<LocalRun> {
        lock(&self.runs).entry(run).or_insert_with(|| Arc::new(LocalRun::new(run))).clone()
    }

    /// The body of the watcher thread.
    pub(super) fn watch(&self) {
        while !self.stopping() {
            for event in self.watcher.wait() {
                match event {
                    WatchEvent::Directory(run) => self.advance(&run, &mut run.state()),
                    WatchEvent::Ended(run, process) => {
                        let mut state = run.state();
                        if state.watched.as_ref() == Some(&process) {
                            state.watched = None;
                        }
                        self.advance(&run, &mut state);
                    }
                }
            }
        }
    }
}
