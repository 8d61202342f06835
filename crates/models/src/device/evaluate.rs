//! Event-driven evaluation from operator traces: who runs when, and how fast.
//!
//! One operator of a tenant is in flight at a time. At every issue and completion the SMs, and the
//! speeds, are divided anew over the operators in flight in order of issue. Time is in nanoseconds.

use super::DeviceError;
use super::allocate::{Measurement, Throughput};
use super::gpu::{Gpu, Scheduler};
use super::requests::{self, Arrivals, SERVED_MIN};
use super::tenant::{Kind, Operator, Tenant};
use tandem_core::Ppm;

/// Instants closer than a picosecond are one: sums of the same numbers in another order.
const SAME_NS: f64 = 1e-3;
/// SMs fewer than this are none, for the same reason.
const NO_SMS: f64 = 1e-9;
/// The shortest window.
const WINDOW_NS: f64 = 1e9;
/// Iterations of the slowest tenant in a window at least.
const ITERATIONS_MIN: f64 = 10.0;
/// An evaluation that takes more events than this is given up: seconds of computing.
const EVENTS_MAX: u64 = 50_000_000;
const TENANTS_MAX: usize = 64;

/// How the tenants share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing<'a> {
    /// In turns on the whole GPU, nothing side by side.
    Slice,
    /// Side by side, each within its budget.
    Budgets(&'a [Ppm]),
}

/// Some SMs that a tenant held for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The tenant, by position.
    pub tenant: usize,
    /// From.
    pub from_ns: f64,
    /// To.
    pub to_ns: f64,
    /// SMs.
    pub sms: f64,
}

/// Tenants described by their operators.
#[derive(Clone, Debug)]
pub struct Operators<'a> {
    gpu: &'a Gpu,
    tenants: &'a [Tenant],
    /// For each tenant, when each operator of an iteration ends alone, counted from its beginning.
    ends_alone: Vec<Vec<f64>>,
    /// For each tenant, what its operators ask of this GPU.
    wants: Vec<Vec<Want>>,
    seed: u64,
}

impl<'a> Operators<'a> {
    /// Tenants on a GPU; `seed` is that of the requests' arrivals.
    pub fn new(gpu: &'a Gpu, tenants: &'a [Tenant], seed: u64) -> Result<Self, DeviceError> {
        match tenants.len() {
            0 => return Err(DeviceError::NoTenants),
            count if count > TENANTS_MAX => {
                return Err(DeviceError::TooManyTenants { count, limit: TENANTS_MAX });
            }
            _ => {}
        }
        let ends_alone = tenants.iter().map(ends_alone).collect();
        let wants = tenants.iter().map(|tenant| wants(gpu, tenant)).collect();
        Ok(Self { gpu, tenants, ends_alone, wants, seed })
    }

    /// The GPU.
    pub(super) fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The tenants.
    pub(super) fn list(&self) -> &'a [Tenant] {
        self.tenants
    }

    /// What every tenant keeps of its speed alone.
    pub fn evaluate(&self, sharing: Sharing<'_>) -> Result<Measurement, DeviceError> {
        let mut run = Run::new(self, sharing);
        let mut window_ns = WINDOW_NS / 2.0;
        let mut half = vec![Count::default(); self.tenants.len()];
        loop {
            run.until(window_ns, |_| {})?;
            let counts = run.counts();
            if window_ns >= WINDOW_NS && run.has_enough() {
                return Ok(self.measurement(&run, &half, &counts, window_ns));
            }
            half = counts;
            window_ns *= 2.0;
        }
    }

    /// Tenants under some budgets at the beginning of time, to be looked at for as long as it pays.
    pub(super) fn trial(&self, budgets: &[Ppm]) -> Trial<'_> {
        Trial(Run::new(self, Sharing::Budgets(budgets)))
    }

    /// Who held which SMs during the first `until_ns`.
    pub fn record(&self, sharing: Sharing<'_>, until_ns: f64) -> Result<Vec<Segment>, DeviceError> {
        let mut segments = Vec::new();
        Run::new(self, sharing).until(until_ns, |segment| segments.push(segment))?;
        Ok(segments)
    }

    fn measurement(
        &self,
        run: &Run<'_>,
        half: &[Count],
        counts: &[Count],
        window_ns: f64,
    ) -> Measurement {
        let mut measurement = Measurement { parts: vec![Vec::new(); 2], ..Measurement::default() };
        for (index, tenant) in self.tenants.iter().enumerate() {
            let (of_half, of_all) =
                (self.alone(index, window_ns / 2.0), self.alone(index, window_ns));
            let share = |shared: u64, alone: u64| match alone {
                // Nothing to do, and nothing done.
                0 => 1.0,
                _ => shared as f64 / alone as f64,
            };
            let done = |count: &Count| match tenant.requests {
                Some(_) => count.iterations,
                None => count.operators,
            };
            let (first, all) = (done(&half[index]), done(&counts[index]));
            measurement.y.push(share(all, of_all));
            measurement.parts[0].push(share(first, of_half));
            measurement.parts[1].push(share(all - first, of_all - of_half));
            let latencies = &run.states[index].latencies;
            measurement.p99_ns.push(tenant.requests.and(requests::p99(latencies.clone())));
        }
        measurement.window_ns = window_ns;
        measurement
    }

    /// Operators completed by a tenant alone, or requests answered.
    fn alone(&self, index: usize, window_ns: f64) -> u64 {
        let (tenant, ends) = (&self.tenants[index], &self.ends_alone[index]);
        if let Some(requests) = tenant.requests {
            let arrivals = Arrivals::new(requests, self.seed, index);
            return requests::alone(tenant, arrivals, window_ns + SAME_NS).len() as u64;
        }
        let period = ends.last().expect("a tenant has operators");
        let whole = ((window_ns + SAME_NS) / period).floor();
        let rest = window_ns + SAME_NS - whole * period;
        whole as u64 * ends.len() as u64 + ends.partition_point(|end| *end <= rest) as u64
    }

    /// The 99th percentile of a tenant's latency alone on the whole GPU, over `window_ns`.
    pub fn p99_alone_ns(&self, index: usize, window_ns: f64) -> Option<f64> {
        let requests = self.tenants[index].requests?;
        let arrivals = Arrivals::new(requests, self.seed, index);
        requests::p99(requests::alone(&self.tenants[index], arrivals, window_ns))
    }
}

impl Throughput for Operators<'_> {
    type Error = DeviceError;

    fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn duties(&self) -> Option<Vec<f64>> {
        Some(self.tenants.iter().map(|tenant| tenant.duty(self.gpu)).collect())
    }

    fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, DeviceError> {
        self.evaluate(Sharing::Budgets(budgets))
    }
}

fn ends_alone(tenant: &Tenant) -> Vec<f64> {
    let mut issue_ns = tenant.host_ns;
    let end = |duration_ns: f64| {
        let end = issue_ns + duration_ns;
        issue_ns += duration_ns.max(tenant.launch_ns);
        end
    };
    tenant.operators().iter().map(|operator| operator.duration_ns).map(end).collect()
}

/// An evaluation that can be continued.
pub(super) struct Trial<'a>(Run<'a>);

impl Trial<'_> {
    /// Goes on to this instant.
    pub(super) fn until(&mut self, end_ns: f64) -> Result<(), DeviceError> {
        self.0.until(end_ns, |_| {})
    }

    /// Events so far: what it has cost.
    pub(super) fn events(&self) -> u64 {
        self.0.events
    }

    /// The speed of each tenant so far: the time that what it has done takes alone, over the time passed.
    /// Finer than a count of operators, for windows of a few iterations.
    pub(super) fn speeds(&self) -> Vec<f64> {
        let device = self.0.device;
        let states = self.0.states.iter().zip(&self.0.slots).enumerate();
        let done = states.map(|(index, (state, slot))| {
            let (ends, wants) = (&device.ends_alone[index], &device.wants[index]);
            let period = ends.last().expect("a tenant has operators");
            let before = state.next.checked_sub(1).map_or(0.0, |last| ends[last]);
            let in_flight = (wants[state.next].duration_ns - slot.left_ns).max(0.0);
            state.count.iterations as f64 * period + before + in_flight
        });
        done.map(|done_ns| done_ns / self.0.now_ns).collect()
    }
}

/// What an operator asks of a GPU.
#[derive(Clone, Copy, Debug)]
struct Want {
    /// How long it takes alone.
    duration_ns: f64,
    /// SMs it asks for.
    sms: f64,
    /// SMs that give it full speed.
    enough: f64,
    beta: f64,
}

fn wants(gpu: &Gpu, tenant: &Tenant) -> Vec<Want> {
    let (sms, constants) = (f64::from(gpu.sms), &gpu.constants);
    let want = |operator: &Operator| {
        let width = operator.sms.min(sms);
        let saturates = operator.kind == Kind::Memory && width >= constants.sigma * sms;
        Want {
            duration_ns: operator.duration_ns,
            sms: operator.sms,
            enough: if saturates { constants.sigma * width } else { width },
            beta: constants.beta(operator.kind),
        }
    };
    tenant.operators().iter().map(want).collect()
}

/// What a tenant has done.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    operators: u64,
    iterations: u64,
}

/// A tenant during a run: what matters when an operator of its is issued or ends.
struct State {
    count: Count,
    /// The next operator of the iteration, or the one in flight.
    next: usize,
    /// When the last was issued.
    issued_ns: f64,
    cap: f64,
    arrivals: Option<Arrivals>,
    /// When the request came that is being answered.
    arrived_ns: f64,
    latencies: Vec<f64>,
}

/// A tenant during a run: what matters at every event. Either it waits to issue an operator or one is in
/// flight.
#[derive(Clone, Copy)]
struct Slot {
    /// When its next operator is issued; never while one is in flight.
    issue_ns: f64,
    /// What is left of the one in flight, in nanoseconds alone; endless if there is none.
    left_ns: f64,
    speed: f64,
    sms: f64,
    /// SMs it asks for under its cap.
    demand: f64,
    /// SMs that give it full speed.
    enough: f64,
    /// Its speed with all SMs it asks for and nobody else there.
    free: f64,
    beta: f64,
}

impl Slot {
    fn idle(issue_ns: f64) -> Self {
        Self {
            issue_ns,
            left_ns: f64::INFINITY,
            speed: 0.0,
            sms: 0.0,
            demand: 0.0,
            enough: 1.0,
            free: 0.0,
            beta: 0.0,
        }
    }
}

struct Run<'a> {
    device: &'a Operators<'a>,
    is_slice: bool,
    /// The factor of κ beside no, one, and two others or more.
    slowed: [f64; 3],
    states: Vec<State>,
    slots: Vec<Slot>,
    /// The tenants with an operator in flight, in order of issue.
    order: Vec<usize>,
    now_ns: f64,
    events: u64,
}

impl<'a> Run<'a> {
    fn new(device: &'a Operators<'a>, sharing: Sharing<'_>) -> Self {
        let gpu = device.gpu;
        let state = |(index, tenant): (usize, &Tenant)| {
            let mut arrivals =
                tenant.requests.map(|requests| Arrivals::new(requests, device.seed, index));
            let arrived_ns = arrivals.as_mut().map_or(0.0, Arrivals::take);
            let cap = match sharing {
                Sharing::Slice => gpu.sms,
                Sharing::Budgets(budgets) => gpu.cap(budgets[index]),
            };
            State {
                count: Count::default(),
                next: 0,
                issued_ns: 0.0,
                cap: f64::from(cap),
                arrivals,
                arrived_ns,
                latencies: Vec::new(),
            }
        };
        let states: Vec<State> = device.tenants.iter().enumerate().map(state).collect();
        let first = states.iter().zip(device.tenants);
        let slots = first.map(|(state, tenant)| Slot::idle(state.arrived_ns + tenant.host_ns));
        Self {
            is_slice: sharing == Sharing::Slice,
            slowed: [0.0, 1.0, 2.0].map(|others| 1.0 / (1.0 + gpu.constants.kappa * others)),
            slots: slots.collect(),
            order: Vec::with_capacity(states.len()),
            states,
            device,
            now_ns: 0.0,
            events: 0,
        }
    }

    fn counts(&self) -> Vec<Count> {
        self.states.iter().map(|state| state.count).collect()
    }

    fn iterations(&self, index: usize) -> f64 {
        self.states[index].count.operators as f64 / self.device.wants[index].len() as f64
    }

    fn has_enough(&self) -> bool {
        let enough = |index: usize| match self.device.tenants[index].requests {
            Some(_) => self.states[index].latencies.len() >= SERVED_MIN,
            None => self.iterations(index) >= ITERATIONS_MIN,
        };
        (0..self.states.len()).all(enough)
    }

    /// Goes on to `end_ns`, that instant included.
    fn until(&mut self, end_ns: f64, mut held: impl FnMut(Segment)) -> Result<(), DeviceError> {
        loop {
            self.divide();
            let nearest_ns = self.nearest();
            let stop_ns = nearest_ns.min(end_ns);
            for &tenant in &self.order {
                let sms = self.slots[tenant].sms;
                if sms > 0.0 {
                    held(Segment { tenant, from_ns: self.now_ns, to_ns: stop_ns, sms });
                }
            }
            if nearest_ns > end_ns + SAME_NS {
                // The next call divides again and comes to the same speeds.
                self.pass(end_ns);
                return Ok(());
            }
            self.pass(nearest_ns);
            self.issue();
            self.events += 1;
            if self.events > EVENTS_MAX {
                return Err(self.too_long());
            }
        }
    }

    /// Hands out SMs and sets the speeds of all operators in flight.
    fn divide(&mut self) {
        let sms = f64::from(self.device.gpu.sms);
        if self.is_slice {
            let part = 1.0 / self.order.len() as f64;
            for &tenant in &self.order {
                (self.slots[tenant].speed, self.slots[tenant].sms) = (part, part * sms);
            }
            return;
        }
        let (part, mut left) = match self.device.gpu.scheduler {
            Scheduler::Fifo => (1.0, sms),
            Scheduler::Prop => {
                let demand: f64 = self.slots.iter().map(|slot| slot.demand).sum();
                ((sms / demand).min(1.0), f64::INFINITY)
            }
        };
        let (mut bandwidth, mut running) = (0.0, 0_usize);
        for &tenant in &self.order {
            let slot = &mut self.slots[tenant];
            slot.sms = (slot.demand * part).min(left);
            slot.speed = slot.free;
            if slot.sms < slot.demand {
                slot.speed = (slot.sms / slot.enough).min(1.0);
            }
            left -= slot.sms;
            left = if left < NO_SMS { 0.0 } else { left };
            bandwidth += slot.beta * slot.speed;
            running += usize::from(slot.speed > 0.0);
        }
        if bandwidth > 1.0 {
            let scarce = 1.0 / bandwidth;
            for slot in &mut self.slots {
                slot.speed *= (1.0 - slot.beta) + slot.beta * scarce;
            }
        }
        // One that stands still is no slower for having others beside it.
        let slowed = self.slowed[running.saturating_sub(1).min(2)];
        self.slots.iter_mut().for_each(|slot| slot.speed *= slowed);
    }

    /// The next completion or issue.
    fn nearest(&self) -> f64 {
        let (mut span, mut issue_ns) = (f64::INFINITY, f64::INFINITY);
        for slot in &self.slots {
            // What stands still never ends: its left ÷ 0.
            span = span.min(slot.left_ns / slot.speed);
            issue_ns = issue_ns.min(slot.issue_ns);
        }
        issue_ns.min(self.now_ns + span)
    }

    /// Goes on to `to_ns`, and ends every operator that is done then.
    fn pass(&mut self, to_ns: f64) {
        let span = to_ns - self.now_ns;
        self.now_ns = to_ns;
        // What would end within a picosecond, or within what an instant is known to, ends now.
        let rounding_ns = SAME_NS + to_ns * 4.0 * f64::EPSILON;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            slot.left_ns -= span * slot.speed;
            if slot.left_ns <= rounding_ns * slot.speed {
                let tenant = &self.device.tenants[index];
                *slot = Slot::idle(self.states[index].complete(tenant, to_ns));
                self.order.retain(|&other| other != index);
            }
        }
    }

    /// Issues every operator that is due now, in order of tenants.
    fn issue(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].issue_ns > self.now_ns + SAME_NS {
                continue;
            }
            let state = &mut self.states[index];
            state.issued_ns = self.now_ns;
            let want = &self.device.wants[index][state.next];
            let demand = want.sms.min(state.cap);
            self.slots[index] = Slot {
                issue_ns: f64::INFINITY,
                left_ns: want.duration_ns,
                speed: 0.0,
                sms: 0.0,
                demand,
                enough: want.enough,
                free: (demand / want.enough).min(1.0),
                beta: want.beta,
            };
            // Nearly always last: those in flight were issued before, or now by an earlier tenant.
            let key = |tenant: usize| (self.states[tenant].issued_ns, tenant);
            let later = self.order.iter().rev().take_while(|&&other| key(other) > key(index));
            let at = self.order.len() - later.count();
            self.order.insert(at, index);
        }
    }

    fn too_long(&self) -> DeviceError {
        let by = |a: &usize, b: &usize| self.iterations(*a).total_cmp(&self.iterations(*b));
        let name =
            |index: Option<usize>| index.map_or("", |index| &self.device.tenants[index].name);
        let all = 0..self.states.len();
        DeviceError::TooLong {
            slowest: name(all.clone().min_by(by)).to_owned(),
            fastest: name(all.max_by(by)).to_owned(),
            limit: EVENTS_MAX,
        }
    }
}

impl State {
    /// Notes that its operator in flight has ended, and says when the next is issued.
    fn complete(&mut self, tenant: &Tenant, now_ns: f64) -> f64 {
        self.count.operators += 1;
        self.next += 1;
        if self.next < tenant.operators().len() {
            return now_ns.max(self.issued_ns + tenant.launch_ns);
        }
        self.next = 0;
        self.count.iterations += 1;
        let Some(arrivals) = &mut self.arrivals else {
            return now_ns + tenant.host_ns;
        };
        self.latencies.push(now_ns - self.arrived_ns);
        self.arrived_ns = arrivals.take();
        now_ns.max(self.arrived_ns) + tenant.host_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tenant::{Operator, Requests};

    fn op(duration_us: f64, sms: f64, kind: Kind) -> Operator {
        Operator { duration_ns: duration_us * 1e3, sms, kind }
    }

    fn tenant(operators: Vec<Operator>, launch_us: f64, host_us: f64) -> Tenant {
        let mut tenant = Tenant::new("t", operators).unwrap();
        (tenant.launch_ns, tenant.host_ns) = (launch_us * 1e3, host_us * 1e3);
        tenant
    }

    fn y(gpu: &Gpu, tenants: &[Tenant], budgets: &[u32]) -> Vec<f64> {
        let budgets: Vec<Ppm> = budgets.iter().map(|&ppm| Ppm(ppm)).collect();
        let device = Operators::new(gpu, tenants, 1).unwrap();
        device.evaluate(Sharing::Budgets(&budgets)).unwrap().y
    }

    fn close(found: &[f64], expected: &[f64]) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-4);
        assert!(near && found.len() == expected.len(), "{found:?} instead of {expected:?}");
    }

    const FULL: u32 = 1_000_000;

    #[test]
    fn alone_a_tenant_keeps_all_of_its_speed_and_a_cap_takes_its_part() {
        let gpu = Gpu::known("v100").unwrap();
        let wide =
            tenant(vec![op(100.0, 200.0, Kind::Compute), op(30.0, 4.0, Kind::Memory)], 28.0, 300.0);
        assert_eq!(y(&gpu, std::slice::from_ref(&wide), &[FULL]), [1.0]);
        // Half of 80 SMs doubles the wide operator.
        close(&y(&gpu, &[wide], &[500_000]), &[430.0 / 530.0]);
        // Six tenths of the SMs saturate the bandwidth, three tenths half of it.
        let memory = tenant(vec![op(100.0, 80.0, Kind::Memory)], 0.0, 0.0);
        close(&y(&gpu, std::slice::from_ref(&memory), &[600_000]), &[1.0]);
        close(&y(&gpu, &[memory], &[300_000]), &[0.5]);
    }

    #[test]
    fn under_fifo_the_earlier_operator_leaves_the_later_one_nothing() {
        let gpu = Gpu::known("v100").unwrap();
        let wide = tenant(vec![op(100.0, 80.0, Kind::Compute)], 0.0, 0.0);
        // The two take turns: nobody runs beside them, so κ does not count.
        close(&y(&gpu, &[wide.clone(), wide.clone()], &[FULL, FULL]), &[0.5, 0.5]);
        // Half each: both run, at half speed, and slow each other down by a tenth.
        let half = 0.5 / 1.1;
        close(&y(&gpu, &[wide.clone(), wide.clone()], &[500_000, 500_000]), &[half, half]);
        let prop = Gpu { scheduler: Scheduler::Prop, ..gpu };
        close(&y(&prop, &[wide.clone(), wide], &[FULL, FULL]), &[half, half]);
    }

    #[test]
    fn bandwidth_is_divided_and_at_most_two_others_count() {
        let gpu = Gpu::known("v100").unwrap();
        let narrow = |kind| tenant(vec![op(100.0, 8.0, kind)], 0.0, 0.0);
        // Two memory operators want 1.7 of the bandwidth.
        let kept = (0.15 + 0.85 / 1.7) / 1.1;
        close(
            &y(&gpu, &[narrow(Kind::Memory), narrow(Kind::Memory)], &[FULL, FULL]),
            &[kept, kept],
        );
        let four = vec![narrow(Kind::Unknown); 4];
        close(&y(&gpu, &four, &[FULL; 4]), &[1.0 / 1.2; 4]);
    }

    #[test]
    fn slices_take_turns_and_fill_each_others_gaps() {
        let gpu = Gpu::known("v100").unwrap();
        let busy = tenant(vec![op(100.0, 8.0, Kind::Memory)], 0.0, 0.0);
        let device_of = [busy.clone(), busy];
        let device = Operators::new(&gpu, &device_of, 1).unwrap();
        close(&device.evaluate(Sharing::Slice).unwrap().y, &[0.5, 0.5]);
    }

    #[test]
    fn a_window_holds_ten_iterations_of_the_slowest_and_its_halves_agree() {
        let gpu = Gpu::known("v100").unwrap();
        let slow = tenant(vec![op(400_000.0, 40.0, Kind::Compute)], 0.0, 0.0);
        let fast = tenant(vec![op(100.0, 40.0, Kind::Compute)], 0.0, 0.0);
        let tenants = [slow, fast];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let measured = device.evaluate(Sharing::Budgets(&[Ppm::ONE; 2])).unwrap();
        assert_eq!(measured.window_ns, 8e9);
        assert!((measured.y[1] - 1.0 / 1.1).abs() < 1e-3, "{measured:?}");
        assert_eq!(measured.parts.len(), 2);
    }

    #[test]
    fn tenants_too_unlike_are_given_up() {
        let gpu = Gpu::known("v100").unwrap();
        let mut slow = tenant(vec![op(3e9, 40.0, Kind::Compute)], 0.0, 0.0);
        slow.name = "slow".to_owned();
        let fast = tenant(vec![op(0.001, 40.0, Kind::Compute)], 0.0, 0.0);
        let tenants = [slow, fast];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let error = device.evaluate(Sharing::Slice).unwrap_err();
        assert!(matches!(&error, DeviceError::TooLong { slowest, .. } if slowest == "slow"));
    }

    #[test]
    fn a_server_with_nobody_beside_it_is_as_quick_as_alone() {
        let gpu = Gpu::known("v100").unwrap();
        let mut server = tenant(vec![op(1000.0, 40.0, Kind::Compute)], 0.0, 100.0);
        server.requests = Some(Requests { per_second: 300.0, p99_ns: None });
        let tenants = [server];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let measured = device.evaluate(Sharing::Budgets(&[Ppm::ONE])).unwrap();
        assert_eq!(measured.y, [1.0]);
        let alone = device.p99_alone_ns(0, measured.window_ns).unwrap();
        assert!((measured.p99_ns[0].unwrap() - alone).abs() < 1.0, "{measured:?} {alone}");
        assert!(alone >= 1.1e6);
    }

    #[test]
    fn segments_never_hold_more_sms_than_there_are() {
        let gpu = Gpu::known("v100").unwrap();
        let wide =
            tenant(vec![op(100.0, 60.0, Kind::Compute), op(20.0, 5.0, Kind::Memory)], 28.0, 50.0);
        let tenants = [wide.clone(), wide.clone(), wide];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let segments = device.record(Sharing::Budgets(&[Ppm::ONE; 3]), 5e6).unwrap();
        for at in 0..500 {
            let at = f64::from(at) * 1e4;
            let held = segments.iter().filter(|part| part.from_ns <= at && at < part.to_ns);
            assert!(held.map(|part| part.sms).sum::<f64>() <= 80.0 + 1e-6);
        }
        assert!(segments.iter().all(|part| part.to_ns <= 5e6) && segments.len() > 100);
    }
}
