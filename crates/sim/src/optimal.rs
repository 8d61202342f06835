//! The optimum of small instances, against which every policy's distance is measured.
//!
//! The search decides at every arrival and completion which jobs run on which GPUs, alone or two on a GPU, with
//! free preemption and gangs on any GPUs of one node, and prunes by a lower bound. A choice under which no job
//! is faster than under another one is left out. Schedules that change at other times are better by 0.1 % in
//! some instances: `crates/sim/tests/optimal.rs` compares with linear programs over all schedules. The best
//! schedule of a policy, which may change at its reviews, is given as a first bound, so that no policy is ever
//! better than the result.

use crate::bound::{BoundTask, least_work_first, shortest_remaining_first};
use crate::interference::PairTable;
use crate::trace::{ReadOptions, TraceError, parse};
use crate::workload::{Workload, WorkloadOptions, assign_classes};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use tandem_core::{Cluster, GpuTypeId, Interference, MICROS_PER_SECOND, Memory, Span};

/// The most jobs of an instance.
const JOBS_MAX: u32 = 8;
/// Two jobs of an instance fit into the memory of a GPU, three do not.
const JOB_MEMORY_MIB: u32 = 10_000;
const GPU_MEMORY: Memory = Memory(24_576_000);
/// Work below this, in seconds, is complete.
const TINY: f64 = 1e-7;

/// A random instance: 3 to 8 jobs on 2 to 4 GPUs of one node, gangs of one to all GPUs, durations over two
/// decades; every second one with arrivals over time. With a `table` every job has a class of it.
pub fn small_instance(seed: u64, table: Option<&PairTable>) -> Result<Workload, TraceError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let gpus: u32 = rng.random_range(2..=4);
    let jobs: u32 = rng.random_range(3..=JOBS_MAX);
    let mut text = String::from("job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n");
    let mut submit_s = 0;
    for job in 0..jobs {
        let gang = match rng.random_range(0..10) {
            0..7 => 1,
            7..9 => 2,
            _ => gpus,
        };
        let duration_s = (300.0 * 100_f64.powf(rng.random_range(0.0..1.0))).round();
        let util: u32 = rng.random_range(20..=100);
        let row = format!("{job},{submit_s},{gang},{duration_s},{util},{JOB_MEMORY_MIB}");
        writeln!(text, "{row}").expect("a string takes all");
        if !seed.is_multiple_of(2) {
            submit_s += rng.random_range(0..1800_u32);
        }
    }
    let mut trace = parse(text.as_bytes(), "instance", &ReadOptions::default())?;
    if let Some(table) = table {
        assign_classes(&mut trace, table, seed);
    }
    let cluster = Arc::new(Cluster::uniform(1, gpus, GPU_MEMORY));
    let mut workload = Workload::new(trace, cluster, "instance", &WorkloadOptions::default())?;
    for job in &mut workload.jobs {
        // Stopping is free here, and policies may know it.
        job.spec.restore = Span::ZERO;
    }
    Ok(workload)
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// The smallest mean JCT.
    pub mean_jct_s: f64,
    /// Whether the search was complete.
    pub is_proven: bool,
}

/// The smallest mean JCT of a workload of at most 64 jobs on one node of at most eight GPUs of one type.
/// `known_s` is a mean that some schedule reaches; `steps_max` bounds the search.
pub fn optimum(
    workload: &Workload,
    truth: &dyn Interference,
    known_s: f64,
    steps_max: u64,
) -> Optimum {
    let jobs: Vec<SmallJob> = workload
        .jobs
        .iter()
        .map(|job| SmallJob {
            release: seconds(job.spec.submit.0),
            work: seconds(job.duration.0),
            gpus: job.spec.gpus,
        })
        .collect();
    let rate = |one: usize, other: usize| {
        let profile = |job: usize| &workload.jobs[job].spec.profile;
        let rate = truth.pair_rate(profile(one), profile(other), GpuTypeId(0));
        rate.map(|rate| f64::from(rate.ppm().0) / 1e6)
    };
    let rates = (0..jobs.len()).map(|one| (0..jobs.len()).map(|other| rate(one, other)).collect());
    let mut search = Search {
        gpus: workload.cluster.gpus().len(),
        rates: rates.collect(),
        best: known_s * jobs.len() as f64,
        steps_left: steps_max,
        choices: BTreeMap::new(),
        charges: BTreeMap::new(),
        jobs,
    };
    let remaining: Vec<f64> = search.jobs.iter().map(|job| job.work).collect();
    search.explore(0.0, &remaining, 0.0);
    Optimum { mean_jct_s: search.best / search.jobs.len() as f64, is_proven: search.steps_left > 0 }
}

#[derive(Clone, Copy, Debug)]
struct SmallJob {
    release: f64,
    work: f64,
    gpus: u32,
}

struct Search {
    jobs: Vec<SmallJob>,
    gpus: usize,
    /// `rates[a][b]`: rate of `a` beside `b`; `None` if they do not fit.
    rates: Vec<Vec<Option<f64>>>,
    /// The smallest known total time in the system.
    best: f64,
    steps_left: u64,
    /// What may run, by the set of jobs that are present.
    choices: BTreeMap<u64, Rc<[Rates]>>,
    /// What a second of a job's work costs of a GPU's time at least, by the set of jobs that have not ended.
    charges: BTreeMap<u64, Rc<[Vec<f64>; 2]>>,
}

/// A choice of what runs: the rate of every job, zero if it does not run.
type Rates = Vec<f64>;

/// In place of the GPUs of a job that waits, so that idle GPUs can be held against it.
const WAITS: u32 = 1 << 31;

/// Which jobs run where, while it is built.
struct Partial {
    /// GPUs of each job as bits; zero if it is not here, or [`WAITS`].
    on: Vec<u32>,
    /// Up to two tenants of each GPU.
    tenants: Vec<Vec<usize>>,
}

impl Search {
    /// Tries everything from `now` on. `cost` is the time in the system of the jobs that have ended.
    fn explore(&mut self, now: f64, remaining: &[f64], cost: f64) {
        if self.steps_left == 0 {
            return;
        }
        self.steps_left -= 1;
        if remaining.iter().all(|&left| left <= 0.0) {
            self.best = self.best.min(cost);
            return;
        }
        let next_arrival = self.jobs.iter().map(|job| job.release).filter(|&at| at > now + TINY);
        let next_arrival = next_arrival.fold(f64::INFINITY, f64::min);
        let present: Vec<usize> = (0..self.jobs.len())
            .filter(|&job| remaining[job] > 0.0 && self.jobs[job].release <= now + TINY)
            .collect();
        if present.is_empty() {
            return self.explore(next_arrival, remaining, cost);
        }
        let choices = self.choices(&present);
        let mut children: Vec<(f64, f64, Vec<f64>, f64)> = Vec::new();
        for rates in choices.iter() {
            let ends = present.iter().filter(|&&job| rates[job] > 0.0);
            let ends = ends.map(|&job| remaining[job] / rates[job]);
            let span = ends.fold(next_arrival - now, f64::min);
            let mut left = remaining.to_vec();
            let (then, mut ended) = (now + span, cost);
            if span.is_infinite() {
                continue;
            }
            for &job in &present {
                left[job] -= span * rates[job];
                if left[job] <= TINY {
                    left[job] = 0.0;
                    ended += then - self.jobs[job].release;
                }
            }
            let bound = ended + self.bound(then, &left);
            if bound < self.best - TINY {
                children.push((bound, then, left, ended));
            }
        }
        children.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (bound, then, left, ended) in children {
            if bound < self.best - TINY {
                self.explore(then, &left, ended);
            }
        }
    }

    /// The least time in the system from `now` on of the jobs that have not ended, counted from their release.
    ///
    /// All GPUs become one machine, on which a job has its work times its charge. The k-th completion is then
    /// after the k least works, and after the k-th shortest job alone; and the bounds of
    /// [`crate::bound`] hold with all arrivals to come.
    fn bound(&mut self, now: f64, remaining: &[f64]) -> f64 {
        let open: Vec<usize> = (0..remaining.len()).filter(|&job| remaining[job] > 0.0).collect();
        let charges = self.charges(&open);
        let is_here = |job: usize| self.jobs[job].release <= now + TINY;
        let alone_s = |job: usize| {
            let beside = open.iter().filter_map(|&other| self.pair(job, other));
            remaining[job] / beside.map(|(own, _)| own).fold(1.0, f64::max)
        };
        let alone: Vec<f64> = open.iter().map(|&job| alone_s(job)).collect();
        let here = open.iter().filter(|&&job| is_here(job));
        let waited: f64 = here.map(|&job| now - self.jobs[job].release).sum();
        let later = open.iter().zip(&alone).filter(|&(&job, _)| !is_here(job));
        let later: f64 = later.map(|(_, alone)| alone).sum();
        let here = open.iter().zip(&alone).filter(|&(&job, _)| is_here(job));
        let mut shortest: Vec<f64> = here.map(|(_, &alone)| alone).collect();
        shortest.sort_by(f64::total_cmp);
        let mut largest = 0.0_f64;
        for charges in charges.iter() {
            let task = |&job: &usize| BoundTask {
                release: f64::max(self.jobs[job].release, now) - now,
                work: remaining[job] * charges[job] / self.gpus as f64,
            };
            let tasks: Vec<BoundTask> = open.iter().map(task).collect();
            let works = open.iter().zip(&tasks).filter(|&(&job, _)| is_here(job));
            let mut works: Vec<f64> = works.map(|(_, task)| task.work).collect();
            works.sort_by(f64::total_cmp);
            let mut done = 0.0;
            let ends = works.iter().zip(&shortest).map(|(work, &alone)| {
                done += work;
                f64::max(done, alone)
            });
            let one_by_one = ends.sum::<f64>() + later;
            let half_alone = alone.iter().sum::<f64>() / 2.0;
            let means = least_work_first(&tasks) + half_alone;
            largest = largest.max(one_by_one).max(means).max(shortest_remaining_first(&tasks));
        }
        waited + largest
    }

    /// The rates of two jobs on a GPU; `None` if they do not fit, or are one job.
    fn pair(&self, one: usize, other: usize) -> Option<(f64, f64)> {
        if one == other {
            return None;
        }
        self.rates[one][other].zip(self.rates[other][one])
    }

    /// For each of `open` jobs a charge per second of its work, such that the charges of any two jobs on a GPU
    /// add up to at most one per second: so all jobs are charged at most the GPUs that there are. Two such
    /// sets, which favour jobs with little and with much work.
    fn charges(&mut self, open: &[usize]) -> Rc<[Vec<f64>; 2]> {
        let set = open.iter().fold(0, |set, &job| set | 1 << job);
        if let Some(known) = self.charges.get(&set) {
            return known.clone();
        }
        let mut order = open.to_vec();
        let work = |job: usize| self.jobs[job].work * f64::from(self.jobs[job].gpus);
        order.sort_by(|&one, &other| work(one).total_cmp(&work(other)));
        let upwards = self.raised_charges(open, &order);
        order.reverse();
        let downwards = self.raised_charges(open, &order);
        let charges = Rc::new([upwards, downwards]);
        self.charges.insert(set, charges.clone());
        charges
    }

    /// Of each job its share of its best pair, raised as far as all pairs allow, in this order.
    fn raised_charges(&self, open: &[usize], order: &[usize]) -> Vec<f64> {
        let mut charges = vec![0.0; self.jobs.len()];
        let pairs = |job: usize| {
            open.iter().filter_map(move |&other| Some((other, self.pair(job, other)?)))
        };
        for &job in open {
            let sums = pairs(job).map(|(_, (own, others))| own + others);
            charges[job] = 1.0 / sums.fold(1.0, f64::max);
        }
        for &job in order {
            let room = |(other, (own, others)): (usize, (f64, f64))| {
                (1.0 - others * charges[other]) / f64::max(own, TINY)
            };
            charges[job] = pairs(job).map(room).fold(1.0, f64::min).max(charges[job]);
        }
        for &job in open {
            charges[job] *= f64::from(self.jobs[job].gpus);
        }
        charges
    }

    /// Every way to run the jobs of `present` that leaves no GPUs idle which a job could have for itself, and
    /// than which no other one is at least as fast for every job.
    fn choices(&mut self, present: &[usize]) -> Rc<[Rates]> {
        let set = present.iter().fold(0, |set, &job| set | 1 << job);
        if let Some(known) = self.choices.get(&set) {
            return known.clone();
        }
        let mut partial =
            Partial { on: vec![0; self.jobs.len()], tenants: vec![Vec::new(); self.gpus] };
        let mut all = Vec::new();
        self.extend(present, &mut partial, &mut all);
        // Whatever surpasses a choice has a larger sum.
        let sum = |rates: &Rates| rates.iter().sum::<f64>();
        all.sort_by(|one, other| sum(other).total_cmp(&sum(one)));
        let mut best: Vec<Rates> = Vec::new();
        for rates in all {
            let surpasses =
                |other: &Rates| other.iter().zip(&rates).all(|(other, own)| other >= own);
            if !best.iter().any(surpasses) {
                best.push(rates);
            }
        }
        let best: Rc<[Rates]> = best.into();
        self.choices.insert(set, best.clone());
        best
    }

    fn extend(&self, left: &[usize], partial: &mut Partial, choices: &mut Vec<Rates>) {
        let Some((&job, rest)) = left.split_first() else {
            let idle = partial.tenants.iter().filter(|tenants| tenants.is_empty()).count();
            choices.extend(self.choice(partial, idle));
            return;
        };
        partial.on[job] = WAITS;
        self.extend(rest, partial, choices);
        for gpus in 1_u32..1 << self.gpus {
            if gpus.count_ones() != self.jobs[job].gpus || !self.fits(job, gpus, partial) {
                continue;
            }
            partial.on[job] = gpus;
            let each = |gpus: u32| (0..self.gpus).filter(move |gpu| gpus >> gpu & 1 == 1);
            each(gpus).for_each(|gpu| partial.tenants[gpu].push(job));
            self.extend(rest, partial, choices);
            for gpu in each(gpus) {
                partial.tenants[gpu].pop();
            }
            partial.on[job] = 0;
        }
    }

    /// Whether `job` may run on these GPUs: at most one other tenant each, beside whom it fits, and of the
    /// GPUs without tenants, which are alike, the first ones.
    fn fits(&self, job: usize, gpus: u32, partial: &Partial) -> bool {
        let mut passed_unused = false;
        for (gpu, tenants) in partial.tenants.iter().enumerate() {
            let uses = gpus >> gpu & 1 == 1;
            match (tenants.as_slice(), uses) {
                ([], true) if passed_unused => return false,
                ([], false) => passed_unused = true,
                ([other], true)
                    if self.rates[job][*other].is_none() || self.rates[*other][job].is_none() =>
                {
                    return false;
                }
                ([_, _, ..], true) => return false,
                _ => {}
            }
        }
        true
    }

    fn choice(&self, partial: &Partial, idle: usize) -> Option<Rates> {
        let could_run =
            |(job, &on): (usize, &u32)| on == WAITS && self.jobs[job].gpus as usize <= idle;
        if partial.on.iter().enumerate().any(could_run) {
            return None;
        }
        let rate = |(job, &on): (usize, &u32)| {
            if on == 0 || on == WAITS {
                return 0.0;
            }
            let gpus = (0..self.gpus).filter(|gpu| on >> gpu & 1 == 1);
            let on_gpu = |gpu: usize| {
                let other = partial.tenants[gpu].iter().find(|&&other| other != job);
                other.map_or(1.0, |&other| self.rates[job][other].unwrap_or(0.0))
            };
            gpus.map(on_gpu).fold(f64::INFINITY, f64::min)
        };
        Some(partial.on.iter().enumerate().map(rate).collect())
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / MICROS_PER_SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_core::ClosedForm;

    fn workload(cluster: &str, rows: &str) -> Workload {
        let header = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n";
        let text = format!("{header}{rows}");
        let trace = parse(text.as_bytes(), "t.csv", &ReadOptions::default()).unwrap();
        let cluster = Arc::new(crate::clusters::cluster(cluster).unwrap());
        Workload::new(trace, cluster, "t.csv", &WorkloadOptions::default()).unwrap()
    }

    fn mean(cluster: &str, rows: &str) -> f64 {
        let found = optimum(&workload(cluster, rows), &ClosedForm, f64::INFINITY, 1_000_000);
        assert!(found.is_proven);
        found.mean_jct_s
    }

    #[test]
    fn without_a_gain_from_sharing_the_shortest_goes_first() {
        // 100 % each: 10, then 30, then 60.
        let rows = "a,0,1,30,100,100\nb,0,1,20,100,100\nc,0,1,10,100,100\n";
        assert!((mean("1x1", rows) - 100.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn two_jobs_that_leave_each_other_alone_run_together() {
        assert!((mean("1x1", "a,0,1,100,50,100\nb,0,1,100,50,100\n") - 100.0).abs() < 1e-6);
        // One is enough on two GPUs.
        assert!((mean("1x2", "a,0,1,100,90,100\nb,0,1,100,90,100\n") - 100.0).abs() < 1e-6);
    }

    #[test]
    fn a_gang_and_a_small_job_share_one_of_its_gpus() {
        // 60 % and 40 %: b runs on one of a's GPUs at full speed.
        assert!((mean("1x2", "a,0,2,100,60,100\nb,0,1,100,40,100\n") - 100.0).abs() < 1e-6);
    }

    #[test]
    fn arrivals_interrupt() {
        // At 10 the shorter job takes over: 20 and 110 + 10.
        let rows = "long,0,1,100,100,100\nshort,10,1,10,100,100\n";
        assert!((mean("1x1", rows) - (110.0 + 10.0) / 2.0).abs() < 1e-6);
    }

    #[test]
    fn a_known_schedule_is_kept_if_nothing_is_better_and_the_limit_is_reported() {
        let rows = "a,0,1,30,100,100\nb,0,1,20,100,100\n";
        let small = optimum(&workload("1x1", rows), &ClosedForm, 10.0, 1000);
        assert_eq!((small.mean_jct_s, small.is_proven), (10.0, true));
        assert!(!optimum(&workload("1x1", rows), &ClosedForm, f64::INFINITY, 1).is_proven);
    }

    #[test]
    fn instances_are_of_the_stated_sizes_and_the_same_for_a_seed() {
        for seed in 1..50 {
            let one = small_instance(seed, None).unwrap();
            let gpus = one.cluster.gpus().len();
            assert!((2..=4).contains(&gpus) && (3..=8).contains(&one.len()), "{seed}");
            let again = small_instance(seed, None).unwrap();
            assert_eq!(format!("{:?}", one.jobs), format!("{:?}", again.jobs));
        }
    }
}
