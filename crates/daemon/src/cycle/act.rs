//! Carries out the outcome of a step: operations of the back end, messages to jobs, published changes.

use super::Cycle;
use crate::scheduler::{Input, Now, StepOutcome};
use std::hash::{Hash, Hasher};
use tandem_backends::{BackendEvent, Op, Owner, crash};

impl Cycle {
    /// Ends measurement windows that an operation would disturb.
    pub(super) fn interrupt_windows(&mut self, inputs: &[Input]) {
        for input in inputs {
            if let Input::Backend(event) = input
                && let Some(job) = job_of(event)
            {
                for other in self.scheduler.co_located(job) {
                    self.meter.interrupt(other);
                }
                self.meter.interrupt(job);
            }
        }
    }

    pub(super) fn act(&mut self, outcome: &StepOutcome) {
        // Close the socket before the next run of the same job opens it again.
        for run in &outcome.forget {
            crash::point();
            self.backend.forget(*run);
            crash::point();
            self.sockets.close(run.job);
            self.meter.forget(run.job);
        }
        for (id, op) in &outcome.ops {
            let mut op = op.clone();
            let job = op.run().job;
            self.meter.interrupt(job);
            if let Op::Start(launch) = &mut op {
                match self.store.env(job) {
                    Ok(env) => {
                        let ours = std::mem::replace(&mut launch.env, env);
                        // Python buffers what it prints to a file, which would delay progress.
                        let unbuffered = launch.env.entry("PYTHONUNBUFFERED".to_owned());
                        unbuffered.or_insert_with(|| "1".to_owned());
                        launch.env.extend(ours);
                    }
                    Err(error) => tracing::error!("job {job}: its environment is lost: {error}"),
                }
                if self.uid != 0 {
                    // Only root can act as another user.
                    launch.owner = None;
                }
            }
            if matches!(op, Op::Start(_) | Op::Place { .. }) {
                crash::point();
                self.listen_to(job);
            }
            crash::point();
            self.backend.apply(*id, op);
            crash::point();
        }
        for (job, message) in &outcome.messages {
            self.sockets.send(*job, *message);
        }
    }

    /// Opens the socket of a job and follows the output that may show its progress.
    pub(super) fn listen_to(&mut self, id: u64) {
        let Some(job) = self.scheduler.job(id).map(|active| &active.job) else { return };
        self.sockets.open(id, job.uid);
        if job.external.is_none() {
            // Only root can act as another user.
            let owner = (self.uid == 0).then_some(Owner { uid: job.uid, gid: job.gid });
            let service = job.request.service.as_ref();
            if let Some(pattern) = service.and_then(|service| service.latency_regex.as_deref()) {
                self.sockets.tail_latencies(id, pattern, job.stdout(), owner);
                return;
            }
            let pattern = job.request.progress_regex.as_deref();
            let mut files = vec![job.stdout()];
            // Progress bars are printed to standard error.
            files.extend(job.stderr().filter(|_| pattern.is_none()));
            self.sockets.tail(id, pattern, &files, owner);
        }
    }

    pub(super) fn publish(&mut self, now: Now, outcome: &StepOutcome) {
        for job in &outcome.changed {
            let mut hasher = std::hash::DefaultHasher::new();
            (job.state.name(), &job.reason, &job.devices).hash(&mut hasher);
            // Also publish when a service begins or ceases to keep its promise.
            let is_kept = crate::api::latency(job).and_then(|latency| latency.is_kept);
            is_kept.hash(&mut hasher);
            let shown = hasher.finish();
            if self.published.get(&job.id) != Some(&shown) {
                self.publisher.publish(now, job);
                if job.state.is_over() {
                    self.published.remove(&job.id);
                } else {
                    self.published.insert(job.id, shown);
                }
            }
        }
    }
}

/// The job that an event concerns.
fn job_of(event: &BackendEvent) -> Option<u64> {
    let run = match event {
        BackendEvent::Started { run, .. }
        | BackendEvent::NotStarted { run, .. }
        | BackendEvent::Paused { run, .. }
        | BackendEvent::Resumed { run, .. }
        | BackendEvent::Refused { run, .. }
        | BackendEvent::Exited { run, .. }
        | BackendEvent::Requeued { run }
        | BackendEvent::Placed { run, .. }
        | BackendEvent::Lost { run, .. } => run,
        BackendEvent::Sampled(_)
        | BackendEvent::Imported(_)
        | BackendEvent::Withdrawn { .. }
        | BackendEvent::Waits { .. }
        | BackendEvent::Device { .. } => return None,
    };
    Some(run.job)
}
