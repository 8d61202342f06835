//! A tenant of the GPU: its operators in order, the gaps between them, and its guarantees.

use super::DeviceError;
use super::gpu::DeviceGpu;
use tandem_core::Memory;

/// An hour: longer operators and gaps are input errors.
pub const NS_MAX: f64 = 3.6e12;
/// More SMs are input errors.
pub const SMS_WANTED_MAX: f64 = 1e9;
/// The largest batch a trace is rescaled to or from.
pub const BATCH_MAX: u32 = 1_000_000;

/// The bottleneck of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorKind {
    /// Arithmetic.
    Compute,
    /// DRAM bandwidth.
    Memory,
    /// Unknown.
    Unknown,
}

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operator {
    /// Nanoseconds alone on the whole GPU, above zero.
    pub duration_ns: f64,
    /// SMs that it would occupy if there were enough, above zero.
    pub sms: f64,
    /// Its bottleneck.
    pub kind: OperatorKind,
}

impl Operator {
    /// The same operator on a batch of another size.
    fn rescaled(self, scale: f64, sms: f64) -> Self {
        let wanted = (self.sms * scale).max(1.0);
        let waves = (wanted / sms).max(1.0) / (self.sms / sms).max(1.0);
        Self { sms: wanted, duration_ns: self.duration_ns * waves, ..self }
    }
}

/// Requests that arrive one by one; an iteration serves one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// Mean arrivals per second (Poisson process).
    pub per_second: f64,
    /// The guaranteed 99th percentile of the latency, if any.
    pub p99_ns: Option<f64>,
}

/// One process on the GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTenant {
    /// Its name.
    pub name: String,
    /// Memory, without the context.
    pub memory: Memory,
    /// Shortest time between the issues of two operators, in nanoseconds.
    pub launch_ns: f64,
    /// Host time before each iteration, in nanoseconds.
    pub host_ns: f64,
    /// Its weight in the objective.
    pub weight: f64,
    /// The guaranteed share of its solo speed; zero if none is.
    pub floor: f64,
    /// Set if it serves requests instead of iterating without end.
    pub requests: Option<Requests>,
    operators: Vec<Operator>,
}

impl DeviceTenant {
    /// A tenant that iterates over `operators` without end, launches every 28 µs and needs 300 µs on the host
    /// per iteration.
    pub fn new(name: &str, operators: Vec<Operator>) -> Result<Self, DeviceError> {
        let tenant = Self {
            name: name.to_owned(),
            memory: Memory(0),
            launch_ns: 28_000.0,
            host_ns: 300_000.0,
            weight: 1.0,
            floor: 0.0,
            requests: None,
            operators,
        };
        tenant.check()?;
        Ok(tenant)
    }

    fn check(&self) -> Result<(), DeviceError> {
        if self.operators.is_empty() {
            return Err(DeviceError::NoOperators { tenant: self.name.clone() });
        }
        let within = |value: f64, max: f64| value > 0.0 && value <= max;
        let bad = self.operators.iter().position(|operator| {
            !within(operator.duration_ns, NS_MAX) || !within(operator.sms, SMS_WANTED_MAX)
        });
        match bad {
            Some(operator) => Err(DeviceError::Operator { tenant: self.name.clone(), operator }),
            None => Ok(()),
        }
    }

    /// Its operators, in order.
    pub fn operators(&self) -> &[Operator] {
        &self.operators
    }

    /// The same tenant with batches of `to` instead of `from`.
    pub fn rescaled(mut self, from: u32, to: u32, gpu: &DeviceGpu) -> Result<Self, DeviceError> {
        let (scale, sms) = (f64::from(to) / f64::from(from), f64::from(gpu.sms));
        for operator in &mut self.operators {
            *operator = operator.rescaled(scale, sms);
        }
        self.check()?;
        Ok(self)
    }

    /// Nanoseconds of one iteration alone on the whole GPU.
    pub fn alone_ns(&self) -> f64 {
        let (last, rest) = self.operators.split_last().expect("a tenant has operators");
        let rest = rest.iter().map(|operator| operator.duration_ns.max(self.launch_ns));
        self.host_ns + rest.sum::<f64>() + last.duration_ns
    }

    /// Share of the GPU's SMs that it keeps busy alone, over time.
    pub fn duty(&self, gpu: &DeviceGpu) -> f64 {
        let sms = f64::from(gpu.sms);
        let busy = self.operators.iter().map(|op| op.duration_ns * op.sms.min(sms) / sms);
        busy.sum::<f64>() / self.alone_ns()
    }
}

/// Refuses tenants that do not fit into the GPU's memory together.
pub fn check_memory(gpu: &DeviceGpu, tenants: &[DeviceTenant]) -> Result<(), DeviceError> {
    let wanted = tenants.iter().map(|tenant| tenant.memory.0.saturating_add(gpu.context.0));
    let wanted = Memory(wanted.fold(0, u64::saturating_add));
    if wanted <= gpu.memory {
        return Ok(());
    }
    let each = |tenant: &DeviceTenant| format!("{} ({})", tenant.name, tenant.memory);
    Err(DeviceError::MemoryOver {
        gpu: gpu.name.clone(),
        wanted,
        available: gpu.memory,
        context: gpu.context,
        tenants: tenants.iter().map(each).collect::<Vec<_>>().join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(duration_ns: f64, sms: f64) -> Operator {
        Operator { duration_ns, sms, kind: OperatorKind::Compute }
    }

    #[test]
    fn a_larger_batch_widens_operators_until_the_gpu_is_full_and_then_takes_longer() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let tenant = DeviceTenant::new("a", vec![op(1000.0, 20.0), op(1000.0, 160.0)]).unwrap();
        let larger = tenant.clone().rescaled(4, 32, &gpu).unwrap();
        assert_eq!(larger.operators(), [op(2000.0, 160.0), op(8000.0, 1280.0)]);
        let smaller = tenant.rescaled(4, 1, &gpu).unwrap();
        assert_eq!(smaller.operators(), [op(1000.0, 5.0), op(500.0, 40.0)]);
    }

    #[test]
    fn an_iteration_alone_waits_for_launches_but_not_after_its_last_operator() {
        let mut tenant =
            DeviceTenant::new("a", vec![op(10_000.0, 20.0), op(50_000.0, 80.0), op(7.0, 1.0)])
                .unwrap();
        tenant.host_ns = 1000.0;
        assert_eq!(tenant.alone_ns(), 1000.0 + 28_000.0 + 50_000.0 + 7.0);
    }

    #[test]
    fn invalid_operators_are_refused() {
        for bad in [op(0.0, 1.0), op(-1.0, 1.0), op(f64::NAN, 1.0), op(1e300, 1.0), op(1.0, 0.0)] {
            assert!(DeviceTenant::new("a", vec![op(1.0, 1.0), bad]).is_err(), "{bad:?}");
        }
        assert!(DeviceTenant::new("a", Vec::new()).is_err());
    }

    #[test]
    fn memory_counts_a_context_for_each() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let mut tenant = DeviceTenant::new("a", vec![op(1.0, 1.0)]).unwrap();
        tenant.memory = Memory::from_mib(8192 - 500);
        let pair = [tenant.clone(), tenant.clone()];
        assert_eq!(check_memory(&gpu, &pair), Ok(()));
        tenant.memory = Memory(tenant.memory.0 + 1);
        tenant.name = "b".to_owned();
        let error = check_memory(&gpu, &[pair[0].clone(), tenant]).unwrap_err().to_string();
        assert!(error.contains("a (7692 MiB), b (7692.001 MiB)"), "{error}");
    }
}
