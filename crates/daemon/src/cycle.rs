//! The cycle: collect, journal, apply, plan, check, diff, journal, act, publish. One thread runs all steps in
//! order; results of operations arrive as events of a later turn.

mod act;
mod bulk;
mod collect;
mod fair;
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
use bulk::BulkChange;
use collect::Intake;
use fair::FairQueue;
use message::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tandem_backends::{Backend, ClusterJob, DeviceSample, crash};
use tandem_core::{Span, Time};

/// Messages taken in one turn; the others wait for the next.
const BATCH_MAX: usize = 4096;
/// Time between two deletions of old records: while there is more to delete, and otherwise.
const TIDY_EVERY: [Span; 2] = [Span(50_000), Span(1_000_000)];
/// Time between two tries to write the store after a failure.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// The state of the cycle.
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
    /// The user id of the daemon.
    pub uid: u32,
    /// Placements over time, and series of jobs and devices.
    pub history: History,
    devices: Vec<DeviceSample>,
    turns: Turns,
    wake: Option<Time>,
    /// Inputs that could not be written yet.
    unwritten: Vec<Input>,
    /// Outcome of the last step that could not be written yet.
    decided: Option<Decided>,
    /// Requests of users that wait for a turn.
    requests: FairQueue,
    /// Replies to submissions of which jobs are still to be added, by the first job.
    submitting: BTreeMap<u64, (CommandOutcome, Reply)>,
    /// Changes of many jobs, each continued in every turn.
    bulk: VecDeque<BulkChange>,
    /// Imported jobs of the cluster that are not in the store yet.
    imports: Vec<ClusterJob>,
    /// Memory on each GPU that is assumed of a cluster job without a hint. Without it such a job runs alone.
    pub import_memory_bytes: Option<u64>,
    /// Why the store cannot be written; retried.
    trouble: Option<String>,
    /// Why the daemon has to end without writing again: an fsync failed.
    fatal: Option<StoreError>,
    /// Limits of users.
    pub limits: RequestLimits,
    /// Age at which ended jobs are deleted.
    pub history_kept: Option<Duration>,
    /// When old records are deleted next.
    tidy_at: Time,
    /// Hash of each job's state as last published.
    published: BTreeMap<u64, u64>,
}

/// An accepted command and its reply; an imported job of a cluster has no reply.
type AcceptedCommand = (Accepted, Option<Reply>);

/// The outcome of a step. It is written before any of it is carried out and before anything else is decided.
struct Decided {
    now: Now,
    outcome: StepOutcome,
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
            requests: FairQueue::default(),
            submitting: BTreeMap::new(),
            bulk: VecDeque::new(),
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

    /// When the next turn is due even without messages.
    pub fn wake(&self) -> Option<Time> {
        self.wake
    }

    /// Runs turns until it is told to stop, or an fsync failed.
    pub fn run(&mut self, clock: Clock, inbox: &Receiver<Message>) -> Result<(), StoreError> {
        let mut batch = Vec::new();
        loop {
            let wait = self.wake.map_or(Duration::from_secs(3600), |wake| clock.until(wake));
            let wait = if self.has_to_tidy() { wait.min(clock.until(self.tidy_at)) } else { wait };
            let wait = match &self.trouble {
                Some(_) if self.requests.is_empty() => STORE_AGAIN,
                Some(_) => Duration::ZERO,
                None if self.has_more() => Duration::ZERO,
                None => wait,
            };
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
        let Intake { inputs, accepted, webhooks_done, sampled, stops } =
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
            // Send no reply: whether the commands are on disk is unknown.
            self.fatal.get_or_insert(StoreError::Lost);
            return false;
        }
        if let Some(runs) = sampled {
            self.record_samples(now, &runs);
        }
        !stops
    }

    /// Whether the next turn is due at once.
    fn has_more(&self) -> bool {
        !self.bulk.is_empty() || !self.requests.is_empty()
    }

    /// Records which webhooks were called. If that fails they are called again: delivery is at least once.
    fn note_webhooks(&mut self, jobs: &[u64]) {
        if jobs.is_empty() {
            return;
        }
        let write = |transaction: &StoreTransaction<'_>| {
            jobs.iter().try_for_each(|&job| transaction.remove_webhook(job))
        };
        if let Err(error) = self.store.write_unsynced(write) {
            tracing::warn!("cannot record that webhooks were called: {error}");
        }
    }

    /// One step: journal the inputs, decide, journal the outcome, act.
    fn work(&mut self, now: Now, mut inputs: Vec<Input>, accepted: Vec<AcceptedCommand>) {
        let happened = inputs.len();
        inputs.extend(accepted.iter().map(|(accepted, _)| accepted.input.clone()));
        crash::point();
        if let Err(error) = self.journal_inputs(now, &inputs, &accepted) {
            // Nothing was decided yet. Refuse the commands, and keep the other inputs for the next try.
            self.note_trouble(error);
            for reply in accepted.into_iter().filter_map(|(_, reply)| reply) {
                let _ = reply.send(Err(self.refusal()));
            }
            self.refuse_bulk_changes();
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
        let drains = |input: &Input| {
            use Input::{Drain, Reserve, Undrain, Unreserve};
            matches!(input, Drain { .. } | Undrain { .. } | Reserve(_) | Unreserve { .. })
        };
        let drains = inputs.iter().any(drains);
        let replies = self.due_replies(accepted, &outcome);
        self.carry_out(Decided { now, outcome, drains, replies });
    }

    /// The replies that this turn completes. That of a submission waits until all of its jobs have been added.
    fn due_replies(
        &mut self,
        accepted: Vec<AcceptedCommand>,
        outcome: &StepOutcome,
    ) -> Vec<(CommandOutcome, Reply)> {
        let mut replies = Vec::new();
        for (Accepted { outcome, .. }, reply) in accepted {
            let Some(reply) = reply else { continue };
            match outcome.new.first() {
                Some(&first) if self.scheduler.is_unfolding(first) => {
                    self.submitting.insert(first, (outcome, reply));
                }
                _ => replies.push((outcome, reply)),
            }
        }
        replies.extend(outcome.unfolded.iter().filter_map(|first| self.submitting.remove(first)));
        replies
    }

    /// Writes the outcome and acts on it. Returns `false` if the store cannot be written yet.
    fn carry_out(&mut self, decided: Decided) -> bool {
        // One fsync per turn: the one of the outcome also covers the inputs, which were written before it. A
        // turn without replies and operations needs none.
        let waits = !decided.replies.is_empty() || decided.outcome.is_visible();
        if let Err(error) = self.journal_outcome(&decided, waits) {
            // Send no reply yet; the write is tried again.
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
                "{} cannot be written: {text}; submissions are refused until it can, jobs keep running",
                self.store.file().display()
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

    /// Deletes expired records in small portions and bounds the write-ahead log. Only after turns that wrote,
    /// or while there is more to delete.
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
                tracing::warn!("cannot delete old records of the store: {error}");
                false
            }
        };
        self.tidy_at = now.time() + TIDY_EVERY[usize::from(!more)];
    }

    fn refusal(&self) -> Refusal {
        let error = self.trouble.as_deref().unwrap_or("not known why");
        Refusal::Unavailable(format!(
            "the daemon cannot write {}: {error}; jobs keep running, try again later",
            self.store.file().display()
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
        let at_once = self.scheduler.tasks_at_once();
        self.store.write_unsynced(|transaction| {
            transaction.inputs(now, inputs)?;
            for input in inputs {
                let Input::Submit(submission) = input else { continue };
                let Submission { first, uid, request, .. } = submission.as_ref();
                transaction.request(*first, *uid, request, envs.get(first).unwrap_or(&&none))?;
                if submission.jobs() > at_once {
                    transaction.unfinished(submission, now)?;
                }
            }
            Ok(())
        })
    }

    fn journal_outcome(&mut self, decided: &Decided, waits: bool) -> Result<(), StoreError> {
        let Decided { now, outcome, drains, .. } = decided;
        let (scheduler, publisher) = (&self.scheduler, &self.publisher);
        let write = |transaction: &StoreTransaction<'_>| {
            for job in &outcome.changed {
                if outcome.created.contains(&job.id) {
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
            for &first in &outcome.unfolded {
                transaction.finished(first)?;
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

    /// The requests of the scheduler at its start.
    pub fn begin(&mut self, now: Now, outcome: StepOutcome) -> Result<(), StoreError> {
        self.wake = outcome.wake;
        let uncalled = self.store.pending_webhooks()?;
        let decided = Decided { now, outcome, drains: false, replies: Vec::new() };
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
