//! The cycle: collect, journal, apply, plan, check, diff, journal, act, publish. One thread, one
//! straight line; what it starts comes back as an event of a later turn.

mod act;
mod collect;
mod message;

pub use message::{Message, Present, Turns};

use crate::clock::Clock;
use crate::command::{Accepted, Refusal};
use crate::job_sockets::JobSockets;
use crate::meter::Meter;
use crate::publish::Publisher;
use crate::scheduler::{Input, Now, Phase, Scheduler, StepOutcome};
use crate::store::{Store, StoreError, StoreTransaction};
use collect::Intake;
use message::Reply;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tandem_backends::{Backend, ClusterJob, DeviceSample, crash};
use tandem_core::Time;

/// Messages that one turn takes in; the rest waits for the next.
const BATCH_MAX: usize = 4096;
/// A store that cannot be written is tried again after this.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Everything that a turn touches.
pub struct Cycle {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The store.
    pub store: Store,
    /// The back end.
    pub backend: Box<dyn Backend>,
    /// Measures jobs and devices.
    pub meter: Meter,
    /// Sockets of jobs.
    pub sockets: JobSockets,
    /// Publishes changes of jobs.
    pub publisher: Publisher,
    /// The daemon's user.
    pub uid: u32,
    devices: Vec<DeviceSample>,
    turns: Turns,
    wake: Option<Time>,
    /// What happened and could not be written yet.
    unwritten: Vec<Input>,
    /// What was decided and could not be written yet.
    decided: Option<Decided>,
    /// Jobs of the cluster that are not written yet.
    imports: Vec<ClusterJob>,
    /// Memory of each GPU that a job of the cluster takes if it says nothing; without it such a job runs alone.
    pub import_memory_bytes: Option<u64>,
    /// Why the store cannot be written.
    trouble: Option<String>,
    /// States as last published.
    published: BTreeMap<u64, (crate::job::JobState, Option<String>, Vec<u32>)>,
}

/// A command that was accepted, and its reply; a job of a cluster has none.
type AcceptedCommand = (Accepted, Option<Reply>);

/// What a step came to. Nothing of it is done, and nothing else is decided, before it is written.
struct Decided {
    now: Now,
    outcome: StepOutcome,
    drains: bool,
    replies: Vec<(Vec<u64>, Reply)>,
}

impl Cycle {
    /// A cycle about to take its first turn.
    pub fn new(
        scheduler: Scheduler,
        store: Store,
        backend: Box<dyn Backend>,
        meter: Meter,
        sockets: JobSockets,
        publisher: Publisher,
        uid: u32,
    ) -> Self {
        Self {
            scheduler,
            store,
            backend,
            meter,
            sockets,
            publisher,
            uid,
            devices: Vec::new(),
            turns: Turns::default(),
            wake: None,
            unwritten: Vec::new(),
            decided: None,
            imports: Vec::new(),
            import_memory_bytes: None,
            trouble: None,
            published: BTreeMap::new(),
        }
    }

    /// When it has to take a turn even if nothing happens.
    pub fn wake(&self) -> Option<Time> {
        self.wake
    }

    /// Takes turns until it is told to stop.
    pub fn run(&mut self, clock: Clock, inbox: &Receiver<Message>) {
        let mut batch = Vec::new();
        loop {
            let wait = self.wake.map_or(Duration::from_secs(3600), |wake| clock.until(wake));
            let wait = if self.trouble.is_some() { STORE_AGAIN } else { wait };
            match inbox.recv_timeout(wait) {
                Ok(message) => batch.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while batch.len() < BATCH_MAX
                && let Ok(message) = inbox.try_recv()
            {
                batch.push(message);
            }
            if !self.turn(clock.now(), &mut batch) {
                return;
            }
        }
    }

    /// One turn; `false` if it was told to stop.
    pub fn turn(&mut self, now: Now, batch: &mut Vec<Message>) -> bool {
        let began = Instant::now();
        let before = self.decided.take();
        let is_stuck = before.is_some_and(|before| !self.carry_out(before));
        let Intake { inputs, accepted, questions, webhooks_done, stops } =
            self.collect(now, batch, is_stuck);
        let is_due = self.wake.is_some_and(|wake| wake <= now.time());
        if is_stuck {
            self.unwritten = inputs;
        } else if is_due || !inputs.is_empty() || !accepted.is_empty() {
            self.work(now, inputs, accepted);
            self.turns.add(began.elapsed());
        }
        self.note_webhooks(&webhooks_done);
        let present = Present {
            scheduler: &self.scheduler,
            now,
            devices: &self.devices,
            meter: &self.meter,
            turns: &self.turns,
        };
        questions.into_iter().for_each(|question| question(&present));
        !stops
    }

    /// Webhooks that were called need not be called again. If that cannot be written they are.
    fn note_webhooks(&mut self, jobs: &[u64]) {
        if jobs.is_empty() {
            return;
        }
        let write = |transaction: &StoreTransaction<'_>| {
            jobs.iter().try_for_each(|&job| transaction.remove_webhook(job))
        };
        if let Err(error) = self.store.write_unsynced(write) {
            tracing::warn!("cannot note that webhooks were called: {error}");
        }
    }

    /// Journals, decides, journals, acts.
    fn work(&mut self, now: Now, mut inputs: Vec<Input>, accepted: Vec<AcceptedCommand>) {
        let happened = inputs.len();
        inputs.extend(accepted.iter().map(|(accepted, _)| accepted.input.clone()));
        crash::point();
        if let Err(error) = self.journal_inputs(now, &inputs, &accepted) {
            // Nothing was decided yet: what people asked for is refused, what happened is tried again.
            self.note_trouble(&error);
            for reply in accepted.into_iter().filter_map(|(_, reply)| reply) {
                let _ = reply.send(Err(self.refusal()));
            }
            inputs.truncate(happened);
            self.unwritten = inputs;
            return;
        }
        self.imports.clear();
        crash::point();
        self.interrupt_windows(&inputs);
        let outcome = self.scheduler.step(now, &inputs);
        self.wake = outcome.wake;
        crash::point();
        let drains = |input: &Input| matches!(input, Input::Drain { .. } | Input::Undrain { .. });
        let drains = inputs.iter().any(drains);
        let replies = accepted
            .into_iter()
            .filter_map(|(accepted, reply)| Some((accepted.ids, reply?)))
            .collect();
        self.carry_out(Decided { now, outcome, drains, replies });
    }

    /// Writes what was decided and does it; `false` if it has to wait for the store.
    fn carry_out(&mut self, mut decided: Decided) -> bool {
        // One wait for the disk is enough for a turn, and none for one that nobody is told of: what was
        // written first is on disk when what is written last is.
        let waits = !decided.replies.is_empty() || decided.outcome.is_visible();
        let Decided { now, outcome, drains, .. } = &decided;
        if let Err(error) = self.journal_outcome(*now, outcome, *drains, waits) {
            self.note_trouble(&error);
            // Jobs are written with the inputs: once those are on disk they are accepted. The rest waits.
            let (jobs, rest) = decided.replies.into_iter().partition(|(ids, _)| !ids.is_empty());
            decided.replies = rest;
            match self.store.sync() {
                Ok(()) => answer(jobs),
                Err(_) => decided.replies.extend(jobs),
            }
            self.decided = Some(decided);
            return false;
        }
        if self.trouble.take().is_some() {
            tracing::info!("the store can be written again");
        }
        crash::point();
        let Decided { now, outcome, replies, .. } = decided;
        answer(replies);
        self.act(&outcome);
        self.publish(now, &outcome);
        true
    }

    fn note_trouble(&mut self, error: &StoreError) {
        self.turns.store_failures += 1;
        let error = error.to_string();
        if self.trouble.as_ref() != Some(&error) {
            tracing::error!(
                "cannot write: {error}; nothing is accepted until it can be, jobs go on"
            );
        }
        self.trouble = Some(error);
    }

    fn refusal(&self) -> Refusal {
        let error = self.trouble.as_deref().unwrap_or("not known why");
        Refusal::Unavailable(format!(
            "the daemon cannot write its state: {error}; jobs go on, try again when that is mended"
        ))
    }

    fn journal_inputs(
        &mut self,
        now: Now,
        inputs: &[Input],
        accepted: &[AcceptedCommand],
    ) -> Result<(), StoreError> {
        if inputs.is_empty() {
            return Ok(());
        }
        self.store.write_unsynced(|transaction| {
            transaction.inputs(now, inputs)?;
            for (accepted, _) in accepted {
                if let Input::Submit(submission) = &accepted.input {
                    transaction.request(submission.first, &submission.request, &accepted.env)?;
                    for job in crate::scheduler::new_jobs(submission, now) {
                        transaction.insert(&job, submission.first)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn journal_outcome(
        &mut self,
        now: Now,
        outcome: &StepOutcome,
        drains: bool,
        waits: bool,
    ) -> Result<(), StoreError> {
        let (scheduler, publisher) = (&self.scheduler, &self.publisher);
        let write = |transaction: &StoreTransaction<'_>| {
            for job in &outcome.changed {
                transaction.update(job)?;
                if publisher.has_webhook(job) {
                    transaction.add_webhook(job.id)?;
                }
            }
            for name in &outcome.classes {
                if let Some(class) = scheduler.classes().get(name) {
                    transaction.class(name, class)?;
                }
            }
            if drains {
                let drained: Vec<u32> = scheduler.drained().collect();
                transaction.meta("drained", &serde_json::to_string(&drained)?)?;
            }
            transaction.actions(now, &outcome.actions)
        };
        if waits { self.store.write(write) } else { self.store.write_unsynced(write) }
    }

    /// What the scheduler wanted when it began.
    pub fn begin(&mut self, now: Now, outcome: &StepOutcome) -> Result<(), StoreError> {
        self.wake = outcome.wake;
        let uncalled = self.store.pending_webhooks()?;
        self.journal_outcome(now, outcome, false, true)?;
        crash::point();
        let running: Vec<u64> = self
            .scheduler
            .jobs()
            .filter(|active| active.phase != Phase::Absent)
            .map(|active| active.job.id)
            .collect();
        for job in running {
            self.listen_to(job);
        }
        self.act(outcome);
        self.publish(now, outcome);
        for job in uncalled {
            if let Some(job) = self.store.job(job)? {
                self.publisher.retry_webhook(&job);
            }
        }
        Ok(())
    }
}

fn answer(replies: Vec<(Vec<u64>, Reply)>) {
    for (ids, reply) in replies {
        let _ = reply.send(Ok(ids));
        crash::point();
    }
}
