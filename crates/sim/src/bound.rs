//! A lower bound on the mean JCT of every policy, which shows how much improvement is possible.
//!
//! The bound relaxes the problem: gangs may be split, stopping and spreading cost nothing, and every pair
//! that shares a GPU is the best pair that its jobs could form. A partition becomes one machine that divides
//! its speed over the jobs arbitrarily. Three bounds hold there for every schedule, and the largest counts,
//! partition by partition:
//!
//! - a job takes at least its duration at its highest possible rate beside the jobs that have arrived by then;
//! - the total time in the system is at least that of shortest remaining processing time first (SRPT), which
//!   is optimal there;
//! - a job that never runs faster than `r` ends at least `duration / 2r` after the mean time of its work, and
//!   the sum of these mean times is smallest if the job with the least total work always runs (Goemans).
//!
//! With sharing, the work of a job is divided by the largest total rate of any group of tenants that it could
//! belong to. This is valid: each tenant of a GPU divides its rate by at least the total rate of its group,
//! so that together they use at most one GPU. A group consists of jobs of the same partition that fit into the
//! memory of a GPU together. What remains between this bound and the best policies is that measured rates
//! above one multiply in groups of three and four, and that a job is granted its best partners of those that
//! have arrived, as if they never ended. The bound is therefore for a number of jobs on a GPU.

use crate::workload::{Workload, WorkloadJob};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use tandem_core::{
    ClassId, Cluster, GangGpu, GpuId, GpuTypeId, Interference, MICROS_PER_SECOND, Memory, PPM_ONE,
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
    /// The most jobs on one GPU for which the latter holds.
    pub tenants_max: usize,
}

impl LowerBound {
    /// For all policies with at most `tenants_max` jobs on a GPU and the rates of `truth`. A rate must not
    /// grow with the utilisation of either job, which holds for tables and the closed form.
    pub fn new(workload: &Workload, truth: &dyn Interference, tenants_max: usize) -> Self {
        let exclusive_s = mean_s(workload, |_, _| Speeds::alone());
        let sharing_s = match tenants_max {
            0 | 1 => exclusive_s,
            _ => mean_s(workload, |partition, jobs| {
                Speeds::sharing(workload, partition, jobs, truth, tenants_max)
            }),
        };
        Self { exclusive_s, sharing_s, tenants_max }
    }
}

/// The bound on the mean, from the best rates of the jobs of each partition.
fn mean_s(workload: &Workload, speeds: impl Fn(&Partition, &[&WorkloadJob]) -> Speeds) -> f64 {
    let mut by_partition = vec![Vec::new(); workload.cluster.partitions().len()];
    for job in &workload.jobs {
        by_partition[job.spec.partition.index()].push(job);
    }
    let total: f64 = (workload.cluster.partitions().iter().zip(by_partition))
        .map(|(partition, jobs)| total_s(workload, partition, &jobs, &speeds(partition, &jobs)))
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
    let (mut alone_s, mut steady_s) = (0.0, 0.0);
    let mut tasks = Vec::with_capacity(jobs.len());
    for job in jobs {
        let best = speeds.of(&job.spec.profile);
        let duration_s = seconds(job.duration.0);
        let release = seconds(job.spec.submit.since(origin).0);
        // A gang is as fast as its slowest GPU.
        let slowest = factors[(job.spec.gpus as usize).clamp(1, factors.len()) - 1];
        alone_s += best.time_s(release, duration_s / slowest);
        steady_s += duration_s / (slowest * best.rate());
        tasks.push(BoundTask {
            release,
            work: duration_s * f64::from(job.spec.gpus) / best.total / capacity,
        });
    }
    let srpt = shortest_remaining_first(&tasks);
    let mean_instants = least_work_first(&tasks);
    alone_s.max(srpt).max(mean_instants + steady_s / 2.0)
}

/// Speed of every GPU of a partition, as the world rounds it.
fn factors(cluster: &Cluster, partition: &Partition) -> Vec<f64> {
    let kinds = partition.gpus.clone().map(|gpu| cluster.gpu(GpuId(gpu)).kind);
    kinds.map(|kind| as_speed(cluster.types()[kind.index()].factor)).collect()
}

/// A job on one machine of speed 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundTask {
    /// In ascending order.
    pub(crate) release: f64,
    pub(crate) work: f64,
}

/// The total time in the system if the task with the least remaining work always runs.
pub(crate) fn shortest_remaining_first(tasks: &[BoundTask]) -> f64 {
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
pub(crate) fn least_work_first(tasks: &[BoundTask]) -> f64 {
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
#[derive(Clone, Debug)]
struct Best {
    /// Its own rate in any group of jobs that have arrived: when it grows, in seconds, and to what.
    rates: Vec<(f64, f64)>,
    /// The total rate of the tenants of its GPU.
    total: f64,
}

impl Best {
    fn steady(rate: f64, total: f64) -> Self {
        Self { rates: vec![(f64::NEG_INFINITY, rate)], total }
    }

    /// Its own rate at any time.
    fn rate(&self) -> f64 {
        self.rates.last().map_or(1.0, |&(_, rate)| rate)
    }

    /// The time from `release` on for `work_s` seconds of work.
    fn time_s(&self, release: f64, work_s: f64) -> f64 {
        let (mut now, mut left) = (release, work_s);
        for (index, &(_, rate)) in self.rates.iter().enumerate() {
            let until = self.rates.get(index + 1).map_or(f64::INFINITY, |&(since, _)| since);
            let span = (until - now).max(0.0);
            if span * rate >= left {
                return now + left / rate - release;
            }
            left -= span * rate;
            now += span;
        }
        now - release
    }
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
        let known = self.0.get(&kind_of(profile));
        known.cloned().unwrap_or_else(|| Best::steady(1.0, 1.0))
    }

    fn sharing(
        workload: &Workload,
        partition: &Partition,
        jobs: &[&WorkloadJob],
        truth: &dyn Interference,
        tenants_max: usize,
    ) -> Self {
        let cluster = &workload.cluster;
        let mut kinds: BTreeMap<JobKind, Profile> = BTreeMap::new();
        for job in jobs {
            let profile = job.spec.profile;
            // In sub-batches it may need less.
            let least = job.spec.sub_batch_options().map(|option| option.memory).min();
            let memory = least.unwrap_or(profile.memory).min(profile.memory);
            let mildest = kinds.entry(kind_of(&profile)).or_insert(profile);
            mildest.gpu_util = mildest.gpu_util.min(profile.gpu_util);
            mildest.memory = mildest.memory.min(memory);
        }
        let profiles: Vec<Profile> = kinds.values().copied().collect();
        let memory = partition.gpus.clone().map(|gpu| cluster.gpu(GpuId(gpu)).memory).max();
        let room = Room { memory: memory.unwrap_or_default(), tenants_max };
        let pairs: Vec<BestPairs> = profiles
            .iter()
            .map(|job| BestPairs::of(cluster, truth, job, &profiles, room))
            .collect();
        let totals = group_totals(&pairs, tenants_max, truth.is_pairwise());
        let numbers: BTreeMap<JobKind, usize> = kinds.keys().copied().zip(0..).collect();
        let submit_s =
            |job: &WorkloadJob| seconds(job.spec.submit.since(workload.first_submit()).0);
        let arrivals = jobs.iter().map(|job| (submit_s(job), numbers[&kind_of(&job.spec.profile)]));
        let rates = match truth.is_pairwise() {
            true => rates_by_arrival(&pairs, &profiles, arrivals, room),
            false => pairs.iter().map(|pair| vec![(f64::NEG_INFINITY, pair.in_pair)]).collect(),
        };
        let best = rates.into_iter().zip(totals).map(|(rates, total)| Best { rates, total });
        Self(kinds.into_keys().zip(best).collect())
    }
}

fn kind_of(profile: &Profile) -> JobKind {
    let step = Utilisation::FULL.0 / 100 * UTILISATION_STEP;
    (profile.class, profile.gpu_util.map(|utilisation| utilisation.0 / step))
}

/// What limits a group.
#[derive(Clone, Copy, Debug)]
struct Room {
    memory: Memory,
    tenants_max: usize,
}

/// A kind of job beside which another runs faster than alone.
#[derive(Clone, Copy, Debug)]
struct Partner {
    kind: usize,
    rate: f64,
    memory: Memory,
}

/// The best that one other job on its GPUs does for a kind of job.
#[derive(Clone, Debug)]
struct BestPairs {
    /// Its own rate.
    in_pair: f64,
    /// The sum of both rates.
    total: f64,
    /// By GPU type: who speeds it up, the most first.
    partners: Vec<Vec<Partner>>,
}

impl BestPairs {
    fn of(
        cluster: &Cluster,
        truth: &dyn Interference,
        job: &Profile,
        others: &[Profile],
        room: Room,
    ) -> Self {
        let mut best = Self { in_pair: 1.0, total: 1.0, partners: Vec::new() };
        for (number, described) in (0..).zip(cluster.types()) {
            let (kind, factor) = (GpuTypeId(number), described.factor);
            let speed = |job, other| {
                let gpu = GangGpu { kind, factor, others: [Tenant::uncapped(other)] };
                let rate = rate_on_gpu(truth, Tenant::uncapped(job), gpu)?;
                Some(as_speed(rate) / as_speed(factor))
            };
            let mut partners: Vec<Partner> = Vec::new();
            for (kind, other) in others.iter().enumerate() {
                if job.memory + other.memory > room.memory {
                    continue;
                }
                let (Some(one), Some(two)) = (speed(job, other), speed(other, job)) else {
                    continue;
                };
                best.in_pair = best.in_pair.max(one);
                best.total = best.total.max(one + two);
                if one > 1.0 {
                    partners.push(Partner { kind, rate: one, memory: other.memory });
                }
            }
            partners.sort_by(|one, other| other.rate.total_cmp(&one.rate));
            best.partners.push(partners);
        }
        best
    }
}

/// The largest rate of every kind of job over time, where rates multiply: a job that has not arrived speeds
/// nobody up. `arrivals` are the jobs in order of submission, by kind.
fn rates_by_arrival(
    pairs: &[BestPairs],
    profiles: &[Profile],
    arrivals: impl Iterator<Item = (f64, usize)>,
    room: Room,
) -> Vec<Vec<(f64, f64)>> {
    let mut rates = vec![vec![(f64::NEG_INFINITY, 1.0)]; pairs.len()];
    let mut arrived = vec![0_usize; pairs.len()];
    for (at, kind) in arrivals {
        arrived[kind] += 1;
        // A job and its neighbours may be of one kind, of which a group has room for so many.
        if arrived[kind] > room.tenants_max {
            continue;
        }
        for (job, pair) in pairs.iter().enumerate() {
            let mut largest = rates[job].last().map_or(1.0, |&(_, rate)| rate);
            let before = largest;
            let left = room.memory.saturating_sub(profiles[job].memory);
            for partners in &pair.partners {
                if partners.iter().any(|partner| partner.kind == kind) {
                    let mut free = arrived.clone();
                    free[job] = free[job].saturating_sub(1);
                    let mut group = Group { partners, free, largest };
                    group.extend(0, left, room.tenants_max - 1, 1.0);
                    largest = group.largest;
                }
            }
            if largest > before {
                rates[job].push((at, largest));
            }
        }
    }
    // Rounding of a product of several rates to parts per million.
    let slack = room.tenants_max.saturating_sub(2) as f64 / f64::from(PPM_ONE);
    for (_, rate) in rates.iter_mut().flatten().filter(|(_, rate)| *rate > 1.0) {
        *rate += slack;
    }
    rates
}

/// The search for the neighbours that together speed a job up the most.
struct Group<'a> {
    partners: &'a [Partner],
    /// Jobs that may still be chosen, by kind.
    free: Vec<usize>,
    /// The largest product of rates so far.
    largest: f64,
}

impl Group<'_> {
    /// Adds up to `places` of the partners from `first` on, which fit into `memory`.
    fn extend(&mut self, first: usize, memory: Memory, places: usize, product: f64) {
        self.largest = self.largest.max(product);
        if places == 0 {
            return;
        }
        for index in first..self.partners.len() {
            let Partner { kind, rate, memory: needed } = self.partners[index];
            // The others speed it up less.
            let most = (0..places).fold(product, |product, _| product * rate);
            if most <= self.largest {
                return;
            }
            if needed <= memory && self.free[kind] > 0 {
                self.free[kind] -= 1;
                self.extend(index, memory.saturating_sub(needed), places - 1, product * rate);
                self.free[kind] += 1;
            }
        }
    }
}

/// From pairs to the totals of groups of up to `tenants_max`.
///
/// Where members run at the product of their pair rates: with `m` ≥ 1 and at least every rate, each of `n`
/// members has at most `m^(n-2)` × the mean of its pair rates, so their total is at most `m^(n-2) / (n-1)` ×
/// the sum of the totals of all pairs. In other models another tenant never speeds a job up, so that every
/// member has at most its best pair rate.
fn group_totals(best: &[BestPairs], tenants_max: usize, is_pairwise: bool) -> Vec<f64> {
    let fastest = best.iter().map(|best| best.in_pair).fold(1.0, f64::max);
    let largest = best.iter().map(|best| best.total).fold(1.0, f64::max);
    let grow = |single: &BestPairs| {
        let mut total = single.total;
        if !is_pairwise {
            let others = tenants_max.saturating_sub(1) as f64;
            return total.max(single.in_pair + others * fastest);
        }
        let mut surplus = 1.0;
        for others in 1..tenants_max.saturating_sub(1) {
            surplus *= fastest;
            // Rounding of the product to parts per million, for every member.
            let slack = (others + 2) as f64 / f64::from(PPM_ONE);
            let pairs_without_it = others as f64 / 2.0;
            total = total.max(surplus * (single.total + pairs_without_it * largest) + slack);
        }
        total
    };
    best.iter().map(grow).collect()
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
        let pair = BestPairs { in_pair: 1.0, total: 1.5, partners: Vec::new() };
        let total = |tenants, is_pairwise| {
            group_totals(std::slice::from_ref(&pair), tenants, is_pairwise)[0]
        };
        assert_eq!(total(2, true), 1.5);
        // Three tenants at 0.75² each have 1.69 in total.
        let three = total(3, true);
        assert!((3.0 * 0.75 * 0.75..2.26).contains(&three), "{three}");
        assert_eq!(total(3, false), 3.0);
    }

    fn partner(kind: usize, rate: f64, mib: u64) -> Partner {
        Partner { kind, rate, memory: Memory(mib * 1000) }
    }

    #[test]
    fn only_neighbours_that_exist_and_fit_into_memory_multiply() {
        let partners = [partner(0, 1.2, 8000), partner(1, 1.1, 4000), partner(2, 1.05, 6000)];
        let largest = |mib: u64, places: usize, free: [usize; 3]| {
            let mut group = Group { partners: &partners, free: free.to_vec(), largest: 1.0 };
            group.extend(0, Memory(mib * 1000), places, 1.0);
            assert_eq!(group.free, free);
            group.largest
        };
        assert_eq!(largest(3000, 3, [9, 9, 9]), 1.0);
        assert_eq!(largest(8000, 3, [9, 9, 9]), 1.1 * 1.1);
        assert_eq!(largest(8000, 1, [9, 9, 9]), 1.2);
        assert_eq!(largest(30_000, 3, [9, 9, 9]), 1.2 * 1.2 * 1.2);
        assert_eq!(largest(30_000, 3, [1, 0, 1]), 1.2 * 1.05);
    }

    #[test]
    fn nobody_is_faster_before_the_neighbour_arrives() {
        let fast =
            BestPairs { in_pair: 1.25, total: 2.0, partners: vec![vec![partner(1, 1.25, 1)]] };
        let plain = BestPairs { in_pair: 1.0, total: 2.0, partners: vec![Vec::new()] };
        let profiles = [Profile::default(), Profile::default()];
        let room = Room { memory: Memory(1_000_000), tenants_max: 2 };
        let arrivals = [(0.0, 0), (40.0, 1), (50.0, 1)].into_iter();
        let rates = rates_by_arrival(&[fast, plain], &profiles, arrivals, room);
        assert_eq!(rates[0], [(f64::NEG_INFINITY, 1.0), (40.0, 1.25)]);
        assert_eq!(rates[1].len(), 1);
        let best = Best { rates: rates[0].clone(), total: 2.0 };
        // 40 s alone, and 50 s of work in 40 s.
        assert_eq!(
            (best.time_s(0.0, 90.0), best.time_s(45.0, 50.0), best.rate()),
            (80.0, 40.0, 1.25)
        );
    }
}
