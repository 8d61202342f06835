//! What a rate that was measured beside several co-tenants says about each pair.

use super::online::{Belief, Online};
use std::collections::BTreeMap;

/// The other tenants of one of a job's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct CoTenants {
    /// Their classes, one as often as there are jobs of it.
    pub classes: Vec<u32>,
    /// The job's rate beside those whose pair rates are known and need no learning; 1 if there are none.
    pub known_rate: f64,
}

/// What the measurement says about one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairObservation {
    /// The other class.
    pub beside: u32,
    /// The pair's rate if all other pairs are as believed.
    pub rate: f64,
    /// Standard deviation of that.
    pub noise: f64,
}

/// The believed rate of a job beside its co-tenants on a GPU: the product of its pair rates, as in the rate
/// law.
struct Believed {
    rate: f64,
    pairs: Vec<BelievedPair>,
}

struct BelievedPair {
    beside: u32,
    rate: f64,
    slope: f64,
    /// Its part of the standard deviation of the product.
    spread: f64,
}

impl Believed {
    fn variance(&self) -> f64 {
        self.pairs.iter().map(|pair| pair.spread.powi(2)).sum()
    }

    /// Minus twice the log-likelihood of the measured rate, without the constant term.
    fn deviance(&self, measured: f64, noise: f64) -> f64 {
        let variance = self.variance() + noise.powi(2);
        (measured - self.rate).powi(2) / variance + variance.ln()
    }

    fn pair_observations(
        &self,
        measured: f64,
        noise: f64,
    ) -> impl Iterator<Item = PairObservation> + '_ {
        let variance = self.variance() + noise.powi(2);
        let surprise = measured - self.rate;
        self.pairs.iter().map(move |pair| {
            let of_others = (variance - pair.spread.powi(2)).max(noise.powi(2));
            PairObservation {
                beside: pair.beside,
                rate: pair.rate + surprise / pair.slope,
                noise: of_others.sqrt() / pair.slope,
            }
        })
    }
}

impl Online {
    /// Splits a rate of `a`, measured beside co-tenants on each of its GPUs, into one observation per pair:
    /// the pair's rate if all other pairs are as believed. The slowest GPU sets the rate of a gang, so the
    /// measurement says nothing about pairs on faster GPUs.
    pub fn pair_observations(
        &self,
        a: u32,
        gpus: &[CoTenants],
        rate: f64,
        noise: f64,
    ) -> Vec<PairObservation> {
        let gpus: Vec<Believed> =
            gpus.iter().map(|co_tenants| self.believed(a, co_tenants)).collect();
        // No GPU can be slower than the measured rate. If none was believed to be, the likeliest was.
        let mut slow: Vec<&Believed> = gpus.iter().filter(|gpu| gpu.rate < rate).collect();
        if slow.is_empty() {
            let deviance = |gpu: &Believed| gpu.deviance(rate, noise);
            let by = |one: &&Believed, other: &&Believed| deviance(one).total_cmp(&deviance(other));
            slow.extend(gpus.iter().min_by(by));
        }
        slow.into_iter().flat_map(|believed| believed.pair_observations(rate, noise)).collect()
    }

    fn believed(&self, a: u32, co_tenants: &CoTenants) -> Believed {
        let mut counts: BTreeMap<u32, i32> = BTreeMap::new();
        for &class in &co_tenants.classes {
            *counts.entry(class).or_default() += 1;
        }
        let beliefs: Vec<(u32, i32, Belief)> =
            counts.into_iter().map(|(b, count)| (b, count, self.belief(a, b))).collect();
        let rates = beliefs.iter().map(|(_, count, belief)| belief.rate.powi(*count));
        let rate = co_tenants.known_rate * rates.product::<f64>();
        let pair = |(beside, count, belief): (u32, i32, Belief)| {
            // The derivative of the product by this pair's rate.
            let slope = f64::from(count) * rate / belief.rate;
            BelievedPair { beside, rate: belief.rate, slope, spread: slope * belief.deviation }
        };
        Believed { rate, pairs: beliefs.into_iter().map(pair).collect() }
    }
}
