//! Turns messages into inputs of the scheduler, accepted commands and questions.

use super::fair::UserRequest;
use super::message::Reply;
use super::{AcceptedCommand, Cycle, Message};
use crate::command::{
    Accepted, AdmissionControl, Admitted, Caller, CommandOutcome, Refusal, UserCommand,
};
use crate::job_sockets::FromJob;
use crate::meter::StepReport;
use crate::scheduler::{Fact, Input, Now};
use crate::store::StoreError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tandem_backends::{BackendEvent, ClusterJob, DeviceSample, RunSample};

/// How long a turn takes requests of users. It takes at least one.
const REQUESTS_FOR: Duration = Duration::from_millis(20);
/// Jobs that the commands of a turn may change, or tasks that they may submit, before the others wait for the next.
const JOBS_MAX: usize = 2048;

/// The messages of a turn, sorted.
#[derive(Default)]
pub(super) struct Intake {
    /// Inputs of the scheduler.
    pub(super) inputs: Vec<Input>,
    pub(super) accepted: Vec<AcceptedCommand>,
    /// Jobs whose webhooks were called.
    pub(super) webhooks_done: Vec<u64>,
    /// The runs in the latest sample.
    pub(super) sampled: Option<Vec<RunSample>>,
    /// Whether it was told to stop.
    pub(super) stops: bool,
}

impl Cycle {
    /// Collects a batch of messages. Commands are refused while the store cannot be written.
    pub(super) fn collect(&mut self, now: Now, batch: &mut Vec<Message>, is_stuck: bool) -> Intake {
        let inputs = std::mem::take(&mut self.unwritten);
        let mut intake = Intake { inputs, ..Intake::default() };
        for message in batch.drain(..) {
            match message {
                Message::Command { caller, command, reply } => {
                    let uid = caller.uid;
                    self.requests.push(uid, UserRequest::Command { caller, command, reply });
                }
                Message::Write { reply, .. } if is_stuck => {
                    let _ = reply.send(Err(self.refusal()));
                }
                Message::Write { write, reply } => {
                    let written = self.store.write(write);
                    let refused = |error: StoreError| Refusal::Unavailable(error.to_string());
                    let _ = reply.send(written.map_err(refused));
                }
                Message::Backend(event) => self.take_event(now, event, &mut intake),
                Message::StoredJob { job, said } => {
                    let facts = self.facts_of(job, &said, now);
                    intake.inputs.extend(facts.into_iter().map(Input::Fact));
                }
                Message::WebhookDone { job } => intake.webhooks_done.push(job),
                Message::Input(input) => intake.inputs.push(input),
                Message::Ask { uid, question } => {
                    self.requests.push(uid, UserRequest::Ask(question));
                }
                Message::Stop => intake.stops = true,
            }
        }
        let next_job = self.take_requests(now, &mut intake, is_stuck);
        if !is_stuck {
            intake.accepted.extend(self.next_portions());
            intake.accepted.extend(self.take_imports(next_job));
        }
        intake
    }

    /// Takes requests of users, as many as a turn may; gives the id of the next job.
    fn take_requests(&mut self, now: Now, intake: &mut Intake, is_stuck: bool) -> u64 {
        let began = Instant::now();
        let mut next_job = self.scheduler.next_job();
        let mut admitted = Admitted::new();
        let mut jobs = 0;
        while let Some(request) = self.requests.pop() {
            match request {
                UserRequest::Ask(question) => question(&self.present(now)),
                UserRequest::Command { reply, .. } if is_stuck => {
                    let _ = reply.send(Err(self.refusal()));
                }
                UserRequest::Command { caller, command, reply } => {
                    let accepted = self.admit(next_job, &admitted, &caller, command, reply);
                    if let Some((Accepted { input, outcome, .. }, _)) = &accepted {
                        let new = outcome.new.len();
                        if let Input::Submit(submission) = input {
                            let load = submission.load(new as u64);
                            admitted.entry(submission.uid).or_default().add(&load);
                        }
                        next_job += new as u64;
                        jobs += new + outcome.done.len();
                    }
                    intake.accepted.extend(accepted);
                }
            }
            if jobs >= JOBS_MAX || began.elapsed() >= REQUESTS_FOR {
                break;
            }
        }
        next_job
    }

    /// Accepts a command, or refuses it at once.
    fn admit(
        &mut self,
        next_job: u64,
        admitted: &Admitted,
        caller: &Caller,
        command: UserCommand,
        reply: Reply,
    ) -> Option<AcceptedCommand> {
        if let Some(refusal) = self.must_wait(caller.uid, &command) {
            let _ = reply.send(Err(refusal));
            return None;
        }
        let (scheduler, limits) = (&self.scheduler, &self.limits);
        let admission =
            AdmissionControl { scheduler, next_job, daemon_uid: self.uid, limits, admitted };
        let admitted = admission.admit(caller, command, &self.store);
        match admitted {
            // It changes nothing, so nothing has to be written.
            Ok(Accepted { input: Input::Change { jobs, .. }, outcome, .. }) if jobs.is_empty() => {
                let _ = reply.send(Ok(outcome));
                None
            }
            Ok(accepted) => self.put_aside(caller.uid, accepted, reply),
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
                None
            }
        }
    }

    fn take_event(&mut self, now: Now, event: BackendEvent, intake: &mut Intake) {
        let inputs = &mut intake.inputs;
        match event {
            BackendEvent::Sampled(sample) => {
                let facts = self.meter.sample(&sample, now.time(), &self.scheduler);
                inputs.extend(facts.into_iter().map(Input::Fact));
                inputs.extend(self.foreign_processes(&sample.devices));
                self.devices = sample.devices;
                intake.sampled = Some(sample.runs);
            }
            BackendEvent::Imported(job) => self.imports.push(*job),
            event if self.changes_import(&event) => {}
            event => {
                if let BackendEvent::Exited { run, .. } = &event {
                    let (job, bytes) = (run.job, self.meter.memory_peak(run.job));
                    if bytes > 0 {
                        inputs.push(Input::Fact(Fact::Peak { job, bytes }));
                    }
                }
                inputs.push(Input::Backend(event));
            }
        }
    }

    /// Submissions for imported jobs of the cluster. They are kept until they are written.
    fn take_imports(&self, next_job: u64) -> Vec<AcceptedCommand> {
        let take = |(id, job): (u64, &ClusterJob)| {
            let (submission, unknown) =
                crate::import::submission(id, job, self.import_memory_bytes);
            if !unknown.is_empty() {
                let shown = tandem_backends::short_id(&job.external);
                tracing::warn!("job {shown} has unknown hints: {}", unknown.join(","));
            }
            let input = Input::Submit(Box::new(submission));
            let outcome = CommandOutcome { new: vec![id], ..CommandOutcome::default() };
            (Accepted { input, env: BTreeMap::new(), outcome }, None)
        };
        (next_job..).zip(&self.imports).map(take).collect()
    }

    /// Whether an event changes or withdraws a cluster job that is not in the store yet. Then that is enough.
    fn changes_import(&mut self, event: &BackendEvent) -> bool {
        match event {
            BackendEvent::Withdrawn { external, .. } => {
                let before = self.imports.len();
                self.imports.retain(|job| job.external != *external);
                self.imports.len() < before
            }
            BackendEvent::Waits { external, reason } => {
                let import = self.imports.iter_mut().find(|job| job.external == *external);
                import.map(|job| job.waits.clone_from(reason)).is_some()
            }
            _ => false,
        }
    }

    /// The input that follows from a message of a job, if any.
    fn facts_of(&mut self, job: u64, said: &FromJob, now: Now) -> Vec<Fact> {
        match *said {
            FromJob::Hello { accum, stop } => vec![Fact::Hello { job, accum, stop }],
            FromJob::Steps { n, total, accum, ref scalars } => {
                self.history.samples.report(job, now.unix_us, scalars);
                let accum = accum.unwrap_or_else(|| self.sub_batches(job));
                self.meter.steps(job, StepReport { n, total, accum }, now.time(), &self.scheduler)
            }
            // What a job reports takes precedence over what it prints.
            FromJob::Printed { .. } if self.reports(job) => Vec::new(),
            FromJob::Printed { n, total } => {
                let accum = self.sub_batches(job);
                self.meter.steps(job, StepReport { n, total, accum }, now.time(), &self.scheduler)
            }
            FromJob::Requests(window) => vec![Fact::Requests { job, window }],
            FromJob::Bye { done } => vec![Fact::Bye { job, done }],
        }
    }

    fn reports(&self, job: u64) -> bool {
        self.scheduler.job(job).is_some_and(|active| active.job.caps.reports)
    }

    /// The number of sub-batches that a job was told to use.
    fn sub_batches(&self, job: u64) -> u32 {
        let active = self.scheduler.job(job);
        let allocation = active.and_then(|active| active.allocation.as_ref());
        allocation.map_or(1, |allocation| allocation.sub_batches)
    }

    /// Processes on the devices that Tandem did not start.
    fn foreign_processes(&mut self, devices: &[DeviceSample]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for (device, sample) in (0..).zip(devices) {
            let bytes = sample.processes.iter().map(|&(_, memory)| memory).sum();
            let count = u32::try_from(sample.processes.len()).unwrap_or(u32::MAX);
            inputs.extend(self.meter.foreign(device, bytes, count).map(Input::Fact));
        }
        inputs
    }
}
