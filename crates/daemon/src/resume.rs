//! What a daemon starts with: jobs from the store, and their runs as the back end finds them.

use crate::job::JobState;
use crate::scheduler::{JOURNAL_VERSION, Kept, Now, People, Setup, Start};
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
    let jobs = load_jobs(store, now.unix_us)?;
    let closed = backend.unavailable_devices();
    let jobs = recover_runs(jobs, backend);
    // Jobs whose processes may still run; their run records are not deleted.
    let damaged = store.quarantined()?.into_iter().map(|damage| damage.job).collect();
    let next_job = sweep(backend, &jobs, &damaged, store.next_job()?);
    let drained = store.meta("drained")?.and_then(|text| {
        let mut text = serde_json::Deserializer::from_str(&text);
        crate::scheduler::drained_devices(&mut text).ok()
    });
    let bookings = store.meta("bookings")?.and_then(|text| serde_json::from_str(&text).ok());
    let used = used(store, now, &setup.people)?;
    Ok(Start {
        version: JOURNAL_VERSION,
        now,
        setup,
        over: ended_dependencies(store, &jobs)?,
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

/// Final states of ended jobs on which others depend.
fn ended_dependencies(store: &Store, jobs: &[Kept]) -> Result<BTreeMap<u64, JobState>, StoreError> {
    let mut over = BTreeMap::new();
    for dependency in jobs.iter().flat_map(|kept| &kept.job.dependencies) {
        if let Some(past) = store.past(dependency.job)?.filter(|past| past.state.is_over()) {
            over.insert(dependency.job, past.state);
        }
    }
    Ok(over)
}

/// Deletes records of ended runs that an earlier daemon did not delete before it died. Returns the id of the
/// next job, above all ids with records.
fn sweep(backend: &mut dyn Backend, jobs: &[Kept], damaged: &BTreeSet<u64>, next_job: u64) -> u64 {
    let mut next = next_job;
    for run in backend.records() {
        next = next.max(run.job.saturating_add(1));
        let at = jobs.partition_point(|kept| kept.last() < run.job);
        let is_over = match jobs.get(at).filter(|kept| kept.job.id <= run.job) {
            Some(Kept { job, found, .. }) => {
                run.run < job.runs || (run.run == job.runs && found.is_none())
            }
            None => run.job < next_job && !damaged.contains(&run.job),
        };
        if is_over {
            crash::point();
            backend.forget(run);
        }
    }
    next
}

/// Jobs that have not ended. Those whose records cannot be read are set aside.
fn load_jobs(store: &mut Store, unix_us: u64) -> Result<Vec<Kept>, StoreError> {
    let (jobs, damaged) = store.active()?;
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
