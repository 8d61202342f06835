//! The exact optimum of small instances, against which every policy's distance is measured.
//!
//! The search decides at every arrival and completion which jobs run on which GPUs, alone or two on a GPU, and
//! prunes by a lower bound. It is exact among the schedules that change only at these instants, with free
//! preemption and gangs on any GPUs of one node; the best schedule of a policy, which may also change at its
//! reviews, is given as a first bound, so that no policy is ever better than the result.

use crate::interference::PairTable;
use crate::trace::{ReadOptions, TraceError, parse};
use crate::workload::{Workload, WorkloadOptions, assign_classes};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write;
use std::sync::Arc;
use tandem_core::{Cluster, GpuTypeId, Interference, MICROS_PER_SECOND, Memory, Span};

/// The most jobs of an instance on 2, 3 and 4 GPUs, so that the search takes seconds at most.
const JOBS_MAX: [u32; 3] = [8, 6, 5];
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
    let jobs: u32 = rng.random_range(3..=JOBS_MAX[gpus as usize - 2]);
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

/// The smallest mean JCT of a workload on one node of at most eight GPUs of one type. `known_s` is a mean that
/// some schedule reaches; `steps_max` bounds the search.
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
}

/// One choice of what runs.
struct Choice {
    /// By job; zero if it does not run.
    rates: Vec<f64>,
}

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
        let mut children: Vec<(f64, f64, Vec<f64>, f64)> = Vec::new();
        for choice in self.choices(&present) {
            let ends = present.iter().filter(|&&job| choice.rates[job] > 0.0);
            let ends = ends.map(|&job| remaining[job] / choice.rates[job]);
            let span = ends.fold(next_arrival - now, f64::min);
            let mut left = remaining.to_vec();
            let (mut then, mut ended) = (now + span, cost);
            if span.is_infinite() {
                continue;
            }
            for &job in &present {
                left[job] -= span * choice.rates[job];
                if left[job] <= TINY {
                    left[job] = 0.0;
                    ended += then - self.jobs[job].release;
                }
            }
            then = then.max(now);
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
    fn bound(&self, now: f64, remaining: &[f64]) -> f64 {
        let open: Vec<usize> = (0..remaining.len()).filter(|&job| remaining[job] > 0.0).collect();
        let mut works = Vec::new();
        let mut alone = Vec::new();
        let mut total = 0.0;
        for &job in &open {
            let (mut rate, mut sum) = (1.0_f64, 1.0_f64);
            for &other in open.iter().filter(|&&other| other != job) {
                if let (Some(one), Some(two)) = (self.rates[job][other], self.rates[other][job]) {
                    rate = rate.max(one);
                    sum = sum.max(one + two);
                }
            }
            if self.jobs[job].release > now + TINY {
                total += remaining[job] / rate;
                continue;
            }
            works.push(remaining[job] * f64::from(self.jobs[job].gpus) / sum);
            alone.push(remaining[job] / rate);
            total += now - self.jobs[job].release;
        }
        works.sort_by(f64::total_cmp);
        alone.sort_by(f64::total_cmp);
        let mut done = 0.0;
        for (work, alone) in works.iter().zip(&alone) {
            // The k-th completion is after the k least works and after the k-th shortest job alone.
            done += work / self.gpus as f64;
            total += f64::max(done, *alone);
        }
        total
    }

    /// Every way to run the jobs of `present` that leaves no GPUs idle which a job could have for itself.
    fn choices(&self, present: &[usize]) -> Vec<Choice> {
        let mut partial =
            Partial { on: vec![0; self.jobs.len()], tenants: vec![Vec::new(); self.gpus] };
        let mut choices = Vec::new();
        self.extend(present, &mut partial, &mut choices);
        choices
    }

    fn extend(&self, left: &[usize], partial: &mut Partial, choices: &mut Vec<Choice>) {
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

    fn choice(&self, partial: &Partial, idle: usize) -> Option<Choice> {
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
        Some(Choice { rates: partial.on.iter().enumerate().map(rate).collect() })
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
