//! Sharing with hosts of any size: a gang uses free GPUs and GPUs of several tenants together, on as
//! few nodes as possible.

use super::Review;
use super::rates::{ONE, ppm, rate, rate_beside, times};
use super::sharing_gain::{SharedRun, sharing_gain};
use super::value::JobValue;
use crate::kit::sub_batches_on;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuId, Job, JobId, NodeId, Placement, SubBatch};

/// GPUs for a job that shares.
#[derive(Clone, Debug)]
struct Slots {
    gpus: Vec<GpuId>,
    run: SharedRun,
}

fn count(gpus: usize) -> i64 {
    i64::try_from(gpus).expect("GPUs are counted in u32")
}

impl Slots {
    /// GPUs without tenants.
    fn free(gpus: Vec<GpuId>) -> Self {
        Self { gpus, run: SharedRun { rate: ONE, cost: 0, others_end_ms: i64::MAX } }
    }

    fn add(&mut self, more: Slots) {
        self.gpus.extend(more.gpus);
        self.run.rate = self.run.rate.min(more.run.rate);
        self.run.cost = self.run.cost.saturating_add(more.run.cost);
        self.run.others_end_ms = self.run.others_end_ms.min(more.run.others_end_ms);
    }
}

/// Places pending jobs, in order of value, on free and shared GPUs where all jobs together gain; `false`
/// if nowhere. The search for each begins at `first_node` of the partition.
pub(super) fn share_mixed(
    draft: &mut Draft<'_>,
    review: &Review<'_>,
    first_node: &mut u32,
) -> bool {
    let mut changed = false;
    let pending = review.values.pending().iter().copied();
    let pending: Vec<JobId> = pending.filter(|&job| draft.placement(job).is_none()).collect();
    let rates = PresentRates::default();
    for job in pending.into_iter().take(review.tuning.mix_jobs_max) {
        let value = review.values.of(job);
        let search = PartnerSearch { draft, review, job: draft.job(job), value, rates: &rates };
        let Some(placement) = search.best(*first_node) else { continue };
        draft.place(job, placement);
        rates.0.borrow_mut().clear();
        changed = true;
    }
    *first_node = first_node.wrapping_add(review.tuning.mix_nodes_max);
    changed
}

/// The rates of placed jobs, kept from one search to the next until the plan changes.
#[derive(Default)]
struct PresentRates(RefCell<BTreeMap<JobId, i64>>);

impl PresentRates {
    /// In parts per million.
    fn of(&self, draft: &Draft<'_>, job: JobId) -> i64 {
        *self.0.borrow_mut().entry(job).or_insert_with(|| rate(draft, job, None))
    }
}

/// The search for the GPUs of one job.
struct PartnerSearch<'a, 'd> {
    draft: &'a Draft<'d>,
    review: &'a Review<'a>,
    job: &'a Job,
    value: &'a JobValue,
    rates: &'a PresentRates,
}

impl PartnerSearch<'_, '_> {
    fn best(&self, first_node: u32) -> Option<Placement> {
        let partition = self.draft.cluster().partition(self.draft.partition());
        let count = partition.nodes.end - partition.nodes.start;
        let start = first_node % count.max(1);
        let round = |step: u32| NodeId(partition.nodes.start + (start + step) % count);
        let nodes = (0..count.min(self.review.tuning.mix_nodes_max)).map(round);
        let size = partition.node_size_max();
        let (slots, gain) = if self.value.gpus <= size {
            self.on_one_node(nodes)?
        } else {
            self.on_several_nodes(nodes, size)?
        };
        let option = self.sub_batches_on(&slots.gpus)?;
        let on = Placement::on(slots.gpus);
        (gain > 0).then_some(Placement { sub_batches: option.count, ..on })
    }

    fn sub_batches_on(&self, gpus: &[GpuId]) -> Option<SubBatch> {
        sub_batches_on(self.draft, self.job, gpus, self.review.parts.accumulate)
    }

    fn gain(&self, slots: &Slots) -> i64 {
        sharing_gain(self.job, self.review, slots.run)
    }

    fn on_one_node(&self, nodes: impl Iterator<Item = NodeId>) -> Option<(Slots, i64)> {
        let offers = nodes.filter_map(|node| self.on_node(node, self.value.gpus as usize));
        let offers = offers.map(|slots| (self.gain(&slots), slots));
        // The first of equals.
        let best = offers.reduce(|best, offer| if offer.0 > best.0 { offer } else { best });
        best.map(|(gain, slots)| (slots, gain))
    }

    /// Whole nodes, the best first, and a part of one more.
    fn on_several_nodes(
        &self,
        nodes: impl Iterator<Item = NodeId> + Clone,
        size: u32,
    ) -> Option<(Slots, i64)> {
        let (whole, rest) = ((self.value.gpus / size) as usize, self.value.gpus % size);
        let mut offers: Vec<(i64, NodeId, Slots)> = nodes
            .clone()
            .filter_map(|node| {
                let slots = self.on_node(node, size as usize)?;
                Some((self.balance(&slots), node, slots))
            })
            .collect();
        offers.sort_by_key(|&(balance, node, _)| (Reverse(balance), node));
        if offers.len() < whole {
            return None;
        }
        let taken: Vec<NodeId> = offers[..whole].iter().map(|offer| offer.1).collect();
        let mut slots = Slots::free(Vec::new());
        offers.into_iter().take(whole).for_each(|offer| slots.add(offer.2));
        if rest > 0 {
            let others = nodes.filter(|node| !taken.contains(node));
            let parts = others.filter_map(|node| self.on_node(node, rest as usize));
            let parts = parts.map(|slots| (self.balance(&slots), slots));
            let best = parts.reduce(|best, part| if part.0 > best.0 { part } else { best });
            slots.add(best?.1);
        }
        let gain = self.gain(&slots);
        Some((slots, gain))
    }

    /// What a part of the gang's GPUs gains per millisecond.
    fn balance(&self, slots: &Slots) -> i64 {
        let per_gpu = times(slots.run.rate, self.value.delay_cost) / i64::from(self.value.gpus);
        per_gpu * count(slots.gpus.len()) - slots.run.cost
    }

    /// The cheapest `wanted` GPUs of a node, free ones first.
    fn on_node(&self, node: NodeId, wanted: usize) -> Option<Slots> {
        let NodeGpus { free, shared } = self.usable_gpus(node, wanted)?;
        let mut offers: Vec<(i64, Slots)> = Vec::with_capacity(shared.len());
        for (tenants, gpus) in shared {
            if let Some(slots) = self.beside(tenants, gpus) {
                let used = slots.gpus.len().min(wanted);
                offers.push((slots.run.cost / count(used), slots));
            }
        }
        offers.sort_by_key(|(cost, slots)| (*cost, slots.gpus[0]));
        let mut found = Slots::free(free);
        found.gpus.truncate(wanted);
        for (_, slots) in offers {
            if found.gpus.len() == wanted {
                break;
            }
            found.add(slots);
            found.gpus.truncate(wanted);
        }
        (found.gpus.len() == wanted).then_some(found)
    }

    /// The GPUs of a node that have the memory and are open to another tenant; `None` if they are fewer
    /// than `wanted`.
    fn usable_gpus(&self, node: NodeId, wanted: usize) -> Option<NodeGpus<'_>> {
        let occupancy = self.draft.occupancy();
        let least = self.job.spec.sub_batch_options().last().map(|option| option.memory);
        let least = least.filter(|_| self.review.parts.accumulate);
        let memory = least.unwrap_or(self.job.spec.profile.memory) + self.draft.rules().context;
        let is_usable = |&gpu: &GpuId| {
            let full = !occupancy.has_memory(gpu, memory);
            let tenants = occupancy.tenants(gpu).len();
            !occupancy.is_closed(gpu) && !full && tenants < self.review.parts.tenants_max
        };
        let gpus = self.draft.cluster().nodes()[node.index()].gpus.clone().map(GpuId);
        let usable = gpus.clone().filter(is_usable).count();
        if usable < wanted {
            return None;
        }
        let shared = Vec::with_capacity(usable);
        let mut found = NodeGpus { free: Vec::with_capacity(wanted), shared };
        for gpu in gpus.filter(is_usable) {
            let tenants = occupancy.tenants(gpu);
            match found.shared.iter_mut().find(|group| group.0 == tenants) {
                _ if tenants.is_empty() => found.free.push(gpu),
                Some(group) => group.1.push(gpu),
                None => found.shared.push((tenants, vec![gpu])),
            }
        }
        Some(found)
    }

    /// `gpus` beside `tenants`, which hold them together; `None` if the jobs do not fit or one of them does
    /// not accept its slow-down.
    fn beside(&self, tenants: &[JobId], gpus: Vec<GpuId>) -> Option<Slots> {
        let (draft, gpu) = (self.draft, gpus[0]);
        let jobs = || tenants.iter().map(|&job| draft.job(job));
        let option = self.sub_batches_on(&gpus)?;
        let own_rate = rate_beside(draft, self.job, jobs(), gpu)?.times(option.rate());
        let (mut cost, mut others_end_ms) = (0_i64, i64::MAX);
        for tenant in jobs() {
            let others = jobs().filter(|other| other.id() != tenant.id());
            let then = ppm(rate_beside(draft, tenant, others.chain([self.job]), gpu)?);
            if tenant.spec.promise.is_service {
                // It has no end that could come later: its promise is all that counts.
                continue;
            }
            let present = self.rates.of(draft, tenant.id()).max(1);
            let value = self.review.values.of(tenant.id());
            cost = cost.saturating_add(times((present - then).max(0), value.delay_cost));
            let end_ms = value.remaining_ms.saturating_mul(ONE) / present;
            others_end_ms = others_end_ms.min(end_ms);
        }
        Some(Slots { gpus, run: SharedRun { rate: ppm(own_rate).max(1), cost, others_end_ms } })
    }
}

/// GPUs of a node.
struct NodeGpus<'a> {
    free: Vec<GpuId>,
    /// Those with tenants, grouped by tenants.
    shared: Vec<(&'a [JobId], Vec<GpuId>)>,
}
