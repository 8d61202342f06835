//! One simulation: the event loop that drives the engine through a workload.

use crate::estimates::{EstimateErrors, Learned};
use crate::faults::{FaultOptions, Faults};
use crate::interference::Beliefs;
use crate::links::{Links, Network};
use crate::metrics::{Counts, Metrics, Timing};
use crate::observer::Observer;
use crate::record::{Record, Recorder, Sample};
use crate::timing::{Lap, Stopwatch};
use crate::workload::Workload;
use crate::world::{Outcome, World, WorldOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tandem_core::{
    Engine, Event, Interference, Memory, OnIllegal, PartitionId, PlacementRule, Rules, Time,
};
use tandem_policies::PolicySpec;
use thiserror::Error;

/// A job that is torn from its GPUs this often will not finish in any useful time.
const INTERRUPTIONS_MAX: u32 = 100_000;
/// After so many failures and repairs in a row during which no job could even start, none will.
const IDLE_FAULTS_MAX: u32 = 100_000;

/// How to simulate.
#[derive(Clone)]
pub struct RunOptions {
    /// How whole GPUs are chosen.
    pub placement: PlacementRule,
    /// Memory that each tenant takes beyond its own.
    pub context: Memory,
    /// The costs of the world.
    pub world: WorldOptions,
    /// What gangs across nodes pay for the network; nothing if absent.
    pub network: Option<Network>,
    /// Failures of GPUs, if any.
    pub faults: Option<FaultOptions>,
    /// For whatever is drawn at random.
    pub seed: u64,
    /// What the policies believe about pair rates; the truth if absent.
    pub beliefs: Option<Beliefs>,
    /// Keep the history that a report shows.
    pub record: bool,
    /// After every step re-check all cross links, and that a policy asked again wants nothing more.
    /// Slow; for tests.
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
            record: false,
            verify: false,
        }
    }
}

/// Why a simulation cannot end.
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
    /// Jobs wait and nothing will ever happen again: a bug in the policy.
    #[error("policy {policy} leaves {waiting} jobs waiting for ever, the first is {job}")]
    Stalled {
        /// The policy.
        policy: String,
        /// How many.
        waiting: usize,
        /// One of them.
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
    /// Failures come faster than progress.
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
pub struct Run {
    /// The policy as given.
    pub policy: String,
    /// By `JobId`.
    pub outcomes: Vec<Outcome>,
    /// Nodes of first placements in the order touched, as the outcomes refer to them: index within
    /// the partition, GPUs.
    pub nodes: Vec<(u32, u32)>,
    /// The figures.
    pub metrics: Metrics,
    /// How good the estimates were, where they were not the truth.
    pub estimates: Option<EstimateErrors>,
    /// What was measured with a clock.
    pub timing: Timing,
    /// The history, if asked for.
    pub record: Option<Record>,
    /// Three or more jobs shared a GPU, whose rates are an assumption.
    pub crowded: bool,
}

/// Runs `workload` under `policy`. `done` counts finished jobs while it goes.
pub fn run(
    workload: &Workload,
    policy: &PolicySpec,
    truth: &Arc<dyn Interference>,
    options: &RunOptions,
    done: &AtomicU64,
) -> Result<Run, RunError> {
    let mut stopwatch = Stopwatch::start();
    let mut simulation = Simulation::new(workload, policy, truth, options);
    while simulation.finished < workload.len() {
        let now = simulation.next_instant(policy)?;
        if now == Time::END {
            return Err(RunError::EndOfTime { job: simulation.first_unfinished().to_owned() });
        }
        let before = simulation.finished;
        simulation.step(now, &mut stopwatch)?;
        if simulation.finished > before {
            done.fetch_add((simulation.finished - before) as u64, Ordering::Relaxed);
        }
    }
    let Simulation { engine, world, learned, active_max, .. } = simulation;
    let counts = Counts { decisions: engine.decisions(), active_jobs_max: active_max as u64 };
    let metrics = Metrics::compute(workload, &world, &counts);
    Ok(Run {
        policy: policy.text.clone(),
        metrics,
        estimates: EstimateErrors::of(workload, learned.as_ref()),
        timing: stopwatch.stop(),
        crowded: world.crowded,
        record: world.recorder.map(|recorder| recorder.record),
        outcomes: world.outcomes,
        nodes: world.nodes,
    })
}

struct Simulation<'a> {
    workload: &'a Workload,
    engine: Engine,
    world: World<'a>,
    faults: Option<Faults>,
    /// Where estimates come from the jobs that have finished.
    learned: Option<Learned>,
    /// Jobs before this one have been submitted.
    arrived: usize,
    finished: usize,
    /// The most jobs that had arrived and not finished.
    active_max: usize,
    /// GPUs that are lost at present.
    down: u32,
    /// Failures and repairs since a job last sat on a GPU.
    idle_faults: u32,
    wake: Option<Time>,
    events: Vec<Event>,
    verify: bool,
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
        };
        let cluster = workload.cluster.clone();
        let gpus = u32::try_from(cluster.gpus().len()).expect("GPUs are counted in u32");
        let faults = options
            .faults
            .map(|faults| Faults::new(faults, options.seed, gpus, workload.first_submit()));
        let recorder = options.record.then(Recorder::default);
        let links = options.network.as_ref().map(|network| Links::new(network, workload));
        let beliefs: Box<dyn Interference> = match &options.beliefs {
            Some(beliefs) => Box::new(beliefs.clone()),
            None => Box::new(truth.clone()),
        };
        let observer = options.beliefs.as_ref().filter(|beliefs| beliefs.learns());
        let observer = observer.map(|_| Observer::new(options.seed));
        Self {
            workload,
            engine: Engine::new(cluster, rules, beliefs, OnIllegal::Panic, || policy.build()),
            world: World::new(workload, truth.as_ref(), options.world, links, recorder, observer),
            faults,
            learned: Learned::new(workload),
            arrived: 0,
            finished: 0,
            active_max: 0,
            down: 0,
            idle_faults: 0,
            wake: None,
            events: Vec::new(),
            verify: options.verify,
        }
    }

    /// The next instant at which something happens.
    fn next_instant(&mut self, policy: &PolicySpec) -> Result<Time, RunError> {
        let arrival = self.workload.jobs.get(self.arrived).map(|job| job.spec.submit);
        let completion = self.world.next_completion();
        let fault = self.faults.as_ref().and_then(Faults::next_at);
        // A failure alone never helps a job that waits; a repair may.
        let repair = fault.filter(|_| self.down > 0);
        match earlier(earlier(arrival, completion), earlier(self.wake, repair)) {
            Some(hope) => Ok(fault.map_or(hope, |fault| fault.min(hope))),
            None => Err(RunError::Stalled {
                policy: policy.text.clone(),
                waiting: self.workload.len() - self.finished,
                job: self.first_unfinished().to_owned(),
            }),
        }
    }

    fn first_unfinished(&self) -> &str {
        let first = self.world.outcomes.iter().position(|outcome| outcome.end.is_none());
        let first = first.expect("the loop ends with the last job");
        self.workload.id(self.workload.jobs[first].spec.id)
    }

    /// One instant: completions, faults and repairs, arrivals, plan, apply, rates.
    fn step(&mut self, now: Time, stopwatch: &mut Stopwatch) -> Result<(), RunError> {
        self.world.advance(now);
        self.events.clear();
        self.world.report(now, &mut self.events);
        let reported = self.events.len();
        self.world.finish(now, &mut self.events);
        self.finished += self.events.len() - reported;
        self.learn(reported);
        self.faults_at(now)?;
        let jobs = &self.workload.jobs;
        while let Some(job) = jobs.get(self.arrived).filter(|job| job.spec.submit <= now) {
            let mut spec = job.spec.clone();
            if let Some(learned) = &mut self.learned {
                spec.estimate = learned.estimate(self.workload, spec.id);
            }
            self.events.push(Event::Submitted(spec));
            self.arrived += 1;
        }
        self.active_max = self.active_max.max(self.arrived - self.finished);
        let kind = if self.wake.is_some_and(|wake| wake <= now) { Lap::Slice } else { Lap::Event };
        let lap = stopwatch.begin_lap(kind);
        let step = self.engine.step(now, &self.events);
        stopwatch.end_lap(kind, lap);
        self.wake = step.wake;
        self.world.act(now, step.actions);
        self.sample(now);
        if self.verify {
            self.verify(now);
        }
        Ok(())
    }

    /// Remembers the jobs that have finished: the events from `first` on.
    fn learn(&mut self, first: usize) {
        let Some(learned) = &mut self.learned else { return };
        for event in &self.events[first..] {
            if let Event::Finished { job } = event {
                learned.finish(self.workload, *job);
            }
        }
    }

    fn verify(&mut self, now: Time) {
        self.engine.state().assert_consistent();
        let partitions = self.workload.cluster.partitions().len();
        for partition in (0..).map(PartitionId).take(partitions) {
            self.engine.touch(partition);
        }
        let again = self.engine.step(now, &[]);
        assert!(again.actions.is_empty(), "asked twice at {now:?}, wants {:?}", again.actions);
    }

    fn faults_at(&mut self, now: Time) -> Result<(), RunError> {
        let Some(faults) = &mut self.faults else { return Ok(()) };
        let first = self.events.len();
        if self.world.meters.busy_gpus > 0 || self.arrived == self.finished {
            self.idle_faults = 0;
        }
        while let Some(fault) = faults.pop_at(now) {
            self.idle_faults += 1;
            if fault.down {
                self.down += 1;
                self.world.lose(fault.gpu, now, &mut self.events);
            } else {
                self.down -= 1;
                self.events.push(Event::GpuUp { gpu: fault.gpu });
            }
        }
        if self.idle_faults > IDLE_FAULTS_MAX {
            return Err(RunError::NeverStarts { job: self.first_unfinished().to_owned() });
        }
        for event in &self.events[first..] {
            if let Event::Interrupted { job, .. } = event
                && self.world.outcomes[job.index()].interruptions >= INTERRUPTIONS_MAX
            {
                return Err(RunError::NoProgress { job: self.workload.id(*job).to_owned() });
            }
        }
        Ok(())
    }

    fn sample(&mut self, now: Time) {
        if let Some(recorder) = &mut self.world.recorder {
            let placed = recorder.placed();
            recorder.sample(Sample {
                at: now,
                waiting: u32::try_from(self.arrived - self.finished - placed)
                    .expect("jobs are counted in u32"),
                busy: self.world.meters.busy_gpus,
                shared: self.world.meters.shared_gpus,
            });
        }
    }
}

/// The earlier of two instants, where either may never come.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
