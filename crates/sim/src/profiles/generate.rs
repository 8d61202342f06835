//! Synthetic operator traces from a seed, in the columns of measured ones.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::io::{self, Write};

/// Options of a synthetic operator trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateOperators {
    /// Operators of an iteration.
    pub operators: u32,
    /// Their median duration in microseconds.
    pub duration_us: f64,
    /// Median of the SMs that they ask for.
    pub sms: f64,
    /// Seed.
    pub seed: u64,
}

/// Name, class, SMs and duration relative to the medians: the pattern of a convolutional network.
const RHYTHM: [(&str, i32, f64, f64); 3] =
    [("Conv", 1, 1.3, 1.6), ("BatchNorm", 0, 1.0, 0.7), ("elementwise_kernel", -1, 0.4, 0.4)];

/// Writes a trace.
pub fn write_operators(wanted: &GenerateOperators, out: &mut dyn Write) -> io::Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(wanted.seed);
    writeln!(out, "Name,Profile,Memory_footprint,SM_usage,Duration")?;
    for index in 0..wanted.operators {
        // Some layers skip their normalisation.
        let step = if rng.random_bool(0.1) { 0 } else { index as usize % RHYTHM.len() };
        let (name, profile, wider, longer) = RHYTHM[step];
        let mut spread = |median: f64, sigma: f64| {
            let normal: f64 = StandardNormal.sample(&mut rng);
            median * (sigma * normal).exp()
        };
        let sms = spread(wanted.sms * wider, 0.9).round().clamp(1.0, 1e6);
        let duration_ns = spread(wanted.duration_us * longer * 1e3, 0.6).round().clamp(500.0, 1e9);
        writeln!(out, "{name},{profile},0,{sms},{duration_ns}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_a_trace_that_can_be_read_again() {
        let write = |seed| {
            let wanted = GenerateOperators { operators: 60, duration_us: 25.0, sms: 30.0, seed };
            let mut text = Vec::new();
            write_operators(&wanted, &mut text).unwrap();
            text
        };
        assert_eq!(write(1), write(1));
        assert_ne!(write(1), write(2));
        let operators = super::super::operators::parse(&write(1), "t").unwrap();
        assert_eq!(operators.len(), 60);
        let mean = operators.iter().map(|operator| operator.sms).sum::<f64>() / 60.0;
        assert!((15.0..120.0).contains(&mean), "{mean}");
    }
}
