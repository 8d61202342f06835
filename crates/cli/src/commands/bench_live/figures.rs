//! Latencies and their quantiles.

use serde_json::{Value, json};
use std::time::Duration;

/// Latencies in milliseconds.
#[derive(Default)]
pub(super) struct Latencies(Vec<f64>);

impl Latencies {
    pub(super) fn add(&mut self, millis: f64) {
        self.0.push(millis);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The quantile: the smallest value that at least this share does not exceed.
    pub(super) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(super) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(super) fn json(&self) -> Value {
        json!({ "count": self.len(), "median_ms": self.median(), "p99_ms": self.p99(),
            "max_ms": self.quantile(1.0) })
    }
}

pub(super) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// The load average of the last minute.
pub(super) fn machine_load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut times = Latencies::default();
        (1..=100).rev().for_each(|time| times.add(f64::from(time)));
        assert_eq!((times.median(), times.p99(), times.quantile(1.0)), (50.0, 99.0, 100.0));
        assert!(Latencies::default().median().is_nan());
    }
}
