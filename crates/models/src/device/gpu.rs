//! The GPU that tenants share, and the constants of the model.

use super::DeviceError;
use super::tenant::OperatorKind;
use tandem_core::{Memory, PPM_ONE, Ppm};

/// With fewer SMs the smallest budget would be none.
const SMS_MIN: u32 = 10;
const SMS_MAX: u32 = 10_000;

/// How SMs are assigned to operators that ask for more than there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmScheduler {
    /// In order of issue: a later operator gets what remains.
    #[default]
    Fifo,
    /// In proportion to their demand.
    Prop,
}

/// Assumed properties of the hardware; only κ is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Fraction of the peak DRAM bandwidth of a compute-bound operator at full speed.
    pub beta_compute: f64,
    /// The same for a memory-bound operator.
    pub beta_memory: f64,
    /// The same for an operator of unknown kind.
    pub beta_unknown: f64,
    /// Share of the SMs that saturates the bandwidth.
    pub sigma: f64,
    /// Slow-down by each of up to two co-runners.
    pub kappa: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self { beta_compute: 0.35, beta_memory: 0.85, beta_unknown: 0.20, sigma: 0.6, kappa: 0.10 }
    }
}

impl Constants {
    /// Fraction of the peak bandwidth at full speed.
    pub fn beta(&self, kind: OperatorKind) -> f64 {
        match kind {
            OperatorKind::Compute => self.beta_compute,
            OperatorKind::Memory => self.beta_memory,
            OperatorKind::Unknown => self.beta_unknown,
        }
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceGpu {
    /// Its name.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Memory.
    pub memory: Memory,
    /// Memory of each process's context.
    pub context: Memory,
    /// How operators get SMs.
    pub scheduler: SmScheduler,
    /// Its assumed properties.
    pub constants: Constants,
}

/// Name, SMs and memory in GiB, from the vendor.
const KNOWN: [(&str, u32, u64); 8] = [
    ("v100", 80, 16),
    ("v100-32g", 80, 32),
    ("a100", 108, 80),
    ("a100-40g", 108, 40),
    ("h100", 132, 80),
    ("p100", 56, 16),
    ("t4", 40, 16),
    ("rtx3090", 82, 24),
];

impl DeviceGpu {
    /// A GPU by name.
    pub fn known(name: &str) -> Result<Self, DeviceError> {
        let found = KNOWN.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
        let &(name, sms, gib) = found.ok_or_else(|| {
            let names: Vec<&str> = KNOWN.iter().map(|(name, ..)| *name).collect();
            DeviceError::UnknownGpu { name: name.to_owned(), known: names.join(", ") }
        })?;
        Ok(Self {
            name: name.to_owned(),
            sms,
            memory: Memory::from_mib(gib * 1024),
            context: Memory::from_mib(500),
            scheduler: SmScheduler::Fifo,
            constants: Constants::default(),
        })
    }

    /// The same with another number of SMs.
    pub fn with_sms(self, sms: u32) -> Result<Self, DeviceError> {
        match (SMS_MIN..=SMS_MAX).contains(&sms) {
            true => Ok(Self { sms, ..self }),
            false => Err(DeviceError::Sms { sms, min: SMS_MIN, max: SMS_MAX }),
        }
    }

    /// The SMs of a budget, rounded down. A third is stored as 0.333333, so half a millionth is added:
    /// otherwise a third of 108 SMs would be 35.
    pub fn cap(&self, budget: Ppm) -> u32 {
        let halves = (u64::from(budget.0) * 2 + 1) * u64::from(self.sms);
        let cap = halves / (2 * u64::from(PPM_ONE));
        u32::try_from(cap).unwrap_or(u32::MAX).min(self.sms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_core::BUDGET_MIN;

    #[test]
    fn budgets_are_rounded_down_to_whole_sms_and_a_third_is_a_third() {
        let a100 = DeviceGpu::known("A100").unwrap();
        assert_eq!(a100.cap(Ppm(333_333)), 36);
        assert_eq!(a100.cap(Ppm(666_667)), 72);
        assert_eq!(a100.cap(Ppm::ONE), 108);
        let v100 = DeviceGpu::known("v100").unwrap();
        assert_eq!(
            [333_333, 666_667, 670_000, 600_000].map(|v| v100.cap(Ppm(v))),
            [26, 53, 53, 48]
        );
        assert_eq!(v100.cap(BUDGET_MIN), 8);
        assert_eq!(v100.cap(Ppm(99_999)), 7);
    }

    #[test]
    fn an_unknown_gpu_is_refused_with_the_known_names() {
        let error = DeviceGpu::known("k9").unwrap_err().to_string();
        assert!(error.contains("k9") && error.contains("v100"), "{error}");
        assert!(DeviceGpu::known("v100").unwrap().with_sms(9).is_err());
    }
}
