//! Solo profiles of classes, and measured pairs.

use serde::{Deserialize, Serialize};

/// A class of jobs and its solo measurements, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassProfile {
    /// Unique in a table.
    pub name: String,
    /// Classes of one model with other batch sizes or precisions are similar.
    pub model: String,
    /// Share of time during which the GPU is busy, 0 to 1.
    pub gpu_util: Option<f64>,
    /// Share of the memory bandwidth used, 0 to 1.
    pub bandwidth_util: Option<f64>,
    /// Memory in MiB.
    pub memory_mib: Option<f64>,
    /// Iterations per second.
    pub steps_per_s: Option<f64>,
    /// Batch size per GPU.
    pub batch: Option<f64>,
    /// Mixed precision.
    pub amp: bool,
}

/// Two classes that ran together, by their position in the table, and their rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredPair {
    /// One of them.
    pub a: usize,
    /// The other; may be the same class.
    pub b: usize,
    /// Rate of `a` beside `b`.
    pub rate_a: f64,
    /// Rate of `b` beside `a`.
    pub rate_b: f64,
}

/// Number of features of a class.
pub(crate) const FEATURES: usize = 6;

impl ClassProfile {
    /// The features in a fixed order; sizes and speeds on a logarithmic scale.
    pub(crate) fn features(&self) -> [Option<f64>; FEATURES] {
        let share = |value: Option<f64>| value.map(|value| value.clamp(0.0, 1.0));
        let log = |value: Option<f64>| {
            value.filter(|&value| value > 0.0 && value.is_finite()).map(f64::log2)
        };
        [
            share(self.gpu_util),
            share(self.bandwidth_util),
            log(self.memory_mib),
            log(self.steps_per_s),
            // If utilisation was measured, the batch size only adds overfitting.
            if self.gpu_util.is_none() { log(self.batch) } else { None },
            Some(if self.amp { 1.0 } else { 0.0 }),
        ]
    }
}

/// Mean and spread of the features over the classes of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Standard {
    mean: [f64; FEATURES],
    spread: [f64; FEATURES],
}

impl Standard {
    pub(crate) fn of(profiles: &[ClassProfile]) -> Self {
        let rows: Vec<_> = profiles.iter().map(ClassProfile::features).collect();
        let (mut mean, mut spread) = ([0.0; FEATURES], [0.0; FEATURES]);
        for feature in 0..FEATURES {
            let known: Vec<f64> = rows.iter().filter_map(|row| row[feature]).collect();
            let count = known.len().max(1) as f64;
            mean[feature] = known.iter().sum::<f64>() / count;
            let squares: f64 = known.iter().map(|value| (value - mean[feature]).powi(2)).sum();
            spread[feature] = (squares / count).sqrt();
        }
        Self { mean, spread }
    }

    /// A profile whose measured values lie within these ranges of standardised features.
    pub(crate) fn within(
        &self,
        profile: &ClassProfile,
        range: &[(f64, f64); FEATURES],
    ) -> ClassProfile {
        let raw = profile.features();
        let value = |feature: usize| {
            let [least, most] = [range[feature].0, range[feature].1]
                .map(|value| self.mean[feature] + value * self.spread[feature]);
            raw[feature].map(|value| value.clamp(least, most))
        };
        ClassProfile {
            gpu_util: value(0),
            memory_mib: value(2).map(f64::exp2),
            steps_per_s: value(3).map(f64::exp2),
            ..profile.clone()
        }
    }

    /// Standardised features; unknown or constant ones count as average.
    pub(crate) fn apply(&self, profile: &ClassProfile) -> [f64; FEATURES] {
        let raw = profile.features();
        std::array::from_fn(|feature| match raw[feature] {
            Some(value) if self.spread[feature] > 1e-9 => {
                (value - self.mean[feature]) / self.spread[feature]
            }
            _ => 0.0,
        })
    }
}
