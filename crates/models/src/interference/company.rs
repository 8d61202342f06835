//! What a job among several others shows about each of its pairs.

use super::online::{Belief, Online};
use std::collections::BTreeMap;

/// Those beside a job on one of its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Company {
    /// Their classes, one as often as there are jobs of it.
    pub classes: Vec<u32>,
    /// What others there leave of the job's rate, of whom there is nothing to learn; 1 if there are none.
    pub known: f64,
}

/// What a rate among several says about one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clue {
    /// The other class.
    pub beside: u32,
    /// What the pair's rate must be.
    pub rate: f64,
    /// How uncertain that is, as a standard deviation.
    pub noise: f64,
}

/// What is believed of a job in a company: the product of its pairs, an assumption like that of the simulator.
struct Believed {
    rate: f64,
    pairs: Vec<BelievedPair>,
}

struct BelievedPair {
    beside: u32,
    rate: f64,
    slope: f64,
    /// Its part of the uncertainty of the whole.
    spread: f64,
}

impl Believed {
    fn variance(&self) -> f64 {
        self.pairs.iter().map(|pair| pair.spread.powi(2)).sum()
    }

    /// Minus twice the logarithm of the likelihood that this rate was seen, but for a constant.
    fn unlikeliness(&self, seen: f64, noise: f64) -> f64 {
        let variance = self.variance() + noise.powi(2);
        (seen - self.rate).powi(2) / variance + variance.ln()
    }

    fn clues(&self, seen: f64, noise: f64) -> impl Iterator<Item = Clue> + '_ {
        let variance = self.variance() + noise.powi(2);
        let surprise = seen - self.rate;
        self.pairs.iter().map(move |pair| {
            let of_others = (variance - pair.spread.powi(2)).max(noise.powi(2));
            Clue {
                beside: pair.beside,
                rate: pair.rate + surprise / pair.slope,
                noise: of_others.sqrt() / pair.slope,
            }
        })
    }
}

impl Online {
    /// What `a` at `rate` among others says about each of its pairs: what the pair must be if all others
    /// are as believed, and how uncertain that leaves it. Of several GPUs the slowest counts, so
    /// `a` is told nothing about those that were not.
    pub fn clues(&self, a: u32, companies: &[Company], rate: f64, noise: f64) -> Vec<Clue> {
        let companies: Vec<Believed> =
            companies.iter().map(|company| self.believed(a, company)).collect();
        // None can be slower than what was seen. If none was believed to be, the likeliest was.
        let mut slow: Vec<&Believed> =
            companies.iter().filter(|company| company.rate < rate).collect();
        if slow.is_empty() {
            let unlikely = |company: &Believed| company.unlikeliness(rate, noise);
            let by = |one: &&Believed, other: &&Believed| unlikely(one).total_cmp(&unlikely(other));
            slow.extend(companies.iter().min_by(by));
        }
        slow.into_iter().flat_map(|company| company.clues(rate, noise)).collect()
    }

    fn believed(&self, a: u32, company: &Company) -> Believed {
        let mut counts: BTreeMap<u32, i32> = BTreeMap::new();
        for &class in &company.classes {
            *counts.entry(class).or_default() += 1;
        }
        let beliefs: Vec<(u32, i32, Belief)> =
            counts.into_iter().map(|(b, count)| (b, count, self.belief(a, b))).collect();
        let rates = beliefs.iter().map(|(_, count, belief)| belief.rate.powi(*count));
        let rate = company.known * rates.product::<f64>();
        let pair = |(beside, count, belief): (u32, i32, Belief)| {
            // How much the rate of all moves with that of the pair.
            let slope = f64::from(count) * rate / belief.rate;
            BelievedPair { beside, rate: belief.rate, slope, spread: slope * belief.deviation }
        };
        Believed { rate, pairs: beliefs.into_iter().map(pair).collect() }
    }
}
