//! One run of concurrent tenants, event by event: the inner loop of every evaluation.
//!
//! An evaluation takes some hundred thousand events, so this is written for speed: the number of lanes is
//! known to the compiler, and unpredictable branches are replaced by selections. Lanes beyond the tenants
//! wait for ever.

use super::DeviceError;
use super::evaluate::{OperatorDemand, Operators, SmSegment};
use super::gpu::SmScheduler;
use super::requests::{Arrivals, SERVED_MIN};

/// Times closer than a picosecond are equal: sums of the same numbers in another order.
pub(super) const SAME_NS: f64 = 1e-3;
/// Fewer SMs than this count as none, for the same reason.
const NO_SMS: f64 = 1e-9;
/// Smallest number of iterations of the slowest tenant in a window.
const ITERATIONS_MIN: f64 = 10.0;
/// An evaluation with more events is refused: it would take seconds.
const EVENTS_MAX: u64 = 50_000_000;

/// Calls a function that is generic over the number of lanes with the smallest compiled number.
macro_rules! with_lanes {
    ($tenants:expr, $lanes:ident => $call:expr) => {
        match $tenants {
            0..=2 => {
                const $lanes: usize = 2;
                $call
            }
            3 => {
                const $lanes: usize = 3;
                $call
            }
            4 => {
                const $lanes: usize = 4;
                $call
            }
            5..=8 => {
                const $lanes: usize = 8;
                $call
            }
            9..=16 => {
                const $lanes: usize = 16;
                $call
            }
            _ => {
                const $lanes: usize = crate::device::evaluate::TENANTS_MAX;
                $call
            }
        }
    };
}
pub(super) use with_lanes;

/// Work of a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OperatorCount {
    pub(super) operators: u64,
    pub(super) iterations: u64,
}

/// An operator under a cap.
#[derive(Clone, Copy, Debug)]
pub(super) struct CappedOperator {
    /// Its duration alone.
    duration_ns: f64,
    /// SMs that it asks for.
    demand: f64,
    /// Speed per SM.
    per_sm: f64,
    /// Fraction of the peak bandwidth at full speed.
    beta: f64,
    /// Shortest time from its issue to the next.
    launch_ns: f64,
    /// Infinite, so that nothing is issued while it is in flight.
    holds_ns: f64,
}

/// The operator of a waiting tenant: the last of every list.
const NOTHING: CappedOperator = CappedOperator {
    duration_ns: f64::INFINITY,
    demand: 0.0,
    per_sm: 0.0,
    beta: 0.0,
    launch_ns: f64::NEG_INFINITY,
    holds_ns: 0.0,
};

/// The operators of a tenant under a cap, in order, and [`NOTHING`].
pub(super) fn asks(demands: &[OperatorDemand], launch_ns: f64, cap: f64) -> Vec<CappedOperator> {
    let ask = |want: &OperatorDemand| {
        // All SMs that it needs give exactly full speed.
        let mut per_sm = 1.0 / want.enough;
        while want.enough * per_sm < 1.0 {
            per_sm = per_sm.next_up();
        }
        let demand = want.sms.min(cap);
        CappedOperator {
            duration_ns: want.duration_ns,
            demand,
            per_sm,
            beta: want.beta,
            launch_ns,
            holds_ns: f64::INFINITY,
        }
    };
    demands.iter().map(ask).chain([NOTHING]).collect()
}

/// A tenant: the state that every event needs.
//
// In this order, because a vector load of two neighbours stalls if they were written one by one just before,
// as `earlier`, `demand`, `per_sm` and `beta` are.
#[derive(Clone, Copy)]
#[repr(C)]
struct TenantLane<'a> {
    /// SMs of operators in flight that were issued before.
    earlier: f64,
    /// The order of issue.
    key: u64,
    /// SMs that it asks for.
    demand: f64,
    /// The next operator of the iteration, or the one in flight.
    at: usize,
    per_sm: f64,
    /// One if an operator is in flight, otherwise zero.
    in_flight: u64,
    beta: f64,
    asks: &'a [CappedOperator],
    speed: f64,
    /// When its next operator may be issued.
    ready_ns: f64,
    /// SMs it holds.
    sms: f64,
    /// Remaining time alone of the operator in flight, in nanoseconds; infinite without one.
    left_ns: f64,
    /// When its operator in flight ends at the current speed.
    ends_ns: f64,
    count: OperatorCount,
    /// When it issues its next operator; never while one is in flight.
    issue_ns: f64,
}

impl<'a> TenantLane<'a> {
    fn waiting(asks: &'a [CappedOperator], issue_ns: f64) -> Self {
        Self {
            ends_ns: f64::INFINITY,
            issue_ns,
            left_ns: f64::INFINITY,
            speed: 0.0,
            sms: 0.0,
            earlier: 0.0,
            demand: 0.0,
            per_sm: 0.0,
            beta: 0.0,
            key: 0,
            in_flight: 0,
            ready_ns: issue_ns,
            asks,
            at: 0,
            count: OperatorCount::default(),
        }
    }

    fn iterations(&self) -> f64 {
        self.count.operators as f64 / (self.asks.len() - 1) as f64
    }
}

/// Requests of a tenant that serves them.
struct RequestServer {
    arrivals: Arrivals,
    /// Arrival of the request that is being served.
    arrived_ns: f64,
    latencies: Vec<f64>,
}

/// How operators in flight get SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// In order of issue.
    Fifo,
    /// In proportion to their demand.
    Prop,
    /// All of them, in turns.
    Slice,
}

/// Concurrent tenants, from time zero.
pub(super) struct DeviceRun<'a, const N: usize> {
    device: &'a Operators<'a>,
    sms: f64,
    rule: Rule,
    /// The factor of κ beside no, one, and two others or more.
    slowed: [f64; 3],
    lanes: [TenantLane<'a>; N],
    /// `None` for tenants that serve no requests.
    servers: Vec<Option<RequestServer>>,
    /// Counts the events.
    instant: u64,
    now_ns: f64,
    events: u64,
}

impl<'a, const N: usize> DeviceRun<'a, N> {
    /// Tenants with these operators; time slicing, or concurrently.
    pub(super) fn new(
        device: &'a Operators<'a>,
        asks: &[&'a [CappedOperator]],
        is_slice: bool,
    ) -> Self {
        let gpu = device.gpu();
        let mut lanes = [TenantLane::waiting(&[], f64::INFINITY); N];
        let mut servers = Vec::new();
        for (index, tenant) in device.list().iter().enumerate() {
            let server = tenant.requests.map(|requests| {
                let mut arrivals = Arrivals::new(requests, device.seed(), index);
                RequestServer { arrived_ns: arrivals.take(), arrivals, latencies: Vec::new() }
            });
            let arrived_ns = server.as_ref().map_or(0.0, |server| server.arrived_ns);
            let issue_ns = arrived_ns + tenant.host_ns;
            lanes[index] = TenantLane::waiting(asks[index], issue_ns);
            // No allocation where no tenant serves requests.
            if server.is_some() {
                servers.resize_with(index, || None);
                servers.push(server);
            }
        }
        Self {
            device,
            sms: f64::from(gpu.sms),
            rule: match (is_slice, gpu.scheduler) {
                (true, _) => Rule::Slice,
                (false, SmScheduler::Fifo) => Rule::Fifo,
                (false, SmScheduler::Prop) => Rule::Prop,
            },
            slowed: [0.0, 1.0, 2.0].map(|others| 1.0 / (1.0 + gpu.constants.kappa * others)),
            lanes,
            servers,
            instant: 1,
            now_ns: 0.0,
            events: 0,
        }
    }

    fn tenants(&self) -> &[TenantLane<'a>] {
        &self.lanes[..self.device.list().len()]
    }

    pub(super) fn counts(&self) -> Vec<OperatorCount> {
        self.tenants().iter().map(|lane| lane.count).collect()
    }

    pub(super) fn latencies(&self, index: usize) -> &[f64] {
        let server = self.servers.get(index).and_then(Option::as_ref);
        server.map_or(&[], |server| &server.latencies)
    }

    /// Whether every tenant has done enough work for its speed.
    pub(super) fn has_enough(&self) -> bool {
        let mut tenants = self.tenants().iter().zip(self.device.list()).enumerate();
        tenants.all(|(index, (lane, tenant))| match tenant.requests {
            Some(_) => self.latencies(index).len() >= SERVED_MIN,
            None => lane.iterations() >= ITERATIONS_MIN,
        })
    }

    /// Advances to `end_ns`, inclusive.
    pub(super) fn until(
        &mut self,
        end_ns: f64,
        mut held: impl FnMut(SmSegment),
    ) -> Result<(), DeviceError> {
        while self.event(end_ns, &mut held) {}
        if self.events > EVENTS_MAX {
            return Err(self.too_long());
        }
        Ok(())
    }

    /// Advances to the next event, or to `end_ns` if there is none before; returns whether it did the latter.
    #[inline(always)]
    fn event(&mut self, end_ns: f64, held: &mut impl FnMut(SmSegment)) -> bool {
        let (mut index, mut next_ns) = (0, f64::INFINITY);
        for (at, lane) in self.lanes.iter().enumerate() {
            let ns = if lane.ends_ns < lane.issue_ns { lane.ends_ns } else { lane.issue_ns };
            index = if ns < next_ns { at } else { index };
            next_ns = if ns < next_ns { ns } else { next_ns };
        }
        if next_ns > end_ns + SAME_NS {
            self.pass(end_ns, held);
            return false;
        }
        // Events within a picosecond, or within the precision of the time, happen now.
        if next_ns > self.now_ns + (SAME_NS + self.now_ns * 4.0 * f64::EPSILON) {
            self.pass(next_ns, held);
            self.instant += 1;
        }
        self.step(index);
        self.divide();
        self.events += 1;
        self.events <= EVENTS_MAX
    }

    /// Advances to `to_ns`, where nothing happens before.
    fn pass(&mut self, to_ns: f64, held: &mut impl FnMut(SmSegment)) {
        let span = to_ns - self.now_ns;
        for (tenant, lane) in self.lanes.iter_mut().enumerate() {
            lane.left_ns -= span * lane.speed;
            if lane.sms > 0.0 {
                held(SmSegment { tenant, from_ns: self.now_ns, to_ns, sms: lane.sms });
            }
        }
        self.now_ns = to_ns;
    }

    /// Ends the operator of a lane, or issues the next, or both. Which one is unpredictable, so the only
    /// branch is at the end of an iteration.
    #[inline(always)]
    fn step(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let lane = &mut self.lanes[index];
        lane.count.operators += lane.in_flight;
        lane.at += lane.in_flight as usize;
        let last = lane.asks.len() - 1;
        if lane.at == last {
            self.begin(index);
        }
        let lane = &mut self.lanes[index];
        let is_due = u64::from(lane.ready_ns <= now_ns + SAME_NS);
        let ask = &lane.asks[last - (last - lane.at) * is_due as usize];
        let (ended, key) = (lane.demand, lane.key);
        lane.demand = 0.0;
        let own = self.instant * N as u64 + index as u64;
        let (mut earlier, mut is_last) = (0.0, true);
        for lane in &mut self.lanes {
            earlier += lane.demand;
            let is_later = u64::from(lane.key > key);
            lane.earlier -= f64::from_bits(ended.to_bits() & 0_u64.wrapping_sub(is_later));
            is_last &= lane.key <= own;
        }
        if !is_last {
            earlier = self.squeeze_in(own, ask.demand);
        }
        let lane = &mut self.lanes[index];
        lane.in_flight = is_due;
        lane.issue_ns = lane.ready_ns + ask.holds_ns;
        let ready_ns = now_ns + ask.launch_ns;
        lane.ready_ns = if ready_ns > lane.ready_ns { ready_ns } else { lane.ready_ns };
        lane.key = own;
        lane.earlier = earlier;
        lane.left_ns = ask.duration_ns;
        lane.demand = ask.demand;
        lane.per_sm = ask.per_sm;
        lane.beta = ask.beta;
    }

    /// Inserts before operators of later tenants that were issued at the same time. Returns the demand of
    /// those before it.
    #[cold]
    fn squeeze_in(&mut self, key: u64, demand: f64) -> f64 {
        let mut earlier = 0.0;
        for lane in &mut self.lanes {
            match lane.key > key {
                true => lane.earlier += demand,
                false => earlier += lane.demand,
            }
        }
        earlier
    }

    /// Completes an iteration of a tenant, and sets when the next begins to issue.
    #[cold]
    fn begin(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.at = 0;
        lane.count.iterations += 1;
        let mut from_ns = self.now_ns;
        if let Some(Some(server)) = self.servers.get_mut(index) {
            server.latencies.push(self.now_ns - server.arrived_ns);
            server.arrived_ns = server.arrivals.take();
            from_ns = from_ns.max(server.arrived_ns);
        }
        lane.ready_ns = from_ns + self.device.list()[index].host_ns;
    }

    /// Assigns SMs, sets the speeds of all operators in flight and computes their ends.
    #[inline(always)]
    fn divide(&mut self) {
        let sms = self.sms;
        match self.rule {
            Rule::Fifo => {
                for lane in &mut self.lanes {
                    let left = sms - lane.earlier;
                    let left = if left < NO_SMS { 0.0 } else { left };
                    lane.sms = if left < lane.demand { left } else { lane.demand };
                }
            }
            Rule::Prop => {
                let demand: f64 = self.lanes.iter().map(|lane| lane.demand).sum();
                let part = (sms / demand).min(1.0);
                self.lanes.iter_mut().for_each(|lane| lane.sms = lane.demand * part);
            }
            Rule::Slice => return self.take_turns(),
        }
        let (mut bandwidth, mut running) = (0.0, 0);
        for lane in &mut self.lanes {
            let speed = lane.sms * lane.per_sm;
            lane.speed = if speed < 1.0 { speed } else { 1.0 };
            bandwidth += lane.beta * lane.speed;
            running += usize::from(lane.speed > 0.0);
        }
        // An operator without progress is not slowed further by others.
        let slowed = self.slowed[running.saturating_sub(1).min(2)];
        let is_scarce = bandwidth > 1.0;
        let bandwidth = if is_scarce { bandwidth } else { 1.0 };
        for lane in &mut self.lanes {
            // (1 − β) + β/U, times U, so that no division waits for another.
            let kept = if is_scarce { (1.0 - lane.beta) * bandwidth + lane.beta } else { 1.0 };
            let speed = lane.speed * slowed * kept;
            // An operator without progress never ends: its remainder ÷ 0.
            lane.ends_ns = self.now_ns + lane.left_ns * bandwidth / speed;
            lane.speed = speed / bandwidth;
        }
    }

    /// Gives every operator in flight the whole GPU for an equal part of the time.
    fn take_turns(&mut self) {
        let part = 1.0 / self.lanes.iter().map(|lane| lane.in_flight).sum::<u64>() as f64;
        for lane in &mut self.lanes {
            lane.speed = if lane.in_flight > 0 { part } else { 0.0 };
            lane.sms = lane.speed * self.sms;
            lane.ends_ns = self.now_ns + lane.left_ns / lane.speed;
        }
    }

    fn too_long(&self) -> DeviceError {
        let by = |&a: &usize, &b: &usize| {
            self.lanes[a].iterations().total_cmp(&self.lanes[b].iterations())
        };
        let name = |index: Option<usize>| {
            index.map_or_else(String::new, |index| self.device.list()[index].name.clone())
        };
        let all = 0..self.device.list().len();
        DeviceError::TooLong {
            slowest: name(all.clone().min_by(by)),
            fastest: name(all.max_by(by)),
            limit: EVENTS_MAX,
        }
    }
}
