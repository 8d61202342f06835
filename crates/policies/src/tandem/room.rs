//! Who gets GPUs of their own: jobs in order of value per GPU, on free GPUs or in the place of
//! residents that are worth less.

use super::worth::Ledger;
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuId, Job, JobId, NodeId, Placement};

/// How many nodes where least would be lost are looked at closely.
const NODES_LOOKED_AT: usize = 4;
/// How many of those that wait are tried on GPUs that an exchange leaves over.
const FOLLOWERS_MAX: usize = 64;

/// Residents count for one part in this more than newcomers: to leave has a price too.
const RELUCTANCE: i64 = 10;

/// What it takes to free GPUs of a node.
#[derive(Clone, Debug, Default)]
struct Clearing {
    /// What those who leave are worth.
    loss: i64,
    leavers: Vec<JobId>,
    /// GPUs of the node that are free then.
    free: u32,
}

/// Seats everyone who deserves it; `false` if nobody does.
pub(super) fn place_most_valuable(draft: &mut Draft<'_>, ledger: &Ledger, preempt: bool) -> bool {
    let mut room = Room { ledger, losses: BTreeMap::new() };
    let mut changed = false;
    // A gang size that finds no place finds none later: values fall, and what is free shrinks. Only an
    // exchange can leave more free than before.
    let mut hopeless: Vec<u32> = Vec::new();
    for (rank, &job) in ledger.waiting().iter().enumerate() {
        let gpus = ledger.of(job).gpus;
        if hopeless.contains(&gpus) || draft.placement(job).is_some() {
            continue;
        }
        if draft.place_alone(job) {
            room.forget(draft, job);
            changed = true;
        } else if preempt && room.exchange(draft, job, &ledger.waiting()[rank + 1..]) {
            hopeless.clear();
            changed = true;
        } else if draft.fits_every_gpu(job) {
            hopeless.push(gpus);
        }
    }
    // Whoever had to leave may find GPUs that are left over elsewhere.
    for job in ledger.by_value(leavers(draft)) {
        draft.place_alone(job);
    }
    changed
}

/// Jobs that leave their GPUs under the plan so far.
fn leavers(draft: &Draft<'_>) -> Vec<JobId> {
    draft.placed().map(Job::id).filter(|&job| draft.placement(job).is_none()).collect()
}

struct Room<'a> {
    ledger: &'a Ledger,
    /// By number of GPUs wanted: what is lost on each node of the partition; `None` where that is not
    /// known, `MAX` where they cannot be had.
    losses: BTreeMap<u32, Vec<Option<i64>>>,
}

impl Room<'_> {
    /// The occupancy of a job's nodes has changed.
    fn forget(&mut self, draft: &Draft<'_>, job: JobId) {
        let first = draft.cluster().partition(draft.partition()).nodes.start;
        let Some(placement) = draft.placement(job) else { return };
        for &gpu in placement.gpus.iter() {
            let node = (draft.cluster().gpu(gpu).node.0 - first) as usize;
            self.losses.values_mut().for_each(|losses| losses[node] = None);
        }
    }

    /// Puts `job` in the place of residents, if it and `followers` on what that leaves over are worth
    /// more than they.
    fn exchange(&mut self, draft: &mut Draft<'_>, job: JobId, followers: &[JobId]) -> bool {
        let worth = self.ledger.of(job);
        let size = draft.cluster().partition(draft.partition()).node_size_max();
        let clearing = if worth.gpus <= size {
            self.on_one_node(draft, worth.gpus, followers)
        } else {
            self.on_several_nodes(draft, worth.gpus, size)
        };
        let Some(clearing) = clearing else { return false };
        let left_over = clearing.free.saturating_sub(worth.gpus);
        let gain = worth.value.saturating_add(self.follow(draft, followers, left_over));
        let loss = clearing.loss.saturating_add(clearing.loss / RELUCTANCE);
        gain > loss && self.carry_out(draft, job, clearing.leavers)
    }

    /// The values of those that could use `free` further GPUs.
    fn follow(&self, draft: &Draft<'_>, followers: &[JobId], mut free: u32) -> i64 {
        let mut gain = 0_i64;
        for &job in followers.iter().take(FOLLOWERS_MAX) {
            let worth = self.ledger.of(job);
            if free == 0 {
                break;
            }
            if worth.gpus <= free && draft.placement(job).is_none() {
                free -= worth.gpus;
                gain = gain.saturating_add(worth.value);
            }
        }
        gain
    }

    /// The best of the nodes where least is lost.
    fn on_one_node(
        &mut self,
        draft: &Draft<'_>,
        gpus: u32,
        followers: &[JobId],
    ) -> Option<Clearing> {
        let nodes = draft.cluster().partition(draft.partition()).nodes.clone();
        let ledger = self.ledger;
        let losses = self.losses.entry(gpus).or_insert_with(|| vec![None; nodes.len()]);
        let mut least: Vec<(i64, NodeId)> = Vec::with_capacity(NODES_LOOKED_AT + 1);
        for (loss, node) in losses.iter_mut().zip(nodes.map(NodeId)) {
            let clear = || clear(draft, ledger, node, gpus).map_or(i64::MAX, |found| found.loss);
            let loss = *loss.get_or_insert_with(clear);
            let place = least.partition_point(|other| *other <= (loss, node));
            if loss < i64::MAX && place < NODES_LOOKED_AT {
                least.insert(place, (loss, node));
                least.truncate(NODES_LOOKED_AT);
            }
        }
        let clearings = least.into_iter().filter_map(|(_, node)| clear(draft, ledger, node, gpus));
        let net = |found: &Clearing| {
            self.follow(draft, followers, found.free - gpus).saturating_sub(found.loss)
        };
        // The first of equals: the one where less is lost.
        clearings.rev().max_by_key(net)
    }

    /// Whole nodes where least is lost per GPU, and a part of one more.
    fn on_several_nodes(&self, draft: &Draft<'_>, gpus: u32, size: u32) -> Option<Clearing> {
        let nodes = draft.cluster().partition(draft.partition()).nodes.clone();
        let (whole, rest) = ((gpus / size) as usize, gpus % size);
        let mut order: Vec<(i64, NodeId)> = nodes
            .map(NodeId)
            .filter(|&node| up_gpus(draft, node).count() == size as usize)
            .map(|node| (self.share_of_node(draft, node), node))
            .collect();
        order.sort_unstable();
        let cleared = order.get(..whole)?;
        let mut leavers: Vec<JobId> = Vec::new();
        for &(_, node) in cleared {
            up_gpus(draft, node).for_each(|gpu| leavers.extend(draft.tenants(gpu)));
        }
        if rest > 0 {
            let is_cleared = |node: NodeId| cleared.iter().any(|&(_, other)| other == node);
            let nodes = draft.cluster().partition(draft.partition()).nodes.clone().map(NodeId);
            let others = nodes.filter(|&node| !is_cleared(node));
            let found = others.filter_map(|node| clear(draft, self.ledger, node, rest));
            leavers.extend(found.min_by_key(|found| found.loss)?.leavers);
        }
        leavers.sort_unstable();
        leavers.dedup();
        let loss = loss_of(self.ledger, &leavers);
        let free = draft.free_count() + freed_gpus(draft, &leavers);
        Some(Clearing { loss, leavers, free })
    }

    /// The values of a node's tenants, as far as they sit there.
    fn share_of_node(&self, draft: &Draft<'_>, node: NodeId) -> i64 {
        let tenants = up_gpus(draft, node).flat_map(|gpu| draft.tenants(gpu));
        let per_gpu = tenants.map(|&job| {
            let worth = self.ledger.of(job);
            worth.loss / i64::from(worth.gpus)
        });
        per_gpu.fold(0, i64::saturating_add)
    }

    /// Makes `leavers` leave and seats `job`; whoever left for nothing stays after all.
    fn carry_out(&mut self, draft: &mut Draft<'_>, job: JobId, leavers: Vec<JobId>) -> bool {
        let mut left: Vec<(JobId, Placement)> = Vec::with_capacity(leavers.len());
        for leaver in leavers {
            self.forget(draft, leaver);
            left.push((leaver, draft.placement(leaver).expect("a tenant is placed").clone()));
            draft.drop(leaver);
        }
        let placed = draft.place_alone(job);
        self.forget(draft, job);
        for (leaver, placement) in left {
            if placement.gpus.iter().all(|&gpu| !draft.tenants(gpu).contains(&job)) {
                draft.place(leaver, placement);
            }
        }
        placed
    }
}

/// GPUs of a node that are open to whoever takes the place of others.
fn up_gpus<'a>(draft: &'a Draft<'_>, node: NodeId) -> impl Iterator<Item = GpuId> + 'a {
    let gpus = draft.cluster().nodes()[node.index()].gpus.clone().map(GpuId);
    gpus.filter(|&gpu| !draft.occupancy().is_closed(gpu))
}

fn loss_of(ledger: &Ledger, leavers: &[JobId]) -> i64 {
    leavers.iter().map(|&job| ledger.of(job).loss).fold(0, i64::saturating_add)
}

/// How many GPUs have no tenants but `leavers`, who are in order.
fn freed_gpus(draft: &Draft<'_>, leavers: &[JobId]) -> u32 {
    let is_freed = |gpu: GpuId| {
        let tenants = draft.tenants(gpu);
        // Counted where the first of its tenants is looked at.
        tenants.iter().all(|tenant| leavers.binary_search(tenant).is_ok()).then(|| tenants[0])
    };
    let freed = leavers.iter().map(|&job| {
        let gpus = draft.placement(job).map_or(&[][..], |placement| &placement.gpus);
        let open = gpus.iter().filter(|&&gpu| !draft.occupancy().is_closed(gpu));
        open.filter(|&&gpu| is_freed(gpu) == Some(job)).count()
    });
    u32::try_from(freed.sum::<usize>()).expect("GPUs are counted in u32")
}

/// The tenants of some GPUs of a node, who can only leave together.
#[derive(Debug, Default)]
struct Unit {
    jobs: Vec<JobId>,
    gpus: u32,
    loss: i64,
}

/// The cheapest way to have `wanted` GPUs of a node free; `None` if it has not as many.
fn clear(draft: &Draft<'_>, ledger: &Ledger, node: NodeId, wanted: u32) -> Option<Clearing> {
    let mut free = 0;
    // Mostly few, so that looking through them is quicker than a map.
    let mut units: Vec<Unit> = Vec::new();
    for gpu in up_gpus(draft, node) {
        let tenants = draft.tenants(gpu);
        let Some(first) = tenants.first() else {
            free += 1;
            continue;
        };
        let index = units.iter().position(|unit| unit.jobs[0] == *first);
        let index = index.unwrap_or_else(|| {
            units.push(Unit::default());
            units.len() - 1
        });
        let unit = &mut units[index];
        unit.gpus += 1;
        for &job in tenants {
            if !unit.jobs.contains(&job) {
                unit.jobs.push(job);
                unit.loss = unit.loss.saturating_add(ledger.of(job).loss);
            }
        }
    }
    if free < wanted {
        let leaving = cheapest(&units, (wanted - free) as usize)?;
        free += leaving.iter().map(|unit| unit.gpus).sum::<u32>();
        let mut leavers: Vec<JobId> =
            leaving.iter().flat_map(|unit| unit.jobs.iter().copied()).collect();
        leavers.sort_unstable();
        leavers.dedup();
        return Some(Clearing { loss: loss_of(ledger, &leavers), leavers, free });
    }
    Some(Clearing { free, ..Clearing::default() })
}

/// Of `units`, those that are worth least of all that have at least `wanted` GPUs together.
fn cheapest(units: &[Unit], wanted: usize) -> Option<Vec<&Unit>> {
    // One bit for each: more tenants than a word has bits are looked at another time.
    let units = &units[..units.len().min(64)];
    // By number of GPUs up to `wanted`: the least loss that frees as many, and who leaves for it.
    let mut best: Vec<Option<(i64, u64)>> = vec![None; wanted + 1];
    best[0] = Some((0, 0));
    for (index, unit) in units.iter().enumerate() {
        for had in (0..wanted).rev() {
            let Some((loss, leave)) = best[had] else { continue };
            let has = (had + unit.gpus as usize).min(wanted);
            let then = (loss.saturating_add(unit.loss), leave | 1 << index);
            if best[has].is_none_or(|other| then < other) {
                best[has] = Some(then);
            }
        }
    }
    let (_, leave) = best[wanted]?;
    let leaves = |(index, _): &(usize, &Unit)| leave >> index & 1 == 1;
    Some(units.iter().enumerate().filter(leaves).map(|(_, unit)| unit).collect())
}
