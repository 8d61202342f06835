//! The daemon: state folder, back end, cycle and HTTP interface, from start to stop.

mod files;
mod startup;

use crate::api::{self, Api};
use crate::class::ClassRules;
use crate::clock::unix_us;
use crate::cycle::Message;
use crate::mail::Mailer;
use crate::meter::MeterOptions;
use crate::relays::{self, RelayOptions};
use crate::scheduler::People;
use crate::store::StoreError;
use crate::tls::{CertificateFiles, TlsError};
use files::{listen, listen_tcp, listen_web, lock, make_folder, make_private};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
#[cfg(feature = "kubernetes")]
use tandem_backends::kubernetes;
use tandem_backends::local::LocalError;
use tandem_backends::{Foreign, ProcessLimits, Provider, slurm};
use tandem_policies::PolicySpec;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

/// The back end that a daemon drives.
pub enum BackendChoice {
    /// Processes of this machine, on devices that this provider knows.
    Local(Box<dyn Provider>),
    /// Slurm.
    Slurm {
        /// How it is used.
        options: slurm::SlurmOptions,
        /// Memory that a job takes on each GPU if it says nothing; such jobs stay alone if absent.
        job_memory_bytes: Option<u64>,
    },
    /// Kubernetes.
    #[cfg(feature = "kubernetes")]
    Kubernetes {
        /// How it is used.
        options: kubernetes::KubernetesOptions,
        /// Memory that a pod takes on each GPU if it says nothing; such pods stay alone if absent.
        job_memory_bytes: Option<u64>,
    },
}

impl BackendChoice {
    /// `cpu`, `nvidia`, `fake`, `slurm` or `kubernetes`.
    pub fn name(&self) -> &'static str {
        match self {
            BackendChoice::Local(provider) => provider.name(),
            BackendChoice::Slurm { .. } => "slurm",
            #[cfg(feature = "kubernetes")]
            BackendChoice::Kubernetes { .. } => "kubernetes",
        }
    }

    /// The partition of the cluster whose jobs are placed.
    fn partition(&self) -> Option<&str> {
        match self {
            BackendChoice::Slurm { options, .. } => Some(&options.partition),
            _ => None,
        }
    }
}

/// How a daemon works.
pub struct DaemonOptions {
    /// Where it keeps what outlives it.
    pub state: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    /// Where it listens to TCP, if at all.
    pub listen: Option<SocketAddr>,
    /// Where it serves the dashboard, always with TLS, if at all.
    pub web: Option<SocketAddr>,
    /// TCP is encrypted. Without that it listens on loopback addresses only.
    pub tls: bool,
    /// The certificate of TLS; the daemon makes one if absent.
    pub certificate: Option<CertificateFiles>,
    /// Shares and limits between users.
    pub people: People,
    /// How mail about jobs is sent, if at all.
    pub mailer: Option<Mailer>,
    /// Mask and limits of the processes of jobs.
    pub process: ProcessLimits,
    /// Names or numbers of users who are operators besides root and the user of the daemon.
    pub operators: Vec<String>,
    /// The policy.
    pub policy: PolicySpec,
    /// Jobs may share devices.
    pub share: bool,
    /// How runs are supervised: program and leading arguments.
    pub supervisor: Vec<std::ffi::OsString>,
    /// Time between the request to end and the end by force.
    pub kill_grace: Duration,
    /// Time that a job has to save its state.
    pub stop_grace: Duration,
    /// What going on after a stop costs, in seconds.
    pub restore_s: f64,
    /// How much has to be seen before something is known.
    pub meter: MeterOptions,
    /// Arguments that belong to the class of a job, or do not.
    pub class_rules: ClassRules,
    /// How often the usage of runs and devices is sampled.
    pub sample_every: Duration,
    /// What to do with a device that has processes that are not ours.
    pub foreign: Foreign,
    /// What users may have.
    pub limits: crate::limits::RequestLimits,
    /// Jobs that were over so long ago are forgotten.
    pub history: Option<Duration>,
    /// Webhooks are called.
    pub webhooks: bool,
    /// Where jobs on other machines are heard, if at all.
    pub relays: Option<RelayOptions>,
    /// Runs get control groups where the system allows it.
    pub cgroups: bool,
}

/// Why there is no daemon.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A file or folder.
    #[error("{what}: {cause}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        cause: io::Error,
    },
    /// Another daemon is there.
    #[error("{0}")]
    Taken(String),
    /// The store.
    #[error("{file}: {cause}", file = file.display())]
    Store {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        cause: StoreError,
    },
    /// The back end.
    #[error(transparent)]
    Backend(#[from] LocalError),
    /// Slurm.
    #[error(transparent)]
    Slurm(#[from] slurm::SlurmError),
    /// Kubernetes.
    #[cfg(feature = "kubernetes")]
    #[error("{0}")]
    Kubernetes(#[from] kubernetes::KubeError),
    /// The thread that decides is gone.
    #[error("the scheduler ended by a fault of its own; start it again, jobs go on")]
    Died,
    /// The disk did not keep what was written to the store.
    #[error(
        "{file}: {cause}: the disk did not keep what was written; jobs go on, look at the disk and start again",
        file = file.display()
    )]
    LostWrites {
        /// The store.
        file: PathBuf,
        /// What failed.
        cause: StoreError,
    },
    /// The certificate of the daemon.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A setting that is not safe or names nobody.
    #[error("{0}")]
    Listen(String),
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DaemonError {
    let what = what.into();
    move |cause| DaemonError::Io { what, cause }
}

/// Runs until it is told to stop by a signal. Jobs go on; the next daemon finds them.
/// `ready` is called when it listens.
pub fn run(
    options: &DaemonOptions,
    backend: BackendChoice,
    ready: impl FnOnce(),
) -> Result<(), DaemonError> {
    make_folder(&options.state, 0o700)?;
    make_private(&options.state, 0o700)?;
    let _lock = lock(&options.state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(io_error("cannot start threads"))?;
    // From here on it ends in good order.
    let signals = {
        let _in_runtime = runtime.enter();
        Signals::catch().map_err(io_error("cannot catch signals"))?
    };
    let uid = rustix::process::getuid().as_raw();
    let unix = listen(&options.socket, uid, &runtime)?;
    let tcp = listen_tcp(options, &runtime)?;
    let web = listen_web(options, &runtime)?;
    let operators = Arc::new(operators(&options.operators)?);
    let (inbox, messages) = mpsc::channel();
    serve_relays(options, &runtime, &inbox)?;
    let (leave, shutdown) = watch::channel(false);
    let name = backend.name().to_owned();
    let partition = backend.partition().map(str::to_owned);
    let started = startup::start(options, backend, uid, &runtime, &inbox);
    let (mut cycle, clock, groups, tokens) = started.inspect_err(|_| {
        let _ = std::fs::remove_file(&options.socket);
    })?;
    let api = Api {
        inbox: inbox.clone(),
        feed: cycle.publisher.feed(),
        store: database(&options.state),
        bodies: api::BodyBudget::default(),
        readers: Arc::default(),
        uid,
        provider: name,
        partition,
        policy: options.policy.text.clone(),
        started_us: unix_us(),
        shutdown,
        webhooks: options.webhooks,
        groups,
        tokens,
        operators,
        queue_forecast: api::CachedForecast::default(),
    };
    let (alive, dead) = oneshot::channel::<()>();
    let turns = std::thread::Builder::new()
        .name("cycle".to_owned())
        .spawn(move || {
            // Dropped however this ends.
            let _alive = alive;
            cycle.run(clock, &messages)
        })
        .map_err(io_error("cannot start a thread"))?;
    ready();
    runtime.block_on(serve_until_stopped(api::serve(api, unix, tcp, web), signals, dead, &leave));
    let _ = inbox.send(Message::Stop);
    let ended = turns.join();
    let _ = std::fs::remove_file(&options.socket);
    runtime.shutdown_timeout(Duration::from_secs(1));
    // Without it there is nothing to serve; jobs go on, and the next daemon finds them.
    let file = database(&options.state);
    let lost = |cause| DaemonError::LostWrites { file, cause };
    ended.map_err(|_| DaemonError::Died)?.map_err(lost)
}

/// The numbers of users by name or number.
fn operators(names: &[String]) -> Result<BTreeSet<u32>, DaemonError> {
    let number = |name: &String| {
        let unknown = || format!("daemon.operators: there is no user '{}'", name.escape_debug());
        crate::users::find(name).map(|user| user.uid).ok_or_else(|| DaemonError::Listen(unknown()))
    };
    names.iter().map(number).collect()
}

/// Listens for the relays of jobs on other machines, if there are any.
fn serve_relays(
    options: &DaemonOptions,
    runtime: &Runtime,
    inbox: &Sender<Message>,
) -> Result<(), DaemonError> {
    if let Some(RelayOptions { listen, secret }) = &options.relays {
        let what = format!("cannot listen on {listen} for jobs");
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(io_error(what))?;
        let sockets = sockets(&options.socket);
        runtime.spawn(relays::serve(listener, secret.clone(), sockets, inbox.clone()));
    }
    Ok(())
}

/// Serves until a signal arrives or the cycle is dead; requests under way get their answers.
async fn serve_until_stopped(
    server: impl Future<Output = ()> + Send + 'static,
    signals: Signals,
    dead: oneshot::Receiver<()>,
    leave: &watch::Sender<bool>,
) {
    let server = tokio::spawn(server);
    tokio::select! {
        () = signals.wait() => {
            tracing::info!("stopping; jobs go on and the next daemon finds them");
        }
        _ = dead => {}
    }
    let _ = leave.send(true);
    // Connections that stay open for longer are closed.
    let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
}

/// The signals that ask it to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Where the sockets of jobs are.
fn sockets(socket: &Path) -> PathBuf {
    socket.with_extension("jobs")
}

/// Holds the state of a daemon while something else changes it; refused while a daemon runs.
pub fn hold_state(state: &Path) -> Result<std::fs::File, DaemonError> {
    lock(state)
}

/// The store of a daemon with this state.
pub fn database(state: &Path) -> PathBuf {
    state.join("state.db")
}
