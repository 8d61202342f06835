//! The loop that simulation and forecast share: jobs arrive, the engine plans, the world carries out the
//! actions and reports the results. Faults, learning and the end condition belong to the callers.

use crate::timing::{Lap, Stopwatch};
use crate::workload::WorkloadJob;
use crate::world::World;
use tandem_core::{Action, Engine, Event, JobSpec, Observation, Time};

/// The actions at one point in time.
pub type TimedActions = (Time, Vec<Action>);

pub(crate) struct Driver<'a> {
    pub(crate) engine: Engine,
    pub(crate) world: World<'a>,
    /// By `JobId`, in order of submission.
    jobs: &'a [WorkloadJob],
    /// Jobs before this one have been submitted.
    pub(crate) arrived: usize,
    pub(crate) finished: usize,
    pub(crate) wake: Option<Time>,
    /// Events since the last plan.
    pub(crate) events: Vec<Event>,
    /// All actions, if they are kept.
    pub(crate) log: Option<Vec<TimedActions>>,
    /// The observations that the engine learned from, if the actions are kept.
    pub(crate) observed: Vec<(Time, Observation)>,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(engine: Engine, world: World<'a>, jobs: &'a [WorkloadJob]) -> Self {
        Self {
            engine,
            world,
            jobs,
            arrived: 0,
            finished: 0,
            wake: None,
            events: Vec::new(),
            log: None,
            observed: Vec::new(),
        }
    }

    /// The next time at which something happens; `None` if nothing ever will.
    pub(crate) fn next_instant(&mut self) -> Option<Time> {
        let arrival = self.jobs.get(self.arrived).map(|job| job.spec.submit);
        earlier(earlier(arrival, self.world.next_completion()), self.wake)
    }

    /// Collects the events of the world up to `now`. Completions come last; returns the position of the
    /// first.
    pub(crate) fn collect(&mut self, now: Time) -> usize {
        self.world.advance(now);
        self.events.clear();
        self.world.report(now, &mut self.events);
        let reported = self.events.len();
        self.world.finish(now, &mut self.events);
        self.finished += self.events.len() - reported;
        reported
    }

    /// Submits the jobs that arrive by `now`; `told` changes what the scheduler is told.
    pub(crate) fn arrive(&mut self, now: Time, mut told: impl FnMut(&mut JobSpec)) {
        while let Some(job) = self.jobs.get(self.arrived).filter(|job| job.spec.submit <= now) {
            let mut spec = job.spec.clone();
            told(&mut spec);
            self.events.push(Event::Submitted(spec));
            self.arrived += 1;
        }
    }

    /// Lets the engine plan and the world carry out the actions.
    pub(crate) fn decide(&mut self, now: Time, stopwatch: Option<&mut Stopwatch>) {
        let step = match stopwatch {
            None => self.engine.step(now, &self.events),
            Some(stopwatch) => {
                let woken = self.wake.is_some_and(|wake| wake <= now);
                let kind = if woken { Lap::Slice } else { Lap::Event };
                let lap = stopwatch.begin_lap(kind);
                let step = self.engine.step(now, &self.events);
                stopwatch.end_lap(kind, lap);
                step
            }
        };
        self.wake = step.wake;
        self.world.act(now, step.actions);
        if let Some(log) = &mut self.log {
            if !step.actions.is_empty() {
                log.push((now, step.actions.to_vec()));
            }
            self.log_observations(now);
        }
    }

    #[cold]
    fn log_observations(&mut self, now: Time) {
        for event in &self.events {
            if let Event::Observed(observation) = event {
                self.observed.push((now, observation.clone()));
            }
        }
    }
}

/// The earlier of two times, of which either may never come.
pub(crate) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
