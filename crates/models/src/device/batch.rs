//! Several runs at once: the inner loop of a decision.
//!
//! The rules of a [`DeviceRun`](super::run::DeviceRun) in single precision, with times relative to now, for
//! several budget vectors at once. Every step takes each run to its own next event. There are no branches on
//! the state of a run, so that a processor computes eight runs per instruction, or with as few instructions
//! as it needs; the results are equal to the bit. Ties are not distinguished from near ties: good enough to
//! compare vectors, and no reported result comes from here.

use super::evaluate::{OperatorDemand, Operators};
use super::gpu::SmScheduler;
use fearless_simd::{Level, Select, Simd, SimdBase, SimdInto, SimdMask, dispatch, f32x8};
use std::array::from_fn;

/// Runs in a batch.
pub(super) const WIDTH: usize = 8;
/// Runs that advance at once, two batches: a processor works on one while it waits for results of the other.
pub(super) const AT_ONCE: usize = 2 * WIDTH;
/// Times closer than this are equal.
const SAME_NS: f32 = 0.05;
/// Fewer SMs than this count as none.
const NO_SMS: f32 = 1e-3;

/// An operator under a cap: duration alone, SMs that it asks for, speed per SM, and fraction of the peak
/// bandwidth at full speed; shortest time from the end of the previous operator to its issue; shortest time
/// from its issue to the next; and, in its bits, the position of the next.
type OperatorRow = [f32; WIDTH];

/// The operators of tenants under all compared caps, one list after the other.
#[derive(Debug, Default)]
pub(super) struct CappedOperators(Vec<OperatorRow>);

impl CappedOperators {
    /// Adds the operators of a tenant under a cap; returns their position.
    pub(super) fn add(&mut self, device: &Operators<'_>, tenant: usize, cap: u32) -> u32 {
        let (demands, tenant) = (device.demands(tenant), &device.list()[tenant]);
        let first = self.0.len();
        let ask = |(index, want): (usize, &OperatorDemand)| {
            let is_last = index + 1 == demands.len();
            let demand = want.sms.min(f64::from(cap));
            let gap_ns = if index == 0 { tenant.host_ns } else { 0.0 };
            let launch_ns = if is_last { f64::NEG_INFINITY } else { tenant.launch_ns };
            let next = if is_last { first } else { first + index + 1 };
            let [duration, demand, per_sm, beta, gap, launch] =
                [want.duration_ns, demand, 1.0 / want.enough, want.beta, gap_ns, launch_ns]
                    .map(|value| value as f32);
            [duration, demand, per_sm, beta, gap, launch, f32::from_bits(next as u32), 0.0]
        };
        self.0.extend(demands.iter().enumerate().map(ask));
        first as u32
    }
}

/// A tenant in all runs of a batch.
#[derive(Clone, Copy)]
struct BatchLane<S: Simd> {
    /// Remaining time alone of the operator in flight, in nanoseconds, or time to the next issue.
    left: f32x8<S>,
    /// Time until the next launch is allowed.
    launch: f32x8<S>,
    /// SMs that the operator in flight asks for; zero without one.
    demand: f32x8<S>,
    per_sm: f32x8<S>,
    beta: f32x8<S>,
    /// SMs of operators in flight that were issued before, which also gives the order of issue.
    earlier: f32x8<S>,
    /// The next operator, in the bits.
    next: f32x8<S>,
    /// Completed operators.
    count: f32x8<S>,
    speed: f32x8<S>,
    /// Time to the end of the remainder.
    ends: f32x8<S>,
}

/// A tenant in one run: the first fields of a [`BatchLane`].
type Fields = [f32; 8];

/// One run while it is not in a batch.
#[derive(Clone, Debug)]
pub(super) struct PausedRun<const N: usize>([Fields; N]);

impl<const N: usize> PausedRun<N> {
    /// A run before its first event; `first` is the position of each tenant's operators.
    pub(super) fn new(asks: &CappedOperators, first: &[u32]) -> Self {
        let mut lanes = [[f32::INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]; N];
        for (lane, &first) in lanes.iter_mut().zip(first) {
            let [.., gap, _, _, _] = asks.0[first as usize];
            lane[0] = gap;
            lane[6] = f32::from_bits(first);
        }
        Self(lanes)
    }

    /// Work of a tenant, in nanoseconds alone.
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

/// Advances runs in batches.
pub(super) struct Batches<'a> {
    level: Level,
    asks: &'a [OperatorRow],
    sms: f32,
    is_fifo: bool,
    /// The factor of κ beside one other, and beside two or more.
    slowed: [f32; 2],
    /// Events so far.
    events: u64,
}

impl<'a> Batches<'a> {
    pub(super) fn new(device: &Operators<'_>, asks: &'a CappedOperators) -> Self {
        let gpu = device.gpu();
        let slowed = |others| (1.0 / (1.0 + gpu.constants.kappa * others)) as f32;
        Self {
            level: Level::new(),
            asks: &asks.0,
            sms: gpu.sms as f32,
            is_fifo: gpu.scheduler == SmScheduler::Fifo,
            slowed: [1.0, 2.0].map(slowed),
            events: 0,
        }
    }

    /// Events so far, equal in every run of a batch: the cost.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// Advances up to [`AT_ONCE`] runs.
    pub(super) fn advance<const N: usize>(
        &mut self,
        runs: &mut [&mut PausedRun<N>],
        window_ns: f32,
    ) {
        let steps = if runs.len() > WIDTH {
            dispatch!(self.level, simd => BatchRules { simd, given: self }.run::<N, 2>(runs, window_ns))
        } else {
            dispatch!(self.level, simd => BatchRules { simd, given: self }.run::<N, 1>(runs, window_ns))
        };
        self.events += WIDTH as u64 * steps;
    }
}

/// The rules of the runs of a batch.
#[derive(Clone, Copy)]
struct BatchRules<'a, S: Simd> {
    simd: S,
    given: &'a Batches<'a>,
}

impl<S: Simd> BatchRules<'_, S> {
    /// Advances this many batches of runs to the end of a window; returns the number of steps.
    #[inline(always)]
    fn run<const N: usize, const BATCHES: usize>(
        self,
        runs: &mut [&mut PausedRun<N>],
        window_ns: f32,
    ) -> u64 {
        let mut lanes: [_; BATCHES] = from_fn(|batch| self.enter(runs, WIDTH * batch));
        let mut window = [f32x8::splat(self.simd, window_ns); BATCHES];
        // Not in place: partial writes that are read soon after stall processors.
        let mut others = lanes;
        let (mut now, mut then) = (&mut lanes, &mut others);
        let mut steps = 0;
        loop {
            steps += BATCHES as u64;
            let mut is_over = true;
            for batch in 0..BATCHES {
                is_over &= self.step(&now[batch], &mut then[batch], &mut window[batch]);
            }
            if is_over {
                break;
            }
            (now, then) = (then, now);
        }
        for (lanes, runs) in then.iter().zip(runs.chunks_mut(WIDTH)) {
            for (tenant, lane) in lanes.iter().enumerate() {
                let BatchLane { left, launch, demand, per_sm, beta, earlier, next, count, .. } =
                    *lane;
                let fields = transpose([left, launch, demand, per_sm, beta, earlier, next, count]);
                for (run, fields) in runs.iter_mut().zip(fields) {
                    run.0[tenant] = fields.into();
                }
            }
        }
        steps
    }

    /// The batch of runs from `first` on.
    #[inline(always)]
    fn enter<const N: usize>(self, runs: &[&mut PausedRun<N>], first: usize) -> [BatchLane<S>; N] {
        let last = runs.len() - 1;
        let mut lanes = from_fn(|tenant| {
            // The last run is repeated in empty places.
            let fields = |at: usize| runs[(first + at).min(last)].0[tenant].simd_into(self.simd);
            let [left, launch, demand, per_sm, beta, earlier, next, count] =
                transpose(from_fn(fields));
            let (speed, ends) = (left, left);
            BatchLane { left, launch, demand, per_sm, beta, earlier, next, count, speed, ends }
        });
        self.divide(&mut lanes);
        lanes
    }

    /// Takes the runs to their next events, or to the end of the window. Returns whether all are there.
    #[inline(always)]
    fn step<const N: usize>(
        self,
        now: &[BatchLane<S>; N],
        then: &mut [BatchLane<S>; N],
        window: &mut f32x8<S>,
    ) -> bool {
        let zero = f32x8::splat(self.simd, 0.0);
        let mut soonest = now[0].ends;
        for lane in &now[1..] {
            soonest = soonest.min(lane.ends);
        }
        let is_over = window.simd_lt(soonest);
        let span = soonest.min(*window).max(zero);
        *window -= span;
        // Which tenant has the event, and what becomes free.
        let mut is_free = !is_over;
        let mut is_own = [is_free; N];
        let (mut total, mut ended, mut before) = (zero, zero, zero);
        let (mut launch, mut next) = (zero, zero);
        for (lane, is_own) in now.iter().zip(&mut is_own) {
            let is_soonest = lane.ends.simd_eq(soonest);
            *is_own = is_free & is_soonest;
            is_free &= !is_soonest;
            total += lane.demand;
            ended = is_own.select(lane.demand, ended);
            before = is_own.select(lane.earlier, before);
            launch = is_own.select(lane.launch, launch);
            next = is_own.select(lane.next, next);
        }
        launch -= span;
        // Its next demand.
        let asks = from_fn(|at| self.given.asks[next[at].to_bits() as usize].simd_into(self.simd));
        let [duration, demand, per_sm, beta, gap, interval, after, _] = transpose(asks);
        let has_ended = zero.simd_lt(ended);
        let ready = has_ended.select(launch.max(gap), zero);
        let is_due = ready.simd_lt(SAME_NS);
        let left = is_due.select(duration, ready);
        let demand = is_due.select(demand, zero);
        let launch = is_due.select(interval, launch);
        let next = is_due.select(after, next);
        let others = total - ended;
        let count = has_ended.select(f32x8::splat(self.simd, 1.0), zero);
        for ((lane, then), is_own) in now.iter().zip(then.iter_mut()).zip(is_own) {
            let is_later = before.simd_lt(lane.earlier);
            then.earlier = is_own.select(others, lane.earlier - is_later.select(ended, zero));
            then.left = is_own.select(left, lane.left - span * lane.speed);
            then.launch = is_own.select(launch, lane.launch - span);
            then.demand = is_own.select(demand, lane.demand);
            then.per_sm = is_own.select(per_sm, lane.per_sm);
            then.beta = is_own.select(beta, lane.beta);
            then.next = is_own.select(next, lane.next);
            then.count = lane.count + is_own.select(count, zero);
        }
        self.divide(then);
        is_over.all_true()
    }

    /// Assigns SMs, sets the speeds of all operators in flight and computes their ends.
    #[inline(always)]
    fn divide<const N: usize>(self, lanes: &mut [BatchLane<S>; N]) {
        let [zero, one, sms] =
            [0.0, 1.0, self.given.sms].map(|value| f32x8::splat(self.simd, value));
        let (mut bandwidth, mut running) = (zero, zero);
        let mut part = one;
        if !self.given.is_fifo {
            let mut demand = zero;
            for lane in lanes.iter() {
                demand += lane.demand;
            }
            part = sms / demand.max(sms);
        }
        for lane in lanes.iter_mut() {
            let sms = if self.given.is_fifo {
                let left = sms - lane.earlier;
                left.simd_gt(NO_SMS).select(left.min(lane.demand), zero)
            } else {
                lane.demand * part
            };
            lane.speed = (sms * lane.per_sm).min(one);
            bandwidth += lane.beta * lane.speed;
            running += zero.simd_lt(lane.speed).select(one, zero);
        }
        let [beside_one, beside_more] =
            self.given.slowed.map(|value| f32x8::splat(self.simd, value));
        let beside = running.simd_gt(2.5).select(beside_more, beside_one);
        let slowed = running.simd_gt(1.5).select(beside, one);
        let lost = one - one / bandwidth.max(one);
        for lane in lanes.iter_mut() {
            let speed = lane.speed * slowed * (one - lane.beta * lost);
            // Waiting times pass at speed one.
            lane.speed = speed + lane.demand.simd_eq(zero).select(one, zero);
            lane.ends = lane.left / lane.speed;
        }
    }
}

/// Transposes a matrix: every round interleaves rows that are half of the rows apart.
#[inline(always)]
fn transpose<S: Simd>(mut rows: [f32x8<S>; 8]) -> [f32x8<S>; 8] {
    for _ in 0..3 {
        let [a, b, c, d, e, f, g, h] = rows;
        let pairs = [a.interleave(e), b.interleave(f), c.interleave(g), d.interleave(h)];
        let [(a, b), (c, d), (e, f), (g, h)] = pairs;
        rows = [a, b, c, d, e, f, g, h];
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::evaluate::DeviceSharing;
    use crate::device::gpu::DeviceGpu;
    use crate::device::tenant::{DeviceTenant, Operator, OperatorKind};
    use tandem_core::Ppm;

    fn tenant(count: u32, wide: u32, launch_ns: f64) -> DeviceTenant {
        let operator = |index: u32| Operator {
            sms: f64::from(wide + index * 13 % 90),
            duration_ns: f64::from(3_000 + index * 7_919 % 90_000),
            kind: [OperatorKind::Compute, OperatorKind::Memory, OperatorKind::Unknown]
                [index as usize % 3],
        };
        let mut tenant = DeviceTenant::new("t", (0..count).map(operator).collect()).unwrap();
        tenant.launch_ns = launch_ns;
        tenant
    }

    #[test]
    fn a_batch_agrees_with_full_evaluations() {
        let tenants = [tenant(17, 1, 2e3), tenant(40, 20, 1e4), tenant(29, 50, 2.8e4)];
        for scheduler in [SmScheduler::Fifo, SmScheduler::Prop] {
            let gpu = DeviceGpu { scheduler, ..DeviceGpu::known("v100").unwrap() };
            let device = Operators::new(&gpu, &tenants, 1).unwrap();
            // More than one batch, and not all of the second.
            let vectors: Vec<[Ppm; 3]> = (1..=10)
                .map(|step| [step, 11 - step, 4].map(|tenth| Ppm(tenth * 100_000)))
                .collect();
            let mut asks = CappedOperators::default();
            let firsts: Vec<[u32; 3]> = vectors
                .iter()
                .map(|vector| from_fn(|index| asks.add(&device, index, gpu.cap(vector[index]))))
                .collect();
            let mut runs: Vec<PausedRun<3>> =
                firsts.iter().map(|first| PausedRun::new(&asks, first)).collect();
            let mut batches = Batches::new(&device, &asks);
            // In two parts, because runs are continued: two batches at once, and one by one.
            for at_once in [AT_ONCE, WIDTH] {
                for runs in runs.chunks_mut(at_once) {
                    batches.advance(&mut runs.iter_mut().collect::<Vec<_>>(), 5e8);
                }
            }
            for (vector, run) in vectors.iter().zip(&runs) {
                let exact = device.evaluate(DeviceSharing::Budgets(vector)).unwrap().y;
                let found: [f64; 3] = from_fn(|index| run.done_ns(&device, index) / 1e9);
                let near = exact.iter().zip(found).all(|(exact, y)| (exact / y - 1.0).abs() < 0.02);
                assert!(near, "{scheduler:?} {vector:?}: {found:?} instead of {exact:?}");
            }
        }
    }

    #[test]
    fn processors_agree_to_the_bit_and_so_do_batches_alone_and_together() {
        let tenants = [tenant(17, 1, 2e3), tenant(40, 20, 1e4), tenant(29, 50, 2.8e4)];
        let gpu = DeviceGpu::known("v100").unwrap();
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let done = |level: Level, at_once: usize| {
            let mut asks = CappedOperators::default();
            let mut run = |tenth: u32| {
                let cap = gpu.cap(Ppm(tenth * 100_000));
                [0, 1, 2].map(|index| asks.add(&device, index, cap))
            };
            let firsts: Vec<[u32; 3]> = (1..=10).map(&mut run).collect();
            let mut runs: Vec<PausedRun<3>> =
                firsts.iter().map(|first| PausedRun::new(&asks, first)).collect();
            let mut batches = Batches { level, ..Batches::new(&device, &asks) };
            for runs in runs.chunks_mut(at_once) {
                batches.advance(&mut runs.iter_mut().collect::<Vec<_>>(), 1e8);
            }
            runs.into_iter().map(|run| run.0.map(|fields| fields.map(f32::to_bits))).collect()
        };
        let found: Vec<[[u32; 8]; 3]> = done(Level::new(), AT_ONCE);
        assert_eq!(found, done(Level::baseline(), AT_ONCE));
        assert_eq!(found, done(Level::new(), WIDTH));
    }

    #[test]
    fn lanes_without_a_tenant_change_nothing() {
        let tenants: Vec<DeviceTenant> =
            (0..6).map(|index| tenant(11 + 7 * index, 1 + 9 * index, 1e4)).collect();
        let gpu = DeviceGpu::known("v100").unwrap();
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        for budget in [200_000, 400_000, 1_000_000] {
            let mut asks = CappedOperators::default();
            let cap = gpu.cap(Ppm(budget));
            let first: Vec<u32> = (0..6).map(|index| asks.add(&device, index, cap)).collect();
            let mut run = PausedRun::<8>::new(&asks, &first);
            Batches::new(&device, &asks).advance(&mut [&mut run], 1e9);
            let exact = device.evaluate(DeviceSharing::Budgets(&[Ppm(budget); 6])).unwrap().y;
            for (index, exact) in exact.into_iter().enumerate() {
                let found = run.done_ns(&device, index) / 1e9;
                assert!((exact / found - 1.0).abs() < 0.02, "{budget}: {found} instead of {exact}");
            }
        }
    }
}
