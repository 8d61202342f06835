//! The cycle: collect, journal, apply, plan, check, diff, journal, act, publish. One thread, one
//! straight line; what it starts comes back as an event of a later turn.

use crate::api::live::{self, LiveEvent};
use crate::api::timeline;
use crate::clock::Clock;
use crate::command::{Accepted, Admission, Caller, Refusal, UserCommand};
use crate::history::History;
use crate::job::Job;
use crate::job_sockets::{FromJob, JobSockets};
use crate::meter::Meter;
use crate::publish::Publisher;
use crate::scheduler::{Fact, Input, Now, Outcome, Phase, Scheduler};
use crate::store::{Store, StoreError, StoreTransaction};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tandem_backends::{
    Backend, BackendEvent, ClusterJob, DeviceSample, Op, Owner, RunSample, crash,
};
use tandem_core::Time;
use tokio::sync::oneshot;

/// Messages that one turn takes in; the rest waits for the next.
const BATCH_MAX: usize = 4096;
/// A store that cannot be written is tried again after this.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// Something for the cycle.
pub enum Message {
    /// Somebody asks for something.
    Command {
        /// Who.
        caller: Caller,
        /// What.
        command: UserCommand,
        /// Told when it is durable: numbers of new jobs.
        reply: oneshot::Sender<Result<Vec<u64>, Refusal>>,
    },
    /// The back end reports.
    Backend(BackendEvent),
    /// A job speaks.
    Job {
        /// The job.
        job: u64,
        /// What it says.
        said: FromJob,
    },
    /// The webhook of a job was called, or that was given up.
    WebhookDone {
        /// The job.
        job: u64,
    },
    /// Something is known already, as a machine that is played tells it.
    Told(Input),
    /// Somebody wants to look.
    Ask(Box<dyn FnOnce(&Present<'_>) + Send>),
    /// Leave.
    Stop,
}

/// The present, to look at between turns.
pub struct Present<'a> {
    /// Who sits where.
    pub scheduler: &'a Scheduler,
    /// Now.
    pub now: Now,
    /// How the devices do.
    pub devices: &'a [DeviceSample],
    /// What jobs were seen to do.
    pub meter: &'a Meter,
    /// How long turns took.
    pub turns: &'a Turns,
    /// What happened.
    pub history: &'a History,
}

/// How long turns took, in buckets.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// Turns that took at most so many microseconds, by the power of two.
    pub buckets: [u64; 32],
    /// Their sum in microseconds.
    pub sum_us: u64,
    /// Their number.
    pub count: u64,
    /// Times that the store could not be written.
    pub store_failures: u64,
}

impl Turns {
    fn add(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let power = 64 - micros.leading_zeros() as usize;
        self.buckets[power.min(self.buckets.len() - 1)] += 1;
        self.sum_us += micros;
        self.count += 1;
    }
}

/// Everything that a turn touches.
pub struct Cycle {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// What outlives the daemon.
    pub store: Store,
    /// Who carries out what is decided.
    pub backend: Box<dyn Backend>,
    /// What jobs and devices show.
    pub meter: Meter,
    /// Sockets of jobs.
    pub links: JobSockets,
    /// Who is told.
    pub publisher: Publisher,
    /// Whose daemon it is.
    pub uid: u32,
    /// What happened.
    pub history: History,
    devices: Vec<DeviceSample>,
    turns: Turns,
    wake: Option<Time>,
    /// What happened and could not be written yet.
    unwritten: Vec<Input>,
    /// What was decided and could not be written yet.
    decided: Option<Decided>,
    /// Jobs of the engine that are not written yet.
    offers: Vec<ClusterJob>,
    /// Memory that a job of the engine takes if it says nothing; it stays alone if that is not known.
    pub offered_memory_bytes: Option<u64>,
    /// Why the store cannot be written.
    trouble: Option<String>,
    /// States as last published.
    told: BTreeMap<u64, (crate::job::JobState, Option<String>, Vec<u32>)>,
}

type Reply = oneshot::Sender<Result<Vec<u64>, Refusal>>;
/// A submission, and who waits for the answer; nobody does if it came from the engine.
type Taken = (Accepted, Option<Reply>);

/// What a step came to. Nothing of it is done, and nothing else is decided, before it is written.
struct Decided {
    now: Now,
    outcome: Outcome,
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
        links: JobSockets,
        publisher: Publisher,
        uid: u32,
    ) -> Self {
        Self {
            scheduler,
            store,
            backend,
            meter,
            links,
            publisher,
            uid,
            history: History::default(),
            devices: Vec::new(),
            turns: Turns::default(),
            wake: None,
            unwritten: Vec::new(),
            decided: None,
            offers: Vec::new(),
            offered_memory_bytes: None,
            trouble: None,
            told: BTreeMap::new(),
        }
    }

    /// When it has to take a turn even if nothing happens.
    pub fn wake(&self) -> Option<Time> {
        self.wake
    }

    /// Takes turns until it is told to leave.
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

    /// One turn; `false` if it was told to leave.
    pub fn turn(&mut self, now: Now, batch: &mut Vec<Message>) -> bool {
        let began = Instant::now();
        let before = self.decided.take();
        let is_stuck = before.is_some_and(|before| !self.carry_out(before));
        let mut inputs = std::mem::take(&mut self.unwritten);
        let mut accepted: Vec<Taken> = Vec::new();
        let mut asked = Vec::new();
        let mut webhooks_done = Vec::new();
        let mut sampled: Option<Vec<RunSample>> = None;
        let mut stays = true;
        let mut next_job = self.scheduler.next_job();
        for message in batch.drain(..) {
            match message {
                Message::Command { reply, .. } if is_stuck => {
                    let _ = reply.send(Err(self.refusal()));
                }
                Message::Command { caller, command, reply } => {
                    let admission =
                        Admission { scheduler: &self.scheduler, next_job, daemon_uid: self.uid };
                    let store = &self.store;
                    let lookup = |id| store.job(id).ok().flatten();
                    match admission.admit(&caller, command, &lookup) {
                        Ok(command) => {
                            next_job += command.ids.len() as u64;
                            accepted.push((command, Some(reply)));
                        }
                        Err(refusal) => drop(reply.send(Err(refusal))),
                    }
                }
                Message::Backend(BackendEvent::Sampled(sample)) => {
                    let facts = self.meter.sample(&sample, now.time(), &self.scheduler);
                    inputs.extend(facts.into_iter().map(Input::Fact));
                    inputs.extend(self.strangers(&sample.devices));
                    self.devices = sample.devices;
                    sampled = Some(sample.runs);
                }
                Message::Backend(BackendEvent::Imported(offer)) => self.offers.push(*offer),
                Message::Backend(event) if self.takes_back(&event) => {}
                Message::Backend(event) => inputs.push(Input::Backend(event)),
                Message::Job { job, said } => {
                    let facts = self.hear(job, &said, now);
                    inputs.extend(facts.into_iter().map(Input::Fact));
                }
                Message::WebhookDone { job } => webhooks_done.push(job),
                Message::Told(input) => inputs.push(input),
                Message::Ask(ask) => asked.push(ask),
                Message::Stop => stays = false,
            }
        }
        let is_due = self.wake.is_some_and(|wake| wake <= now.time());
        if !is_stuck {
            accepted.extend(self.take_offers(next_job));
        }
        if is_stuck {
            self.unwritten = inputs;
        } else if is_due || !inputs.is_empty() || !accepted.is_empty() {
            self.work(now, inputs, accepted);
            self.turns.add(began.elapsed());
        }
        self.note_calls(&webhooks_done);
        if let Some(runs) = sampled {
            self.note_samples(now, &runs);
        }
        let present = self.present(now);
        asked.into_iter().for_each(|ask| ask(&present));
        stays
    }

    /// The present, to look at.
    fn present(&self, now: Now) -> Present<'_> {
        Present {
            scheduler: &self.scheduler,
            now,
            devices: &self.devices,
            meter: &self.meter,
            turns: &self.turns,
            history: &self.history,
        }
    }

    /// Keeps how jobs and devices do, and tells those who watch.
    fn note_samples(&mut self, now: Now, runs: &[RunSample]) {
        let Self { history, scheduler, meter, devices, .. } = self;
        history.samples.sample(now.unix_us, scheduler, meter, runs, devices);
        if self.publisher.is_watched() {
            self.publisher.publish_live(LiveEvent::Sample(live::sample(&self.present(now))));
        }
    }

    /// Keeps which jobs run where. It decides nothing: if it cannot be written, it is not kept.
    fn note_placements(&mut self, now: Now, changed: &[Job]) {
        let records = self.history.placements.update(now, &self.scheduler, changed);
        if records.is_empty() {
            return;
        }
        let write = |transaction: &StoreTransaction<'_>| {
            records.iter().try_for_each(|record| transaction.placement(record))
        };
        if let Err(error) = self.store.write_unsynced(write) {
            tracing::warn!("cannot keep placements: {error}");
        }
        if self.publisher.is_watched() {
            let present = self.present(now);
            for record in &records {
                let shown = timeline::placement(record, Some(&present));
                self.publisher.publish_live(LiveEvent::Placement(shown));
            }
        }
    }

    /// Jobs of the engine as submissions; they stay until they are written.
    fn take_offers(&self, next_job: u64) -> Vec<Taken> {
        let take = |(id, offer): (u64, &ClusterJob)| {
            let (submission, unknown) =
                crate::import::submission(id, offer, self.offered_memory_bytes);
            if !unknown.is_empty() {
                let shown = tandem_backends::short_id(&offer.external);
                tracing::warn!("job {shown} hints at what is not known: {}", unknown.join(","));
            }
            let input = Input::Submit(Box::new(submission));
            (Accepted { input, env: BTreeMap::new(), ids: vec![id] }, None)
        };
        (next_job..).zip(&self.offers).map(take).collect()
    }

    /// Whether an event withdraws a job of the engine that is not written yet: nobody need know of it.
    fn takes_back(&mut self, event: &BackendEvent) -> bool {
        let BackendEvent::Withdrawn { external, .. } = event else { return false };
        let before = self.offers.len();
        self.offers.retain(|offer| offer.external != *external);
        self.offers.len() < before
    }

    /// Webhooks that were called need not be called again. If that cannot be written they are.
    fn note_calls(&mut self, jobs: &[u64]) {
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
    fn work(&mut self, now: Now, mut inputs: Vec<Input>, accepted: Vec<Taken>) {
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
        self.offers.clear();
        crash::point();
        self.before(&inputs);
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
        let waits = !decided.replies.is_empty() || decided.outcome.shows();
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
        self.note_placements(now, &outcome.changed);
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
        accepted: &[Taken],
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
        outcome: &Outcome,
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

    /// Notes what measurements must not span.
    fn before(&mut self, inputs: &[Input]) {
        for input in inputs {
            if let Input::Backend(event) = input
                && let Some(job) = job_of(event)
            {
                for other in self.scheduler.neighbours(job) {
                    self.meter.interrupt(other);
                }
                self.meter.interrupt(job);
            }
        }
    }

    fn act(&mut self, outcome: &Outcome) {
        for (id, op) in &outcome.ops {
            let mut op = op.clone();
            let job = op.run().job;
            self.meter.interrupt(job);
            if let Op::Start(launch) = &mut op {
                match self.store.env(job) {
                    Ok(env) => {
                        let ours = std::mem::replace(&mut launch.env, env);
                        launch.env.extend(ours);
                    }
                    Err(error) => tracing::error!("job {job}: its environment is lost: {error}"),
                }
                if self.uid != 0 {
                    // Only root can become somebody else.
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
            self.links.send(*job, *message);
        }
        for run in &outcome.forget {
            crash::point();
            self.backend.forget(*run);
            crash::point();
            self.links.close(run.job);
            self.meter.forget(run.job);
        }
    }

    /// Opens the socket of a job, and follows its output if its progress shows there.
    fn listen_to(&mut self, id: u64) {
        let Some(job) = self.scheduler.job(id).map(|active| &active.job) else { return };
        self.links.open(id, job.uid);
        if let Some(pattern) = &job.request.progress_regex {
            // Only root can become somebody else.
            let owner = (self.uid == 0).then_some(Owner { uid: job.uid, gid: job.gid });
            self.links.tail(id, pattern, &job.stdout(), owner);
        }
    }

    fn publish(&mut self, now: Now, outcome: &Outcome) {
        for job in &outcome.changed {
            let shown = (job.state, job.reason.clone(), job.devices.clone());
            if self.told.get(&job.id) != Some(&shown) {
                self.publisher.publish(now, job);
                if job.state.is_over() {
                    self.told.remove(&job.id);
                } else {
                    self.told.insert(job.id, shown);
                }
            }
        }
    }

    /// Takes in what a job says; what the scheduler has to know comes back.
    fn hear(&mut self, job: u64, said: &FromJob, now: Now) -> Vec<Fact> {
        match *said {
            FromJob::Hello { accum, stop, batch } => vec![Fact::Hello { job, accum, stop, batch }],
            FromJob::Steps { n, accum, ref scalars } => {
                self.history.samples.report(job, now.unix_us, scalars);
                let accum = accum.or_else(|| {
                    let seat = self.scheduler.job(job)?.seat.as_ref()?;
                    Some(seat.sub_batches)
                });
                self.meter.steps(job, n, accum.unwrap_or(1), now.time(), &self.scheduler)
            }
            FromJob::Bye { done } => vec![Fact::Bye { job, done }],
        }
    }

    /// Processes on our devices that are not ours.
    fn strangers(&mut self, devices: &[DeviceSample]) -> Vec<Input> {
        let mut inputs = Vec::new();
        for (device, sample) in (0..).zip(devices) {
            let foreign = sample.processes.iter();
            let (mut bytes, mut count) = (0, 0);
            for &(_, memory) in foreign {
                bytes += memory;
                count += 1;
            }
            inputs.extend(self.meter.foreign(device, bytes, count).map(Input::Fact));
        }
        inputs
    }

    /// What the scheduler wanted when it began.
    pub fn begin(&mut self, now: Now, outcome: &Outcome) -> Result<(), StoreError> {
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
        self.note_placements(now, &outcome.changed);
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
        | BackendEvent::Lost { run, .. } => run,
        BackendEvent::Sampled(_)
        | BackendEvent::Imported(_)
        | BackendEvent::Withdrawn { .. }
        | BackendEvent::Device { .. } => return None,
    };
    Some(run.job)
}
