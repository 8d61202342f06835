//! Runs processes on this machine. Needs no privileges: it uses process groups, CPU affinity and signals,
//! and control groups where the system allows it (`cgroups`, `cgroup`).
//!
//! Every run has a directory (`record`) and a supervisor (`supervisor`), a process that outlives the daemon.
//! The supervisor starts a second stage (`exec_stage`), which executes the program. The back end watches
//! supervisors (`watch`), executes the operations of each run on a thread of its own (`operations`), and
//! after a restart finds every run from its records and `/proc` (`probe`, `recover`).

mod cgroup;
mod cgroups;
mod exec_stage;
mod held;
mod lifecycle;
mod oom;
mod operations;
mod probe;
mod process;
mod record;
mod recover;
mod run;
mod run_as;
mod sample;
mod shared;
mod start_error;
mod supervisor;
mod watch;

pub use cgroups::Cgroups;
pub use exec_stage::exec_stage;
pub use run_as::as_user;
pub use supervisor::supervise;

use crate::event::BackendEvent;
use crate::op::{Op, OpId, RunId};
use crate::providers::{Device, Provider, ProviderError};
use crate::recovery::RecoveredRun;
use crate::{Backend, Sink};
use crate::{Capabilities, KnownJob};
use shared::LocalShared;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The file of this program, even if it was replaced by another one since.
const THIS: &str = "/proc/self/exe";

/// How a [`LocalBackend`] works.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Folder of the records of runs.
    pub state: PathBuf,
    /// Program and first arguments. `supervise DIR` or `enter` follow, which must call [`supervise`] and
    /// [`exec_stage`].
    pub supervisor: Vec<OsString>,
    /// Time between two samples of runs and devices.
    pub sample_every: Duration,
    /// A pause fails if the run is not stopped within this time.
    pub pause_within: Duration,
    /// Limit runs by control groups, where the provider's devices can be limited by them and the system
    /// allows it.
    pub cgroups: bool,
}

impl LocalOptions {
    /// Defaults: this program is the supervisor.
    pub fn new(state: impl Into<PathBuf>) -> Self {
        LocalOptions {
            state: state.into(),
            supervisor: vec![THIS.into()],
            sample_every: Duration::from_secs(1),
            pause_within: Duration::from_secs(2),
            cgroups: true,
        }
    }
}

/// Why there is no back end.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The provider has no devices.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The supervisor's command is empty or not UTF-8.
    #[error("the supervisor's command is not usable")]
    Supervisor,
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The error.
        source: io::Error,
    },
}

/// Runs processes of this machine on the devices of one provider.
///
/// An operation that fails without any effect, because the provider rejects it or the records cannot be
/// written, is `Refused`; such a start may be sent again. A program that cannot be executed is `NotStarted`.
/// A run whose supervisor was killed while it started is `Lost` without having been `Started`. A start of a
/// run that already runs is answered by `Started` once more. Dropping the back end stops its threads and
/// leaves runs alone; the next back end gets operations without a result again.
pub struct LocalBackend {
    shared: Arc<LocalShared>,
    threads: Vec<JoinHandle<()>>,
}

impl LocalBackend {
    /// The sink is called from several threads, for one run in the order of its events. It must not call the
    /// back end.
    pub fn new(
        options: LocalOptions,
        provider: Box<dyn Provider>,
        sink: Sink,
    ) -> Result<Self, LocalError> {
        let shared = Arc::new(LocalShared::new(options, provider, sink)?);
        let mut backend = LocalBackend { shared: shared.clone(), threads: Vec::new() };
        let watcher = shared.clone();
        backend.spawn("watcher", move || watcher.watch())?;
        backend.spawn("sampler", move || shared.sample())?;
        Ok(backend)
    }

    /// Where control groups of runs can be created, or why they cannot.
    pub fn cgroups(&self) -> &Cgroups {
        &self.shared.cgroups
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), LocalError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = thread.map_err(|source| LocalError::System {
            what: "cannot start a thread".to_owned(),
            source,
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Backend for LocalBackend {
    fn devices(&self) -> &[Device] {
        &self.shared.devices
    }

    fn capabilities(&self) -> Capabilities {
        let provider = run::lock(&self.shared.provider);
        Capabilities {
            pause_forbidden: provider.pause_forbidden(),
            pause_frees_device: provider.pause_frees_device(),
            live_budgets: provider.limited_by_cgroups() && self.shared.cgroups.have_quotas(),
            ..Capabilities::LOCAL
        }
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let runs = jobs.iter().filter(|job| job.has_run).map(|job| job.run);
        runs.map(|run| (run, self.shared.recover(run))).collect()
    }

    fn records(&self) -> Vec<RunId> {
        self.shared.records()
    }

    fn live_devices(&self, run: RunId) -> Option<Vec<u32>> {
        self.shared.live_devices(run)
    }

    fn hold(&mut self, run: RunId) -> Vec<(u32, String)> {
        self.shared.hold(run)
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let run = match (self.shared.known(op.run()), &op) {
            (Some(run), _) => run,
            (None, Op::Start(launch)) => self.shared.add(launch.run),
            (None, _) => {
                let reason = format!("there is no run {}", op.run());
                let (run, transient) = (op.run(), false);
                self.shared.emit(BackendEvent::Refused { op: id, run, reason, transient });
                return;
            }
        };
        let mut queue = run::lock(&run.queue);
        queue.waiting.push_back((id, op, Instant::now()));
        run.changed.notify_all();
        if queue.busy {
            return;
        }
        let (shared, worker) = (self.shared.clone(), run.clone());
        let name = format!("run {}", run.id);
        match std::thread::Builder::new().name(name).spawn(move || shared.run_operations(&worker)) {
            Ok(_) => queue.busy = true,
            Err(error) => {
                queue.waiting.clear();
                let reason = format!("cannot start a thread: {error}");
                let (run, transient) = (run.id, false);
                self.shared.emit(BackendEvent::Refused { op: id, run, reason, transient });
            }
        }
    }

    fn forget(&mut self, run: RunId) {
        self.shared.forget(run);
    }
}

impl Drop for LocalBackend {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.shared.await_workers();
    }
}
