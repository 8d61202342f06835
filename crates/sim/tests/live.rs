//! The engine as a daemon drives it, under every registered policy: descriptions change, GPUs are drained,
//! lost and partly reserved, jobs are adopted. Every plan is legal, jobs and occupancy agree, jobs that
//! cannot be stopped stay, and every job ends.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use tandem_core::{
    Action, ClosedForm, Cluster, Engine, Event, GpuId, JobDescription, JobId, JobSpec, Memory,
    OnIllegal, PartitionId, Placement, PlacementRule, Ppm, Profile, Progress, Promise, Ratio,
    Rules, Span, SubBatch, SubBatches, Time, Tolerance, UserId, Utilisation, Work,
};
use tandem_policies::{PolicySpec, REGISTRY};

const GPUS: u32 = 12;
const GPU_MIB: u64 = 10_000;

/// A random submission, and its later description.
struct Users(ChaCha8Rng);

impl Users {
    fn description(&mut self, memory_mib_max: u64) -> JobDescription {
        let rng = &mut self.0;
        let memory = Memory::from_mib(rng.random_range(0..memory_mib_max));
        let part = |count: u32| SubBatch {
            count,
            slowdown: Ratio::new(12, 10),
            memory: Memory(memory.0 / u64::from(count)),
        };
        let tolerance = [Tolerance::Any, Tolerance::Slowdown(1_500_000), Tolerance::Alone];
        JobDescription {
            estimate: Span::from_secs(rng.random_range(1..5000)),
            profile: Profile {
                memory,
                gpu_util: rng.random_bool(0.9).then(|| Utilisation(rng.random_range(0..100_000))),
                ..Profile::default()
            },
            sub_batches: match rng.random_bool(0.5) {
                true => SubBatches::new([part(2), part(4)]),
                false => SubBatches::default(),
            },
            tolerance: tolerance[rng.random_range(0..20_usize) / 9],
            promise: Promise {
                is_service: rng.random_bool(0.1),
                least_rate: Ppm([0, 0, 0, 700_000][rng.random_range(0..4_usize)]),
                floor: Ppm([0, 0, 0, 300_000][rng.random_range(0..4_usize)]),
                goes_first: rng.random_bool(0.1),
            },
            stoppable: rng.random_bool(0.7),
        }
    }

    fn spec(&mut self, id: usize, submit: Time) -> JobSpec {
        let JobDescription { estimate, profile, sub_batches, tolerance, promise, stoppable } =
            self.description(GPU_MIB);
        JobSpec {
            id: JobId(u32::try_from(id).unwrap()),
            user: UserId(self.0.random_range(0..3)),
            partition: PartitionId(0),
            submit,
            gpus: [1, 1, 1, 2, 2, 3, 4, 8][self.0.random_range(0..8_usize)],
            estimate,
            profile,
            sub_batches,
            tolerance,
            promise,
            priority: 0,
            stoppable,
            restore: Span::from_secs(40),
            share: tandem_core::JobShare::default(),
        }
    }

    fn gpu(&mut self) -> GpuId {
        GpuId(self.0.random_range(0..GPUS))
    }
}

struct Daemon {
    users: Users,
    engine: Engine,
    now: Time,
    wake: Option<Time>,
    submitted: usize,
    /// Every job that has not ended, and whether it is placed.
    jobs: BTreeMap<JobId, bool>,
    events: Vec<Event>,
    text: String,
}

impl Daemon {
    fn new(policy: &PolicySpec, placement: PlacementRule, seed: u64) -> Self {
        let cluster = Cluster::uniform(3, 4, Memory::from_mib(GPU_MIB)).into();
        let rules = Rules {
            placement,
            tenants_max: policy.entry.tenants_max,
            context: Memory::from_mib(100),
            live_budgets: true,
        };
        let interference = Box::new(ClosedForm);
        let build = || policy.build();
        Self {
            users: Users(ChaCha8Rng::seed_from_u64(seed)),
            engine: Engine::new(cluster, rules, interference, OnIllegal::Panic, build),
            now: Time(0),
            wake: None,
            submitted: 0,
            jobs: BTreeMap::new(),
            events: Vec::new(),
            text: format!("{} {placement:?} seed {seed}", policy.text),
        }
    }

    /// Adopted jobs, some of which share GPUs beyond what any plan would allow.
    fn adopt(&mut self) {
        for id in 0..10 {
            let spec = self.users.spec(id, Time(0));
            let first = self.users.gpu().0;
            let gpus = (0..spec.gpus).map(|step| GpuId((first + step) % GPUS));
            let placement = (id % 3 > 0).then(|| Placement::on(gpus));
            self.jobs.insert(spec.id, placement.is_some());
            let done = Work::of(Span::from_secs(self.users.0.random_range(0..500)));
            self.events.push(Event::Adopted { spec, placement, done });
        }
        self.submitted = 10;
        self.step();
    }

    fn some_job(&mut self) -> Option<JobId> {
        let nth = self.users.0.random_range(0..self.jobs.len().max(1));
        self.jobs.keys().nth(nth).copied()
    }

    /// A random event.
    fn happen(&mut self) {
        let kind = self.users.0.random_range(0..12);
        let gpu = self.users.gpu();
        let event = match (kind, self.some_job()) {
            (0..3, _) if self.jobs.len() < 40 => {
                let spec = self.users.spec(self.submitted, self.now);
                self.submitted += 1;
                self.jobs.insert(spec.id, false);
                Event::Submitted(spec)
            }
            (3, Some(job)) => self.finish(job),
            (4, Some(job)) if self.jobs[&job] => self.finish(job),
            (5, Some(job)) if self.jobs[&job] => {
                self.jobs.insert(job, false);
                Event::Interrupted { job, kept: Work::ZERO }
            }
            (6 | 7, Some(job)) => {
                // Some outgrow their GPUs.
                let description = self.users.description(GPU_MIB * 5 / 4);
                Event::Described { job, description }
            }
            (8, Some(job)) if self.jobs[&job] => self.progress(job),
            (9, _) => Event::GpuDrained { gpu },
            (10, _) => {
                let memory = Memory::from_mib(self.users.0.random_range(0..2 * GPU_MIB));
                let spared = self.users.0.random_bool(0.5);
                Event::GpuReserved { gpu, memory: if spared { Memory(0) } else { memory } }
            }
            (11, _) if self.engine.state().occupancy().tenants(gpu).is_empty() => {
                Event::GpuDown { gpu }
            }
            _ => Event::GpuUp { gpu },
        };
        self.events.push(event);
        self.step();
    }

    fn finish(&mut self, job: JobId) -> Event {
        self.jobs.remove(&job);
        Event::Finished { job }
    }

    fn progress(&mut self, job: JobId) -> Event {
        let done = self.engine.state().job(job).progress.done_by(self.now);
        let rate = Ppm(self.users.0.random_range(0..1_000_000));
        Event::Progress { job, progress: Progress { done, at: self.now, rate } }
    }

    fn step(&mut self) {
        let (now, events) = (self.now, std::mem::take(&mut self.events));
        let stoppable = |engine: &Engine, job: &JobId| engine.state().job(*job).spec.stoppable;
        let was: BTreeMap<JobId, Option<Placement>> = self
            .jobs
            .keys()
            .filter_map(|&job| Some((job, self.engine.state().find(job)?.placement().cloned())))
            .collect();
        let step = self.engine.step(now, &events);
        self.wake = step.wake;
        let actions = step.actions.to_vec();
        for action in actions {
            match action {
                Action::Start { job, .. } => {
                    self.jobs.insert(job, true);
                }
                Action::Stop { job } => {
                    assert!(stoppable(&self.engine, &job), "{} stops {job:?}", self.text);
                    self.jobs.insert(job, false);
                }
                Action::Move { job, placement } => {
                    let was = was.get(&job).and_then(Option::as_ref);
                    let stays = was.is_some_and(|was| was.gpus == placement.gpus);
                    assert!(stays || stoppable(&self.engine, &job), "{}: {job:?}", self.text);
                }
                Action::Budget { .. } | Action::Pause { .. } | Action::Resume { .. } => {}
            }
        }
        self.engine.state().assert_consistent();
        for (job, sits) in &self.jobs {
            let known = self.engine.state().job(*job);
            assert_eq!(known.placement().is_some(), *sits, "{}: {job:?}", self.text);
        }
        self.engine.touch(PartitionId(0));
        let again = self.engine.step(now, &[]);
        assert!(again.actions.is_empty(), "{} asked twice: {:?}", self.text, again.actions);
        let later = now + Span::from_secs(self.users.0.random_range(0..120));
        self.now = self.wake.map_or(later, |wake| wake.min(later)).max(now);
    }

    /// All GPUs are back and nothing is reserved: every job that can run does.
    fn drain(&mut self) {
        for gpu in (0..GPUS).map(GpuId) {
            self.events.push(Event::GpuUp { gpu });
            self.events.push(Event::GpuReserved { gpu, memory: Memory(0) });
        }
        for job in self.jobs.keys().copied().collect::<Vec<_>>() {
            let description = self.users.description(GPU_MIB / 2);
            self.events.push(Event::Described { job, description });
        }
        for _ in 0..10_000 {
            self.step();
            if self.jobs.is_empty() {
                return;
            }
            if let Some((&job, _)) = self.jobs.iter().find(|(_, sits)| **sits) {
                let event = self.finish(job);
                self.events.push(event);
            }
        }
        panic!("{}: {:?} never end", self.text, self.jobs);
    }
}

#[test]
fn every_policy_holds_under_random_events() {
    for seed in 1..=6 {
        for policy in REGISTRY.iter().map(PolicySpec::of) {
            for placement in [PlacementRule::Strict, PlacementRule::Scatter] {
                let mut daemon = Daemon::new(&policy, placement, seed);
                // Shown if a plan is illegal.
                println!("{}", daemon.text);
                daemon.adopt();
                (0..400).for_each(|_| daemon.happen());
                daemon.drain();
            }
        }
    }
}
