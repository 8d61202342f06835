//! A lower bound on the mean JCT of every policy, which shows how much improvement is possible.
//!
//! The bound relaxes the problem: gangs may be split, stopping and spreading cost nothing, and every pair
//! that shares a GPU is the best pair that its jobs could form. A partition becomes one machine that divides
//! its speed over the jobs arbitrarily. Three bounds hold there for every schedule, and the largest counts,
//! partition by partition:
//!
//! - a job takes at least its duration at its highest possible rate;
//! - the total time in the system is at least that of shortest remaining processing time first (SRPT), which
//!   is optimal there;
//! - a job that never runs faster than `r` ends at least `duration / 2r` after the mean time of its work, and
//!   the sum of these mean times is smallest if the job with the least total work always runs (Goemans).
//!
//! With sharing, the work of a job is divided by the largest total rate of any group of tenants that it could
//! belong to. This is valid: each tenant of a GPU divides its rate by at least the total rate of its group,
//! so that together they use at most one GPU.

use crate::workload::{Workload, WorkloadJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tandem_core::{
    ClassId, Cluster, GangGpu, GpuId, GpuTypeId, Interference, MICROS_PER_SECOND, PPM_ONE,
    Partition, Ppm, Profile, Ratio, Tenant, Utilisation, rate_on_gpu,
};

/// Relative error of floating-point sums and of rates that are products: the bound is lowered by it.
const ROUNDING: f64 = 1e-9;
/// Jobs of a class are bounded together in steps of this utilisation, in percent.
const UTILISATION_STEP: u32 = 10;

/// A lower bound for every policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LowerBound {
    /// On the mean JCT, if every GPU has at most one tenant.
    pub exclusive_s: f64,
    /// On the mean JCT, if jobs share GPUs.
    pub sharing_s: f64,
}

impl LowerBound {
    /// For all policies with at most `tenants_max` jobs on a GPU and the rates of `truth`. A rate must not
    /// grow with the utilisation of either job, which holds for tables and the closed form.
    pub fn new(workload: &Workload, truth: &dyn Interference, tenants_max: usize) -> Self {
        let alone = Speeds::alone();
        let sharing = (tenants_max > 1).then(|| Speeds::sharing(workload, truth, tenants_max));
        let exclusive_s = mean_s(workload, &alone);
        let sharing_s = sharing.map_or(exclusive_s, |speeds| mean_s(workload, &speeds));
        Self { exclusive_s, sharing_s }
    }
}

fn mean_s(workload: &Workload, speeds: &Speeds) -> f64 {
    let mut by_partition = vec![Vec::new(); workload.cluster.partitions().len()];
    for job in &workload.jobs {
        by_partition[job.spec.partition.index()].push(job);
    }
    let total: f64 = (workload.cluster.partitions().iter().zip(by_partition))
        .map(|(partition, jobs)| total_s(workload, partition, &jobs, speeds))
        .sum();
    total / workload.len().max(1) as f64 * (1.0 - ROUNDING)
}

/// The smallest total time in the system of the jobs of one partition.
fn total_s(
    workload: &Workload,
    partition: &Partition,
    jobs: &[&WorkloadJob],
    speeds: &Speeds,
) -> f64 {
    let mut factors = factors(&workload.cluster, partition);
    factors.sort_by(|one, other| other.total_cmp(one));
    let capacity: f64 = factors.iter().sum();
    let origin = workload.first_submit();
    let mut alone_s = 0.0;
    let mut tasks = Vec::with_capacity(jobs.len());
    for job in jobs {
        let best = speeds.of(&job.spec.profile);
        let duration_s = seconds(job.duration.0);
        // A gang is as fast as its slowest GPU.
        let slowest = factors[(job.spec.gpus as usize).clamp(1, factors.len()) - 1];
        alone_s += duration_s / (slowest * best.rate);
        tasks.push(BoundTask {
            release: seconds(job.spec.submit.since(origin).0),
            work: duration_s * f64::from(job.spec.gpus) / best.total / capacity,
        });
    }
    let srpt = shortest_remaining_first(&tasks);
    let mean_instants = least_work_first(&tasks);
    alone_s.max(srpt).max(mean_instants + alone_s / 2.0)
}

/// Speed of every GPU of a partition, as the world rounds it.
fn factors(cluster: &Cluster, partition: &Partition) -> Vec<f64> {
    let kinds = partition.gpus.clone().map(|gpu| cluster.gpu(GpuId(gpu)).kind);
    kinds.map(|kind| as_speed(cluster.types()[kind.index()].factor)).collect()
}

/// A job on one machine of speed 1.
#[derive(Clone, Copy, Debug)]
struct BoundTask {
    /// In ascending order.
    release: f64,
    work: f64,
}

/// The total time in the system if the task with the least remaining work always runs.
fn shortest_remaining_first(tasks: &[BoundTask]) -> f64 {
    let mut left: BinaryHeap<Reverse<Positive>> = BinaryHeap::new();
    let (mut now, mut total) = (0.0_f64, 0.0_f64);
    for next in 0..=tasks.len() {
        let until = tasks.get(next).map_or(f64::INFINITY, |task| task.release);
        while let Some(&Reverse(head)) = left.peek() {
            let (work, room) = (head.value(), until - now);
            total += work.min(room) * left.len() as f64;
            if work > room {
                if let Some(mut head) = left.peek_mut() {
                    *head = Reverse(Positive::new(work - room));
                }
                break;
            }
            now += work;
            left.pop();
        }
        if let Some(task) = tasks.get(next) {
            now = until;
            left.push(Reverse(Positive::new(task.work)));
        }
    }
    total
}

/// The sum over all tasks of the mean time of its work since its release, if the task with the least total
/// work always runs.
fn least_work_first(tasks: &[BoundTask]) -> f64 {
    // Total work, task and remaining work.
    let mut queue: BinaryHeap<Reverse<(Positive, usize)>> = BinaryHeap::new();
    let mut left: Vec<f64> = tasks.iter().map(|task| task.work).collect();
    let (mut now, mut total) = (0.0_f64, 0.0_f64);
    for next in 0..=tasks.len() {
        let until = tasks.get(next).map_or(f64::INFINITY, |task| task.release);
        while let Some(&Reverse((_, index))) = queue.peek() {
            let (task, rest) = (tasks[index], left[index]);
            let span = rest.min(until - now);
            total += span / task.work * (now + span / 2.0 - task.release);
            now += span;
            if span < rest {
                left[index] = rest - span;
                break;
            }
            queue.pop();
        }
        if let Some(task) = tasks.get(next) {
            now = until;
            queue.push(Reverse((Positive::new(task.work), next)));
        }
    }
    total
}

/// A non-negative number whose bits are ordered like its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Positive(u64);

impl Positive {
    fn new(value: f64) -> Self {
        Self(value.max(0.0).to_bits())
    }

    fn value(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// The best rates of a job beside co-located jobs, relative to running alone.
#[derive(Clone, Copy, Debug)]
struct Best {
    /// Its own rate.
    rate: f64,
    /// The total rate of the tenants of its GPU.
    total: f64,
}

/// Jobs that are bounded together: their class, and their utilisation in coarse steps.
type JobKind = (Option<ClassId>, Option<u32>);

/// The best rates by kind of job.
struct Speeds(BTreeMap<JobKind, Best>);

impl Speeds {
    fn alone() -> Self {
        Self(BTreeMap::new())
    }

    fn of(&self, profile: &Profile) -> Best {
        self.0.get(&kind_of(profile)).copied().unwrap_or(Best { rate: 1.0, total: 1.0 })
    }

    fn sharing(workload: &Workload, truth: &dyn Interference, tenants_max: usize) -> Self {
        let mut kinds: BTreeMap<JobKind, Profile> = BTreeMap::new();
        for job in &workload.jobs {
            let profile = job.spec.profile;
            let mildest = kinds.entry(kind_of(&profile)).or_insert(profile);
            mildest.gpu_util = mildest.gpu_util.min(profile.gpu_util);
        }
        let profiles: Vec<Profile> = kinds.values().copied().collect();
        let pairs: Vec<Best> = profiles
            .iter()
            .map(|job| best_pair(&workload.cluster, truth, job, &profiles))
            .collect();
        let grouped = groups(&pairs, tenants_max);
        Self(kinds.into_keys().zip(grouped).collect())
    }
}

fn kind_of(profile: &Profile) -> JobKind {
    let step = Utilisation::FULL.0 / 100 * UTILISATION_STEP;
    (profile.class, profile.gpu_util.map(|utilisation| utilisation.0 / step))
}

/// The best rates of `job` beside one other job, on any GPU type.
fn best_pair(
    cluster: &Cluster,
    truth: &dyn Interference,
    job: &Profile,
    others: &[Profile],
) -> Best {
    let mut best = Best { rate: 1.0, total: 1.0 };
    for (number, described) in (0..).zip(cluster.types()) {
        let (kind, factor) = (GpuTypeId(number), described.factor);
        let speed = |job, other| {
            let gpu = GangGpu { kind, factor, others: [Tenant::uncapped(other)] };
            let rate = rate_on_gpu(truth, Tenant::uncapped(job), gpu)?;
            Some(as_speed(rate) / as_speed(factor))
        };
        for other in others {
            let (Some(one), Some(two)) = (speed(job, other), speed(other, job)) else { continue };
            best.rate = best.rate.max(one);
            best.total = best.total.max(one + two);
        }
    }
    best
}

/// From pairs to groups of up to `tenants_max`, whose members run at the product of their pair rates.
///
/// With `m` ≥ 1 and at least every rate, each of `n` members has at most `m^(n-2)` × the mean of its pair
/// rates, so their total is at most `m^(n-2) / (n-1)` × the sum of the totals of all pairs.
fn groups(pairs: &[Best], tenants_max: usize) -> Vec<Best> {
    let fastest = pairs.iter().map(|best| best.rate).fold(1.0, f64::max);
    let largest = pairs.iter().map(|best| best.total).fold(1.0, f64::max);
    let grow = |pair: &Best| {
        let mut best = *pair;
        let mut surplus = 1.0;
        for others in 1..tenants_max.saturating_sub(1) {
            surplus *= fastest;
            // Rounding of the product to parts per million, for every member.
            let slack = (others + 2) as f64 / f64::from(PPM_ONE);
            let pairs_without_it = others as f64 / 2.0;
            best.rate = best.rate.max(pair.rate * surplus + slack);
            best.total =
                best.total.max(surplus * (pair.total + pairs_without_it * largest) + slack);
        }
        best
    };
    pairs.iter().map(grow).collect()
}

/// A rate as the world rounds it.
fn as_speed(ratio: Ratio) -> f64 {
    f64::from(ratio.ppm().max(Ppm(1)).0) / f64::from(PPM_ONE)
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / MICROS_PER_SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(list: &[(f64, f64)]) -> Vec<BoundTask> {
        list.iter().map(|&(release, work)| BoundTask { release, work }).collect()
    }

    #[test]
    fn the_shortest_remaining_task_goes_first_and_may_interrupt() {
        assert_eq!(shortest_remaining_first(&tasks(&[(0.0, 3.0)])), 3.0);
        // The second ends at 2, the first at 4.
        assert_eq!(shortest_remaining_first(&tasks(&[(0.0, 3.0), (1.0, 1.0)])), 5.0);
        // An idle gap in between.
        assert_eq!(shortest_remaining_first(&tasks(&[(0.0, 1.0), (5.0, 2.0)])), 3.0);
        assert_eq!(shortest_remaining_first(&tasks(&[(2.0, 2.0), (2.0, 1.0), (2.0, 4.0)])), 11.0);
    }

    #[test]
    fn mean_times_of_work_are_those_of_the_pieces() {
        assert_eq!(least_work_first(&tasks(&[(1.0, 4.0)])), 2.0);
        // The first runs in 0..1 and 2..4: (0.5 × 1 + 3 × 2) / 3; the second in 1..2.
        let sum = least_work_first(&tasks(&[(0.0, 3.0), (1.0, 1.0)]));
        assert!((sum - (6.5 / 3.0 + 0.5)).abs() < 1e-12, "{sum}");
    }

    #[test]
    fn a_group_is_bounded_by_its_pairs() {
        let pair = Best { rate: 1.0, total: 1.5 };
        let two = groups(&[pair], 2)[0];
        assert_eq!((two.rate, two.total), (1.0, 1.5));
        let three = groups(&[pair], 3)[0];
        // Three tenants at 0.75² each have 1.69 in total.
        assert!(three.total >= 3.0 * 0.75 * 0.75 && three.total < 2.26, "{three:?}");
    }
}
