//! When jobs will start and end from a live present on, if durations are as assumed: the policy is run
//! forward with the engine and the world of a simulation. Several draws of durations make a range.

use crate::driver::Driver;
use crate::workload::WorkloadJob;
use crate::world::{JobOutcome, World, WorldOptions};
use std::sync::Arc;
use tandem_core::{
    Action, Cluster, Engine, Event, GpuId, Interference, JobId, JobSpec, Memory, OnIllegal,
    Placement, Rules, Span, Time, Work,
};
use tandem_policies::PolicySpec;

/// The state from which a forecast begins.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// What every plan has to respect.
    pub rules: Rules,
    /// The instant.
    pub now: Time,
    /// Jobs that are not over, by [`JobId`], and those that are still to come, in order of submission.
    pub jobs: Vec<SnapshotJob>,
    /// GPUs that take no new tenants.
    pub closed: Vec<GpuId>,
    /// Memory that others than our jobs use.
    pub reserved: Vec<(GpuId, Memory)>,
}

/// A job of the present.
#[derive(Clone, Debug)]
pub struct SnapshotJob {
    /// What the scheduler is told; the id counts for nothing, the place in the list does.
    pub spec: JobSpec,
    /// Where it sits.
    pub placement: Option<Placement>,
    /// The work that it has done.
    pub done: Work,
    /// How long it is assumed to take alone in all.
    pub duration: Span,
}

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct ForecastOptions {
    /// Time to restore the state of a gang of up to eight GPUs, and of a larger one.
    pub restore: (Span, Span),
    /// Nothing beyond this is looked at.
    pub horizon: Option<Span>,
    /// Nor more instants at which something happens than this.
    pub events_max: u64,
}

impl Default for ForecastOptions {
    fn default() -> Self {
        let restore = WorldOptions::default().restore;
        Self { restore, horizon: None, events_max: 200_000 }
    }
}

/// What will come of the jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// By [`JobId`], the place in [`Snapshot::jobs`].
    pub jobs: Vec<JobForecast>,
}

/// What will come of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobForecast {
    /// When it starts, or the present if it sits already; `None` if the forecast does not reach so far.
    pub start: Option<Time>,
    /// When it ends; `None` if the forecast does not reach so far.
    pub end: Option<Time>,
    /// Who is on its GPUs when it starts, by id.
    pub beside: Vec<JobId>,
    /// Time from start to end over what its work would take alone; 1 as long as no end is known.
    pub slowdown: f64,
}

impl JobForecast {
    const UNKNOWN: JobForecast =
        JobForecast { start: None, end: None, beside: Vec::new(), slowdown: 1.0 };
}

/// Runs `policy` forward from `present`, with rates as `beliefs` has them. It ends in any case: where jobs
/// wait for ever, where an option says so, or with the last job. A job that no engine could take in, in a
/// partition that is not there or without GPUs, is passed over.
pub fn forecast(
    present: &Snapshot,
    policy: &PolicySpec,
    beliefs: &Arc<dyn Interference>,
    options: &ForecastOptions,
) -> Forecast {
    let mut jobs = vec![JobForecast::UNKNOWN; present.jobs.len()];
    let taken = taken_in(present);
    let workload = workload(present, &taken);
    let mut ahead = ForecastRun::new(present, policy, beliefs, options, &workload, &taken);
    ahead.run(present.now, options);
    let ForecastRun { driver, beside } = ahead;
    // Back from the ids of the engine to those of the present.
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
    Forecast { jobs }
}

fn slowdown(outcome: &JobOutcome, left: Work) -> f64 {
    let micros = |work: Work| work.0 as f64 / Work::of(Span(1)).0 as f64;
    match (outcome.start, outcome.end) {
        (Some(start), Some(end)) if left > Work::ZERO => end.since(start).0 as f64 / micros(left),
        _ => 1.0,
    }
}

/// The jobs that an engine can take in, by their place in the present.
fn taken_in(present: &Snapshot) -> Vec<usize> {
    let partitions = present.cluster.partitions().len();
    let can = |job: &SnapshotJob| job.spec.partition.index() < partitions && job.spec.gpus > 0;
    (0..present.jobs.len()).filter(|&index| can(&present.jobs[index])).collect()
}

/// They with dense ids, in order of submission whatever their times say: ids are given in that order.
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

/// The course of events that is looked at.
struct ForecastRun<'a> {
    driver: Driver<'a>,
    /// By job: who was on its GPUs when it started.
    beside: Vec<Option<Vec<JobId>>>,
}

impl<'a> ForecastRun<'a> {
    /// The present as engine and world see it, before the first decision.
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
        let engine = Engine::new(cluster.clone(), rules, believed, refuse, || policy.build());
        let world = World::new(cluster, jobs, beliefs.as_ref(), costs, *now);
        let mut driver = Driver::new(engine, world, jobs);
        driver.log = Some(Vec::new());
        // Everyone up to the last who is there already has come.
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
        // Rates are known to the engine before it decides, as they are in a run that goes on.
        driver.world.act(*now, &[]);
        driver.world.report(*now, &mut driver.events);
        Self { driver, beside: vec![None; jobs.len()] }
    }

    fn run(&mut self, begin: Time, options: &ForecastOptions) {
        let end = options.horizon.map_or(Time::END, |horizon| begin + horizon);
        for job in (0..).map(JobId).take(self.driver.arrived) {
            self.note_if_started(job);
        }
        self.decide(begin);
        for _ in 1..options.events_max {
            let Some(now) = self.driver.next_instant() else { return };
            let is_over = self.driver.finished == self.beside.len();
            if is_over || now > end || now == Time::END {
                return;
            }
            self.driver.collect(now);
            self.driver.arrive(now, |_| {});
            self.decide(now);
        }
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
