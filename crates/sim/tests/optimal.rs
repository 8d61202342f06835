//! The optimum of small instances against that of all schedules, which may change at any time: the least of
//! linear programs, one for every order of arrivals and completions. No policy is better, and the lower bound
//! is below it.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{ClosedForm, GpuTypeId, Interference, Span};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::optimal::{optimum, small_instance};
use tandem_sim::{LowerBound, RunOptions, Workload, WorldOptions, run};

/// The orders of a larger instance are too many.
const JOBS_MAX: usize = 5;
const INSTANCES: usize = 20;
/// What schedules that change only at arrivals and completions may lose: a job that should end just when another
/// arrives needs two choices before that.
const RESTRICTION_COSTS: f64 = 0.003;

/// Arrival or completion of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Instant {
    Arrives(usize),
    Ends(usize),
}

struct Instance {
    releases: Vec<f64>,
    works: Vec<f64>,
    /// Rates of all jobs for every way to place jobs on GPUs, at most two on each.
    placements: Vec<Vec<f64>>,
}

impl Instance {
    fn new(workload: &Workload) -> Self {
        let gpus = workload.cluster.gpus().len();
        let jobs = workload.len();
        let seconds = |micros: u64| micros as f64 / 1e6;
        let gang = |job: usize| workload.jobs[job].spec.gpus;
        let profile = |job: usize| &workload.jobs[job].spec.profile;
        let pair = |one: usize, other: usize| {
            let rate = ClosedForm.pair_rate(profile(one), profile(other), GpuTypeId(0)).unwrap();
            f64::from(rate.ppm().0) / 1e6
        };
        let mut placements: Vec<Vec<f64>> = Vec::new();
        // Each job has a set of GPUs, or none: all combinations, counted like the digits of a number.
        let sets = 1_usize << gpus;
        for number in 0..sets.pow(u32::try_from(jobs).unwrap()) {
            let on: Vec<usize> = (0..jobs)
                .map(|job| number / sets.pow(u32::try_from(job).unwrap()) % sets)
                .collect();
            let is_gang = |job: usize| on[job] == 0 || on[job].count_ones() == gang(job);
            let on_gpu = |gpu: usize| (0..jobs).filter(|&job| on[job] >> gpu & 1 == 1).collect();
            let tenants: Vec<Vec<usize>> = (0..gpus).map(on_gpu).collect();
            if !(0..jobs).all(is_gang) || tenants.iter().any(|tenants| tenants.len() > 2) {
                continue;
            }
            let rate = |job: usize| {
                let shared = |tenants: &Vec<usize>| match tenants.as_slice() {
                    [one, other] => pair(job, if *one == job { *other } else { *one }),
                    _ => 1.0,
                };
                let mine = tenants.iter().filter(|tenants| tenants.contains(&job));
                mine.map(shared).reduce(f64::min).unwrap_or(0.0)
            };
            let rates: Vec<f64> = (0..jobs).map(rate).collect();
            if !placements.contains(&rates) {
                placements.push(rates);
            }
        }
        let specs = || workload.jobs.iter();
        Self {
            releases: specs().map(|job| seconds(job.spec.submit.0)).collect(),
            works: specs().map(|job| seconds(job.duration.0)).collect(),
            placements,
        }
    }

    /// The least mean JCT of all schedules.
    fn optimum(&self) -> f64 {
        let mut best = f64::INFINITY;
        self.visit_orders(&mut Vec::new(), &mut best);
        best / self.works.len() as f64
    }

    fn visit_orders(&self, order: &mut Vec<Instant>, best: &mut f64) {
        let jobs = self.works.len();
        if order.len() == 2 * jobs {
            *best = best.min(self.total_in_order(order));
            return;
        }
        let arrived = order.iter().filter(|instant| matches!(instant, Instant::Arrives(_))).count();
        let ends = (0..arrived).map(Instant::Ends).filter(|end| !order.contains(end));
        let arrival = (arrived < jobs).then_some(Instant::Arrives(arrived));
        for next in ends.chain(arrival).collect::<Vec<_>>() {
            order.push(next);
            self.visit_orders(order, best);
            order.pop();
        }
    }

    /// The least total JCT if arrivals and completions are in this order: between two of them every placement
    /// of the present jobs runs for some time. Infinite if no schedule has this order.
    fn total_in_order(&self, order: &[Instant]) -> f64 {
        let jobs = self.works.len();
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let mut present: Vec<usize> = Vec::new();
        let mut time: Vec<(Variable, f64)> = Vec::new();
        let mut done: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); jobs];
        for (index, &instant) in order.iter().enumerate() {
            match instant {
                Instant::Arrives(job) => {
                    if !time.is_empty() {
                        let release = self.releases[job];
                        problem.add_constraint(time.clone(), ComparisonOp::Eq, release);
                    }
                    present.push(job);
                }
                Instant::Ends(job) => present.retain(|&other| other != job),
            }
            // A second counts for every job that has still to end.
            let waiting = order[index..].iter().filter(|other| matches!(other, Instant::Ends(_)));
            let is_last = index + 1 == order.len();
            let waiting = waiting.count() - usize::from(matches!(instant, Instant::Ends(_)));
            let runs = |rates: &&Vec<f64>| {
                (0..jobs).all(|job| rates[job] == 0.0 || present.contains(&job))
            };
            for rates in self.placements.iter().filter(runs).filter(|_| !is_last) {
                let span = problem.add_var(waiting as f64, (0.0, f64::INFINITY));
                time.push((span, 1.0));
                for &job in present.iter().filter(|&&job| rates[job] > 0.0) {
                    done[job].push((span, rates[job]));
                }
            }
        }
        for (job, terms) in done.into_iter().enumerate() {
            problem.add_constraint(terms, ComparisonOp::Ge, self.works[job]);
        }
        let solved = problem.solve().ok().and_then(|outcome| outcome.into_solution().ok());
        let total = solved.map_or(f64::INFINITY, |solution| solution.objective());
        // Counted from the beginning instead of each job's arrival.
        total - self.releases.iter().sum::<f64>()
    }
}

#[test]
fn the_search_finds_the_optimum_of_all_schedules_or_one_close_to_it() {
    let truth: Arc<dyn Interference> = Arc::new(ClosedForm);
    let world = WorldOptions { restore: (Span::ZERO, Span::ZERO), ..WorldOptions::default() };
    let options = RunOptions { world, ..RunOptions::default() };
    let small =
        |workload: &Workload| workload.len() <= JOBS_MAX && workload.cluster.gpus().len() <= 3;
    let instances = (1..).map(|seed| (seed, small_instance(seed, None).unwrap()));
    let mut equal = 0;
    for (seed, workload) in instances.filter(|(_, workload)| small(workload)).take(INSTANCES) {
        let best = Instance::new(&workload).optimum();
        let found = optimum(&workload, truth.as_ref(), f64::INFINITY, 1_000_000);
        assert!(found.is_proven, "instance {seed}");
        let above = found.mean_jct_s / best - 1.0;
        let is_near = (-1e-6..RESTRICTION_COSTS).contains(&above);
        assert!(is_near, "instance {seed}: {} for {best}", found.mean_jct_s);
        equal += usize::from(above < 1e-6);
        let bound = LowerBound::new(&workload, truth.as_ref(), 4);
        assert!(bound.sharing_s <= best * (1.0 + 1e-9), "instance {seed}: {bound:?} for {best}");
        for policy in REGISTRY.iter().map(PolicySpec::of) {
            let run = run(&workload, &policy, &truth, &options, &AtomicU64::new(0)).unwrap();
            let mean = run.metrics.avg_jct_s;
            assert!(mean >= best * (1.0 - 1e-6), "instance {seed}: {} {mean}", policy.text);
        }
    }
    println!("{equal} of {INSTANCES} equal");
    assert!(equal * 4 >= INSTANCES * 3, "{equal} of {INSTANCES}");
}
