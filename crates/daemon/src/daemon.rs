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
    /// Processes of this machine, on the devices of this provider.
    Local(Box<dyn Provider>),
    /// Slurm.
    Slurm {
        /// Options of the back end.
        options: slurm::SlurmOptions,
        /// Memory on each GPU that is assumed of a job without a hint. Without it such a job runs alone.
        job_memory_bytes: Option<u64>,
    },
    /// Kubernetes.
    #[cfg(feature = "kubernetes")]
    Kubernetes {
        /// Options of the back end.
        options: kubernetes::KubernetesOptions,
        /// Memory on each GPU that is assumed of a pod without an annotation. Without it such a pod runs alone.
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

/// Settings of a daemon.
pub struct DaemonOptions {
    /// The state folder.
    pub state: PathBuf,
    /// The unix socket.
    pub socket: PathBuf,
    /// The TCP address, if it listens on TCP.
    pub listen: Option<SocketAddr>,
    /// The address of the dashboard, if it is served. It always has TLS.
    pub web: Option<SocketAddr>,
    /// Whether TCP has TLS. Without it only loopback addresses are allowed.
    pub tls: bool,
    /// The TLS certificate; without it the daemon makes its own.
    pub certificate: Option<CertificateFiles>,
    /// Shares and limits between users.
    pub people: People,
    /// How to send mail about jobs; none is sent if absent.
    pub mailer: Option<Mailer>,
    /// The umask and resource limits of jobs.
    pub process: ProcessLimits,
    /// Names or user ids of operators besides root and the user of the daemon.
    pub operators: Vec<String>,
    /// The policy.
    pub policy: PolicySpec,
    /// Whether jobs may share devices.
    pub share: bool,
    /// The supervisor of runs: program and leading arguments.
    pub supervisor: Vec<std::ffi::OsString>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    /// Time that a job has to save a checkpoint.
    pub stop_grace: Duration,
    /// Expected time of a restore, in seconds.
    pub restore_s: f64,
    /// How much must be observed before a measurement counts.
    pub meter: MeterOptions,
    /// Arguments that define the class of a job, and those that do not.
    pub class_rules: ClassRules,
    /// Interval at which the usage of runs and devices is sampled.
    pub sample_every: Duration,
    /// What to do about processes on a device that Tandem did not start.
    pub foreign: Foreign,
    /// Limits of users.
    pub limits: crate::limits::RequestLimits,
    /// Age at which ended jobs are deleted.
    pub history: Option<Duration>,
    /// Whether webhooks are called.
    pub webhooks: bool,
    /// Where relays of jobs on other machines connect, if anywhere.
    pub relays: Option<RelayOptions>,
    /// Whether runs get control groups, where the system allows it.
    pub cgroups: bool,
}

/// Why the daemon cannot start or had to end.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// A file or folder.
    #[error("{what}: {cause}")]
    Io {
        /// The operation.
        what: String,
        /// The cause.
        cause: io::Error,
    },
    /// Another daemon uses the state or the socket.
    #[error("{0}")]
    Taken(String),
    /// The store.
    #[error("{file}: {cause}", file = file.display())]
    Store {
        /// The file.
        file: PathBuf,
        /// The problem.
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
    /// The scheduler thread ended by a panic.
    #[error("the scheduler thread failed; restart the daemon, jobs keep running")]
    Died,
    /// An fsync of the store failed.
    #[error(
        "{file}: {cause}: the disk did not keep what was written; check it and restart the daemon, jobs keep running",
        file = file.display()
    )]
    LostWrites {
        /// The file.
        file: PathBuf,
        /// The cause.
        cause: StoreError,
    },
    /// The certificate of the daemon.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A setting is unsafe or names an unknown user.
    #[error("{0}")]
    Listen(String),
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DaemonError {
    let what = what.into();
    move |cause| DaemonError::Io { what, cause }
}

/// Runs until a signal stops it. Jobs keep running, and the next daemon finds them. `ready` is called when it
/// listens.
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
    // From here on an error must stop the cycle in order.
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
        askers: api::Askers::default(),
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
            // Stops the cycle on every path out of this function.
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
    // The cycle has ended, so requests cannot be served. Jobs keep running.
    let file = database(&options.state);
    let lost = |cause| DaemonError::LostWrites { file, cause };
    ended.map_err(|_| DaemonError::Died)?.map_err(lost)
}

/// The user ids of users given by name or number.
fn operators(names: &[String]) -> Result<BTreeSet<u32>, DaemonError> {
    let number = |name: &String| {
        let unknown = || format!("daemon.operators: there is no user '{}'", name.escape_debug());
        crate::users::find(name).map(|user| user.uid).ok_or_else(|| DaemonError::Listen(unknown()))
    };
    names.iter().map(number).collect()
}

/// Listens for relays of jobs on other machines, if configured.
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

/// Serves until a signal arrives or the cycle has ended. Requests in progress are answered first.
async fn serve_until_stopped(
    server: impl Future<Output = ()> + Send + 'static,
    signals: Signals,
    dead: oneshot::Receiver<()>,
    leave: &watch::Sender<bool>,
) {
    let server = tokio::spawn(server);
    tokio::select! {
        () = signals.wait() => {
            tracing::info!("stopping; jobs keep running and the next daemon finds them");
        }
        _ = dead => {}
    }
    let _ = leave.send(true);
    // Connections that stay open longer are closed.
    let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
}

/// The signals that stop the daemon.
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

/// The folder of the jobs' sockets.
fn sockets(socket: &Path) -> PathBuf {
    socket.with_extension("jobs")
}

/// Locks the state while a tool changes it; refused while a daemon runs.
pub fn hold_state(state: &Path) -> Result<std::fs::File, DaemonError> {
    lock(state)
}

/// The store file in a state folder.
pub fn database(state: &Path) -> PathBuf {
    state.join("state.db")
}
