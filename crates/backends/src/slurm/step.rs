//! One step of the control loop: lists Slurm's jobs and nodes, reconciles, and sends requests.

use super::commands;
use super::completions;
use super::gate::Gate;
use super::jobs::{JobList, JobRecord};
use super::nodes::{NodeLister, SlurmNode};
use super::reconcile::{MissingRun, Reconciled, Reconciler};
use super::{LOST, SlurmError, SlurmOptions, list_jobs, list_running_jobs};
use crate::Sink;
use crate::cluster::control_loop::{Cluster, HoldsJobs, Shared, unix_s};
use crate::event::BackendEvent;
use std::time::{Duration, Instant};

/// The next list comes this many times as late as a list takes,
const POLL_FACTOR: u32 = 3;
/// but not earlier than this.
const POLL_MIN: Duration = Duration::from_millis(150);
/// A list of this age still serves when the daemon has decided about what it shows.
const FRESH: Duration = Duration::from_millis(500);
/// Time between two lists of the jobs of other partitions.
const OTHERS_EVERY: Duration = Duration::from_secs(10);
/// From this version on squeue's JSON has only what was asked for.
const VERSION_FILTERS: (u32, u32, u32) = (24, 5, 1);

/// The cluster, as the control loop sees it.
pub(super) struct Slurm {
    pub(super) options: SlurmOptions,
    pub(super) gate: Gate,
    pub(super) node_list: NodeLister,
    pub(super) other_jobs: OtherJobs,
    /// The last list, if nothing was requested since.
    pub(super) last: Option<Listed>,
}

/// A list of jobs and nodes.
pub(super) struct Listed {
    at: Instant,
    jobs: JobList,
    nodes: Vec<SlurmNode>,
    /// Operations of the daemon until then.
    operations: u64,
}

/// Jobs of other partitions that may use GPUs. They are listed seldom, because there may be many.
#[derive(Default)]
pub(super) struct OtherJobs {
    listed: Option<Instant>,
    records: Vec<JobRecord>,
}

impl OtherJobs {
    /// Adds them to a list of one partition, unless it has them: older versions list all partitions.
    fn add_to(&mut self, list: &mut JobList, partition: &str) -> Result<(), SlurmError> {
        if list.version.is_none_or(|version| version < VERSION_FILTERS) {
            return Ok(());
        }
        if self.listed.is_none_or(|listed| listed.elapsed() >= OTHERS_EVERY) {
            let all = list_running_jobs()?;
            let of_others = |record: &JobRecord| record.partition != partition;
            self.records = all.records.into_iter().filter(of_others).collect();
            self.listed = Some(Instant::now());
        }
        list.records.extend(self.records.iter().cloned());
        Ok(())
    }
}

impl Cluster for Slurm {
    type Reconciler = Reconciler;
    type Error = SlurmError;

    const NAME: &'static str = "Slurm";
    const JOBS: &'static str = "jobs";
    const BACK_OFF_MAX: Duration = Duration::from_secs(60);
    const AFTER_REQUESTS: Duration = Duration::from_millis(100);

    /// Lists take a small part of the time, on a large cluster too.
    fn poll_after(&self, took: Duration) -> Duration {
        (took * POLL_FACTOR).max(POLL_MIN).min(self.options.poll_every)
    }

    fn step(&mut self, state: &Shared<Reconciler>, sink: &Sink) -> Result<bool, SlurmError> {
        let began = Instant::now();
        self.gate.keep();
        let operations = state.with(|reconciler| reconciler.jobs().operations);
        let serves = |last: &Listed| last.at.elapsed() < FRESH && last.operations != operations;
        let Listed { at, jobs: list, nodes, .. } = match self.last.take().filter(serves) {
            Some(last) => last,
            None => self.list()?,
        };
        let listed = began.elapsed();
        let (node_events, Reconciled { requests, events, missing }) = state.with(|reconciler| {
            (reconciler.update_nodes(&nodes), reconciler.reconcile(&list, unix_s()))
        });
        let decided = began.elapsed();
        let ended = missing.iter().map(|missing| self.end_of(missing));
        for event in node_events.into_iter().chain(events).chain(ended) {
            sink(event);
        }
        if requests.is_empty() {
            // A job that is missing must be missing in other lists too.
            let is_complete = state.with(|reconciler| !reconciler.misses_jobs());
            self.last = is_complete.then_some(Listed { at, jobs: list, nodes, operations });
            return Ok(false);
        }
        let messages = commands::send(&requests)?;
        for message in &messages {
            tracing::debug!("Slurm says: {message}");
        }
        state.with(|reconciler| reconciler.hear(&messages));
        tracing::debug!(
            "listed {} records in {} ms, decided in {} ms, {} requests in {} ms",
            list.records.len(),
            listed.as_millis(),
            (decided - listed).as_millis(),
            requests.len(),
            (began.elapsed() - decided).as_millis()
        );
        Ok(true)
    }
}

impl Slurm {
    fn list(&mut self) -> Result<Listed, SlurmError> {
        let at = Instant::now();
        let mut jobs = list_jobs(Some(&self.options.partition))?;
        self.other_jobs.add_to(&mut jobs, &self.options.partition)?;
        // After the jobs: what a job has that runs must not look free.
        let nodes = self.node_list.get()?;
        Ok(Listed { at, jobs, nodes, operations: 0 })
    }

    /// How a run ended that Slurm no longer lists.
    fn end_of(&self, missing: &MissingRun) -> BackendEvent {
        let run = missing.run;
        match completions::look_up(&self.options, missing) {
            Some(exit) => BackendEvent::Exited { run, exit },
            None => BackendEvent::Lost { run, reason: LOST.to_owned() },
        }
    }
}
