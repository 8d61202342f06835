//! The daemon put together: state, back end, cycle, interface; and taken apart again.

use crate::api::{self, Api, Tcp};
use crate::clock::{Clock, unix_us};
use crate::cycle::{Cycle, Message};
use crate::history::{History, PlacementLog};
use crate::job::{Job, JobState};
use crate::job_sockets::JobSockets;
use crate::meter::{Meter, MeterOptions};
use crate::publish::Publisher;
use crate::relays::{self, RelayOptions};
use crate::scheduler::{JOURNAL_VERSION, Kept, Scheduler, Setup, Start};
use crate::store::{Store, StoreError};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use tandem_backends::local::{Cgroups, LocalBackend, LocalError, LocalOptions};
use tandem_backends::slurm::{self, SlurmBackend};
use tandem_backends::{Backend, Foreign, KnownJob, Provider, RecoveredRun, RunId, crash};
use tandem_policies::PolicySpec;
use thiserror::Error;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

/// Who carries out what the daemon decides.
pub enum Engine {
    /// Processes of this machine, on devices that this provider knows.
    Local(Box<dyn Provider>),
    /// Slurm.
    Slurm {
        /// How it is used.
        options: slurm::SlurmOptions,
        /// Memory that a job takes on each GPU if it says nothing; such jobs stay alone if absent.
        job_memory_bytes: Option<u64>,
    },
}

impl Engine {
    /// `cpu`, `nvidia`, `fake` or `slurm`.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Local(provider) => provider.name(),
            Engine::Slurm { .. } => "slurm",
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
    /// The file of the token that TCP asks for; made if it is not there.
    pub token_file: Option<PathBuf>,
    /// The policy.
    pub policy: PolicySpec,
    /// Several jobs may sit on a device.
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
    /// How often runs and devices are looked at.
    pub sample_every: Duration,
    /// What strangers on a device mean.
    pub foreign: Foreign,
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
    /// The thread that decides is gone.
    #[error("the scheduler ended by a fault of its own; start it again, jobs go on")]
    Died,
    /// TCP is asked for in a way that is not safe.
    #[error("{0}")]
    Listen(String),
}

fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> DaemonError {
    let what = what.into();
    move |cause| DaemonError::Io { what, cause }
}

/// Runs until it is told to stop by a signal. Jobs go on; the next daemon finds them.
/// `ready` is called when it listens.
pub fn run(
    options: &DaemonOptions,
    engine: Engine,
    ready: impl FnOnce(),
) -> Result<(), DaemonError> {
    make_folder(&options.state, 0o700)?;
    keep_to_ourselves(&options.state, 0o700)?;
    let _lock = lock(&options.state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(io("cannot start threads"))?;
    // From here on it ends in good order.
    let signals = {
        let _in_runtime = runtime.enter();
        Signals::catch().map_err(io("cannot catch signals"))?
    };
    let uid = rustix::process::getuid().as_raw();
    let unix = listen(&options.socket, uid, &runtime)?;
    let tcp = listen_tcp(options, &runtime)?;
    let (inbox, messages) = mpsc::channel();
    if let Some(RelayOptions { listen, secret }) = &options.relays {
        let what = format!("cannot listen on {listen} for jobs");
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(io(what))?;
        let sockets = sockets(&options.socket);
        runtime.spawn(relays::serve(listener, secret.clone(), sockets, inbox.clone()));
    }
    let (leave, shutdown) = watch::channel(false);
    let name = engine.name().to_owned();
    let started = start(options, engine, uid, &runtime, inbox.clone());
    let (mut cycle, clock, groups) = started.inspect_err(|_| {
        let _ = std::fs::remove_file(&options.socket);
    })?;
    let api = Api {
        inbox: inbox.clone(),
        feed: cycle.publisher.feed(),
        store: database(&options.state),
        readers: Arc::default(),
        uid,
        provider: name,
        policy: options.policy.text.clone(),
        started_us: unix_us(),
        shutdown,
        webhooks: options.webhooks,
        groups,
        outlook: api::Outlook::default(),
    };
    let (alive, dead) = oneshot::channel::<()>();
    let turns = std::thread::Builder::new()
        .name("cycle".to_owned())
        .spawn(move || {
            // Dropped however this ends.
            let _alive = alive;
            cycle.run(clock, &messages);
        })
        .map_err(io("cannot start a thread"))?;
    ready();
    runtime.block_on(async {
        let server = tokio::spawn(api::serve(api, unix, tcp));
        tokio::select! {
            () = signals.wait() => {
                tracing::info!("stopping; jobs go on and the next daemon finds them");
            }
            _ = dead => {}
        }
        let _ = leave.send(true);
        // Requests under way get their answers; whoever listens for longer is cut off.
        let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
    });
    let _ = inbox.send(Message::Stop);
    let ended = turns.join();
    let _ = std::fs::remove_file(&options.socket);
    runtime.shutdown_timeout(Duration::from_secs(1));
    // Without it there is nothing to serve; jobs go on, and the next daemon finds them.
    ended.map_err(|_| DaemonError::Died)
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

/// The store of a daemon with this state.
pub fn database(state: &Path) -> PathBuf {
    state.join("state.db")
}

fn start(
    options: &DaemonOptions,
    engine: Engine,
    uid: u32,
    runtime: &Runtime,
    inbox: Sender<Message>,
) -> Result<(Cycle, Clock, Option<Cgroups>), DaemonError> {
    let file = database(&options.state);
    // SQLite gives the files beside it the mode that it has when they are made.
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(&file);
    made.and_then(|made| made.set_permissions(Permissions::from_mode(0o600)))
        .map_err(io(file.display().to_string()))?;
    let bad = |cause| DaemonError::Store { file: file.clone(), cause };
    let mut store = Store::open(&file).map_err(bad)?;
    let mark = store.meta("clock").map_err(bad)?;
    let mark = mark.and_then(|text| serde_json::from_str(&text).ok());
    let clock = Clock::resume(store.last_time().map_err(bad)?, mark.as_ref());
    if let Some(history) = options.history {
        let kept_us = u64::try_from(history.as_micros()).unwrap_or(u64::MAX);
        let before = unix_us().saturating_sub(kept_us);
        store
            .write(|transaction| {
                transaction.prune_placements(before)?;
                transaction.prune(before).map(|_| ())
            })
            .map_err(bad)?;
    }
    let sockets = sockets(&options.socket);
    // Users reach their own sockets and see nobody else's.
    let mode = if uid == 0 { 0o711 } else { 0o700 };
    make_folder(&sockets, mode)?;
    keep_to_ourselves(&sockets, mode)?;
    let sink = inbox.clone();
    let sink = Box::new(move |event| drop(sink.send(Message::Backend(event))));
    let mut offered_memory_bytes = None;
    let mut groups = None;
    let mut backend: Box<dyn Backend> = match engine {
        Engine::Local(provider) => {
            let local = LocalOptions {
                supervisor: options.supervisor.clone(),
                sample_every: options.sample_every,
                cgroups: options.cgroups,
                ..LocalOptions::new(&options.state)
            };
            let backend = LocalBackend::new(local, provider, sink)?;
            groups = Some(backend.cgroups().clone());
            Box::new(backend)
        }
        Engine::Slurm { options, job_memory_bytes } => {
            offered_memory_bytes = job_memory_bytes;
            Box::new(SlurmBackend::new(options, sink)?)
        }
    };
    if let Some(groups) = &groups {
        tracing::info!("control groups: {groups}");
    }
    let can = backend.capabilities();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let setup = Setup {
        devices: backend.devices().to_vec(),
        policy: options.policy.text.clone(),
        share: options.share,
        pause_frees_device: can.pause_frees_device && can.pause_forbidden.is_none(),
        may_pause: can.pause_forbidden.is_none(),
        gangs_share: can.gangs_share,
        moves: can.moves,
        measures_memory: can.measures_memory,
        keeps_queue: can.keeps_queue,
        learn: true,
        believe_rates: true,
        restore_s: options.restore_s,
        kill_grace_ms: millis(options.kill_grace),
        stop_grace_ms: millis(options.stop_grace),
        sockets: sockets.clone(),
        foreign_avoid: options.foreign == Foreign::Avoid,
    };
    let closed = backend.unavailable_devices();
    let jobs = recover(&store, backend.as_mut()).map_err(bad)?;
    let next_job = sweep(backend.as_mut(), &jobs, store.next_job().map_err(bad)?);
    let now = clock.now();
    let start = Start {
        version: JOURNAL_VERSION,
        now,
        setup,
        over: over(&store, &jobs).map_err(bad)?,
        jobs,
        classes: store.classes().map_err(bad)?,
        next_job,
        // Beyond all numbers that an earlier daemon has given.
        next_op: now.at_us,
        drained: store
            .meta("drained")
            .map_err(bad)?
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default(),
        closed,
    };
    crash::point();
    let write = |transaction: &crate::store::StoreTransaction<'_>| {
        transaction.meta("clock", &serde_json::to_string(&clock.mark())?)?;
        transaction.start(&start)
    };
    store.write(write).map_err(bad)?;
    crash::point();
    let kept: BTreeMap<u64, Job> =
        start.jobs.iter().map(|kept| (kept.job.id, kept.job.clone())).collect();
    let (scheduler, mut outcome) =
        Scheduler::begin(start, &options.policy, Box::new(crate::journal::beliefs()));
    // Who is as it was kept is neither kept again nor told of: mostly everybody.
    outcome.changed.retain(|job| kept.get(&job.id) != Some(job));
    drop(kept);
    let handle = runtime.handle().clone();
    let links = JobSockets::new(handle.clone(), sockets, inbox.clone(), uid);
    let publisher = Publisher::new(handle, now.unix_us, options.webhooks, inbox);
    let meter = Meter::new(options.meter);
    let (next, lasting) = store.lasting_placements().map_err(bad)?;
    let history = History { placements: PlacementLog::resume(next, lasting), ..History::default() };
    let mut cycle = Cycle::new(scheduler, store, backend, meter, links, publisher, uid);
    cycle.offered_memory_bytes = offered_memory_bytes;
    cycle.history = history;
    cycle.begin(now, &outcome).map_err(bad)?;
    Ok((cycle, clock, groups))
}

/// Jobs that are not over, and what became of their processes.
fn recover(store: &Store, backend: &mut dyn Backend) -> Result<Vec<Kept>, StoreError> {
    let jobs = store.active()?;
    let known = |job: &Job| KnownJob {
        run: RunId { job: job.id, run: job.runs },
        has_run: !matches!(job.state, JobState::Pending | JobState::Held),
        devices: job.devices.clone(),
        external: job.external.clone(),
    };
    let known: Vec<KnownJob> = jobs.iter().map(known).collect();
    let mut found: BTreeMap<u64, RecoveredRun> =
        backend.recover(&known).into_iter().map(|(run, found)| (run.job, found)).collect();
    let kept = |job: Job| {
        let (request, found) = (job.request.clone(), found.remove(&job.id));
        Kept { job, request, found }
    };
    Ok(jobs.into_iter().map(kept).collect())
}

/// How jobs ended that others wait for.
fn over(store: &Store, jobs: &[Kept]) -> Result<BTreeMap<u64, JobState>, StoreError> {
    let mut over = BTreeMap::new();
    for dependency in jobs.iter().flat_map(|kept| &kept.job.dependencies) {
        if let Some(job) = store.job(dependency.job)?.filter(|job| job.state.is_over()) {
            over.insert(job.id, job.state);
        }
    }
    Ok(over)
}

/// Deletes records of runs that are over and were not forgotten before an earlier daemon died. Returns
/// the number of the next job, which is beyond all that have records.
fn sweep(backend: &mut dyn Backend, jobs: &[Kept], next_job: u64) -> u64 {
    let mut next = next_job;
    for run in backend.records() {
        next = next.max(run.job.saturating_add(1));
        let is_over = match jobs.binary_search_by_key(&run.job, |kept| kept.job.id) {
            Ok(at) => {
                let Kept { job, found, .. } = &jobs[at];
                run.run < job.runs || (run.run == job.runs && found.is_none())
            }
            Err(_) => run.job < next_job,
        };
        if is_over {
            crash::point();
            backend.forget(run);
        }
    }
    next
}

/// Makes a folder that is not there, with this mode whatever the mask says.
fn make_folder(folder: &Path, mode: u32) -> Result<(), DaemonError> {
    if folder.is_dir() {
        return Ok(());
    }
    let failed = || format!("cannot make {}", folder.display());
    DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(io(failed()))?;
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(io(failed()))
}

/// Sees to it that a folder that is used is ours, and gives others no more than this mode does.
fn keep_to_ourselves(folder: &Path, mode: u32) -> Result<(), DaemonError> {
    let shown = folder.display();
    let metadata = folder.symlink_metadata().map_err(io(format!("cannot look at {shown}")))?;
    let uid = rustix::process::getuid().as_raw();
    let is_ours = |metadata: &Metadata| metadata.is_dir() && metadata.uid() == uid;
    // A link that is ours leads where we want it to.
    let is_fine = is_ours(&metadata)
        || metadata.is_symlink()
            && metadata.uid() == uid
            && folder.metadata().is_ok_and(|metadata| is_ours(&metadata));
    if !is_fine {
        let message = format!("{shown}: is no folder of user {uid}; give another one");
        return Err(DaemonError::Taken(message));
    }
    let failed = format!("cannot close {shown} to others");
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(io(failed))
}

/// Holds the state; a second daemon on it is told so.
fn lock(state: &Path) -> Result<File, DaemonError> {
    let file = state.join("lock");
    let opened =
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&file);
    let opened = opened.map_err(io(format!("cannot open {}", file.display())))?;
    // Of the kind that a child does not inherit: one that is about to become a supervisor when the daemon
    // is killed must not keep the next one out.
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    match rustix::fs::fcntl_lock(&opened, exclusive) {
        Ok(()) => Ok(opened),
        Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::ACCESS) => {
            Err(DaemonError::Taken(format!(
                "{}: another daemon uses this state; stop it, or give another one with --state",
                state.display()
            )))
        }
        Err(error) => Err(io(format!("cannot lock {}", file.display()))(error.into())),
    }
}

fn connects(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket).is_ok()
}

fn listen(socket: &Path, uid: u32, runtime: &Runtime) -> Result<UnixListener, DaemonError> {
    let folder = socket.parent().unwrap_or(Path::new("/"));
    make_folder(folder, if uid == 0 { 0o755 } else { 0o700 })?;
    let shown = socket.display();
    let metadata = folder.metadata().map_err(io(format!("cannot look at {}", folder.display())))?;
    let is_anyones = metadata.mode() & 0o1002 == 0o002;
    if is_anyones || (metadata.uid() != uid && metadata.uid() != 0) {
        return Err(DaemonError::Taken(format!(
            "{shown}: others could listen there in the daemon's place; give another one with --socket"
        )));
    }
    // A child of one that was killed may hold its socket until it has become a supervisor.
    let answers = || {
        let again = std::iter::repeat_n(Duration::from_millis(50), 20);
        again.inspect(|&pause| std::thread::sleep(pause)).all(|_| connects(socket))
    };
    if connects(socket) && answers() {
        return Err(DaemonError::Taken(format!(
            "{shown}: another daemon listens here; stop it, or give another place with --socket"
        )));
    }
    let failed = format!("cannot listen at {shown}");
    match std::fs::symlink_metadata(socket) {
        // Left behind by one that was killed.
        Ok(metadata) if metadata.file_type().is_socket() => {
            std::fs::remove_file(socket).map_err(io(failed.clone()))?;
        }
        Ok(_) => {
            let message =
                format!("{shown}: is there and no socket; give another place with --socket");
            return Err(DaemonError::Taken(message));
        }
        Err(_) => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(socket).map_err(io(failed.clone()))?;
    // Everyone may ask a daemon that serves everyone; the system says who they are.
    let mode = if uid == 0 { 0o666 } else { 0o600 };
    std::fs::set_permissions(socket, Permissions::from_mode(mode)).map_err(io(failed.clone()))?;
    listener.set_nonblocking(true).map_err(io(failed.clone()))?;
    let _in_runtime = runtime.enter();
    UnixListener::from_std(listener).map_err(io(failed))
}

fn listen_tcp(options: &DaemonOptions, runtime: &Runtime) -> Result<Option<Tcp>, DaemonError> {
    let Some(address) = options.listen else { return Ok(None) };
    let file = options.token_file.clone().unwrap_or_else(|| options.state.join("token"));
    let token = token(&file)?;
    let failed = format!("cannot listen at {address}");
    let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).map_err(io(failed))?;
    Ok(Some(Tcp { listener, token }))
}

/// The token of a file that only its owner can read; a new one if there is none.
fn token(file: &Path) -> Result<String, DaemonError> {
    let shown = file.display();
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let metadata =
                std::fs::metadata(file).map_err(io(format!("cannot look at {shown}")))?;
            let token = text.trim().to_owned();
            let uid = rustix::process::getuid().as_raw();
            if metadata.uid() != uid && metadata.uid() != 0 {
                let message = format!("{shown}: the token belongs to another user");
                return Err(DaemonError::Listen(message));
            }
            if metadata.mode() & 0o077 != 0 {
                let message = format!("{shown}: others can read the token; chmod 600 it");
                return Err(DaemonError::Listen(message));
            }
            if token.len() < 16 {
                let message = format!("{shown}: a token has at least 16 characters");
                return Err(DaemonError::Listen(message));
            }
            Ok(token)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let failed = || io(format!("cannot make the token {shown}"));
            let mut random = [0_u8; 32];
            File::open("/dev/urandom")
                .and_then(|mut source| source.read_exact(&mut random))
                .map_err(failed())?;
            let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(file);
            made.and_then(|mut made| writeln!(made, "{token}")).map_err(failed())?;
            Ok(token)
        }
        Err(error) => Err(io(format!("cannot read the token {shown}"))(error)),
    }
}
