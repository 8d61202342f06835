//! Several runs at once: the inner loop of a decision.
//!
//! The same rules as in a [`Run`](super::run::Run), in single precision and with times counted from now,
//! for several vectors of budgets side by side. Every step takes each of them to its own next event.
//! Nothing here branches on what happens in a run, so that a processor does the arithmetic of four
//! runs in one instruction. Ties are not told from near ties: good enough to compare vectors, and
//! nothing that is reported comes from here.

use super::evaluate::{Operators, Want};
use super::gpu::Scheduler;
use std::array::from_fn;
use wide::f32x4;

/// Fours in a batch: a processor works on one while it waits for results of the other.
const FOURS: usize = 2;
/// Runs in a batch.
pub(super) const WIDTH: usize = 4 * FOURS;
/// Instants closer than this are one.
const SAME_NS: f32 = 0.05;
/// SMs fewer than this are none.
const NO_SMS: f32 = 1e-3;

/// An operator under a cap.
#[derive(Clone, Copy, Debug)]
struct Ask {
    /// How long it takes alone, SMs it asks for, what one SM adds to its speed, and the fraction of the
    /// peak bandwidth at full speed.
    work: f32x4,
    /// Time from the end of the one before to its issue at least; time from its issue to that of the
    /// next at least; and, in its bits, which is the next.
    order: f32x4,
}

/// The operators of tenants under all caps that are compared, one list after the other.
#[derive(Debug, Default)]
pub(super) struct Asks(Vec<Ask>);

impl Asks {
    /// Adds the operators of a tenant under a cap; says where they begin.
    pub(super) fn add(&mut self, device: &Operators<'_>, tenant: usize, cap: u32) -> u32 {
        let (wants, tenant) = (device.wants(tenant), &device.list()[tenant]);
        let first = self.0.len();
        let ask = |(index, want): (usize, &Want)| {
            let is_last = index + 1 == wants.len();
            let demand = want.sms.min(f64::from(cap));
            let work = [want.duration_ns, demand, 1.0 / want.enough, want.beta];
            let gap_ns = if index == 0 { tenant.host_ns } else { 0.0 };
            let launch_ns = if is_last { f64::NEG_INFINITY } else { tenant.launch_ns };
            let next = if is_last { first } else { first + index + 1 };
            Ask {
                work: f32x4::new(work.map(|value| value as f32)),
                order: f32x4::new([
                    gap_ns as f32,
                    launch_ns as f32,
                    f32::from_bits(next as u32),
                    0.0,
                ]),
            }
        };
        self.0.extend(wants.iter().enumerate().map(ask));
        first as u32
    }
}

/// A tenant in four runs.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// What is left of the operator in flight, in nanoseconds alone, or of the time to the next issue.
    left: f32x4,
    /// Time until an interval of launches has passed.
    launch: f32x4,
    /// SMs the operator in flight asks for; none if there is none.
    demand: f32x4,
    per_sm: f32x4,
    beta: f32x4,
    /// SMs that operators ask for that were issued before and are still in flight: it says who was
    /// issued before whom, too.
    earlier: f32x4,
    /// The operator that is issued next, in the bits.
    next: f32x4,
    /// Operators that have ended.
    count: f32x4,
    speed: f32x4,
    /// Time to the end of what is left.
    ends: f32x4,
}

/// A tenant in one run: the first fields of a [`Lane`].
type Fields = [f32; 8];

/// One run, while it is not in a batch.
#[derive(Clone, Debug)]
pub(super) struct Paused<const N: usize>([Fields; N]);

impl<const N: usize> Paused<N> {
    /// Before anything has happened; `first` says where each tenant's operators begin.
    pub(super) fn new(asks: &Asks, first: &[u32]) -> Self {
        let mut lanes = [[f32::INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]; N];
        for (lane, &first) in lanes.iter_mut().zip(first) {
            lane[0] = asks.0[first as usize].order.to_array()[0];
            lane[6] = f32::from_bits(first);
        }
        Self(lanes)
    }

    /// What a tenant has done, in nanoseconds alone.
    pub(super) fn done_ns(&self, device: &Operators<'_>, tenant: usize) -> f64 {
        let [left, _, demand, .., count] = self.0[tenant];
        let ends = device.ends_alone(tenant);
        let (iterations, at) = (count as usize / ends.len(), count as usize % ends.len());
        let before = at.checked_sub(1).map_or(0.0, |last| ends[last]);
        let duration = device.list()[tenant].operators()[at].duration_ns;
        let in_flight = if demand > 0.0 { duration - f64::from(left) } else { 0.0 };
        iterations as f64 * ends[ends.len() - 1] + before + in_flight
    }
}

/// Some runs.
pub(super) struct Batch<'a, const N: usize> {
    asks: &'a [Ask],
    sms: f32x4,
    is_fifo: bool,
    /// The factor of κ beside one other, and beside two or more.
    slowed: [f32x4; 2],
    lanes: [[Lane; N]; FOURS],
    /// Time that is left.
    window: [f32x4; FOURS],
    /// Events so far.
    events: u64,
}

impl<'a, const N: usize> Batch<'a, N> {
    pub(super) fn new(device: &Operators<'_>, asks: &'a Asks) -> Self {
        let gpu = device.gpu();
        let slowed = |others| f32x4::splat((1.0 / (1.0 + gpu.constants.kappa * others)) as f32);
        Self {
            asks: &asks.0,
            sms: f32x4::splat(gpu.sms as f32),
            is_fifo: gpu.scheduler == Scheduler::Fifo,
            slowed: [1.0, 2.0].map(slowed),
            lanes: [[Lane::default(); N]; FOURS],
            window: [f32x4::ZERO; FOURS],
            events: 0,
        }
    }

    /// Events so far, as many in every run of a batch: what it has cost.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Lets runs go on for a while, as many as there are in a batch or fewer.
    pub(super) fn go_on(&mut self, runs: &mut [&mut Paused<N>], window_ns: f32) {
        let last = runs.len() - 1;
        for four in 0..FOURS {
            for (tenant, lane) in self.lanes[four].iter_mut().enumerate() {
                // In place of those that are missing the last goes on several times.
                let fields: [Fields; 4] = from_fn(|at| runs[(4 * four + at).min(last)].0[tenant]);
                let field = |field: usize| f32x4::new(fields.map(|fields| fields[field]));
                [lane.left, lane.launch, lane.demand, lane.per_sm] = from_fn(field);
                [lane.beta, lane.earlier, lane.next, lane.count] = from_fn(|at| field(4 + at));
            }
            self.window[four] = f32x4::splat(window_ns);
            self.divide(four);
        }
        loop {
            self.events += WIDTH as u64;
            let mut is_over = true;
            for four in 0..FOURS {
                is_over &= self.step(four);
            }
            if is_over {
                break;
            }
        }
        for (at, run) in runs.iter_mut().enumerate() {
            for (fields, lane) in run.0.iter_mut().zip(&self.lanes[at / 4]) {
                let Lane { left, launch, demand, per_sm, beta, earlier, next, count, .. } = *lane;
                *fields = [left, launch, demand, per_sm, beta, earlier, next, count]
                    .map(|field| field.to_array()[at % 4]);
            }
        }
    }

    /// Takes four runs to their next event, or to the end of the window. Says whether all are there.
    #[inline(always)]
    fn step(&mut self, four: usize) -> bool {
        let (zero, lanes) = (f32x4::ZERO, &mut self.lanes[four]);
        let mut soonest = lanes[0].ends;
        for lane in &lanes[1..] {
            soonest = soonest.fast_min(lane.ends);
        }
        let is_over = self.window[four].simd_lt(soonest);
        let span = soonest.fast_min(self.window[four]).fast_max(zero);
        self.window[four] -= span;
        // Whose event it is, and what becomes free.
        let mut is_taken = is_over;
        let mut is_own = [zero; N];
        let (mut total, mut ended, mut before) = (zero, zero, zero);
        let (mut launch, mut next) = (zero, zero);
        for (lane, is_own) in lanes.iter_mut().zip(&mut is_own) {
            lane.left -= span * lane.speed;
            lane.launch -= span;
            let is_soonest = lane.ends.simd_eq(soonest);
            *is_own = is_taken.bitselect(zero, is_soonest);
            is_taken |= is_soonest;
            total += lane.demand;
            ended |= *is_own & lane.demand;
            before |= *is_own & lane.earlier;
            launch |= *is_own & lane.launch;
            next |= *is_own & lane.next;
        }
        // What it asks for then.
        let asks = next.to_array().map(|next| &self.asks[next.to_bits() as usize]);
        let [duration, demand, per_sm, beta] = f32x4::transpose(asks.map(|ask| ask.work));
        let [gap, interval, after, _] = f32x4::transpose(asks.map(|ask| ask.order));
        let has_ended = zero.simd_lt(ended);
        let ready = has_ended & launch.fast_max(gap);
        let is_due = ready.simd_lt(f32x4::splat(SAME_NS));
        let left = is_due.bitselect(duration, ready);
        let demand = is_due & demand;
        let launch = is_due.bitselect(interval, launch);
        let next = is_due.bitselect(after, next);
        let others = total - ended;
        let count = has_ended & f32x4::ONE;
        for (lane, is_own) in lanes.iter_mut().zip(is_own) {
            let earlier = lane.earlier - (before.simd_lt(lane.earlier) & ended);
            lane.earlier = is_own.bitselect(others, earlier);
            lane.left = is_own.bitselect(left, lane.left);
            lane.launch = is_own.bitselect(launch, lane.launch);
            lane.demand = is_own.bitselect(demand, lane.demand);
            lane.per_sm = is_own.bitselect(per_sm, lane.per_sm);
            lane.beta = is_own.bitselect(beta, lane.beta);
            lane.next = is_own.bitselect(next, lane.next);
            lane.count += is_own & count;
        }
        self.divide(four);
        is_over.all()
    }

    /// Hands out SMs, sets the speeds of all operators in flight and says when they end.
    #[inline(always)]
    fn divide(&mut self, four: usize) {
        let (zero, one, lanes) = (f32x4::ZERO, f32x4::ONE, &mut self.lanes[four]);
        let (mut bandwidth, mut running) = (zero, zero);
        let mut part = one;
        if !self.is_fifo {
            let demand = lanes.iter().fold(zero, |sum, lane| sum + lane.demand);
            part = self.sms / demand.fast_max(self.sms);
        }
        for lane in lanes.iter_mut() {
            let sms = if self.is_fifo {
                let left = self.sms - lane.earlier;
                f32x4::splat(NO_SMS).simd_lt(left) & left.fast_min(lane.demand)
            } else {
                lane.demand * part
            };
            lane.speed = (sms * lane.per_sm).fast_min(one);
            bandwidth += lane.beta * lane.speed;
            running += zero.simd_lt(lane.speed) & one;
        }
        let beside = f32x4::splat(2.5).simd_lt(running).bitselect(self.slowed[1], self.slowed[0]);
        let slowed = f32x4::splat(1.5).simd_lt(running).bitselect(beside, one);
        let lost = one - one / bandwidth.fast_max(one);
        for lane in lanes.iter_mut() {
            let speed = lane.speed * slowed * (one - lane.beta * lost);
            // What waits comes nearer by itself.
            lane.speed = speed + (lane.demand.simd_eq(zero) & one);
            lane.ends = lane.left / lane.speed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::evaluate::Sharing;
    use crate::device::gpu::Gpu;
    use crate::device::tenant::{Kind, Operator, Tenant};
    use tandem_core::Ppm;

    fn tenant(count: u32, wide: u32, launch_ns: f64) -> Tenant {
        let operator = |index: u32| Operator {
            sms: f64::from(wide + index * 13 % 90),
            duration_ns: f64::from(3_000 + index * 7_919 % 90_000),
            kind: [Kind::Compute, Kind::Memory, Kind::Unknown][index as usize % 3],
        };
        let mut tenant = Tenant::new("t", (0..count).map(operator).collect()).unwrap();
        tenant.launch_ns = launch_ns;
        tenant
    }

    #[test]
    fn a_batch_agrees_with_full_evaluations() {
        let tenants = [tenant(17, 1, 2e3), tenant(40, 20, 1e4), tenant(29, 50, 2.8e4)];
        for scheduler in [Scheduler::Fifo, Scheduler::Prop] {
            let gpu = Gpu { scheduler, ..Gpu::known("v100").unwrap() };
            let device = Operators::new(&gpu, &tenants, 1).unwrap();
            // More than one batch, and not all of the second.
            let vectors: Vec<[Ppm; 3]> = (1..=10)
                .map(|step| [step, 11 - step, 4].map(|tenth| Ppm(tenth * 100_000)))
                .collect();
            let mut asks = Asks::default();
            let firsts: Vec<[u32; 3]> = vectors
                .iter()
                .map(|vector| from_fn(|index| asks.add(&device, index, gpu.cap(vector[index]))))
                .collect();
            let mut runs: Vec<Paused<3>> =
                firsts.iter().map(|first| Paused::new(&asks, first)).collect();
            let mut batch = Batch::new(&device, &asks);
            // In two parts, because runs are continued.
            for _ in 0..2 {
                for runs in runs.chunks_mut(WIDTH) {
                    batch.go_on(&mut runs.iter_mut().collect::<Vec<_>>(), 5e8);
                }
            }
            for (vector, run) in vectors.iter().zip(&runs) {
                let exact = device.evaluate(Sharing::Budgets(vector)).unwrap().y;
                let found: [f64; 3] = from_fn(|index| run.done_ns(&device, index) / 1e9);
                let near = exact.iter().zip(found).all(|(exact, y)| (exact / y - 1.0).abs() < 0.02);
                assert!(near, "{scheduler:?} {vector:?}: {found:?} instead of {exact:?}");
            }
        }
    }
}
