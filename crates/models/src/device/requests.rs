//! Requests that arrive at random, and their latencies.

use super::tenant::{DeviceTenant, Requests};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1};

/// Requests served before a 99th percentile is computed.
pub(super) const SERVED_MIN: usize = 500;

/// A Poisson process. A seed gives the same arrivals under all budgets, so that these can be compared.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    rng: ChaCha8Rng,
    mean_ns: f64,
    next_ns: f64,
}

impl Arrivals {
    pub(super) fn new(requests: Requests, seed: u64, tenant: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(tenant as u64);
        let mut arrivals = Self { rng, mean_ns: 1e9 / requests.per_second, next_ns: 0.0 };
        arrivals.take();
        arrivals
    }

    /// The time of the next request; advances to the one after it.
    pub(super) fn take(&mut self) -> f64 {
        let at = self.next_ns;
        let gap: f64 = Exp1.sample(&mut self.rng);
        self.next_ns += gap * self.mean_ns;
        at
    }
}

/// Latencies alone on the whole GPU of the requests served by `until_ns`, in order.
pub(super) fn alone(tenant: &DeviceTenant, mut arrivals: Arrivals, until_ns: f64) -> Vec<f64> {
    let service_ns = tenant.alone_ns();
    let (mut free_ns, mut latencies) = (0.0_f64, Vec::new());
    loop {
        let arrival = arrivals.take();
        free_ns = free_ns.max(arrival) + service_ns;
        if free_ns > until_ns {
            return latencies;
        }
        latencies.push(free_ns - arrival);
    }
}

/// The 99th percentile: the smallest value that at least 99 of 100 do not exceed. `None` without values.
pub(super) fn p99(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let rank = (values.len() * 99).div_ceil(100);
    values.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_their_rate_and_again_the_same() {
        let requests = Requests { per_second: 1000.0, p99_ns: None };
        let draw = |seed, tenant| {
            let mut arrivals = Arrivals::new(requests, seed, tenant);
            (0..10_000).map(|_| arrivals.take()).collect::<Vec<f64>>()
        };
        let one = draw(1, 0);
        assert_eq!(one, draw(1, 0));
        assert!(one != draw(1, 1) && one != draw(2, 0));
        let seconds = one.last().unwrap() / 1e9;
        assert!((9.6..10.4).contains(&seconds), "{seconds}");
    }

    #[test]
    fn the_percentile_is_the_value_that_one_in_a_hundred_exceeds() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(p99(values), Some(198.0));
        assert_eq!(p99(vec![3.0]), Some(3.0));
        assert_eq!(p99(Vec::new()), None);
    }
}
