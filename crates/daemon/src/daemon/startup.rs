//! Starts a daemon: from a state folder and a back end to a cycle that is ready for its first turn.

use super::files::{make_folder, make_private};
use super::{BackendChoice, DaemonError, DaemonOptions, database, io_error, sockets};
use crate::clock::Clock;
use crate::cycle::{Cycle, Message};
use crate::history::{History, PlacementLog};
use crate::job_sockets::JobSockets;
use crate::meter::Meter;
use crate::publish::Publisher;
use crate::resume::resume;
use crate::scheduler::{Scheduler, Setup};
use crate::store::{Store, StoreError, StoreOptions, StoreTransaction};
use crate::tokens::Tokens;
use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tandem_backends::local::{Cgroups, LocalBackend, LocalOptions};
use tandem_backends::slurm::SlurmBackend;
use tandem_backends::{Backend, Foreign, crash};
use tokio::runtime::Runtime;

/// Opens store and back end, recovers the jobs and starts the scheduler.
pub(super) fn start(
    options: &DaemonOptions,
    choice: BackendChoice,
    uid: u32,
    runtime: &Runtime,
    inbox: &Sender<Message>,
) -> Result<(Cycle, Clock, Option<Cgroups>, Tokens), DaemonError> {
    let file = database(&options.state);
    if let Some(kind) = crate::machine::network_file_system(&options.state) {
        let shown = options.state.display();
        return Err(DaemonError::Taken(format!(
            "{shown}: is on {kind}, where the store is not safe; give a local folder with --state"
        )));
    }
    let mut store = open_store(&file, options)?;
    claim_for_machine(&mut store, &options.state)?;
    let bad = |cause| DaemonError::Store { file: file.clone(), cause };
    let clock = resume_clock(&store).map_err(bad)?;
    let tokens = Tokens::load(&store).map_err(bad)?;
    let sockets = make_sockets(options, uid)?;
    let Opened { mut backend, groups, job_memory_bytes } = open_backend(options, choice, inbox)?;
    let setup = setup(options, backend.as_ref(), &sockets);
    let start = resume(&mut store, backend.as_mut(), clock.now(), setup).map_err(bad)?;
    let now = start.now;
    crash::point();
    let write = |transaction: &StoreTransaction<'_>| {
        transaction.meta("clock", &serde_json::to_string(&clock.mark())?)?;
        transaction.start(&start)
    };
    store.write(write).map_err(bad)?;
    crash::point();
    let beliefs = Box::new(crate::journal::beliefs_on(&start.setup));
    let (scheduler, outcome) = Scheduler::begin(start, &options.policy, beliefs);
    let handle = runtime.handle().clone();
    let sockets = JobSockets::new(handle.clone(), sockets, inbox.clone(), uid);
    let mut publisher = Publisher::new(handle, now.unix_us, options.webhooks, inbox.clone());
    publisher.mailer.clone_from(&options.mailer);
    let meter = Meter::new(options.meter);
    let (next, open) = store.open_placements().map_err(bad)?;
    let placements = PlacementLog::resume(next, open);
    let mut cycle = Cycle::new(scheduler, store, backend, meter, sockets, publisher, uid);
    cycle.import_memory_bytes = job_memory_bytes;
    cycle.history = History { placements, ..History::default() };
    cycle.limits = options.limits.clone();
    cycle.history_kept = options.history;
    cycle.begin(now, outcome).map_err(bad)?;
    Ok((cycle, clock, groups, tokens))
}

/// Refuses the state of another machine: its daemon may run the same jobs.
fn claim_for_machine(store: &mut Store, state: &Path) -> Result<(), DaemonError> {
    let bad = |cause| DaemonError::Store { file: database(state), cause };
    let here = crate::machine::id();
    match store.meta("machine").map_err(bad)? {
        Some(owner) if owner != here && !here.is_empty() => Err(DaemonError::Taken(format!(
            "{}: is the state of another machine ({owner}); give another folder with --state, or \
             run tandem store adopt if that machine is gone",
            state.display()
        ))),
        Some(_) => Ok(()),
        None => store.write(|writing| writing.meta("machine", &here)).map_err(bad),
    }
}

/// Opens the store, readable by its owner only.
fn open_store(file: &Path, options: &DaemonOptions) -> Result<Store, DaemonError> {
    // A file of the user may be readable by others; a new one is not.
    match std::fs::set_permissions(file, Permissions::from_mode(0o600)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(io_error(file.display().to_string())(error));
        }
        _ => {}
    }
    let used = StoreOptions {
        journal_max_bytes: options.limits.journal_mib << 20,
        history_max_bytes: options.limits.history_mib_per_user << 20,
        file_layer: None,
    };
    Store::open_with(file, used)
        .map_err(|cause| DaemonError::Store { file: file.to_owned(), cause })
}

/// Continues the clock of the earlier daemon.
fn resume_clock(store: &Store) -> Result<Clock, StoreError> {
    let mark = store.meta("clock")?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Clock::resume(store.last_time()?, mark.as_ref()))
}

/// The folder of the sockets of jobs.
fn make_sockets(options: &DaemonOptions, uid: u32) -> Result<PathBuf, DaemonError> {
    let sockets = sockets(&options.socket);
    // Users can reach their own sockets but not list the others.
    let mode = if uid == 0 { 0o711 } else { 0o700 };
    make_folder(&sockets, mode)?;
    make_private(&sockets, mode)?;
    Ok(sockets)
}

/// An opened back end.
struct Opened {
    backend: Box<dyn Backend>,
    /// Where it can create control groups, or why it cannot.
    groups: Option<Cgroups>,
    /// Memory on each GPU that is assumed of an imported job without a hint.
    job_memory_bytes: Option<u64>,
}

fn open_backend(
    options: &DaemonOptions,
    choice: BackendChoice,
    inbox: &Sender<Message>,
) -> Result<Opened, DaemonError> {
    let inbox = inbox.clone();
    let sink = Box::new(move |event| drop(inbox.send(Message::Backend(event))));
    match choice {
        BackendChoice::Local(provider) => {
            let local = LocalOptions {
                supervisor: options.supervisor.clone(),
                sample_every: options.sample_every,
                cgroups: options.cgroups,
                ..LocalOptions::new(&options.state)
            };
            let backend = LocalBackend::new(local, provider, sink)?;
            let groups = backend.cgroups().clone();
            tracing::info!("control groups: {groups}");
            let groups = Some(groups);
            Ok(Opened { backend: Box::new(backend), groups, job_memory_bytes: None })
        }
        BackendChoice::Slurm { options, job_memory_bytes } => {
            let backend = Box::new(SlurmBackend::new(options, sink)?);
            Ok(Opened { backend, groups: None, job_memory_bytes })
        }
        #[cfg(feature = "kubernetes")]
        BackendChoice::Kubernetes { options, job_memory_bytes } => {
            let opened = tandem_backends::kubernetes::KubernetesBackend::new(options, sink)?;
            Ok(Opened { backend: Box::new(opened), groups: None, job_memory_bytes })
        }
    }
}

/// The capabilities of the back end that the scheduler uses.
fn setup(options: &DaemonOptions, backend: &dyn Backend, sockets: &Path) -> Setup {
    let can = backend.capabilities();
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Setup {
        devices: backend.devices().to_vec(),
        policy: options.policy.text.clone(),
        share: options.share,
        pause_frees_device: can.pause_frees_device && can.pause_forbidden.is_none(),
        may_pause: can.pause_forbidden.is_none(),
        gangs_share: can.gangs_share,
        moves: can.moves,
        measures_memory: can.measures_memory,
        keeps_queue: can.keeps_queue,
        live_budgets: can.live_budgets && options.policy.uses_budgets(),
        class_rules: options.class_rules.clone(),
        learn: true,
        believe_rates: true,
        restore_s: options.restore_s,
        kill_grace_ms: millis(options.kill_grace),
        stop_grace_ms: millis(options.stop_grace),
        sockets: sockets.to_owned(),
        foreign_avoid: options.foreign == Foreign::Avoid,
        people: options.people.clone(),
        process: options.process.clone(),
        // The cluster limits its own queue.
        planned_per_user: (!can.keeps_queue).then_some(options.limits.planned_per_user),
        tasks_per_step: None,
    }
}
