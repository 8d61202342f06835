//! Collects what happened: messages become inputs of the scheduler, accepted commands and questions.

use super::message::{Question, Reply};
use super::{AcceptedCommand, Cycle, Message};
use crate::command::{Accepted, Admission, Caller, UserCommand};
use crate::job_sockets::FromJob;
use crate::scheduler::{Fact, Input, Now};
use std::collections::BTreeMap;
use tandem_backends::{BackendEvent, ClusterJob, DeviceSample};
use tandem_core::Time;

/// What a turn took in.
#[derive(Default)]
pub(super) struct Intake {
    /// What happened.
    pub(super) inputs: Vec<Input>,
    pub(super) accepted: Vec<AcceptedCommand>,
    pub(super) questions: Vec<Question>,
    /// Jobs whose webhooks were called.
    pub(super) webhooks_done: Vec<u64>,
    /// It was told to stop.
    pub(super) stops: bool,
}

impl Cycle {
    /// Takes in a batch of messages. While the store cannot be written, commands are refused.
    pub(super) fn collect(&mut self, now: Now, batch: &mut Vec<Message>, is_stuck: bool) -> Intake {
        let inputs = std::mem::take(&mut self.unwritten);
        let mut intake = Intake { inputs, ..Intake::default() };
        let mut next_job = self.scheduler.next_job();
        for message in batch.drain(..) {
            match message {
                Message::Command { reply, .. } if is_stuck => {
                    let _ = reply.send(Err(self.refusal()));
                }
                Message::Command { caller, command, reply } => {
                    let accepted = self.admit(next_job, &caller, command, reply);
                    next_job += accepted.as_ref().map_or(0, |(one, _)| one.ids.len() as u64);
                    intake.accepted.extend(accepted);
                }
                Message::Backend(event) => self.take_event(now, event, &mut intake.inputs),
                Message::Job { job, said } => {
                    let facts = self.facts_of(job, &said, now.time());
                    intake.inputs.extend(facts.into_iter().map(Input::Fact));
                }
                Message::WebhookDone { job } => intake.webhooks_done.push(job),
                Message::Input(input) => intake.inputs.push(input),
                Message::Ask(question) => intake.questions.push(question),
                Message::Stop => intake.stops = true,
            }
        }
        if !is_stuck {
            intake.accepted.extend(self.take_imports(next_job));
        }
        intake
    }

    /// Accepts a command, or refuses it at once.
    fn admit(
        &self,
        next_job: u64,
        caller: &Caller,
        command: UserCommand,
        reply: Reply,
    ) -> Option<AcceptedCommand> {
        let admission = Admission { scheduler: &self.scheduler, next_job, daemon_uid: self.uid };
        let lookup = |id| self.store.job(id).ok().flatten();
        match admission.admit(caller, command, &lookup) {
            Ok(accepted) => Some((accepted, Some(reply))),
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
                None
            }
        }
    }

    fn take_event(&mut self, now: Now, event: BackendEvent, inputs: &mut Vec<Input>) {
        match event {
            BackendEvent::Sampled(sample) => {
                let facts = self.meter.sample(&sample, now.time(), &self.scheduler);
                inputs.extend(facts.into_iter().map(Input::Fact));
                inputs.extend(self.foreign_processes(&sample.devices));
                self.devices = sample.devices;
            }
            BackendEvent::Imported(job) => self.imports.push(*job),
            event if self.withdraws_import(&event) => {}
            event => inputs.push(Input::Backend(event)),
        }
    }

    /// Jobs of the cluster as submissions; they stay until they are written.
    fn take_imports(&self, next_job: u64) -> Vec<AcceptedCommand> {
        let take = |(id, job): (u64, &ClusterJob)| {
            let (submission, unknown) =
                crate::import::submission(id, job, self.import_memory_bytes);
            if !unknown.is_empty() {
                let shown = tandem_backends::short_id(&job.external);
                tracing::warn!("job {shown} has unknown hints: {}", unknown.join(","));
            }
            let input = Input::Submit(Box::new(submission));
            (Accepted { input, env: BTreeMap::new(), ids: vec![id] }, None)
        };
        (next_job..).zip(&self.imports).map(take).collect()
    }

    /// Whether an event withdraws a job of the cluster that is not written yet: nobody else need know of it.
    fn withdraws_import(&mut self, event: &BackendEvent) -> bool {
        let BackendEvent::Withdrawn { external, .. } = event else { return false };
        let before = self.imports.len();
        self.imports.retain(|job| job.external != *external);
        self.imports.len() < before
    }

    /// What the scheduler has to know of what a job says.
    fn facts_of(&mut self, job: u64, said: &FromJob, now: Time) -> Vec<Fact> {
        match *said {
            FromJob::Hello { accum, stop } => vec![Fact::Hello { job, accum, stop }],
            FromJob::Steps { n, accum } => {
                let accum = accum.or_else(|| {
                    let allocation = self.scheduler.job(job)?.allocation.as_ref()?;
                    Some(allocation.sub_batches)
                });
                self.meter.steps(job, n, accum.unwrap_or(1), now, &self.scheduler)
            }
            FromJob::Bye { done } => vec![Fact::Bye { job, done }],
        }
    }

    /// Processes on our devices that are not ours.
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
