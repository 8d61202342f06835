//! Event-driven evaluation from operator traces: which tenant runs when, and how fast.
//!
//! Each tenant has one operator in flight. At every issue and completion, SMs and speeds are assigned again
//! to the operators in flight, in order of issue. Time is in nanoseconds.

use super::DeviceError;
use super::allocate::{BudgetEvaluator, Measurement};
use super::gpu::DeviceGpu;
use super::requests::{self, Arrivals};
use super::run::{CappedOperator, DeviceRun, OperatorCount, SAME_NS, asks, with_lanes};
use super::tenant::{DeviceTenant, Operator, OperatorKind};
use tandem_core::Ppm;

/// The shortest window.
const WINDOW_NS: f64 = 1e9;
pub(super) const TENANTS_MAX: usize = 64;

/// How the tenants share the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSharing<'a> {
    /// Time slicing on the whole GPU, no concurrency.
    Slice,
    /// Concurrently, each within its budget.
    Budgets(&'a [Ppm]),
}

/// SMs that a tenant held for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmSegment {
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
    gpu: &'a DeviceGpu,
    tenants: &'a [DeviceTenant],
    /// For each tenant, the end of each operator of an iteration alone, relative to its start.
    ends_alone: Vec<Vec<f64>>,
    /// For each tenant, the demands of its operators on this GPU.
    demands: Vec<Vec<OperatorDemand>>,
    seed: u64,
}

impl<'a> Operators<'a> {
    /// Tenants on a GPU; `seed` is that of the request arrivals.
    pub fn new(
        gpu: &'a DeviceGpu,
        tenants: &'a [DeviceTenant],
        seed: u64,
    ) -> Result<Self, DeviceError> {
        match tenants.len() {
            0 => return Err(DeviceError::NoTenants),
            count if count > TENANTS_MAX => {
                return Err(DeviceError::TooManyTenants { count, limit: TENANTS_MAX });
            }
            _ => {}
        }
        let ends_alone = tenants.iter().map(ends_alone).collect();
        let demands = tenants.iter().map(|tenant| demands(gpu, tenant)).collect();
        Ok(Self { gpu, tenants, ends_alone, demands, seed })
    }

    /// The GPU.
    pub(super) fn gpu(&self) -> &'a DeviceGpu {
        self.gpu
    }

    /// The tenants.
    pub(super) fn list(&self) -> &'a [DeviceTenant] {
        self.tenants
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The demands of a tenant's operators.
    pub(super) fn demands(&self, index: usize) -> &[OperatorDemand] {
        &self.demands[index]
    }

    /// A tenant's operators under a cap.
    pub(super) fn asks(&self, index: usize, cap: u32) -> Vec<CappedOperator> {
        asks(&self.demands[index], self.tenants[index].launch_ns, f64::from(cap))
    }

    /// The speed of a tenant alone under a cap.
    pub(super) fn capped_speed(&self, index: usize, cap: u32) -> f64 {
        let (tenant, cap) = (&self.tenants[index], f64::from(cap));
        let (last, rest) = self.demands[index].split_last().expect("a tenant has operators");
        let takes =
            |want: &OperatorDemand| want.duration_ns / (want.sms.min(cap) / want.enough).min(1.0);
        let rest = rest.iter().map(|want| takes(want).max(tenant.launch_ns));
        tenant.alone_ns() / (tenant.host_ns + rest.sum::<f64>() + takes(last))
    }

    /// Whether the cap covers the demand of every operator of a tenant.
    pub(super) fn is_enough(&self, index: usize, cap: u32) -> bool {
        self.demands[index].iter().all(|want| want.sms <= f64::from(cap))
    }

    /// The operators of all tenants under their caps.
    fn all_asks(&self, sharing: DeviceSharing<'_>) -> Vec<Vec<CappedOperator>> {
        let cap = |index: usize| match sharing {
            DeviceSharing::Slice => self.gpu.sms,
            DeviceSharing::Budgets(budgets) => self.gpu.cap(budgets[index]),
        };
        (0..self.tenants.len()).map(|index| self.asks(index, cap(index))).collect()
    }

    /// The end of each operator of an iteration alone, relative to its start.
    pub(super) fn ends_alone(&self, index: usize) -> &[f64] {
        &self.ends_alone[index]
    }

    /// Speeds of all tenants relative to running alone.
    pub fn evaluate(&self, sharing: DeviceSharing<'_>) -> Result<Measurement, DeviceError> {
        with_lanes!(self.tenants.len(), LANES => self.evaluate_in::<LANES>(sharing))
    }

    fn evaluate_in<const N: usize>(
        &self,
        sharing: DeviceSharing<'_>,
    ) -> Result<Measurement, DeviceError> {
        let asks = self.all_asks(sharing);
        let asks: Vec<&[CappedOperator]> = asks.iter().map(Vec::as_slice).collect();
        let mut run = DeviceRun::<N>::new(self, &asks, sharing == DeviceSharing::Slice);
        let mut window_ns = WINDOW_NS / 2.0;
        let mut half = vec![OperatorCount::default(); self.tenants.len()];
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

    /// The SMs of each tenant during the first `until_ns`.
    pub fn record(
        &self,
        sharing: DeviceSharing<'_>,
        until_ns: f64,
    ) -> Result<Vec<SmSegment>, DeviceError> {
        let mut segments = Vec::new();
        let held = |segment| segments.push(segment);
        let asks = self.all_asks(sharing);
        let asks: Vec<&[CappedOperator]> = asks.iter().map(Vec::as_slice).collect();
        with_lanes!(self.tenants.len(), LANES => {
            DeviceRun::<LANES>::new(self, &asks, sharing == DeviceSharing::Slice).until(until_ns, held)?;
        });
        Ok(segments)
    }

    fn measurement<const N: usize>(
        &self,
        run: &DeviceRun<'_, N>,
        half: &[OperatorCount],
        counts: &[OperatorCount],
        window_ns: f64,
    ) -> Measurement {
        let mut measurement = Measurement { parts: vec![Vec::new(); 2], ..Measurement::default() };
        for (index, tenant) in self.tenants.iter().enumerate() {
            let (of_half, of_all) =
                (self.alone(index, window_ns / 2.0), self.alone(index, window_ns));
            let share = |shared: u64, alone: u64| match alone {
                // No work, and none done.
                0 => 1.0,
                _ => shared as f64 / alone as f64,
            };
            let done = |count: &OperatorCount| match tenant.requests {
                Some(_) => count.iterations,
                None => count.operators,
            };
            let (first, all) = (done(&half[index]), done(&counts[index]));
            measurement.y.push(share(all, of_all));
            measurement.parts[0].push(share(first, of_half));
            measurement.parts[1].push(share(all - first, of_all - of_half));
            let latencies = run.latencies(index).to_vec();
            measurement.p99_ns.push(tenant.requests.and(requests::p99(latencies)));
        }
        measurement.window_ns = window_ns;
        measurement
    }

    /// Operators completed by a tenant alone, or requests served.
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

impl BudgetEvaluator for Operators<'_> {
    type Error = DeviceError;

    fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn duties(&self) -> Option<Vec<f64>> {
        Some(self.tenants.iter().map(|tenant| tenant.duty(self.gpu)).collect())
    }

    fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, DeviceError> {
        self.evaluate(DeviceSharing::Budgets(budgets))
    }
}

fn ends_alone(tenant: &DeviceTenant) -> Vec<f64> {
    let mut issue_ns = tenant.host_ns;
    let end = |duration_ns: f64| {
        let end = issue_ns + duration_ns;
        issue_ns += duration_ns.max(tenant.launch_ns);
        end
    };
    tenant.operators().iter().map(|operator| operator.duration_ns).map(end).collect()
}

/// The demand of an operator on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorDemand {
    /// Its duration alone.
    pub(super) duration_ns: f64,
    /// SMs that it asks for.
    pub(super) sms: f64,
    /// SMs that give it full speed.
    pub(super) enough: f64,
    /// Fraction of the peak bandwidth at full speed.
    pub(super) beta: f64,
}

fn demands(gpu: &DeviceGpu, tenant: &DeviceTenant) -> Vec<OperatorDemand> {
    let (sms, constants) = (f64::from(gpu.sms), &gpu.constants);
    let want = |operator: &Operator| {
        let width = operator.sms.min(sms);
        let saturates = operator.kind == OperatorKind::Memory && width >= constants.sigma * sms;
        let enough = if saturates { constants.sigma * width } else { width };
        OperatorDemand {
            duration_ns: operator.duration_ns,
            sms: operator.sms,
            enough,
            beta: constants.beta(operator.kind),
        }
    };
    tenant.operators().iter().map(want).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::SmScheduler;
    use crate::device::tenant::{Operator, Requests};

    fn op(duration_us: f64, sms: f64, kind: OperatorKind) -> Operator {
        Operator { duration_ns: duration_us * 1e3, sms, kind }
    }

    fn tenant(operators: Vec<Operator>, launch_us: f64, host_us: f64) -> DeviceTenant {
        let mut tenant = DeviceTenant::new("t", operators).unwrap();
        (tenant.launch_ns, tenant.host_ns) = (launch_us * 1e3, host_us * 1e3);
        tenant
    }

    fn y(gpu: &DeviceGpu, tenants: &[DeviceTenant], budgets: &[u32]) -> Vec<f64> {
        let budgets: Vec<Ppm> = budgets.iter().map(|&ppm| Ppm(ppm)).collect();
        let device = Operators::new(gpu, tenants, 1).unwrap();
        device.evaluate(DeviceSharing::Budgets(&budgets)).unwrap().y
    }

    fn close(found: &[f64], expected: &[f64]) {
        let near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-4);
        assert!(near && found.len() == expected.len(), "{found:?} instead of {expected:?}");
    }

    const FULL: u32 = 1_000_000;

    #[test]
    fn alone_a_tenant_keeps_all_of_its_speed_and_a_cap_takes_its_part() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let wide = tenant(
            vec![op(100.0, 200.0, OperatorKind::Compute), op(30.0, 4.0, OperatorKind::Memory)],
            28.0,
            300.0,
        );
        assert_eq!(y(&gpu, std::slice::from_ref(&wide), &[FULL]), [1.0]);
        // Half of 80 SMs doubles the wide operator.
        close(&y(&gpu, &[wide], &[500_000]), &[430.0 / 530.0]);
        // Six tenths of the SMs saturate the bandwidth, three tenths half of it.
        let memory = tenant(vec![op(100.0, 80.0, OperatorKind::Memory)], 0.0, 0.0);
        close(&y(&gpu, std::slice::from_ref(&memory), &[600_000]), &[1.0]);
        close(&y(&gpu, &[memory], &[300_000]), &[0.5]);
    }

    #[test]
    fn under_fifo_the_earlier_operator_leaves_the_later_one_nothing() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let wide = tenant(vec![op(100.0, 80.0, OperatorKind::Compute)], 0.0, 0.0);
        // The two alternate: they never run concurrently, so κ does not count.
        close(&y(&gpu, &[wide.clone(), wide.clone()], &[FULL, FULL]), &[0.5, 0.5]);
        // Half each: both run, at half speed, and slow each other down by a tenth.
        let half = 0.5 / 1.1;
        close(&y(&gpu, &[wide.clone(), wide.clone()], &[500_000, 500_000]), &[half, half]);
        let prop = DeviceGpu { scheduler: SmScheduler::Prop, ..gpu };
        close(&y(&prop, &[wide.clone(), wide], &[FULL, FULL]), &[half, half]);
    }

    #[test]
    fn bandwidth_is_divided_and_at_most_two_others_count() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let narrow = |kind| tenant(vec![op(100.0, 8.0, kind)], 0.0, 0.0);
        // Two memory operators want 1.7 of the bandwidth.
        let kept = (0.15 + 0.85 / 1.7) / 1.1;
        close(
            &y(&gpu, &[narrow(OperatorKind::Memory), narrow(OperatorKind::Memory)], &[FULL, FULL]),
            &[kept, kept],
        );
        let four = vec![narrow(OperatorKind::Unknown); 4];
        close(&y(&gpu, &four, &[FULL; 4]), &[1.0 / 1.2; 4]);
    }

    #[test]
    fn slices_take_turns_and_fill_each_others_gaps() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let busy = tenant(vec![op(100.0, 8.0, OperatorKind::Memory)], 0.0, 0.0);
        let device_of = [busy.clone(), busy];
        let device = Operators::new(&gpu, &device_of, 1).unwrap();
        close(&device.evaluate(DeviceSharing::Slice).unwrap().y, &[0.5, 0.5]);
    }

    #[test]
    fn a_window_holds_ten_iterations_of_the_slowest_and_its_halves_agree() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let slow = tenant(vec![op(400_000.0, 40.0, OperatorKind::Compute)], 0.0, 0.0);
        let fast = tenant(vec![op(100.0, 40.0, OperatorKind::Compute)], 0.0, 0.0);
        let tenants = [slow, fast];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let measured = device.evaluate(DeviceSharing::Budgets(&[Ppm::ONE; 2])).unwrap();
        assert_eq!(measured.window_ns, 8e9);
        assert!((measured.y[1] - 1.0 / 1.1).abs() < 1e-3, "{measured:?}");
        assert_eq!(measured.parts.len(), 2);
    }

    #[test]
    fn tenants_of_too_different_speeds_are_refused() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let mut slow = tenant(vec![op(3e9, 40.0, OperatorKind::Compute)], 0.0, 0.0);
        slow.name = "slow".to_owned();
        let fast = tenant(vec![op(0.001, 40.0, OperatorKind::Compute)], 0.0, 0.0);
        let tenants = [slow, fast];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let error = device.evaluate(DeviceSharing::Slice).unwrap_err();
        assert!(matches!(&error, DeviceError::TooLong { slowest, .. } if slowest == "slow"));
    }

    #[test]
    fn a_lone_server_is_as_fast_as_alone() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let mut server = tenant(vec![op(1000.0, 40.0, OperatorKind::Compute)], 0.0, 100.0);
        server.requests = Some(Requests { per_second: 300.0, p99_ns: None });
        let tenants = [server];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let measured = device.evaluate(DeviceSharing::Budgets(&[Ppm::ONE])).unwrap();
        assert_eq!(measured.y, [1.0]);
        let alone = device.p99_alone_ns(0, measured.window_ns).unwrap();
        assert!((measured.p99_ns[0].unwrap() - alone).abs() < 1.0, "{measured:?} {alone}");
        assert!(alone >= 1.1e6);
    }

    #[test]
    fn segments_never_hold_more_sms_than_there_are() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let wide = tenant(
            vec![op(100.0, 60.0, OperatorKind::Compute), op(20.0, 5.0, OperatorKind::Memory)],
            28.0,
            50.0,
        );
        let tenants = [wide.clone(), wide.clone(), wide];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let segments = device.record(DeviceSharing::Budgets(&[Ppm::ONE; 3]), 5e6).unwrap();
        for at in 0..500 {
            let at = f64::from(at) * 1e4;
            let held = segments.iter().filter(|part| part.from_ns <= at && at < part.to_ns);
            assert!(held.map(|part| part.sms).sum::<f64>() <= 80.0 + 1e-6);
        }
        assert!(segments.iter().all(|part| part.to_ns <= 5e6) && segments.len() > 100);
    }
}
