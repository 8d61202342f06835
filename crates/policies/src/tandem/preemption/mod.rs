//! Preemption by value: pending jobs take free GPUs in order of value per GPU, or the GPUs of running
//! jobs with less value.

mod clearing;

use super::Review;
use super::value::{JobValue, JobValues};
use crate::kit::{evicted_jobs, place_ranked, restore_ms};
use clearing::{Clearing, clear, loss_of, up_gpus};
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuId, JobId, NodeId, Placement};

/// Places pending jobs on whole GPUs, preempting jobs of less value if the review may; `false` if
/// nothing changes.
pub(super) fn place_by_value(draft: &mut Draft<'_>, review: &Review<'_>) -> bool {
    let values = review.values;
    let mut preemption = Preemption { review, losses: BTreeMap::new(), node_losses: Vec::new() };
    let (mut placed, mut preempted) = (false, false);
    // A gang size that did not fit does not fit later: values fall, and free GPUs become fewer. Only a
    // preemption can leave more of them free.
    let mut too_large: Vec<u32> = Vec::new();
    for &job in values.pending() {
        let gpus = values.of(job).gpus;
        if too_large.contains(&gpus) || draft.placement(job).is_some() {
            continue;
        }
        if draft.place_exclusive(job) {
            preemption.forget_nodes(draft, job);
            placed = true;
        } else if review.parts.preempt && preemption.preempt_for(draft, job) {
            too_large.clear();
            preempted = true;
        } else if draft.fits_every_gpu(job) {
            too_large.push(gpus);
        }
    }
    // A preempted job may find other free GPUs, and so may a pending one that did not fit before.
    place_ranked(draft, values.by_value(evicted_jobs(draft)));
    if preempted {
        place_ranked(draft, values.pending().iter().copied());
    }
    placed || preempted
}

struct Preemption<'a> {
    review: &'a Review<'a>,
    /// By number of GPUs: the loss of freeing them on each node of the partition; `None` where unknown,
    /// `MAX` where impossible.
    losses: BTreeMap<u32, Vec<Option<i64>>>,
    /// The loss of clearing each node; `None` where unknown.
    node_losses: Vec<Option<i64>>,
}

impl Preemption<'_> {
    /// The occupancy of a job's nodes has changed: their losses are unknown.
    fn forget_nodes(&mut self, draft: &Draft<'_>, job: JobId) {
        let first = draft.cluster().partition(draft.partition()).nodes.start;
        let Some(placement) = draft.placement(job) else { return };
        for &gpu in placement.gpus.iter() {
            let node = (draft.cluster().gpu(gpu).node.0 - first) as usize;
            self.losses.values_mut().for_each(|losses| losses[node] = None);
            if let Some(loss) = self.node_losses.get_mut(node) {
                *loss = None;
            }
        }
    }

    /// Preempts jobs for `job` if its value exceeds what that loses.
    fn preempt_for(&mut self, draft: &mut Draft<'_>, job: JobId) -> bool {
        let value = self.review.values.of(job);
        let size = draft.cluster().partition(draft.partition()).node_size_max();
        let on_one = if value.gpus <= size { self.on_one_node(draft, value.gpus) } else { None };
        let on_whole =
            if value.gpus >= size { self.on_whole_nodes(draft, value, size) } else { None };
        // The first of equals preempts fewer jobs.
        let clearing = on_one.into_iter().chain(on_whole).min_by_key(|found| found.loss);
        clearing.is_some_and(|clearing| {
            value.value > clearing.loss && self.carry_out(draft, job, clearing.victims)
        })
    }

    /// The node with the least loss, the first of equals.
    fn on_one_node(&mut self, draft: &Draft<'_>, gpus: u32) -> Option<Clearing> {
        let nodes = draft.cluster().partition(draft.partition()).nodes.clone();
        let values = self.review.values;
        let losses = self.losses.entry(gpus).or_insert_with(|| vec![None; nodes.len()]);
        let with_loss = losses.iter_mut().zip(nodes.map(NodeId)).map(|(loss, node)| {
            let clear = || clear(draft, values, node, gpus).map_or(i64::MAX, |found| found.loss);
            (*loss.get_or_insert_with(clear), node)
        });
        let (_, node) = with_loss.min().filter(|&(loss, _)| loss < i64::MAX)?;
        clear(draft, values, node, gpus)
    }

    /// Whole nodes with the least loss, and a part of one more.
    fn on_whole_nodes(
        &mut self,
        draft: &Draft<'_>,
        gang: &JobValue,
        size: u32,
    ) -> Option<Clearing> {
        let (whole, rest) = ((gang.gpus / size) as usize, gang.gpus % size);
        let cleared = self.cheapest_nodes(draft, size, whole);
        if cleared.len() < whole {
            return None;
        }
        let tenants =
            |&node| up_gpus(draft, node).flat_map(|gpu| draft.tenants(gpu).iter().copied());
        let mut victims: Vec<JobId> = cleared.iter().flat_map(tenants).collect();
        if rest > 0 {
            let nodes = draft.cluster().partition(draft.partition()).nodes.clone().map(NodeId);
            let others = nodes.filter(|node| !cleared.contains(node));
            let found = others.filter_map(|node| clear(draft, self.review.values, node, rest));
            victims.extend(found.min_by_key(|found| found.loss)?.victims);
        }
        victims.sort_unstable();
        victims.dedup();
        let free = draft.free_count() + freed_gpus(draft, &victims);
        Some(self.with_moves(draft, gang, Clearing { loss: 0, victims, free }))
    }

    /// The first `count` nodes by loss, or as many as are up.
    fn cheapest_nodes(&mut self, draft: &Draft<'_>, size: u32, count: usize) -> Vec<NodeId> {
        let nodes = draft.cluster().partition(draft.partition()).nodes.clone();
        self.node_losses.resize(nodes.len(), None);
        let mut order: Vec<(i64, NodeId)> = Vec::with_capacity(nodes.len());
        for (loss, node) in self.node_losses.iter_mut().zip(nodes.map(NodeId)) {
            if up_gpus(draft, node).count() == size as usize {
                let known = loss.get_or_insert_with(|| node_loss(draft, self.review.values, node));
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

    /// Gives the GPUs that `gang` leaves free to the victims with the most value. They only move, and lose
    /// their value for the time of a restore, as a part of the time that the gang would stay.
    fn with_moves(&self, draft: &Draft<'_>, gang: &JobValue, mut clearing: Clearing) -> Clearing {
        let values = self.review.values;
        let left_over = clearing.free.saturating_sub(gang.gpus);
        let (moved, stopped) = self.split_by_fit(clearing.victims.clone(), left_over);
        let taken: u32 = moved.iter().map(|&victim| values.of(victim).gpus).sum();
        clearing.free = gang.gpus + left_over - taken;
        let moving = moved.into_iter().map(|victim| {
            let loss = values.of(victim).loss;
            let away_ms = restore_ms(draft.job(victim)).min(gang.remaining_ms);
            let part = i128::from(loss) * i128::from(away_ms) / i128::from(gang.remaining_ms);
            let part = i64::try_from(part).expect("a part is less than the whole");
            // A job that must not be preempted must not move either.
            if loss == i64::MAX { loss } else { part }
        });
        clearing.loss = moving.fold(loss_of(values, &stopped), i64::saturating_add);
        clearing
    }

    /// The jobs that `free` GPUs go to, in order of value per GPU, and the others.
    fn split_by_fit(&self, jobs: Vec<JobId>, mut free: u32) -> (Vec<JobId>, Vec<JobId>) {
        self.review.values.by_value(jobs).into_iter().partition(|&job| {
            let rest = free.checked_sub(self.review.values.of(job).gpus);
            free = rest.unwrap_or(free);
            rest.is_some()
        })
    }

    /// Preempts `victims` and places `job`, then the victims with the most value that fit, and then those
    /// that were preempted without need or find other GPUs. No job moves that can stay.
    fn carry_out(&mut self, draft: &mut Draft<'_>, job: JobId, victims: Vec<JobId>) -> bool {
        let mut before: BTreeMap<JobId, Placement> = BTreeMap::new();
        for &victim in &victims {
            self.forget_nodes(draft, victim);
            before.insert(victim, draft.placement(victim).expect("a tenant has GPUs").clone());
            draft.drop(victim);
        }
        let placed = draft.place_exclusive(job);
        self.forget_nodes(draft, job);
        let mut newcomers = vec![job];
        let is_taken = |draft: &Draft<'_>, newcomers: &[JobId], victim| {
            let mut tenants = before[&victim].gpus.iter().flat_map(|&gpu| draft.tenants(gpu));
            tenants.any(|tenant| newcomers.contains(tenant))
        };
        let (best, others) = self.split_by_fit(victims, draft.free_count());
        let (moving, staying): (Vec<JobId>, Vec<JobId>) =
            best.into_iter().partition(|&victim| is_taken(draft, &newcomers, victim));
        for victim in [staying, moving, others].into_iter().flatten() {
            if !is_taken(draft, &newcomers, victim) {
                draft.place(victim, before[&victim].clone());
            } else if draft.place_exclusive(victim) {
                self.forget_nodes(draft, victim);
                newcomers.push(victim);
            }
        }
        placed
    }
}

/// The loss of clearing a node: the losses of its tenants, by the part of their GPUs that is there.
fn node_loss(draft: &Draft<'_>, values: &JobValues, node: NodeId) -> i64 {
    let tenants = up_gpus(draft, node).flat_map(|gpu| draft.tenants(gpu));
    let per_gpu = tenants.map(|&job| {
        let value = values.of(job);
        value.loss / i64::from(value.gpus)
    });
    per_gpu.fold(0, i64::saturating_add)
}

/// The number of GPUs that have no tenants but `victims`, which are in order.
fn freed_gpus(draft: &Draft<'_>, victims: &[JobId]) -> u32 {
    let is_freed = |gpu: GpuId| {
        let tenants = draft.tenants(gpu);
        // Counted with the first of its tenants.
        tenants.iter().all(|tenant| victims.binary_search(tenant).is_ok()).then(|| tenants[0])
    };
    let freed = victims.iter().map(|&job| {
        let gpus = draft.placement(job).map_or(&[][..], |placement| &placement.gpus);
        let open = gpus.iter().filter(|&&gpu| !draft.occupancy().is_closed(gpu));
        open.filter(|&&gpu| is_freed(gpu) == Some(job)).count()
    });
    u32::try_from(freed.sum::<usize>()).expect("GPUs are counted in u32")
}
