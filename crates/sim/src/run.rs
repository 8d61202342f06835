//! One simulation: the event loop that drives the engine through a workload.

use crate::driver::{Driver, TimedActions, earlier};
use crate::estimates::{EstimateErrors, HistoryEstimates};
use crate::faults::{FaultOptions, Faults};
use crate::interference::Beliefs;
use crate::links::{Links, Network};
use crate::metrics::{Counts, Metrics, Timing};
use crate::observer::Observer;
use crate::record::{QueueSample, Recorder, RunHistory};
use crate::timing::Stopwatch;
use crate::workload::Workload;
use crate::world::{JobOutcome, World, WorldOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tandem_core::{
    Engine, Event, Interference, Learner, Memory, Observation, OnIllegal, PartitionId,
    PlacementRule, Rules, Shares, Span, Time,
};
use tandem_policies::PolicySpec;
use thiserror::Error;

/// A job that is interrupted this often will not finish in any useful time.
const INTERRUPTIONS_MAX: u32 = 100_000;
/// After this many failures and repairs in a row without a job on any GPU, no job will ever start.
const IDLE_FAULTS_MAX: u32 = 100_000;
/// Finished jobs are counted in batches: threads contend for the counter, and a progress bar does not need
/// single jobs.
const COUNTED_AT_ONCE: usize = 64;

/// Options of a simulation.
#[derive(Clone)]
pub struct RunOptions {
    /// How GPUs are chosen for a job of its own.
    pub placement: PlacementRule,
    /// Memory of each tenant's context.
    pub context: Memory,
    /// Costs in the simulated world.
    pub world: WorldOptions,
    /// Communication of gangs across nodes; free if absent.
    pub network: Option<Network>,
    /// Failures of GPUs, if any.
    pub faults: Option<FaultOptions>,
    /// Seed of everything that is drawn at random.
    pub seed: u64,
    /// The believed pair rates of the policies; the true ones if absent.
    pub beliefs: Option<Beliefs>,
    /// Shares and limits between users.
    pub shares: Arc<Shares>,
    /// Keep the history for a report.
    pub record: bool,
    /// Keep actions and observations, to compare another driver of the engine with.
    pub log_actions: bool,
    /// After every step check jobs against occupancy, and that a second plan at the same time changes
    /// nothing. Slow; for tests.
    pub verify: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            placement: PlacementRule::Strict,
            context: Memory::default(),
            world: WorldOptions::default(),
            network: None,
            faults: None,
            seed: 1,
            beliefs: None,
            shares: Arc::default(),
            record: false,
            log_actions: false,
            verify: false,
        }
    }
}

/// Why a simulation cannot finish.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    /// GPUs fail so often that a gang never finds enough of them.
    #[error(
        "job {job} found no room through {IDLE_FAULTS_MAX} failures and repairs on an idle cluster; \
         raise mtbf_h, or lower repair_h"
    )]
    NeverStarts {
        /// The job.
        job: String,
    },
    /// Jobs wait and no event will ever come: a bug in the policy.
    #[error("policy {policy} leaves {waiting} jobs waiting for ever; the first one is {job}")]
    Stalled {
        /// The policy.
        policy: String,
        /// Number of waiting jobs.
        waiting: usize,
        /// The first of them.
        job: String,
    },
    /// Times do not fit into 64 bits of microseconds.
    #[error(
        "job {job} would end more than 584,000 years after time 0; \
         submission times and durations of the trace are too large to add up"
    )]
    EndOfTime {
        /// The job.
        job: String,
    },
    /// Failures undo progress faster than jobs make it.
    #[error(
        "job {job} lost a GPU {INTERRUPTIONS_MAX} times; raise mtbf_h, or lower checkpoint_min"
    )]
    NoProgress {
        /// The job.
        job: String,
    },
}

/// A finished simulation.
#[derive(Clone, Debug)]
pub struct SimRun {
    /// The policy as given.
    pub policy: String,
    /// By `JobId`.
    pub outcomes: Vec<JobOutcome>,
    /// Nodes of first placements in allocation order, as the outcomes refer to them: index within the
    /// partition, GPUs.
    pub nodes: Vec<(u32, u32)>,
    /// The metrics.
    pub metrics: Metrics,
    /// Errors of the estimates, where they are not the true durations.
    pub estimates: Option<EstimateErrors>,
    /// Measured times.
    pub timing: Timing,
    /// The history, if requested.
    pub record: Option<RunHistory>,
    /// Every time with actions, and the actions; empty unless requested.
    pub actions: Vec<TimedActions>,
    /// The observations that beliefs learned from; empty unless the actions were requested.
    pub observations: Vec<(Time, Observation)>,
    /// Some GPU had three or more tenants, whose rates are an assumption.
    pub has_three_tenants: bool,
}

/// Runs `workload` under `policy`. `done` counts finished jobs.
pub fn run(
    workload: &Workload,
    policy: &PolicySpec,
    truth: &Arc<dyn Interference>,
    options: &RunOptions,
    done: &AtomicU64,
) -> Result<SimRun, RunError> {
    let mut stopwatch = Stopwatch::start();
    let mut simulation = Simulation::new(workload, policy, truth, options);
    let mut counted = 0;
    while simulation.driver.finished < workload.len() {
        let now = simulation.next_instant(policy)?;
        if now == Time::END {
            return Err(RunError::EndOfTime { job: simulation.first_unfinished().to_owned() });
        }
        simulation.step(now, &mut stopwatch)?;
        let uncounted = simulation.driver.finished - counted;
        if uncounted >= COUNTED_AT_ONCE || simulation.driver.finished == workload.len() {
            done.fetch_add(uncounted as u64, Ordering::Relaxed);
            counted += uncounted;
        }
    }
    let Simulation { driver, learned, active_max, .. } = simulation;
    let Driver { engine, world, log, observed, .. } = driver;
    let counts = Counts { decisions: engine.decisions(), active_jobs_max: active_max as u64 };
    let metrics = Metrics::compute(workload, &world, &counts);
    Ok(SimRun {
        policy: policy.text.clone(),
        metrics,
        estimates: EstimateErrors::of(workload, learned.as_ref()),
        timing: stopwatch.stop(),
        has_three_tenants: world.has_three_tenants,
        record: world.recorder.map(|recorder| recorder.record),
        outcomes: world.outcomes,
        nodes: world.nodes,
        actions: log.unwrap_or_default(),
        observations: observed,
    })
}

struct Simulation<'a> {
    workload: &'a Workload,
    driver: Driver<'a>,
    faults: Option<Faults>,
    /// For estimates from the jobs that have finished.
    learned: Option<HistoryEstimates>,
    /// The most jobs that had been submitted and not finished.
    active_max: usize,
    /// GPUs that are lost now.
    down: u32,
    /// Failures and repairs since a job was last placed.
    idle_faults: u32,
    verify: bool,
    /// What policies are told that a restore costs: of a gang of up to eight GPUs, and of a larger one.
    restore: (Span, Span),
}

impl<'a> Simulation<'a> {
    fn new(
        workload: &'a Workload,
        policy: &PolicySpec,
        truth: &'a Arc<dyn Interference>,
        options: &RunOptions,
    ) -> Self {
        let rules = Rules {
            placement: options.placement,
            tenants_max: policy.entry.tenants_max,
            context: options.context,
            live_budgets: true,
        };
        let cluster = workload.cluster.clone();
        let gpus = u32::try_from(cluster.gpus().len()).expect("GPUs are counted in u32");
        let faults = options
            .faults
            .map(|faults| Faults::new(faults, options.seed, gpus, workload.first_submit()));
        let recorder = options.record.then(Recorder::default);
        let links = options.network.as_ref().map(|network| Links::new(network, workload));
        let beliefs: Box<dyn Learner> = match &options.beliefs {
            Some(beliefs) => Box::new(beliefs.clone()),
            None => Box::new(truth.clone()),
        };
        let observer = options.beliefs.as_ref().filter(|beliefs| beliefs.learns());
        let observer = observer.map(|_| Observer::new(options.seed));
        let (jobs, begin) = (&workload.jobs, workload.first_submit());
        let mut world = World::new(&workload.cluster, jobs, truth.as_ref(), options.world, begin);
        world.links = links;
        world.recorder = recorder;
        world.observer = observer;
        let shares = &options.shares;
        let build = || match shares.is_empty() {
            true => policy.build(),
            false => shares.gate(policy.build()),
        };
        let engine = Engine::new(cluster, rules, beliefs, OnIllegal::Panic, build);
        let mut driver = Driver::new(engine, world, jobs);
        driver.log = options.log_actions.then(Vec::new);
        Self {
            workload,
            driver,
            faults,
            learned: HistoryEstimates::new(workload),
            active_max: 0,
            down: 0,
            idle_faults: 0,
            verify: options.verify,
            restore: options.world.restore,
        }
    }

    /// The next time at which something happens.
    fn next_instant(&mut self, policy: &PolicySpec) -> Result<Time, RunError> {
        let fault = self.faults.as_ref().and_then(Faults::next_at);
        // A failure alone never helps a waiting job; a repair may.
        let repair = fault.filter(|_| self.down > 0);
        match earlier(self.driver.next_instant(), repair) {
            Some(hope) => Ok(fault.map_or(hope, |fault| fault.min(hope))),
            None => Err(RunError::Stalled {
                policy: policy.text.clone(),
                waiting: self.workload.len() - self.driver.finished,
                job: self.first_unfinished().to_owned(),
            }),
        }
    }

    #[cold]
    fn first_unfinished(&self) -> &str {
        let first = self.driver.world.outcomes.iter().position(|outcome| outcome.end.is_none());
        let first = first.expect("the loop ends with the last job");
        self.workload.id(self.workload.jobs[first].spec.id)
    }

    /// One point in time: completions, faults and repairs, arrivals, plan, actions, rates.
    fn step(&mut self, now: Time, stopwatch: &mut Stopwatch) -> Result<(), RunError> {
        let first_finished = self.driver.collect(now);
        if self.learned.is_some() {
            self.learn(first_finished);
        }
        if self.faults.is_some() {
            self.faults_at(now)?;
        }
        let Self { workload, driver, learned, restore, .. } = self;
        driver.arrive(now, |spec| {
            spec.restore = if spec.gpus <= 8 { restore.0 } else { restore.1 };
            if let Some(learned) = learned {
                spec.estimate = learned.estimate(workload, spec.id);
            }
        });
        self.active_max = self.active_max.max(driver.arrived - driver.finished);
        driver.decide(now, Some(stopwatch));
        self.sample(now);
        if self.verify {
            self.verify(now);
        }
        Ok(())
    }

    /// Records the jobs that have finished: the events from `first` on.
    #[cold]
    fn learn(&mut self, first: usize) {
        let Some(learned) = &mut self.learned else { return };
        for event in &self.driver.events[first..] {
            if let Event::Finished { job } = event {
                learned.finish(self.workload, *job);
            }
        }
    }

    #[cold]
    fn verify(&mut self, now: Time) {
        self.driver.engine.state().assert_consistent();
        let partitions = self.workload.cluster.partitions().len();
        for partition in (0..).map(PartitionId).take(partitions) {
            self.driver.engine.touch(partition);
        }
        let again = self.driver.engine.step(now, &[]);
        assert!(again.actions.is_empty(), "asked twice at {now:?}, wants {:?}", again.actions);
    }

    #[cold]
    fn faults_at(&mut self, now: Time) -> Result<(), RunError> {
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let Driver { world, events, arrived, finished, .. } = &mut self.driver;
        let first = events.len();
        if world.meters.busy_gpus > 0 || arrived == finished {
            self.idle_faults = 0;
        }
        while let Some(fault) = faults.pop_at(now) {
            self.idle_faults += 1;
            if fault.down {
                self.down += 1;
                world.lose(fault.gpu, now, events);
            } else {
                self.down -= 1;
                events.push(Event::GpuUp { gpu: fault.gpu });
            }
        }
        if self.idle_faults > IDLE_FAULTS_MAX {
            return Err(RunError::NeverStarts { job: self.first_unfinished().to_owned() });
        }
        for event in &self.driver.events[first..] {
            if let Event::Interrupted { job, .. } = event
                && self.driver.world.outcomes[job.index()].interruptions >= INTERRUPTIONS_MAX
            {
                return Err(RunError::NoProgress { job: self.workload.id(*job).to_owned() });
            }
        }
        Ok(())
    }

    fn sample(&mut self, now: Time) {
        let Driver { world, arrived, finished, .. } = &mut self.driver;
        if let Some(recorder) = &mut world.recorder {
            let placed = recorder.placed();
            recorder.sample(QueueSample {
                at: now,
                waiting: u32::try_from(*arrived - *finished - placed)
                    .expect("jobs are counted in u32"),
                busy: world.meters.busy_gpus,
                shared: world.meters.shared_gpus,
            });
        }
    }
}
