//! What a daemon starts with: jobs from the store, and their runs as the back end finds them.

use crate::job::{JobState, StoredJob};
use crate::scheduler::{JOURNAL_VERSION, Kept, Now, People, Setup, Start, Unfinished};
use crate::store::{Damage, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use tandem_backends::{Backend, KnownJob, RunId, crash};

/// Everything that the scheduler starts with.
pub fn resume(
    store: &mut Store,
    backend: &mut dyn Backend,
    now: Now,
    setup: Setup,
) -> Result<Start, StoreError> {
    let latest = backend.records().into_iter().map(|run| (run.job, run.run)).collect();
    let jobs = load_jobs(store, now.unix_us, |job| take_over(job, &latest, backend, now))?;
    let mut closed = backend.unavailable_devices();
    let jobs = recover_runs(jobs, backend);
    // Jobs whose processes may still run; their run records are not deleted.
    let damaged = store.quarantined()?.into_iter().map(|damage| damage.job).collect();
    let next_job = sweep(backend, &jobs, &damaged, store.next_job()?, &mut closed);
    let drained = store.meta("drained")?.and_then(|text| {
        let mut text = serde_json::Deserializer::from_str(&text);
        crate::scheduler::drained_devices(&mut text).ok()
    });
    let bookings = store.meta("bookings")?.and_then(|text| serde_json::from_str(&text).ok());
    let used = used(store, now, &setup.people)?;
    let unfinished = unfinished(store)?;
    let beyond = |one: &Unfinished| one.submission.first + one.submission.jobs() as u64;
    let next_job = unfinished.iter().map(beyond).fold(next_job, u64::max);
    let Ended { over, failed_arrays } = ended_dependencies(store, &jobs, &unfinished)?;
    Ok(Start {
        version: JOURNAL_VERSION,
        now,
        setup,
        over,
        failed_arrays,
        unfinished,
        jobs,
        classes: store.classes()?,
        next_job,
        // An id above all that an earlier daemon has given.
        next_op: now.at_us,
        drained: drained.unwrap_or_default(),
        bookings: bookings.unwrap_or_default(),
        used,
        closed,
    })
}

/// Jobs that have not ended, with the runs that the back end found.
fn recover_runs(mut jobs: Vec<Kept>, backend: &mut dyn Backend) -> Vec<Kept> {
    let known = |kept: &Kept| KnownJob {
        run: RunId { job: kept.job.id, run: kept.job.runs },
        has_run: !matches!(kept.job.state, JobState::Pending | JobState::Held),
        devices: kept.job.devices.clone(),
        external: kept.job.external.clone(),
    };
    // Identical tasks of an array never ran.
    let known: Vec<KnownJob> = jobs.iter().filter(|kept| kept.alike == 0).map(known).collect();
    for (run, found) in backend.recover(&known) {
        if let Ok(at) = jobs.binary_search_by_key(&run.job, |kept| kept.job.id) {
            jobs[at].found = Some(found);
        }
    }
    jobs
}

/// What has ended of what others depend on.
#[derive(Default)]
struct Ended {
    /// Final states of jobs.
    over: BTreeMap<u64, JobState>,
    /// Arrays of which a task did not complete.
    failed_arrays: BTreeSet<u64>,
}

/// What has ended of what jobs depend on, also if they were not told before the last daemon died.
fn ended_dependencies(
    store: &Store,
    jobs: &[Kept],
    unfinished: &[Unfinished],
) -> Result<Ended, StoreError> {
    let mut ended = Ended::default();
    let mut seen = BTreeSet::new();
    let of_jobs = jobs.iter().flat_map(|kept| &kept.job.dependencies);
    let of_new = unfinished.iter().flat_map(|one| &one.submission.depends);
    for dependency in of_jobs.chain(of_new) {
        // Many tasks wait for the same.
        if !seen.insert((dependency.job, dependency.array)) {
            continue;
        }
        if dependency.array && store.has_failed_task(dependency.job)? {
            ended.failed_arrays.insert(dependency.job);
        }
        if let Some(past) = store.past(dependency.job)?.filter(|past| past.state.is_over()) {
            ended.over.insert(dependency.job, past.state);
        }
    }
    Ok(ended)
}

/// Submissions of which tasks are still to be added.
fn unfinished(store: &Store) -> Result<Vec<Unfinished>, StoreError> {
    let mut all = store.unfinished()?;
    for Unfinished { submission, .. } in &mut all {
        for dependency in &mut submission.depends {
            if dependency.array {
                dependency.failed |= store.has_failed_task(dependency.job)?;
            } else if let Some(past) = store.past(dependency.job)?
                && past.state.is_over()
            {
                submission.over.push((dependency.job, past.state));
            }
        }
    }
    Ok(all)
}

/// Takes over a run that lives and of which the store does not know: it was put back to an earlier time.
fn take_over(job: &mut StoredJob, latest: &BTreeMap<u64, u32>, backend: &dyn Backend, now: Now) {
    let Some(&run) = latest.get(&job.id).filter(|&&run| run > job.runs) else { return };
    let Some(devices) = backend.live_devices(RunId { job: job.id, run }) else { return };
    tracing::warn!("job {}: the store does not know of its run {run}; taken over", job.id);
    job.state = JobState::Running;
    job.reason = None;
    job.runs = run;
    job.devices = devices;
    job.placed = true;
    job.going = None;
    job.start_us.get_or_insert(now.unix_us);
}

/// Deletes records of ended runs that an earlier daemon did not delete before it died. Runs that live and belong to
/// no job hold their devices, which are closed. Returns the id of the next job, above all ids with records.
fn sweep(
    backend: &mut dyn Backend,
    jobs: &[Kept],
    damaged: &BTreeSet<u64>,
    next_job: u64,
    closed: &mut Vec<(u32, String)>,
) -> u64 {
    let mut next = next_job;
    for run in backend.records() {
        next = next.max(run.job.saturating_add(1));
        let at = jobs.partition_point(|kept| kept.last() < run.job);
        let is_over = match jobs.get(at).filter(|kept| kept.job.id <= run.job) {
            Some(Kept { job, found, .. }) => {
                run.run < job.runs || (run.run == job.runs && found.is_none())
            }
            None => {
                let held = backend.hold(run);
                let lives = !held.is_empty();
                closed.extend(held);
                !lives && run.job < next_job && !damaged.contains(&run.job)
            }
        };
        if is_over {
            crash::point();
            backend.forget(run);
        }
    }
    next
}

/// Jobs that have not ended. Those whose records cannot be read are set aside.
fn load_jobs(
    store: &mut Store,
    unix_us: u64,
    correct: impl Fn(&mut StoredJob),
) -> Result<Vec<Kept>, StoreError> {
    let (jobs, damaged) = store.active(correct)?;
    for Damage { job, cause } in &damaged {
        tracing::error!("job {job} is set aside: {cause}; see tandem store check");
    }
    store.quarantine(&damaged, unix_us)?;
    Ok(jobs)
}

/// GPU time of users in jobs that have ended: in this period of limits, and within a half-life.
fn used(store: &Store, now: Now, people: &People) -> Result<BTreeMap<u32, (u64, u64)>, StoreError> {
    let micros = |hours: f64| (hours * 3.6e9) as u64;
    let period_us = micros(people.file.limits.period_h.unwrap_or(720.0)).max(1);
    let period = now.unix_us.saturating_sub(now.at_us % period_us);
    let half_life_us = people.file.fair_share.map_or(0, |fair| micros(fair.half_life_h));
    let lately = now.unix_us.saturating_sub(half_life_us);
    let mut used: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (uid, gpu_us) in store.gpu_time_since(period)? {
        used.entry(uid).or_default().0 = gpu_us;
    }
    for (uid, gpu_us) in store.gpu_time_since(lately)? {
        used.entry(uid).or_default().1 = gpu_us;
    }
    Ok(used)
}
