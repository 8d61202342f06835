//! The cycle: collect, journal, apply, plan, check, diff, journal, act, publish. One thread, one
//! straight line; what it starts comes back as an event of a later turn.

mod act;
mod collect;
mod message;
mod record;

pub use message::{Message, Present, Turns};

use crate::clock::Clock;
use crate::command::{Accepted, CommandOutcome, Refusal};
use crate::history::History;
use crate::job_sockets::JobSockets;
use crate::limits::RequestLimits;
use crate::meter::Meter;
use crate::publish::Publisher;
use crate::scheduler::{Booking, Input, Now, Phase, Scheduler, StepOutcome, Submission};
use crate::store::{Store, StoreError, StoreTransaction};
use collect::Intake;
use message::Reply;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tandem_backends::{Backend, ClusterJob, DeviceSample, crash};
use tandem_core::{Span, Time};

/// Messages that one turn takes in; the rest waits for the next.
const BATCH_MAX: usize = 4096;
/// How often the store is tidied: while there is something to delete, and otherwise.
const TIDY_EVERY: [Span; 2] = [Span(50_000), Span(1_000_000)];
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
    /// Placements over time, and series of jobs and devices.
    pub history: History,
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
    /// Why nothing may be written any more.
    fatal: Option<StoreError>,
    /// What users may have.
    pub limits: RequestLimits,
    /// Jobs that ended longer ago than this are deleted.
    pub history_kept: Option<Duration>,
    /// When the store is tidied again.
    tidy_at: Time,
    /// Hashes of states as last published.
    published: BTreeMap<u64, u64>,
}

/// A command that was accepted, and its reply; a job of a cluster has none.
type AcceptedCommand = (Accepted, Option<Reply>);

/// What a step came to. Nothing of it is done, and nothing else is decided, before it is written.
struct Decided {
    now: Now,
    outcome: StepOutcome,
    /// Jobs from here on are new.
    new_from: u64,
    drains: bool,
    replies: Vec<(CommandOutcome, Reply)>,
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
            history: History::default(),
            devices: Vec::new(),
            turns: Turns::default(),
            wake: None,
            unwritten: Vec::new(),
            decided: None,
            imports: Vec::new(),
            import_memory_bytes: None,
            trouble: None,
            fatal: None,
            limits: RequestLimits::default(),
            history_kept: None,
            tidy_at: Time(0),
            published: BTreeMap::new(),
        }
    }

    /// When it has to take a turn even if nothing happens.
    pub fn wake(&self) -> Option<Time> {
        self.wake
    }

    /// Takes turns until it is told to stop, or may not write any more.
    pub fn run(&mut self, clock: Clock, inbox: &Receiver<Message>) -> Result<(), StoreError> {
        let mut batch = Vec::new();
        loop {
            let wait = self.wake.map_or(Duration::from_secs(3600), |wake| clock.until(wake));
            let wait = if self.has_to_tidy() { wait.min(clock.until(self.tidy_at)) } else { wait };
            let wait = if self.trouble.is_some() { STORE_AGAIN } else { wait };
            match inbox.recv_timeout(wait) {
                Ok(message) => batch.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while batch.len() < BATCH_MAX
                && let Ok(message) = inbox.try_recv()
            {
                batch.push(message);
            }
            if !self.turn(clock.now(), &mut batch) {
                return self.fatal.take().map_or(Ok(()), Err);
            }
        }
    }

    /// One turn; `false` if it was told to stop.
    pub fn turn(&mut self, now: Now, batch: &mut Vec<Message>) -> bool {
        let began = Instant::now();
        let before = self.decided.take();
        let is_stuck = before.is_some_and(|before| !self.carry_out(before));
        let Intake { inputs, accepted, questions, webhooks_done, sampled, stops } =
            self.collect(now, batch, is_stuck);
        let is_due = self.wake.is_some_and(|wake| wake <= now.time());
        if is_stuck {
            self.unwritten = inputs;
        } else if is_due || !inputs.is_empty() || !accepted.is_empty() {
            self.work(now, inputs, accepted);
            self.turns.add(began.elapsed());
        }
        self.note_webhooks(&webhooks_done);
        self.tidy(now);
        if self.fatal.is_some() || self.store.is_lost() {
            // Nobody is told anything: what the disk has is not known.
            self.fatal.get_or_insert(StoreError::Lost);
            return false;
        }
        if let Some(runs) = sampled {
            self.record_samples(now, &runs);
        }
        let present = self.present(now);
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
            self.note_trouble(error);
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
        let new_from = self.scheduler.next_job();
        let outcome = self.scheduler.step(now, &inputs);
        self.wake = outcome.wake;
        crash::point();
        let drains = |input: &Input| {
            use Input::{Drain, Reserve, Undrain, Unreserve};
            matches!(input, Drain { .. } | Undrain { .. } | Reserve(_) | Unreserve { .. })
        };
        let drains = inputs.iter().any(drains);
        let replies = accepted
            .into_iter()
            .filter_map(|(accepted, reply)| Some((accepted.outcome, reply?)))
            .collect();
        self.carry_out(Decided { now, outcome, new_from, drains, replies });
    }

    /// Writes what was decided and does it; `false` if it has to wait for the store.
    fn carry_out(&mut self, decided: Decided) -> bool {
        // One wait for the disk is enough for a turn, and none for one that nobody is told of: what was
        // written first is on disk when what is written last is.
        let waits = !decided.replies.is_empty() || decided.outcome.is_visible();
        if let Err(error) = self.journal_outcome(&decided, waits) {
            // Nobody is told, and it is tried again.
            self.note_trouble(error);
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
        self.record_placements(now, &outcome.changed);
        true
    }

    fn note_trouble(&mut self, error: StoreError) {
        self.turns.store_failures += 1;
        let text = error.to_string();
        if self.trouble.as_ref() != Some(&text) {
            tracing::error!(
                "cannot write: {text}; nothing is accepted until it can be, jobs go on"
            );
        }
        self.trouble = Some(text);
        if error.lost_writes() {
            self.fatal = Some(error);
        }
    }

    fn has_to_tidy(&self) -> bool {
        self.tidy_at > Time(0)
    }

    /// Deletes what is kept no longer, a little at a time, and bounds the log. Only after turns that wrote, or
    /// while there is more to delete.
    fn tidy(&mut self, now: Now) {
        if now.time() < self.tidy_at || self.trouble.is_some() {
            return;
        }
        let old = self.history_kept.map(|history| {
            let history_us = u64::try_from(history.as_micros()).unwrap_or(u64::MAX);
            now.unix_us.saturating_sub(history_us)
        });
        let tidied = self.store.bound_log().and_then(|()| {
            let more = old.map_or(Ok(false), |before| self.store.prune(before))?;
            Ok(self.store.trim_history()? || more)
        });
        let more = match tidied {
            Ok(more) => more,
            Err(error) if error.lost_writes() => {
                self.note_trouble(error);
                false
            }
            Err(error) => {
                tracing::warn!("cannot tidy the store: {error}");
                false
            }
        };
        self.tidy_at = now.time() + TIDY_EVERY[usize::from(!more)];
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
        let envs: BTreeMap<u64, &BTreeMap<String, String>> = accepted
            .iter()
            .filter_map(|(one, _)| Some((*one.outcome.new.first()?, &one.env)))
            .collect();
        let none = BTreeMap::new();
        self.store.write_unsynced(|transaction| {
            transaction.inputs(now, inputs)?;
            for input in inputs {
                let Input::Submit(submission) = input else { continue };
                let Submission { first, uid, request, .. } = submission.as_ref();
                transaction.request(*first, *uid, request, envs.get(first).unwrap_or(&&none))?;
            }
            Ok(())
        })
    }

    fn journal_outcome(&mut self, decided: &Decided, waits: bool) -> Result<(), StoreError> {
        let Decided { now, outcome, new_from, drains, .. } = decided;
        let (scheduler, publisher) = (&self.scheduler, &self.publisher);
        let write = |transaction: &StoreTransaction<'_>| {
            for job in &outcome.changed {
                if job.id >= *new_from {
                    transaction.insert(job)?;
                } else {
                    transaction.update(job)?;
                }
                if publisher.has_webhook(job) {
                    transaction.add_webhook(job.id)?;
                }
            }
            for name in &outcome.classes {
                if let Some(class) = scheduler.classes().get(name) {
                    transaction.class(name, class)?;
                }
            }
            for &request in &outcome.ended_requests {
                transaction.end_request(request)?;
            }
            if *drains {
                let drained: Vec<(u32, Option<&str>)> = scheduler.drained().collect();
                transaction.meta("drained", &serde_json::to_string(&drained)?)?;
                let bookings: Vec<&Booking> = scheduler.bookings().collect();
                transaction.meta("bookings", &serde_json::to_string(&bookings)?)?;
            }
            transaction.actions(*now, &outcome.actions)
        };
        if waits { self.store.write(write) } else { self.store.write_unsynced(write) }
    }

    /// What the scheduler wanted when it began.
    pub fn begin(&mut self, now: Now, outcome: StepOutcome) -> Result<(), StoreError> {
        self.wake = outcome.wake;
        let uncalled = self.store.pending_webhooks()?;
        let (new_from, replies) = (u64::MAX, Vec::new());
        let decided = Decided { now, outcome, new_from, drains: false, replies };
        self.journal_outcome(&decided, true)?;
        let outcome = &decided.outcome;
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
        self.record_placements(now, &outcome.changed);
        for job in uncalled {
            if let Some(job) = self.store.job(job)? {
                self.publisher.retry_webhook(&job);
            }
        }
        Ok(())
    }
}

fn answer(replies: Vec<(CommandOutcome, Reply)>) {
    for (outcome, reply) in replies {
        let _ = reply.send(Ok(outcome));
        crash::point();
    }
}
