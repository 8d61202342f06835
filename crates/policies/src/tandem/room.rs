//! Who gets GPUs of their own: jobs in order of value per GPU, on free GPUs or in the place of
//! residents that are worth less.

use super::worth::{Ledger, Worth};
use crate::remaining::restore_ms;
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuId, Job, JobId, NodeId, Placement};

/// How many nodes where least would be lost are looked at closely.
const NODES_LOOKED_AT: usize = 4;
/// How many nodes more than it needs may be cleared for a gang.
const SPARE_NODES: usize = 2;
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
    let mut room = Room { ledger, losses: BTreeMap::new(), shares: Vec::new() };
    let (mut changed, mut exchanged) = (false, false);
    // A gang size that finds no place finds none later: values fall, and what is free shrinks. Only an
    // exchange can leave more free than before.
    let mut hopeless: Vec<u32> = Vec::new();
    for (rank, &job) in ledger.waiting().iter().enumerate() {
        let gpus = ledger.of(job).gpus;
        if hopeless.contains(&gpus) || draft.placement(job).is_some() {
            continue;
        }
        if draft.place_exclusive(job) {
            room.forget(draft, job);
            changed = true;
        } else if preempt && room.exchange(draft, job, &ledger.waiting()[rank + 1..]) {
            hopeless.clear();
            exchanged = true;
        } else if draft.fits_every_gpu(job) {
            hopeless.push(gpus);
        }
    }
    // Whoever had to leave may find GPUs that are left over elsewhere, and so may whoever was passed over
    // before others left.
    seat_on_free(draft, ledger.by_value(leavers(draft)));
    if exchanged {
        seat_on_free(draft, ledger.waiting().iter().copied());
    }
    changed || exchanged
}

/// Seats whoever finds free GPUs, in order.
fn seat_on_free(draft: &mut Draft<'_>, jobs: impl IntoIterator<Item = JobId>) {
    let mut hopeless: Vec<u32> = Vec::new();
    for job in jobs {
        let gpus = draft.job(job).spec.gpus;
        if draft.free_count() == 0 {
            return;
        }
        if draft.placement(job).is_some() || hopeless.contains(&gpus) {
            continue;
        }
        if !draft.place_exclusive(job) && draft.fits_every_gpu(job) {
            hopeless.push(gpus);
        }
    }
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
    /// The values of each node's tenants, as far as they sit there; `None` where that is not known.
    shares: Vec<Option<i64>>,
}

impl Room<'_> {
    /// The occupancy of a job's nodes has changed.
    fn forget(&mut self, draft: &Draft<'_>, job: JobId) {
        let first = draft.cluster().partition(draft.partition()).nodes.start;
        let Some(placement) = draft.placement(job) else { return };
        for &gpu in placement.gpus.iter() {
            let node = (draft.cluster().gpu(gpu).node.0 - first) as usize;
            self.losses.values_mut().for_each(|losses| losses[node] = None);
            if let Some(share) = self.shares.get_mut(node) {
                *share = None;
            }
        }
    }

    /// Puts `job` in the place of residents, if it and `followers` on what that leaves over are worth
    /// more than they.
    fn exchange(&mut self, draft: &mut Draft<'_>, job: JobId, followers: &[JobId]) -> bool {
        let worth = self.ledger.of(job);
        let size = draft.cluster().partition(draft.partition()).node_size_max();
        let on_one =
            if worth.gpus <= size { self.on_one_node(draft, worth.gpus, followers) } else { None };
        let on_whole =
            if worth.gpus >= size { self.on_whole_nodes(draft, worth, size) } else { None };
        // The first of equals: the one where fewer are disturbed.
        let clearing = on_one.into_iter().chain(on_whole).min_by_key(|found| found.loss);
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

    /// Whole nodes where least is lost per GPU, and a part of one more. Of tenants that are spread over
    /// the nodes some may be worth more than all others together: a few nodes more are cleared if that
    /// is cheaper, for the best of those who leave to sit on.
    fn on_whole_nodes(&mut self, draft: &Draft<'_>, gang: &Worth, size: u32) -> Option<Clearing> {
        let (whole, rest) = ((gang.gpus / size) as usize, gang.gpus % size);
        let order = self.least_of_nodes(draft, size, whole + SPARE_NODES);
        let clearings = (whole..=order.len()).filter_map(|count| {
            let cleared = order.get(..count)?;
            let tenants =
                |&node| up_gpus(draft, node).flat_map(|gpu| draft.tenants(gpu).iter().copied());
            let mut leavers: Vec<JobId> = cleared.iter().flat_map(tenants).collect();
            if rest > 0 {
                let nodes = draft.cluster().partition(draft.partition()).nodes.clone().map(NodeId);
                let others = nodes.filter(|node| !cleared.contains(node));
                let found = others.filter_map(|node| clear(draft, self.ledger, node, rest));
                leavers.extend(found.min_by_key(|found| found.loss)?.leavers);
            }
            leavers.sort_unstable();
            leavers.dedup();
            let free = draft.free_count() + freed_gpus(draft, &leavers);
            Some(self.seat_again(draft, gang, Clearing { loss: 0, leavers, free }))
        });
        // The first of equals: the one where fewer are disturbed.
        clearings.min_by_key(|found| found.loss)
    }

    /// The first `count` nodes by what their tenants are worth, or as many as are up.
    fn least_of_nodes(&mut self, draft: &Draft<'_>, size: u32, count: usize) -> Vec<NodeId> {
        let nodes = draft.cluster().partition(draft.partition()).nodes.clone();
        self.shares.resize(nodes.len(), None);
        let mut order: Vec<(i64, NodeId)> = Vec::with_capacity(nodes.len());
        for (share, node) in self.shares.iter_mut().zip(nodes.map(NodeId)) {
            if up_gpus(draft, node).count() == size as usize {
                let known = share.get_or_insert_with(|| share_of_node(draft, self.ledger, node));
                order.push((*known, node));
            }
        }
        if count < order.len() {
            order.select_nth_unstable(count);
            order.truncate(count);
        }
        order.sort_unstable();
        order.into_iter().map(|(_, node)| node).collect()
    }

    /// Gives what `gang` leaves free to the best of those who left for it: they lose no more than what
    /// starting again costs them, compared with the time that it would stay.
    fn seat_again(&self, draft: &Draft<'_>, gang: &Worth, mut clearing: Clearing) -> Clearing {
        let left_over = clearing.free.saturating_sub(gang.gpus);
        let (best, others) = self.best_that_fit(clearing.leavers.clone(), left_over);
        let taken: u32 = best.iter().map(|&leaver| self.ledger.of(leaver).gpus).sum();
        clearing.free = gang.gpus + left_over - taken;
        let moving = best.into_iter().map(|leaver| {
            let loss = self.ledger.of(leaver).loss;
            let away_ms = restore_ms(draft.job(leaver)).min(gang.left_ms);
            let part = i128::from(loss) * i128::from(away_ms) / i128::from(gang.left_ms);
            let part = i64::try_from(part).expect("a part is less than the whole");
            // Whoever may not leave may not move either.
            if loss == i64::MAX { loss } else { part }
        });
        clearing.loss = moving.fold(loss_of(self.ledger, &others), i64::saturating_add);
        clearing
    }

    /// Those of `jobs` that so many GPUs go to, the most valuable per GPU first, and the others.
    fn best_that_fit(&self, jobs: Vec<JobId>, mut free: u32) -> (Vec<JobId>, Vec<JobId>) {
        self.ledger.by_value(jobs).into_iter().partition(|&job| {
            let rest = free.checked_sub(self.ledger.of(job).gpus);
            free = rest.unwrap_or(free);
            rest.is_some()
        })
    }

    /// Makes `leavers` leave and seats `job`; then the best of them that there is room for, and then
    /// whoever left for nothing or finds other GPUs. Nobody moves who can stay.
    fn carry_out(&mut self, draft: &mut Draft<'_>, job: JobId, leavers: Vec<JobId>) -> bool {
        let mut left: BTreeMap<JobId, Placement> = BTreeMap::new();
        for &leaver in &leavers {
            self.forget(draft, leaver);
            left.insert(leaver, draft.placement(leaver).expect("a tenant is placed").clone());
            draft.drop(leaver);
        }
        let placed = draft.place_exclusive(job);
        self.forget(draft, job);
        let mut newcomers = vec![job];
        let is_taken = |draft: &Draft<'_>, newcomers: &[JobId], leaver| {
            let mut tenants = left[&leaver].gpus.iter().flat_map(|&gpu| draft.tenants(gpu));
            tenants.any(|tenant| newcomers.contains(tenant))
        };
        let (best, others) = self.best_that_fit(leavers, draft.free_count());
        let (moving, staying): (Vec<JobId>, Vec<JobId>) =
            best.into_iter().partition(|&leaver| is_taken(draft, &newcomers, leaver));
        for leaver in [staying, moving, others].into_iter().flatten() {
            if !is_taken(draft, &newcomers, leaver) {
                draft.place(leaver, left[&leaver].clone());
            } else if draft.place_exclusive(leaver) {
                self.forget(draft, leaver);
                newcomers.push(leaver);
            }
        }
        placed
    }
}

/// The values of a node's tenants, as far as they sit there.
fn share_of_node(draft: &Draft<'_>, ledger: &Ledger, node: NodeId) -> i64 {
    let tenants = up_gpus(draft, node).flat_map(|gpu| draft.tenants(gpu));
    let per_gpu = tenants.map(|&job| {
        let worth = ledger.of(job);
        worth.loss / i64::from(worth.gpus)
    });
    per_gpu.fold(0, i64::saturating_add)
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
