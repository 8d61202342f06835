//! GPU memory of a job: fitted to measurements at several batch sizes, declared, or measured while it runs.

use crate::errors::Errors;
use crate::least_squares::line;
use serde::{Deserialize, Serialize};
use tandem_core::Memory;

const PER_MIB: f64 = 1000.0;

/// MiB of the models as memory of the scheduler, rounded up. Negative values and NaN become zero.
pub(crate) fn to_memory(mib: f64) -> Memory {
    // `as` saturates and maps NaN to zero.
    Memory((mib * PER_MIB).ceil() as u64)
}

/// m(b) = fixed + activations·b, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryFit {
    /// MiB for any batch size.
    pub fixed: f64,
    /// MiB per example.
    pub per_example: f64,
    /// The largest excess of a measurement over the line.
    pub above_max: f64,
    /// Relative error at the smallest batch of a fit to the larger ones, which is what sub-batches rely on;
    /// negative where it predicts too little. Absent with two batch sizes.
    pub smallest_held_out: Option<f64>,
    /// Errors on the fitted measurements, in MiB.
    pub errors: Errors,
}

impl MemoryFit {
    /// Least squares over (batch, MiB), with non-negative coefficients; `None` with fewer than two batch
    /// sizes.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let (fixed, per_example) = line(points)?;
        let at = |batch: f64| fixed + per_example * batch;
        let pairs: Vec<_> = points.iter().map(|&(batch, mib)| (at(batch), mib)).collect();
        let above = pairs.iter().map(|&(predicted, measured)| measured - predicted);
        let above_max = above.fold(0.0, f64::max);
        let smallest_held_out = held_out(points);
        let errors = Errors::of(&pairs);
        Some(Self { fixed, per_example, above_max, smallest_held_out, errors })
    }

    /// MiB on the line.
    pub fn mib(&self, batch: f64) -> f64 {
        self.fixed + self.per_example * batch
    }

    /// MiB that no measurement of the fit exceeds. Reserve this: too little memory ends a job, too much only
    /// keeps a co-tenant away.
    pub(crate) fn safe_mib(&self, batch: f64) -> f64 {
        self.mib(batch) + self.above_max
    }
}

/// The relative error at the smallest batch of the line through all larger ones.
fn held_out(points: &[(f64, f64)]) -> Option<f64> {
    let &(smallest, measured) = points.iter().min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    let larger: Vec<_> = points.iter().copied().filter(|&(batch, _)| batch > smallest).collect();
    let (fixed, per_example) = line(&larger)?;
    (measured > 0.0).then(|| (fixed + per_example * smallest) / measured - 1.0)
}

/// Margin above the peak after one observation.
const MARGIN_FIRST: f64 = 0.20;
/// The smallest margin: allocators fragment.
const MARGIN_LAST: f64 = 0.02;

/// The memory of a running job, or of a class that has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedMemory {
    peak_thousandths: u64,
    observations: u32,
}

impl ObservedMemory {
    /// Adds the peak of one window or one run.
    pub fn observe(&mut self, peak: Memory) {
        self.peak_thousandths = self.peak_thousandths.max(peak.0);
        self.observations = self.observations.saturating_add(1);
    }

    /// The largest peak; `None` before the first observation.
    pub fn peak(&self) -> Option<Memory> {
        (self.observations > 0).then_some(Memory(self.peak_thousandths))
    }

    /// The margin above the peak. After n observations in random order the next one exceeds all of them with
    /// probability 1/(n + 1), and the margin shrinks like that.
    pub fn margin(&self) -> f64 {
        let after_first = 2.0 / (f64::from(self.observations) + 1.0);
        MARGIN_LAST + (MARGIN_FIRST - MARGIN_LAST) * after_first.min(1.0)
    }

    /// The memory to reserve: the peak and its margin, or the declared memory before any observation.
    pub fn reserve(&self, declared: Memory) -> Memory {
        match self.peak() {
            Some(peak) => to_memory(peak.mib() * (1.0 + self.margin())),
            None => declared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fit_is_a_line_and_safe_at_every_measurement() {
        let fit = MemoryFit::fit(&[(32.0, 2000.0), (64.0, 3000.0), (128.0, 5000.0)]).unwrap();
        assert!((fit.fixed - 1000.0).abs() < 1e-9 && (fit.per_example - 31.25).abs() < 1e-9);
        assert!(fit.smallest_held_out.unwrap().abs() < 1e-12);
        let fit = MemoryFit::fit(&[(32.0, 2458.0), (64.0, 2322.0), (128.0, 3096.0)]).unwrap();
        assert!(fit.safe_mib(32.0) >= 2458.0 && fit.errors.mae > 0.0);
        assert!(fit.smallest_held_out.unwrap() < -0.2, "the line says 1,935 MiB");
        assert_eq!(MemoryFit::fit(&[(32.0, 2458.0)]), None);
    }

    #[test]
    fn the_margin_shrinks_and_never_vanishes() {
        let mut memory = ObservedMemory::default();
        assert_eq!(memory.reserve(Memory::from_mib(7)), Memory::from_mib(7));
        memory.observe(Memory::from_mib(1000));
        assert_eq!(memory.reserve(Memory::default()), Memory::from_mib(1200));
        let mut before = memory.margin();
        for _ in 0..100 {
            memory.observe(Memory::from_mib(900));
            assert!(memory.margin() < before && memory.margin() > MARGIN_LAST);
            before = memory.margin();
        }
        assert_eq!(memory.peak(), Some(Memory::from_mib(1000)));
        assert!(memory.reserve(Memory::default()) < Memory::from_mib(1030));
    }

    proptest! {
        #[test]
        fn no_measurement_exceeds_the_safe_value(
            points in prop::collection::vec((1.0..512.0_f64, 0.0..80_000.0_f64), 0..6)
        ) {
            if let Some(fit) = MemoryFit::fit(&points) {
                prop_assert!(fit.fixed >= 0.0 && fit.per_example >= 0.0);
                for (batch, mib) in points {
                    prop_assert!(fit.safe_mib(batch) >= mib - 1e-6);
                }
            }
        }
    }
}
