//! Forecasts from a live state: when jobs start and end if durations are as assumed. The engine and the world
//! of the simulator run the policy forward. Several draws of durations give a range.

use crate::driver::Driver;
use crate::record::{Recorder, Stay};
use crate::workload::WorkloadJob;
use crate::world::{JobOutcome, World, WorldOptions};
use std::sync::Arc;
use tandem_core::{
    Action, Cluster, Engine, Event, GpuId, Interference, JobId, JobSpec, Memory, OnIllegal,
    Placement, Rules, Shares, Span, Time, Work,
};
use tandem_policies::PolicySpec;

/// The state at the start of a forecast.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The hardware.
    pub cluster: Arc<Cluster>,
    /// The limits that every plan has to respect.
    pub rules: Rules,
    /// The current time.
    pub now: Time,
    /// Jobs that have not ended, and jobs that will be submitted, in order of submission.
    pub jobs: Vec<SnapshotJob>,
    /// GPUs that take no new tenants.
    pub closed: Vec<GpuId>,
    /// Memory that processes outside the scheduler use.
    pub reserved: Vec<(GpuId, Memory)>,
    /// Shares and limits between users.
    pub shares: Arc<Shares>,
}

/// A job of the snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotJob {
    /// What the scheduler is told. Its id is ignored: the position in the list counts.
    pub spec: JobSpec,
    /// Its current placement.
    pub placement: Option<Placement>,
    /// Its work so far.
    pub done: Work,
    /// Its assumed solo duration in total.
    pub duration: Span,
}

/// Options of a forecast.
#[derive(Clone, Copy, Debug)]
pub struct ForecastOptions {
    /// Restore time of a gang of up to eight GPUs, and of a larger one.
    pub restore: (Span, Span),
    /// The forecast ends after this time.
    pub horizon: Option<Span>,
    /// The forecast ends after this many events.
    pub events_max: u64,
    /// Keep the placements, not only the starts and ends.
    pub record: bool,
    /// The forecast ends when this job has ended, by its position in the snapshot.
    pub until_end_of: Option<usize>,
}

impl Default for ForecastOptions {
    fn default() -> Self {
        let restore = WorldOptions::default().restore;
        Self { restore, horizon: None, events_max: 200_000, record: false, until_end_of: None }
    }
}

/// The forecast of all jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// By position in [`Snapshot::jobs`].
    pub jobs: Vec<JobForecast>,
    /// Placements in order of their end, if they were kept; jobs by position in [`Snapshot::jobs`]. A
    /// placement beyond the forecast ends with it.
    pub stays: Vec<Stay>,
    /// How far it got; `None` if all was simulated that was asked for.
    pub reached: Option<Time>,
}

/// The forecast of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobForecast {
    /// When it starts, or now if it is placed already; `None` if that is beyond the forecast.
    pub start: Option<Time>,
    /// When it ends; `None` if that is beyond the forecast.
    pub end: Option<Time>,
    /// The co-located jobs when it starts, by id.
    pub beside: Vec<JobId>,
    /// Time from start to end ÷ time of its remaining work alone; 1 if no end is known.
    pub slowdown: f64,
}

impl JobForecast {
    const UNKNOWN: JobForecast =
        JobForecast { start: None, end: None, beside: Vec::new(), slowdown: 1.0 };
}

/// Runs `policy` forward from `present`, with rates by `beliefs`. It always ends: when all jobs have ended or
/// wait for ever, or where an option says so. Jobs without GPUs or in an unknown partition are skipped.
pub fn forecast(
    present: &Snapshot,
    policy: &PolicySpec,
    beliefs: &Arc<dyn Interference>,
    options: &ForecastOptions,
) -> Forecast {
    forecast_while(present, policy, beliefs, options, &|| true)
}

/// [`forecast`], which also ends when `goes_on` is false.
pub fn forecast_while(
    present: &Snapshot,
    policy: &PolicySpec,
    beliefs: &Arc<dyn Interference>,
    options: &ForecastOptions,
    goes_on: &dyn Fn() -> bool,
) -> Forecast {
    let mut jobs = vec![JobForecast::UNKNOWN; present.jobs.len()];
    let taken = taken_in(present);
    let workload = workload(present, &taken);
    let mut ahead = ForecastRun::new(present, policy, beliefs, options, &workload, &taken);
    let is_last = |&index: &usize| options.until_end_of == Some(index);
    let last = taken.iter().position(is_last);
    let (until, is_complete) = ahead.run(present.now, options, last, goes_on);
    let ForecastRun { mut driver, beside } = ahead;
    // From the engine's ids back to those of the snapshot.
    let id = |job: &JobId| JobId(u32::try_from(taken[job.index()]).expect("jobs are u32"));
    for ((&index, outcome), beside) in taken.iter().zip(&driver.world.outcomes).zip(&beside) {
        let SnapshotJob { done, duration, .. } = present.jobs[index];
        jobs[index] = JobForecast {
            start: outcome.start,
            end: outcome.end,
            beside: beside.iter().flatten().map(id).collect(),
            slowdown: slowdown(outcome, Work::of(duration).saturating_sub(done)),
        };
    }
    let stays = driver.world.recorder.take().map(|recorder| recorder.stays_until(until));
    let stays = stays.into_iter().flatten().map(|stay| Stay { job: id(&stay.job), ..stay });
    Forecast { jobs, stays: stays.collect(), reached: (!is_complete).then_some(until) }
}

fn slowdown(outcome: &JobOutcome, left: Work) -> f64 {
    let micros = |work: Work| work.0 as f64 / Work::of(Span(1)).0 as f64;
    match (outcome.start, outcome.end) {
        (Some(start), Some(end)) if left > Work::ZERO => end.since(start).0 as f64 / micros(left),
        _ => 1.0,
    }
}

/// The jobs that the engine can take, by their position in the snapshot.
fn taken_in(present: &Snapshot) -> Vec<usize> {
    let partitions = present.cluster.partitions().len();
    let can = |job: &SnapshotJob| job.spec.partition.index() < partitions && job.spec.gpus > 0;
    (0..present.jobs.len()).filter(|&index| can(&present.jobs[index])).collect()
}

/// The jobs with dense ids, in order of submission whatever their times say.
fn workload(present: &Snapshot, taken: &[usize]) -> Vec<WorkloadJob> {
    let mut latest = present.now;
    let job = |(id, &index): (u32, &usize)| {
        let SnapshotJob { spec, duration, .. } = &present.jobs[index];
        let mut spec = spec.clone();
        spec.id = JobId(id);
        if spec.submit > present.now {
            latest = latest.max(spec.submit);
            spec.submit = latest;
        }
        WorkloadJob::assumed(spec, *duration)
    };
    (0..).zip(taken).map(job).collect()
}

/// The simulation of a forecast.
struct ForecastRun<'a> {
    driver: Driver<'a>,
    /// By job: its co-located jobs when it started.
    beside: Vec<Option<Vec<JobId>>>,
}

impl<'a> ForecastRun<'a> {
    /// Engine and world in the state of the snapshot, before the first plan.
    fn new(
        present: &'a Snapshot,
        policy: &PolicySpec,
        beliefs: &'a Arc<dyn Interference>,
        options: &ForecastOptions,
        jobs: &'a [WorkloadJob],
        taken: &[usize],
    ) -> Self {
        let Snapshot { cluster, now, .. } = present;
        let costs = WorldOptions { restore: options.restore, ..WorldOptions::default() };
        let believed = Box::new(beliefs.clone());
        let (rules, refuse) = (present.rules, OnIllegal::Refuse);
        let build = || present.shares.gate(policy.build());
        let engine = Engine::new(cluster.clone(), rules, believed, refuse, build);
        let world = World::new(cluster, jobs, beliefs.as_ref(), costs, *now);
        let mut driver = Driver::new(engine, world, jobs);
        driver.world.recorder = options.record.then(Recorder::default);
        driver.log = Some(Vec::new());
        // All jobs up to the last one that is there already have been submitted.
        let is_there = |index: &usize| {
            let SnapshotJob { spec, placement, done, .. } = &present.jobs[*index];
            spec.submit <= *now || placement.is_some() || *done > Work::ZERO
        };
        driver.arrived = taken.iter().rposition(is_there).map_or(0, |last| last + 1);
        for (job, &index) in jobs.iter().zip(taken).take(driver.arrived) {
            let (spec, of_job) = (job.spec.clone(), &present.jobs[index]);
            let placement = of_job.placement.clone().filter(|on| on.is_valid_for(&spec, cluster));
            let done = of_job.done.min(Work::of(Span(u64::MAX)));
            if placement.is_none() && done == Work::ZERO {
                driver.events.push(Event::Submitted(spec));
            } else {
                driver.world.adopt(spec.id, placement.as_ref(), done, *now);
                driver.events.push(Event::Adopted { spec, placement, done });
            }
        }
        let has = |gpu: &GpuId| gpu.index() < cluster.gpus().len();
        let reserved = present.reserved.iter().filter(|(gpu, _)| has(gpu));
        driver.events.extend(reserved.map(|&(gpu, memory)| Event::GpuReserved { gpu, memory }));
        let closed = present.closed.iter().copied().filter(has);
        driver.events.extend(closed.map(|gpu| Event::GpuDrained { gpu }));
        // The engine knows the current rates before it plans, as in a run that continues.
        driver.world.act(*now, &[]);
        driver.world.report(*now, &mut driver.events);
        Self { driver, beside: vec![None; jobs.len()] }
    }

    /// Returns the last instant at which something happened, and whether all has happened that was asked for.
    fn run(
        &mut self,
        begin: Time,
        options: &ForecastOptions,
        last: Option<usize>,
        goes_on: &dyn Fn() -> bool,
    ) -> (Time, bool) {
        let end = options.horizon.map_or(Time::END, |horizon| begin + horizon);
        for job in (0..).map(JobId).take(self.driver.arrived) {
            self.note_if_started(job);
        }
        self.decide(begin);
        let mut reached = begin;
        for _ in 1..options.events_max {
            let Some(now) = self.driver.next_instant() else { return (reached, true) };
            let is_over = self.driver.finished == self.beside.len()
                || last.is_some_and(|last| self.driver.world.outcomes[last].end.is_some());
            if is_over || now > end || now == Time::END {
                return (reached, true);
            }
            if !goes_on() {
                return (reached, false);
            }
            reached = now;
            self.driver.collect(now);
            self.driver.arrive(now, |_| {});
            self.decide(now);
        }
        (reached, false)
    }

    fn decide(&mut self, now: Time) {
        self.driver.decide(now, None);
        let acts = self.driver.log.as_mut().and_then(Vec::pop);
        for action in acts.iter().flat_map(|(_, actions)| actions) {
            if let Action::Start { job, .. } = action {
                self.note_if_started(*job);
            }
        }
    }

    fn note_if_started(&mut self, job: JobId) {
        let Self { driver, beside } = self;
        if beside[job.index()].is_none() && driver.world.outcomes[job.index()].start.is_some() {
            beside[job.index()] = Some(driver.world.beside(job));
        }
    }
}
