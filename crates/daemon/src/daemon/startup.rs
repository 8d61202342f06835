//! From a state folder and a back end to a cycle that can take its first turn.

use super::files::{make_folder, make_private};
use super::{BackendChoice, DaemonError, DaemonOptions, database, io_error, sockets};
use crate::clock::{Clock, unix_us};
use crate::cycle::{Cycle, Message};
use crate::job::{Job, JobState};
use crate::job_sockets::JobSockets;
use crate::meter::Meter;
use crate::publish::Publisher;
use crate::scheduler::{JOURNAL_VERSION, Kept, Now, Scheduler, Setup, Start};
use crate::store::{Store, StoreError, StoreTransaction};
use std::collections::BTreeMap;
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tandem_backends::local::{Cgroups, LocalBackend, LocalOptions};
use tandem_backends::slurm::SlurmBackend;
use tandem_backends::{Backend, Foreign, KnownJob, RecoveredRun, RunId, crash};
use tokio::runtime::Runtime;

/// Opens the store and the back end, recovers the jobs and begins the schedule.
pub(super) fn start(
    options: &DaemonOptions,
    choice: BackendChoice,
    uid: u32,
    runtime: &Runtime,
    inbox: &Sender<Message>,
) -> Result<(Cycle, Clock, Option<Cgroups>), DaemonError> {
    let file = database(&options.state);
    let mut store = open_store(&file)?;
    let bad = |cause| DaemonError::Store { file: file.clone(), cause };
    let clock = resume_clock(&store).map_err(bad)?;
    prune(&mut store, options).map_err(bad)?;
    let sockets = make_sockets(options, uid)?;
    let Opened { mut backend, groups, job_memory_bytes } = open_backend(options, choice, inbox)?;
    let setup = setup(options, backend.as_ref(), &sockets);
    let start = recover(&store, backend.as_mut(), clock.now(), setup).map_err(bad)?;
    let now = start.now;
    crash::point();
    let write = |transaction: &StoreTransaction<'_>| {
        transaction.meta("clock", &serde_json::to_string(&clock.mark())?)?;
        transaction.start(&start)
    };
    store.write(write).map_err(bad)?;
    crash::point();
    let kept: BTreeMap<u64, Job> =
        start.jobs.iter().map(|kept| (kept.job.id, kept.job.clone())).collect();
    let (scheduler, mut outcome) =
        Scheduler::begin(start, &options.policy, Box::new(crate::journal::beliefs()));
    // Jobs that did not change, mostly all of them, are neither written nor published again.
    outcome.changed.retain(|job| kept.get(&job.id) != Some(job));
    drop(kept);
    let handle = runtime.handle().clone();
    let sockets = JobSockets::new(handle.clone(), sockets, inbox.clone(), uid);
    let publisher = Publisher::new(handle, now.unix_us, options.webhooks, inbox.clone());
    let meter = Meter::new(options.meter);
    let mut cycle = Cycle::new(scheduler, store, backend, meter, sockets, publisher, uid);
    cycle.import_memory_bytes = job_memory_bytes;
    cycle.begin(now, &outcome).map_err(bad)?;
    Ok((cycle, clock, groups))
}

/// Opens the store, which only its owner can read.
fn open_store(file: &Path) -> Result<Store, DaemonError> {
    // SQLite gives the files beside it the mode that it has when they are made.
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(file);
    made.and_then(|made| made.set_permissions(Permissions::from_mode(0o600)))
        .map_err(io_error(file.display().to_string()))?;
    Store::open(file).map_err(|cause| DaemonError::Store { file: file.to_owned(), cause })
}

/// Continues the clock of the earlier daemon.
fn resume_clock(store: &Store) -> Result<Clock, StoreError> {
    let mark = store.meta("clock")?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Clock::resume(store.last_time()?, mark.as_ref()))
}

/// Deletes jobs that ended longer ago than they are kept.
fn prune(store: &mut Store, options: &DaemonOptions) -> Result<(), StoreError> {
    let Some(history) = options.history else { return Ok(()) };
    let kept_us = u64::try_from(history.as_micros()).unwrap_or(u64::MAX);
    let before = unix_us().saturating_sub(kept_us);
    store.write(|transaction| transaction.prune(before).map(|_| ()))
}

/// The folder of the sockets of jobs.
fn make_sockets(options: &DaemonOptions, uid: u32) -> Result<PathBuf, DaemonError> {
    let sockets = sockets(&options.socket);
    // Users reach their own sockets and cannot list the others.
    let mode = if uid == 0 { 0o711 } else { 0o700 };
    make_folder(&sockets, mode)?;
    make_private(&sockets, mode)?;
    Ok(sockets)
}

/// A back end that was opened.
struct Opened {
    backend: Box<dyn Backend>,
    /// Where it can make control groups.
    groups: Option<Cgroups>,
    /// Memory that an imported job takes on each GPU if it says nothing.
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
    }
}

/// What the scheduler may expect of the back end.
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
        learn: true,
        believe_rates: true,
        restore_s: options.restore_s,
        kill_grace_ms: millis(options.kill_grace),
        stop_grace_ms: millis(options.stop_grace),
        sockets: sockets.to_owned(),
        foreign_avoid: options.foreign == Foreign::Avoid,
    }
}

/// Everything that the scheduler begins with, from the store and from what the back end finds.
fn recover(
    store: &Store,
    backend: &mut dyn Backend,
    now: Now,
    setup: Setup,
) -> Result<Start, StoreError> {
    let closed = backend.unavailable_devices();
    let jobs = recover_jobs(store, backend)?;
    let next_job = sweep(backend, &jobs, store.next_job()?);
    let drained = store.meta("drained")?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(Start {
        version: JOURNAL_VERSION,
        now,
        setup,
        over: ended_dependencies(store, &jobs)?,
        jobs,
        classes: store.classes()?,
        next_job,
        // Beyond all numbers that an earlier daemon has given.
        next_op: now.at_us,
        drained: drained.unwrap_or_default(),
        closed,
    })
}

/// Jobs that have not ended, and what the back end found of their runs.
fn recover_jobs(store: &Store, backend: &mut dyn Backend) -> Result<Vec<Kept>, StoreError> {
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

/// The states of jobs that have ended and that others depend on.
fn ended_dependencies(store: &Store, jobs: &[Kept]) -> Result<BTreeMap<u64, JobState>, StoreError> {
    let mut over = BTreeMap::new();
    for dependency in jobs.iter().flat_map(|kept| &kept.job.dependencies) {
        if let Some(job) = store.job(dependency.job)?.filter(|job| job.state.is_over()) {
            over.insert(job.id, job.state);
        }
    }
    Ok(over)
}

/// Deletes records of runs that have ended and that an earlier daemon did not forget before it died. Returns
/// the id of the next job, which is beyond all that have records.
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
