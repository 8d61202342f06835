//! Processes of this machine, without privileges: process groups, affinity, niceness and signals; where
//! the system allows it, control groups on top (`groups`, `group`).
//!
//! Every run has a directory (`record`) and a supervisor (`supervisor`), a process of its own that
//! outlives the daemon; it starts a second stage (`enter`) that becomes the program. The back end
//! watches supervisors (`watch`), carries out operations on threads of their own, one per run (`work`),
//! and after a restart finds everything again from the records and `/proc` (`look`).

mod cgroup;
mod cgroups;
mod exec_stage;
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

pub use cgroups::{Cgroups, LEAF};
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

/// The file that runs here, even if another one has its name by now.
const THIS: &str = "/proc/self/exe";

/// How a [`LocalBackend`] does its work.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Where the records of runs are kept.
    pub state: PathBuf,
    /// Program and leading arguments; `supervise DIR` or `enter` follow, and must lead to
    /// [`supervise`] and [`enter`].
    pub supervisor: Vec<OsString>,
    /// How often runs and devices are looked at while there are runs.
    pub sample_every: Duration,
    /// How long a run may take to stand still before its pause is refused.
    pub pause_within: Duration,
    /// Whether runs get control groups, where the provider's devices are limited by them and the system
    /// allows it.
    pub groups: bool,
}

impl LocalOptions {
    /// The usual ones: this program is the supervisor.
    pub fn new(state: impl Into<PathBuf>) -> Self {
        LocalOptions {
            state: state.into(),
            supervisor: vec![THIS.into()],
            sample_every: Duration::from_secs(1),
            pause_within: Duration::from_secs(2),
            groups: true,
        }
    }
}

/// Why there is no back end.
#[derive(Debug, Error)]
pub enum LocalError {
    /// The provider has no devices.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The supervisor's command is empty or no text.
    #[error("the supervisor's command is not usable")]
    Supervisor,
    /// Something of the system is missing.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Runs processes of this machine on the devices of one provider.
///
/// An operation that fails before anything happened, because the provider refuses or the records cannot
/// be written, is `Refused`, also a start, which may be sent again; a program that cannot be executed is
/// `NotStarted`. A run whose supervisor was killed while it was about to begin is `Lost` without having
/// been `StartRecord`. A start of a run that is known to run is answered by `StartRecord` once more. Dropping the
/// back end stops its threads and leaves runs alone; operations whose outcome was not reported are to be
/// sent again by the next one.
pub struct LocalBackend {
    inner: Arc<LocalShared>,
    threads: Vec<JoinHandle<()>>,
}

impl LocalBackend {
    /// Makes one. The sink is called from several threads, for one run in the order of events, and
    /// must not call the back end.
    pub fn new(
        options: LocalOptions,
        provider: Box<dyn Provider>,
        sink: Sink,
    ) -> Result<Self, LocalError> {
        let inner = Arc::new(LocalShared::new(options, provider, sink)?);
        let mut backend = LocalBackend { inner: inner.clone(), threads: Vec::new() };
        let watcher = inner.clone();
        backend.spawn("watcher", move || watcher.watch())?;
        backend.spawn("sampler", move || inner.sample())?;
        Ok(backend)
    }

    /// Where control groups can be made for runs, or why they cannot.
    pub fn cgroups(&self) -> &Cgroups {
        &self.inner.groups
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
        &self.inner.devices
    }

    fn capabilities(&self) -> Capabilities {
        let provider = run::lock(&self.inner.provider);
        Capabilities {
            pause_forbidden: provider.pause_forbidden(),
            pause_frees_device: provider.pause_frees_device(),
            gangs_share: true,
            moves: true,
            measures_memory: true,
            keeps_queue: false,
        }
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let runs = jobs.iter().filter(|job| job.has_run).map(|job| job.run);
        runs.map(|run| (run, self.inner.recover(run))).collect()
    }

    fn records(&self) -> Vec<RunId> {
        self.inner.records()
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let run = match (self.inner.known(op.run()), &op) {
            (Some(run), _) => run,
            (None, Op::Start(launch)) => self.inner.add(launch.run),
            (None, _) => {
                let reason = format!("there is no run {}", op.run());
                let (run, transient) = (op.run(), false);
                self.inner.emit(BackendEvent::Refused { op: id, run, reason, transient });
                return;
            }
        };
        let mut queue = run::lock(&run.queue);
        queue.waiting.push_back((id, op, Instant::now()));
        run.changed.notify_all();
        if queue.busy {
            return;
        }
        let (inner, worker) = (self.inner.clone(), run.clone());
        let name = format!("run {}", run.id);
        match std::thread::Builder::new().name(name).spawn(move || inner.work(&worker)) {
            Ok(_) => queue.busy = true,
            Err(error) => {
                queue.waiting.clear();
                let reason = format!("cannot start a thread: {error}");
                let (run, transient) = (run.id, false);
                self.inner.emit(BackendEvent::Refused { op: id, run, reason, transient });
            }
        }
    }

    fn forget(&mut self, run: RunId) {
        self.inner.forget(run);
    }
}

impl Drop for LocalBackend {
    fn drop(&mut self) {
        self.inner.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.inner.await_workers();
    }
}
