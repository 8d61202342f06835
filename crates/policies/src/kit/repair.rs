//! Re-pairing: jobs that share GPUs are matched anew.
//!
//! Pairs form when jobs arrive, so the first ones need not be the best, and beliefs about them change.
//! Here gangs of equal size that hold whole allocations, one or two jobs each, are matched on a general
//! graph: no job is fixed as the host. The number of allocations stays, so that the matching chooses who
//! shares with whom and who runs alone.
//!
//! A change has a price. A pair that does not stand yet counts with rates one standard deviation below
//! the believed ones and with the restore of the job that moves, so that noise does not make pairs swing.

use super::pairing::{PairRates, partner};
use super::remaining::{HORIZON_MS, remaining_ms, restore_ms};
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuTypeId, Gpus, Job, JobId, Memory, PPM_ONE, Placement};
use tandem_matching::{Graph, PairCount, maximum_weight_matching};

/// Allocations in one matching: half of them are the pairs that lose most. Bounds the time of a review.
const ALLOCATIONS_MAX: usize = 32;
/// The largest cost of a pair, so that the matching can add them up.
const COST_MAX: i64 = 1 << 50;

/// How a policy judges pairs that stand.
pub trait RepairRule {
    /// Milliseconds of completion time that a delay of a job by one millisecond costs, in parts per
    /// million.
    fn delay_cost(&self, job: JobId) -> i64;

    /// Whether a job may be moved now.
    fn may_move(&self, draft: &Draft<'_>, job: &Job) -> bool;

    /// The time over which a pair is judged, unless one of its jobs ends before.
    fn horizon_ms(&self) -> i64 {
        HORIZON_MS
    }
}

/// GPUs with one or two tenants, each on all of them.
struct Allocation {
    gpus: Gpus,
    tenants: Vec<JobId>,
    /// The memory of the GPU with the least for tenants.
    memory: Memory,
    /// Milliseconds of completion time that sharing costs the tenants.
    cost: i64,
}

/// Matches the tenants of allocations of equal size anew and moves jobs where that pays; `false` if it
/// does not.
pub fn repair(draft: &mut Draft<'_>, rule: &impl RepairRule) -> bool {
    if draft.occupancy().none_shared() {
        return false;
    }
    let mut changed = false;
    for (_, mut group) in allocations(draft, rule) {
        // A change saves at most what sharing costs now, and somebody has to restore.
        let (cost, restore) = group.iter().fold((0_i64, i64::MAX), |(cost, restore), found| {
            let restores = found.tenants.iter().map(|&job| restore_cost(draft, rule, job));
            (cost.saturating_add(found.cost), restores.fold(restore, i64::min))
        });
        if group.len() < 2 || cost <= restore {
            continue;
        }
        if group.len() > ALLOCATIONS_MAX {
            group.sort_by_key(|found| (std::cmp::Reverse(found.cost), found.tenants[0]));
            let half = ALLOCATIONS_MAX / 2;
            group.drain(half..group.len() - half);
        }
        changed |= Rematch::new(draft, rule, &group).plan().is_some_and(|moves| {
            moves.iter().for_each(|&(job, _)| draft.drop(job));
            for (job, to) in moves {
                draft.place(job, Placement::on(group[to].gpus.iter().copied()));
            }
            true
        });
    }
    changed
}

/// The allocations that can take part, by gang size and kind of GPU.
fn allocations(
    draft: &Draft<'_>,
    rule: &impl RepairRule,
) -> BTreeMap<(u32, GpuTypeId), Vec<Allocation>> {
    let mut groups: BTreeMap<(u32, GpuTypeId), Vec<Allocation>> = BTreeMap::new();
    for job in draft.placed() {
        if let Some((kind, found)) = allocation(draft, rule, job) {
            groups.entry((job.spec.gpus, kind)).or_default().push(found);
        }
    }
    groups
}

/// The allocation of a job, given once for both of its tenants; `None` if it cannot take part.
fn allocation(
    draft: &Draft<'_>,
    rule: &impl RepairRule,
    job: &Job,
) -> Option<(GpuTypeId, Allocation)> {
    let placement = draft.placement(job.id())?;
    let first = *placement.gpus.first()?;
    let (tenants, kind) = (draft.tenants(first), draft.cluster().gpu(first).kind);
    if tenants.len() > 2 || tenants.iter().min() != Some(&job.id()) {
        return None;
    }
    let can_take_part = |&tenant: &JobId| {
        let known = draft.job(tenant);
        let whole = draft.placement(tenant).is_some_and(|on| on.sub_batches == 1 && !on.paused);
        // A job that the plan has just started or moved stays there.
        let stands =
            known.placement().map(|on| &on.gpus) == draft.placement(tenant).map(|on| &on.gpus);
        known.spec.gpus == job.spec.gpus && whole && stands && rule.may_move(draft, known)
    };
    let occupancy = draft.occupancy();
    let mut memory = draft.cluster().gpu(first).memory;
    for &gpu in placement.gpus.iter() {
        let described = draft.cluster().gpu(gpu);
        if draft.tenants(gpu) != tenants || described.kind != kind || occupancy.is_closed(gpu) {
            return None;
        }
        memory = memory.min(described.memory.saturating_sub(occupancy.memory_reserved(gpu)));
    }
    if !tenants.iter().all(can_take_part) {
        return None;
    }
    let cost = match *tenants {
        [one, other] => {
            let rates = PairRates::of(draft, draft.job(one), draft.job(other));
            rates.map_or(COST_MAX, |rates| sharing_cost(draft, rule, (one, other), rates))
        }
        _ => 0,
    };
    let (gpus, tenants) = (placement.gpus.clone(), tenants.to_vec());
    Some((kind, Allocation { gpus, tenants, memory, cost }))
}

/// Milliseconds of completion time that two jobs lose by sharing, until one of them ends or the horizon
/// is reached.
fn sharing_cost(
    draft: &Draft<'_>,
    rule: &impl RepairRule,
    (one, other): (JobId, JobId),
    rates: PairRates,
) -> i64 {
    let ppm = i128::from(PPM_ONE);
    let side = |job: JobId, rate: tandem_core::Ratio| {
        let rate = i128::from(rate.ppm().0.max(1));
        let end_ms = i128::from(remaining_ms(draft.job(job), draft.now())) * ppm / rate;
        (end_ms, (ppm - rate).max(0) * i128::from(rule.delay_cost(job)))
    };
    let ((own_end, own), (host_end, host)) = (side(one, rates.own), side(other, rates.host));
    let lasts_ms = own_end.min(host_end).min(i128::from(rule.horizon_ms()));
    let cost = (own + host) / ppm * lasts_ms / ppm;
    i64::try_from(cost).unwrap_or(COST_MAX).min(COST_MAX)
}

fn restore_cost(draft: &Draft<'_>, rule: &impl RepairRule, job: JobId) -> i64 {
    let cost = i128::from(restore_ms(draft.job(job))) * i128::from(rule.delay_cost(job));
    i64::try_from(cost / i128::from(PPM_ONE)).unwrap_or(COST_MAX).min(COST_MAX)
}

/// One matching over the tenants of `group`.
struct Rematch<'a, 'd, R> {
    draft: &'a Draft<'d>,
    rule: &'a R,
    group: &'a [Allocation],
    /// The tenants and the positions of their allocations.
    jobs: Vec<(JobId, usize)>,
}

/// Jobs that shall share, by their positions.
type Pair = (usize, usize);

/// Two jobs that could share.
struct Edge {
    pair: Pair,
    /// What sharing costs them.
    cost: i64,
    /// The same with the restore of the job that has to move, if one has.
    price: i64,
}

impl<'a, 'd, R: RepairRule> Rematch<'a, 'd, R> {
    fn new(draft: &'a Draft<'d>, rule: &'a R, group: &'a [Allocation]) -> Self {
        let tenants = group.iter().enumerate();
        let jobs = tenants.flat_map(|(at, found)| found.tenants.iter().map(move |&job| (job, at)));
        Self { draft, rule, group, jobs: jobs.collect() }
    }

    /// The jobs that move and the allocations that they move to; `None` if nothing is gained.
    fn plan(&self) -> Option<Vec<(JobId, usize)>> {
        let before: i64 = self.group.iter().map(|found| found.cost).sum();
        let edges = self.edges(before);
        if before <= self.price_min(&edges) {
            return None;
        }
        let pairs = self.matched(&edges);
        let stands = |&&(one, other): &&Pair| self.jobs[one].1 == self.jobs[other].1;
        if pairs.iter().all(|pair| stands(&pair)) {
            return None;
        }
        let places = self.places(&pairs)?;
        let moved = self.jobs.iter().zip(&places).filter(|((_, before), then)| *before != **then);
        let moves: Vec<(JobId, usize)> = moved.map(|(&(job, _), &then)| (job, then)).collect();
        let chosen = edges.iter().filter(|edge| pairs.contains(&edge.pair));
        let then: i64 = chosen.map(|edge| edge.cost).sum();
        let restores = moves.iter().map(|&(job, _)| restore_cost(self.draft, self.rule, job));
        (before - then > restores.sum()).then_some(moves)
    }

    /// The pairs that stand, and all others that can be part of a matching that costs less than `before`.
    fn edges(&self, before: i64) -> Vec<Edge> {
        let restores: Vec<i64> =
            self.jobs.iter().map(|&(job, _)| restore_cost(self.draft, self.rule, job)).collect();
        let pairs = (0..self.jobs.len())
            .flat_map(|one| (one + 1..self.jobs.len()).map(move |other| (one, other)));
        let edge = |(one, other): Pair| {
            let stands = self.jobs[one].1 == self.jobs[other].1;
            let restore = if stands { 0 } else { restores[one].min(restores[other]) };
            if !stands && restore >= before {
                return None;
            }
            let cost = self.cost((one, other))?;
            let price = cost.saturating_add(restore).min(COST_MAX);
            (stands || price < before).then_some(Edge { pair: (one, other), cost, price })
        };
        pairs.filter_map(edge).collect()
    }

    /// What sharing costs two jobs; `None` if they do not fit or one of them does not accept it.
    fn cost(&self, (one, other): Pair) -> Option<i64> {
        let ((one, one_at), (other, other_at)) = (self.jobs[one], self.jobs[other]);
        if one_at == other_at {
            return Some(self.group[one_at].cost);
        }
        let draft = self.draft;
        let context = draft.rules().context;
        let memory = |job: JobId| draft.job(job).spec.profile.memory + context;
        let room = self.group[one_at].memory.min(self.group[other_at].memory);
        if memory(one) + memory(other) > room {
            return None;
        }
        let (one, other) = (draft.job(one), draft.job(other));
        let rates = PairRates::of(draft, one, other)?.lowered(draft, one, other);
        Some(sharing_cost(draft, self.rule, (one.id(), other.id()), rates))
    }

    /// How many pairs there must be for all jobs to have room.
    fn pairs_needed(&self) -> usize {
        self.jobs.len() - self.group.len()
    }

    /// A lower bound on what any pairing costs, restores included. A pair costs at least half of what the
    /// best partner of each of its jobs would cost that job; at best those run alone for whom that is most.
    fn price_min(&self, edges: &[Edge]) -> i64 {
        let mut least = vec![COST_MAX; self.jobs.len()];
        for &Edge { pair: (one, other), price, .. } in edges {
            least[one] = least[one].min(price);
            least[other] = least[other].min(price);
        }
        least.sort_unstable();
        least.iter().take(2 * self.pairs_needed()).sum::<i64>() / 2
    }

    /// The pairs of least cost with which all jobs have room.
    fn matched(&self, edges: &[Edge]) -> Vec<Pair> {
        let position = |at: usize| u32::try_from(at).expect("allocations are bounded");
        let weighted = edges.iter().map(|&Edge { pair: (one, other), price, .. }| {
            (position(one), position(other), COST_MAX - price)
        });
        let graph = Graph::new(self.jobs.len(), weighted.collect());
        let graph = graph.expect("costs and vertices are bounded");
        let pairs = PairCount::Exactly(self.pairs_needed());
        let mates = maximum_weight_matching(&graph, pairs).mates;
        let pair = |(one, mate): (usize, &Option<u32>)| {
            let other = mate.map(|mate| mate as usize)?;
            (one < other).then_some((one, other))
        };
        mates.iter().enumerate().filter_map(pair).collect()
    }

    /// The allocation of every job, so that few jobs move: each pair takes one of the two allocations of
    /// its jobs, and a job alone stays if its allocation is not taken. `None` if there is no room.
    fn places(&self, pairs: &[Pair]) -> Option<Vec<usize>> {
        let jobs = &self.jobs;
        let mut places: Vec<usize> = jobs.iter().map(|&(_, at)| at).collect();
        let mut is_paired = vec![false; jobs.len()];
        pairs.iter().for_each(|&(one, other)| (is_paired[one], is_paired[other]) = (true, true));
        let alone: Vec<usize> = (0..jobs.len()).filter(|&job| !is_paired[job]).collect();
        let mut taken = vec![false; self.group.len()];
        let wanted = |at: usize| alone.iter().any(|&job| jobs[job].1 == at);
        let mut open: Vec<Pair> = pairs.to_vec();
        while !open.is_empty() {
            let uses = |at: usize| {
                open.iter().filter(|&&(a, b)| jobs[a].1 == at || jobs[b].1 == at).count()
            };
            // A pair takes the allocation that no other pair and no job alone needs; on a ring, any.
            let choices = open.iter().enumerate().flat_map(|(index, &(one, other))| {
                [jobs[one].1, jobs[other].1].map(|at| (index, at))
            });
            let free = choices.filter(|&(_, at)| !taken[at]);
            let (index, at) = free.min_by_key(|&(index, at)| (uses(at), wanted(at), index))?;
            let (one, other) = open.swap_remove(index);
            (places[one], places[other], taken[at]) = (at, at, true);
        }
        for job in alone {
            let stays = !taken[places[job]];
            let at = if stays { places[job] } else { taken.iter().position(|taken| !taken)? };
            (places[job], taken[at]) = (at, true);
        }
        Some(places)
    }
}

/// Moves one of two co-located jobs to free GPUs where both together save more than its restore;
/// `false` if none does. The lower-ranked job of a pair moves.
pub fn part_onto_free_gpus(draft: &mut Draft<'_>, rule: &impl RepairRule) -> bool {
    let mut changed = false;
    let jobs: Vec<JobId> = draft.placed().map(Job::id).collect();
    for job in jobs.into_iter().rev() {
        if draft.free_count() == 0 {
            break;
        }
        let Some(other) = partner(draft, job) else { continue };
        let (own, host) = (draft.job(job), draft.job(other));
        if !rule.may_move(draft, own) || !draft.has_room(job) {
            continue;
        }
        let Some(rates) = PairRates::of(draft, own, host) else { continue };
        let cost = sharing_cost(draft, rule, (job, other), rates.raised(draft, own, host));
        if cost > restore_cost(draft, rule, job) {
            changed |= draft.place_exclusive(job);
        }
    }
    changed
}
