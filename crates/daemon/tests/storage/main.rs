//! The daemon's loop on a disk that lies, with played processes and a played clock. Each seed is another
//! history: writes that fail, a full disk, failed fsyncs, kills and power failures anywhere, clock jumps, dying
//! supervisors and large requests, each followed by a restart. The checker knows nothing of the scheduler:
//! nothing acknowledged is lost, nothing runs twice, nothing stays in a state that it cannot leave.
//!
//! `TANDEM_TEST_STORAGE_SEEDS=10000` runs more seeds, `TANDEM_TEST_STORAGE_FIRST=200` others,
//! `TANDEM_TEST_STORAGE_SEED=17` only one.

#![allow(clippy::unwrap_used)]

mod disk;
mod machine;

use disk::{Disk, Faults, LAYER};
use machine::{Machine, Played, SharedMachine};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use tandem_backends::Device;
use tandem_daemon::command::{Caller, CommandOutcome, Refusal, UserCommand};
use tandem_daemon::cycle::{Cycle, Message};
use tandem_daemon::job::{JobState, StoredJob};
use tandem_daemon::job_sockets::JobSockets;
use tandem_daemon::journal::beliefs;
use tandem_daemon::meter::{Meter, MeterOptions};
use tandem_daemon::publish::Publisher;
use tandem_daemon::request::{CheckedRequest, JobRequest, Param};
use tandem_daemon::scheduler::{Active, JobAction, Now, Scheduler, Setup};
use tandem_daemon::store::{FileLayer, Store, StoreError, StoreOptions};
use tandem_policies::PolicySpec;
use tokio::sync::oneshot;

/// Histories of an ordinary run.
const SEEDS: u64 = 200;
/// What happens in the first days of a history.
const STEPS: u32 = 50;
/// How long a history is at least.
const MONTH: u64 = 30 * 86_400 * SECOND;
const SECOND: u64 = 1_000_000;
/// Turns in which nothing happens before jobs count as stuck.
const IDLE_TURNS: u32 = 5;
/// The name of submissions of a hostile size.
const HOSTILE: &str = "hostile";
const POLICIES: [&str; 3] = ["fifo", "tandem", "srtf"];

type Answer = oneshot::Receiver<Result<CommandOutcome, Refusal>>;

/// One history.
struct History {
    seed: u64,
    random: ChaCha8Rng,
    disk: Disk,
    machine: SharedMachine,
    runtime: Arc<tokio::runtime::Runtime>,
    now: Now,
    cycle: Option<Cycle>,
    /// Submissions that were not answered yet.
    asked: Vec<Answer>,
    /// Jobs whose submission was acknowledged.
    acknowledged: BTreeSet<u64>,
    /// Jobs that somebody tried to cancel.
    cancelled: BTreeSet<u64>,
    /// Jobs whose supervisors were killed.
    disturbed: BTreeSet<u64>,
    restarts: u32,
}

/// How long a job runs and how it ends: up to two days.
fn fate(job: u64) -> (u64, i32) {
    let length = (job * 7919 % 172_800 + 1) * SECOND;
    (length, i32::from(job % 5 == 3))
}

impl History {
    fn new(seed: u64, runtime: Arc<tokio::runtime::Runtime>) -> Self {
        Self {
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            disk: Disk::new(&folder(seed), seed ^ 0xd15c),
            machine: Machine::new(fate),
            runtime,
            now: Now { at_us: SECOND, unix_us: 1_700_000_000 * SECOND },
            cycle: None,
            asked: Vec::new(),
            acknowledged: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            disturbed: BTreeSet::new(),
            restarts: 0,
        }
    }

    fn policy(&self) -> &'static str {
        POLICIES[usize::try_from(self.seed).unwrap() % POLICIES.len()]
    }

    /// Starts a daemon, if the disk lets it.
    fn start(&mut self) -> Result<(), StoreError> {
        self.disk.revive();
        let policy = self.policy();
        let file = PathBuf::from(folder(self.seed)).join("state.db");
        let options = StoreOptions {
            file_layer: Some(FileLayer { name: LAYER.to_owned(), rewrite: disk::rewrite }),
            journal_max_bytes: 200_000,
            ..StoreOptions::default()
        };
        let mut store = Store::open_with(&file, options)?;
        let setup = setup(policy, self.seed);
        let mut backend =
            Box::new(Played { machine: self.machine.clone(), devices: setup.devices.clone() });
        let last = store.last_time()?;
        self.now.at_us = self.now.at_us.max(last.map_or(0, |last| last.at_us + 1));
        let start = tandem_daemon::resume::resume(&mut store, backend.as_mut(), self.now, setup)?;
        store.write(|writing| writing.start(&start))?;
        let policy = PolicySpec::parse(policy).unwrap();
        let (scheduler, outcome) = Scheduler::begin(start, &policy, Box::new(beliefs()));
        let (sender, _) = mpsc::channel();
        let handle = self.runtime.handle().clone();
        let sockets = JobSockets::new(handle.clone(), PathBuf::from("/none"), sender.clone(), 0);
        let publisher = Publisher::new(handle, 0, false, sender);
        let meter = Meter::new(MeterOptions::default());
        let mut cycle = Cycle::new(scheduler, store, backend, meter, sockets, publisher, 0);
        cycle.begin(self.now, outcome)?;
        self.cycle = Some(cycle);
        self.restarts += 1;
        Ok(())
    }

    /// The daemon is killed, between two turns or because it gave up.
    fn kill(&mut self) {
        self.disk.kill_process();
        self.cycle = None;
        self.hear();
        // Nobody answers them any more.
        self.asked.clear();
    }

    /// One turn of the loop, with these messages and what the machine says.
    fn turn(&mut self, mut batch: Vec<Message>) {
        let events = {
            let mut machine = self.machine.lock().unwrap();
            machine.advance(self.now.at_us);
            if self.cycle.is_some() { machine.take_events() } else { Vec::new() }
        };
        let Some(cycle) = &mut self.cycle else { return };
        batch.extend(events.into_iter().map(Message::Backend));
        let goes_on = cycle.turn(self.now, &mut batch);
        self.hear();
        if !goes_on {
            self.kill();
        }
    }

    /// Takes the answers to submissions.
    fn hear(&mut self) {
        let mut waiting = Vec::new();
        for mut answer in std::mem::take(&mut self.asked) {
            match answer.try_recv() {
                Ok(Ok(outcome)) => self.acknowledged.extend(outcome.new),
                Err(oneshot::error::TryRecvError::Empty) => waiting.push(answer),
                _ => {}
            }
        }
        self.asked = waiting;
    }

    fn command(&mut self, command: UserCommand, is_submission: bool) {
        let (reply, answer) = oneshot::channel();
        let caller = Caller::local(0, 0, "root".to_owned());
        self.turn(vec![Message::Command { caller, command, reply }]);
        if is_submission {
            self.asked.push(answer);
            self.hear();
        }
    }

    fn any_job(&mut self) -> Option<u64> {
        let last = *self.acknowledged.last()?;
        Some(self.random.random_range(1..=last))
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        let mut request = JobRequest {
            command: vec!["train".to_owned(), "x".repeat(random.random_range(0..20_000))],
            env: BTreeMap::from([("A".to_owned(), "y".repeat(random.random_range(0..3_000)))]),
            gpus: f64::from(random.random_range(1..=2_u32)),
            estimate_s: Some(f64::from(random.random_range(1..200_000_u32))),
            requeue: true,
            hold: random.random_bool(0.1),
            ..JobRequest::default()
        };
        match random.random_range(0..8) {
            0 => request.array = Some(format!("0-{}%3", random.random_range(0..12))),
            1 => {
                let values = (0..random.random_range(1..5)).map(|value| value.to_string());
                request.params = vec![Param { name: "lr".to_owned(), values: values.collect() }];
            }
            2 => {
                if let Some(&job) = self.acknowledged.last() {
                    request.dependency = Some(format!("afterany:{job}"));
                }
            }
            _ => {}
        }
        if random.random_bool(0.02) {
            // As large as may be. They are cancelled in the end.
            request.command = vec!["train".to_owned(), "x".repeat(1_000_000)];
            request.array = Some("0-199".to_owned());
            (request.name, request.hold) = (Some(HOSTILE.to_owned()), true);
        }
        let checked = CheckedRequest::new(request).unwrap();
        self.command(UserCommand::Submit(Box::new(checked)), true);
    }

    /// The rest of the month, in which less happens: hours and days pass, and now and then something goes wrong.
    fn finish_month(&mut self) {
        while self.now.at_us < MONTH {
            if self.random.random_range(0..4) == 0 {
                self.step();
                continue;
            }
            if self.cycle.is_none() {
                let _ = self.start().inspect_err(|_| self.disk.kill_process());
            }
            let most = self.random.random_range(1..=48);
            self.pass_time(most * 3600 * SECOND);
        }
    }

    /// Something goes wrong, or somebody asks for something, or time passes.
    fn step(&mut self) {
        if self.cycle.is_none() {
            let _ = self.start().inspect_err(|_| self.disk.kill_process());
        }
        match self.random.random_range(0..100) {
            0..35 => self.submit(),
            35..42 => {
                if let Some(job) = self.any_job() {
                    self.cancelled.insert(job);
                    self.command(UserCommand::Change(JobAction::Cancel, job), false);
                }
            }
            42..46 => {
                if let Some(job) = self.any_job() {
                    self.command(UserCommand::Change(JobAction::Hold, job), false);
                }
            }
            46..50 => {
                if let Some(job) = self.any_job() {
                    self.command(UserCommand::Change(JobAction::Release, job), false);
                }
            }
            50..80 => self.pass_time(3600 * SECOND),
            80..86 => {
                let faults = Faults {
                    write_fails: self.random.random_range(0..60),
                    sync_fails: self.random.random_range(0..60),
                    read_fails: self.random.random_range(0..4),
                    is_full: self.random.random_bool(0.4),
                };
                self.disk.set(faults);
            }
            86..90 => self.disk.set(Faults::default()),
            90..94 => self.kill(),
            94..96 => self.fail_power(),
            96..98 => {
                // The wall clock is set; the scheduler's own goes on.
                let jump = self.random.random_range(0..10_000_000_000_000_u64);
                self.now.unix_us = 1_600_000_000 * SECOND + jump;
            }
            _ => {
                let nth = self.random.random_range(0..100);
                let killed = self.machine.lock().unwrap().kill_supervisor(nth);
                self.disturbed.extend(killed);
            }
        }
    }

    fn fail_power(&mut self) {
        self.kill();
        self.disk.fail_power();
        self.machine.lock().unwrap().fail_power();
    }

    /// Time passes until something happens, or for a while.
    fn pass_time(&mut self, most: u64) {
        let next = self.machine.lock().unwrap().next();
        let wake = self.cycle.as_ref().and_then(|cycle| cycle.wake()).map(|wake| wake.0);
        let random = self.now.at_us + self.random.random_range(1..=most);
        let at =
            next.into_iter().chain(wake).chain([random]).min().unwrap().max(self.now.at_us + 1);
        self.now.unix_us += at - self.now.at_us;
        self.now.at_us = at;
        self.turn(Vec::new());
    }

    /// Nothing fails any more: whatever was accepted has to come to its end.
    fn settle(&mut self) {
        self.disk.set(Faults::default());
        if self.cycle.is_none() {
            self.start()
                .unwrap_or_else(|error| panic!("seed {}: cannot start: {error}", self.seed));
        }
        let mut idle = 0;
        for _ in 0..20_000 {
            let scheduler = &self.cycle.as_ref().expect("nothing fails any more").scheduler;
            if scheduler.active_jobs() == 0 {
                return;
            }
            // Also jobs that were stored and whose submitter never heard of it, some of which are added only now.
            let is_held = |active: &&Active| active.job.state == JobState::Held;
            let is_hostile = |job: &StoredJob| job.request.name.as_deref() == Some(HOSTILE);
            let held: Vec<(u64, bool)> = scheduler
                .jobs()
                .filter(is_held)
                .map(|one| (one.job.id, is_hostile(&one.job)))
                .collect();
            idle = if held.is_empty() { idle + 1 } else { 0 };
            for (job, is_hostile) in held {
                let action = if is_hostile { JobAction::Cancel } else { JobAction::Release };
                if is_hostile {
                    self.cancelled.insert(job);
                }
                self.command(UserCommand::Change(action, job), false);
            }
            let next = self.machine.lock().unwrap().next();
            let wake = self.cycle.as_ref().and_then(|cycle| cycle.wake()).map(|wake| wake.0);
            let next = next.into_iter().chain(wake).min();
            idle = if next.is_some() { 0 } else { idle };
            if idle > IDLE_TURNS {
                break;
            }
            // A daemon whose store failed tries again after a while.
            let at = next.unwrap_or(self.now.at_us + SECOND).max(self.now.at_us + 1);
            self.now.unix_us += at - self.now.at_us;
            self.now.at_us = at;
            self.turn(Vec::new());
        }
        let cycle = self.cycle.as_ref().expect("nothing fails any more");
        let (wake, left) = (cycle.wake(), cycle.scheduler.active_jobs());
        let stuck = cycle.scheduler.jobs().take(10);
        let stuck: Vec<(u64, JobState)> = stuck.map(|one| (one.job.id, one.job.state)).collect();
        panic!("seed {}: {left} jobs that cannot end, next turn at {wake:?}: {stuck:?}", self.seed);
    }

    /// What was promised is compared with what the machine did and with what the store says.
    fn check(&mut self) {
        let seed = self.seed;
        let cycle = self.cycle.as_ref().unwrap();
        let machine = self.machine.lock().unwrap();
        for start in &machine.starts {
            assert!(start.beside.is_empty(), "seed {seed}: {} beside {start:?}", start.run);
            assert!(!start.after_success, "seed {seed}: runs again after its success: {start:?}");
        }
        for &job in &self.acknowledged {
            let stored = cycle.store.job(job).unwrap();
            let Some(stored) = stored else { panic!("seed {seed}: job {job} is lost") };
            assert!(stored.state.is_over(), "seed {seed}: job {job} is {:?}", stored.state);
            let has_succeeded = machine.succeeded.iter().any(|run| run.job == job);
            let is_disturbed = self.cancelled.contains(&job) || self.disturbed.contains(&job);
            if stored.state == JobState::Completed {
                assert!(has_succeeded, "seed {seed}: job {job} did not complete");
            } else if has_succeeded && !is_disturbed {
                panic!("seed {seed}: job {job} succeeded and is {:?}", stored.state);
            }
        }
    }
}

fn folder(seed: u64) -> String {
    format!("/faults/{seed}")
}

fn setup(policy: &str, seed: u64) -> Setup {
    let device = |index: u32| Device {
        index,
        name: format!("device {index}"),
        kind: "fake".to_owned(),
        memory_bytes: 16 << 30,
        node: String::new(),
    };
    Setup {
        class_rules: tandem_daemon::class::ClassRules::default(),
        devices: (0..3).map(device).collect(),
        policy: policy.to_owned(),
        share: true,
        pause_frees_device: true,
        may_pause: true,
        live_budgets: false,
        learn: false,
        believe_rates: true,
        restore_s: 1.0,
        kill_grace_ms: 1000,
        stop_grace_ms: 1000,
        sockets: PathBuf::from("/none"),
        foreign_avoid: true,
        gangs_share: true,
        moves: true,
        measures_memory: false,
        keeps_queue: false,
        planned_per_user: Some(20),
        // Of many jobs and of few in a step.
        tasks_per_step: Some(if seed.is_multiple_of(2) { 3 } else { 50 }),
        people: Default::default(),
        process: Default::default(),
    }
}

/// Runs one history; gives acknowledged jobs, starts of the daemon and starts of processes.
fn run(seed: u64, runtime: &Arc<tokio::runtime::Runtime>) -> [u64; 3] {
    let mut history = History::new(seed, runtime.clone());
    for _ in 0..STEPS {
        history.step();
    }
    history.finish_month();
    history.settle();
    history.check();
    let starts = history.machine.lock().unwrap().starts.len() as u64;
    history.disk.remove(&folder(seed));
    [history.acknowledged.len() as u64, u64::from(history.restarts), starts]
}

#[test]
fn nothing_is_lost_doubled_or_stuck_on_a_disk_that_lies() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let runtime =
        Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap());
    if let Some(seed) = number("TANDEM_TEST_STORAGE_SEED") {
        println!("seed {seed}: {:?}", run(seed, &runtime));
        return;
    }
    let seeds = number("TANDEM_TEST_STORAGE_SEEDS").unwrap_or(SEEDS);
    // Others than those of an ordinary run.
    let first = number("TANDEM_TEST_STORAGE_FIRST").unwrap_or(0);
    let (next, totals) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; 3]);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    let counts = run(first + seed, &runtime);
                    for (total, count) in totals.iter().zip(counts) {
                        total.fetch_add(count, Ordering::Relaxed);
                    }
                    if seed % 1000 == 999 {
                        eprintln!("{} of {seeds} seeds", seed + 1);
                    }
                }
            });
        }
    });
    let [jobs, restarts, starts] = totals.map(AtomicU64::into_inner);
    println!(
        "{seeds} seeds: {jobs} acknowledged jobs, {restarts} starts of the daemon, {starts} runs"
    );
    assert!(jobs > seeds * 5 && restarts > seeds * 3 && starts > seeds * 5, "too little happened");
}
