//! Guests of any residents: a gang takes seats on free GPUs and beside others, of whatever size and however
//! many, on as few nodes as it can.

use super::Rules;
use super::rates::{beside, rate, slowed, times};
use super::worth::{Ledger, Worth};
use crate::remaining::restore_ms;
use tandem_core::{Draft, GpuId, Job, JobId, NodeId, PPM_ONE, Placement, SubBatch};

const ONE: i64 = PPM_ONE as i64;
/// A seat is judged by this much time: later there will be other seats.
const SEAT_MS: i64 = 600_000;
/// What guests cost others counts this much more than what they gain, in percent: rates are believed, and
/// a guest who leaves again has to restore.
const CAUTION_PERCENT: i64 = 110;
/// No gain counts for more, so that the matching can add them up.
const GAIN_MAX: i128 = 1 << 50;
/// Nodes looked at for one guest; the search goes round in larger partitions.
const NODES_MAX: u32 = 128;
/// Guests that are looked for seats in one review.
const GUESTS_MAX: usize = 128;

/// Milliseconds that everyone together gains from a guest at `rate` that costs others `cost` moments
/// per moment, both in parts per million, until it or another of them ends.
pub(super) fn gain(guest: &Job, worth: &Worth, rate: i64, cost: i64, others_end_ms: i64) -> i64 {
    let own_end_ms = worth.left_ms.saturating_mul(ONE) / rate.max(1);
    let lasts_ms = own_end_ms.min(others_end_ms).min(SEAT_MS);
    let cost = i128::from(cost) * i128::from(CAUTION_PERCENT) / 100;
    let moments = i128::from(times(rate, worth.price)) - cost;
    let restore = i128::from(restore_ms(guest)) * i128::from(worth.price);
    let gain = (moments * i128::from(lasts_ms) - restore) / i128::from(ONE);
    i64::try_from(gain.min(GAIN_MAX)).unwrap_or(i64::MIN)
}

/// The way to run `guest` in the memory that is left on all of `gpus`.
pub(super) fn way_on(
    draft: &Draft<'_>,
    rules: &Rules,
    guest: &Job,
    gpus: &[GpuId],
) -> Option<SubBatch> {
    let context = draft.rules().context;
    let fits = |way: &SubBatch| {
        gpus.iter().all(|&gpu| {
            let used = draft.occupancy().memory_used(gpu);
            used + way.memory + context <= draft.cluster().gpu(gpu).memory
        })
    };
    guest.spec.sub_batch_options().take(if rules.accumulate { usize::MAX } else { 1 }).find(fits)
}

/// Seats for a guest.
#[derive(Clone, Debug)]
struct Seats {
    gpus: Vec<GpuId>,
    /// What the guest keeps of its speed there, in parts per million.
    rate: i64,
    /// Moments that others lose per moment, in parts per million.
    cost: i64,
    /// When the first of the others ends.
    others_end_ms: i64,
}

/// As many of something, to calculate with.
fn count(things: usize) -> i64 {
    i64::try_from(things).expect("GPUs are counted in u32")
}

impl Seats {
    const NONE: Seats = Seats { gpus: Vec::new(), rate: ONE, cost: 0, others_end_ms: i64::MAX };

    fn add(&mut self, more: Seats) {
        self.gpus.extend(more.gpus);
        self.rate = self.rate.min(more.rate);
        self.cost = self.cost.saturating_add(more.cost);
        self.others_end_ms = self.others_end_ms.min(more.others_end_ms);
    }
}

/// Gives seats to those who wait, in order, where everyone together gains; `false` if nowhere.
pub(super) fn seat(
    draft: &mut Draft<'_>,
    ledger: &Ledger,
    rules: &Rules,
    first_node: &mut u32,
) -> bool {
    let mut changed = false;
    let waiting = ledger.waiting().iter().copied();
    let waiting: Vec<JobId> = waiting.filter(|&job| draft.placement(job).is_none()).collect();
    for guest in waiting.into_iter().take(GUESTS_MAX) {
        let view = View { draft, ledger, rules, guest: draft.job(guest), worth: ledger.of(guest) };
        let Some(placement) = view.best(*first_node) else { continue };
        draft.place(guest, placement);
        changed = true;
    }
    *first_node = first_node.wrapping_add(NODES_MAX);
    changed
}

/// What a guest sees who looks for seats.
struct View<'a, 'd> {
    draft: &'a Draft<'d>,
    ledger: &'a Ledger,
    rules: &'a Rules,
    guest: &'a Job,
    worth: &'a Worth,
}

impl View<'_, '_> {
    fn best(&self, first_node: u32) -> Option<Placement> {
        let partition = self.draft.cluster().partition(self.draft.partition());
        let count = partition.nodes.end - partition.nodes.start;
        let start = first_node % count.max(1);
        let round = |step: u32| NodeId(partition.nodes.start + (start + step) % count);
        let nodes = (0..count.min(NODES_MAX)).map(round);
        let size = partition.node_size_max();
        let (seats, gain) = if self.worth.gpus <= size {
            self.on_one_node(nodes)?
        } else {
            self.on_several_nodes(nodes, size)?
        };
        let way = way_on(self.draft, self.rules, self.guest, &seats.gpus)?;
        let on = Placement::on(seats.gpus);
        (gain > 0).then_some(Placement { sub_batches: way.count, ..on })
    }

    fn gain(&self, seats: &Seats) -> i64 {
        gain(self.guest, self.worth, seats.rate, seats.cost, seats.others_end_ms)
    }

    fn on_one_node(&self, nodes: impl Iterator<Item = NodeId>) -> Option<(Seats, i64)> {
        let offers = nodes.filter_map(|node| self.on_node(node, self.worth.gpus as usize));
        let offers = offers.map(|seats| (self.gain(&seats), seats));
        // The first of equals.
        let best = offers.reduce(|best, offer| if offer.0 > best.0 { offer } else { best });
        best.map(|(gain, seats)| (seats, gain))
    }

    /// Whole nodes, the best first, and a part of one more.
    fn on_several_nodes(
        &self,
        nodes: impl Iterator<Item = NodeId> + Clone,
        size: u32,
    ) -> Option<(Seats, i64)> {
        let (whole, rest) = ((self.worth.gpus / size) as usize, self.worth.gpus % size);
        let mut offers: Vec<(i64, NodeId, Seats)> = nodes
            .clone()
            .filter_map(|node| {
                let seats = self.on_node(node, size as usize)?;
                Some((self.balance(&seats), node, seats))
            })
            .collect();
        offers.sort_by_key(|&(balance, node, _)| (std::cmp::Reverse(balance), node));
        if offers.len() < whole {
            return None;
        }
        let taken: Vec<NodeId> = offers[..whole].iter().map(|offer| offer.1).collect();
        let mut seats = Seats::NONE;
        offers.into_iter().take(whole).for_each(|offer| seats.add(offer.2));
        if rest > 0 {
            let others = nodes.filter(|node| !taken.contains(node));
            let parts = others.filter_map(|node| self.on_node(node, rest as usize));
            let parts = parts.map(|seats| (self.balance(&seats), seats));
            let best = parts.reduce(|best, part| if part.0 > best.0 { part } else { best });
            seats.add(best?.1);
        }
        let gain = self.gain(&seats);
        Some((seats, gain))
    }

    /// Moments gained on a part of a gang's GPUs.
    fn balance(&self, seats: &Seats) -> i64 {
        let part = times(seats.rate, self.worth.price) / i64::from(self.worth.gpus);
        part * count(seats.gpus.len()) - seats.cost
    }

    /// The cheapest `wanted` seats of a node, free ones first.
    fn on_node(&self, node: NodeId, wanted: usize) -> Option<Seats> {
        let (free, groups) = self.groups(node, wanted)?;
        let mut offers: Vec<(i64, Seats)> = Vec::with_capacity(groups.len());
        for (tenants, gpus) in groups {
            if let Some(seats) = self.beside(tenants, gpus) {
                let used = seats.gpus.len().min(wanted);
                offers.push((seats.cost / count(used), seats));
            }
        }
        offers.sort_by_key(|(cost, seats)| (*cost, seats.gpus[0]));
        let mut found = Seats { gpus: free, ..Seats::NONE };
        found.gpus.truncate(wanted);
        for (_, seats) in offers {
            if found.gpus.len() == wanted {
                break;
            }
            found.add(seats);
            found.gpus.truncate(wanted);
        }
        (found.gpus.len() == wanted).then_some(found)
    }

    /// The free GPUs of a node, and those with memory and tenants to spare by who is there; `None` if
    /// they are fewer than `wanted`.
    #[expect(clippy::type_complexity, reason = "two lists that are used at once")]
    fn groups(
        &self,
        node: NodeId,
        wanted: usize,
    ) -> Option<(Vec<GpuId>, Vec<(&[JobId], Vec<GpuId>)>)> {
        let occupancy = self.draft.occupancy();
        let least = self.guest.spec.sub_batch_options().last().map(|way| way.memory);
        let least =
            least.filter(|_| self.rules.accumulate).unwrap_or(self.guest.spec.profile.memory);
        let memory = least + self.draft.rules().context;
        let mut free = Vec::new();
        let mut groups: Vec<(&[JobId], Vec<GpuId>)> = Vec::new();
        let mut count = 0;
        for gpu in self.draft.cluster().nodes()[node.index()].gpus.clone().map(GpuId) {
            let tenants = occupancy.tenants(gpu);
            let full = !occupancy.has_memory(gpu, memory);
            if occupancy.is_closed(gpu) || full || tenants.len() >= self.rules.tenants_max {
                continue;
            }
            count += 1;
            match groups.iter_mut().find(|group| group.0 == tenants) {
                _ if tenants.is_empty() => free.push(gpu),
                Some(group) => group.1.push(gpu),
                None => groups.push((tenants, vec![gpu])),
            }
        }
        (count >= wanted).then_some((free, groups))
    }

    /// Seats on `gpus` beside `tenants`, who have them together; `None` if one of all does not fit or does
    /// not put up with it.
    fn beside(&self, tenants: &[JobId], gpus: Vec<GpuId>) -> Option<Seats> {
        let (draft, gpu) = (self.draft, gpus[0]);
        let jobs = || tenants.iter().map(|&job| draft.job(job));
        let way = way_on(draft, self.rules, self.guest, &gpus)?;
        let rate_of_guest = slowed(beside(draft, self.guest, jobs(), gpu)?, way.slowdown).max(1);
        let (mut cost, mut others_end_ms) = (0_i64, i64::MAX);
        for tenant in jobs() {
            let others = jobs().filter(|other| other.id() != tenant.id());
            let then = beside(draft, tenant, others.chain([self.guest]), gpu)?;
            let present = rate(draft, tenant.id(), None).max(1);
            let worth = self.ledger.of(tenant.id());
            cost = cost.saturating_add(times((present - then).max(0), worth.delay()));
            let end_ms = worth.left_ms.saturating_mul(ONE) / present;
            others_end_ms = others_end_ms.min(end_ms);
        }
        Some(Seats { gpus, rate: rate_of_guest, cost, others_end_ms })
    }
}
