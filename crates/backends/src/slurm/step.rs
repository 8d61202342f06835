//! One step of the control loop: lists Slurm's jobs and nodes, reconciles, and sends requests.

use super::commands;
use super::completions;
use super::reconcile::{MissingRun, Reconciled, Reconciler};
use super::{LOST, SlurmError, SlurmOptions, list_jobs, nodes};
use crate::Sink;
use crate::cluster::control_loop::{Cluster, Shared, unix_s};
use crate::event::BackendEvent;
use std::time::{Duration, Instant};

/// The cluster, as the control loop sees it.
pub(super) struct Slurm {
    pub(super) options: SlurmOptions,
}

impl Cluster for Slurm {
    type Reconciler = Reconciler;
    type Error = SlurmError;

    const NAME: &'static str = "Slurm";
    const JOBS: &'static str = "jobs";
    const BACK_OFF_MAX: Duration = Duration::from_secs(60);
    const AFTER_REQUESTS: Duration = Duration::from_millis(100);

    fn poll_every(&self) -> Duration {
        self.options.poll_every
    }

    fn step(&mut self, state: &Shared<Reconciler>, sink: &Sink) -> Result<bool, SlurmError> {
        let began = Instant::now();
        let (list, nodes) = std::thread::scope(|scope| {
            let nodes = scope.spawn(nodes::list);
            let list = list_jobs();
            (list, nodes.join())
        });
        let list = list?;
        let Ok(nodes) = nodes else { return Ok(false) };
        let nodes = nodes?;
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
            return Ok(false);
        }
        for message in commands::send(&requests)? {
            tracing::debug!("Slurm says: {message}");
        }
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
    /// How a run ended that Slurm no longer lists.
    fn end_of(&self, missing: &MissingRun) -> BackendEvent {
        let run = missing.run;
        match completions::look_up(&self.options, missing) {
            Some(exit) => BackendEvent::Exited { run, exit },
            None => BackendEvent::Lost { run, reason: LOST.to_owned() },
        }
    }
}
