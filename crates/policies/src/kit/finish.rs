//! Mean finish times of two jobs, co-located or one after the other (Luo et al., IWQoS 2024).
//!
//! Host B runs and job A waits. Their mean finish time, as a function of the time at which they begin to
//! share, is piecewise linear with its minimum at an end point: share now, or not at all. So two closed
//! forms decide, in exact integers.

use std::cmp::Ordering;
use tandem_core::{PPM_ONE, Ppm, Work};

/// A mean finish time of two jobs, counted from now.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    /// In quarters of a unit of work, times the denominator.
    numerator: u128,
    denominator: u32,
}

/// One of the two jobs: twice its remaining solo work, and its rate beside the other. A rate above the
/// solo rate counts as equal to it.
pub type Side = (Work, Ppm);

/// Times of more than 600,000 years count as that, so that no comparison exceeds 128 bits.
const TWICE_WORK_MAX: u128 = 1 << 85;

impl Finish {
    /// t_con: both run co-located until the first of them ends. With ξ = 1 / rate, if
    /// ξ_A·T_A ≥ ξ_B·T_B it is T_A/2 + (1 − 1/(2ξ_A))·ξ_B·T_B, else the same with A and B exchanged.
    pub fn together(pending: Side, host: Side) -> Self {
        let limited = |(twice, rate): Side| (limit(twice), rate.0.clamp(1, PPM_ONE));
        let (mut last, mut first) = (limited(pending), limited(host));
        if last.0 * u128::from(first.1) < first.0 * u128::from(last.1) {
            std::mem::swap(&mut last, &mut first);
        }
        let ((last, last_rate), (first, first_rate)) = (last, first);
        let numerator = last * u128::from(first_rate) + first * u128::from(2 * PPM_ONE - last_rate);
        Self { numerator, denominator: first_rate }
    }

    /// t_seq: the pending job starts when the host ends, T_B + T_A/2.
    pub fn in_turn(twice_pending: Work, twice_host: Work) -> Self {
        Self { numerator: 2 * limit(twice_host) + limit(twice_pending), denominator: 1 }
    }

    /// How much later this is than `earlier`; zero if it is not.
    pub fn since(self, earlier: Finish) -> Self {
        let numerator =
            self.times(earlier.denominator).saturating_sub(earlier.times(self.denominator));
        Self { numerator, denominator: self.denominator * earlier.denominator }
    }

    /// In seconds, rounded.
    pub fn seconds(self) -> f64 {
        self.numerator as f64 / f64::from(self.denominator) / 4e12
    }

    fn times(self, denominator: u32) -> u128 {
        self.numerator * u128::from(denominator)
    }
}

fn limit(twice: Work) -> u128 {
    twice.0.min(TWICE_WORK_MAX)
}

impl Ord for Finish {
    fn cmp(&self, other: &Self) -> Ordering {
        self.times(other.denominator).cmp(&other.times(self.denominator))
    }
}

impl PartialOrd for Finish {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Finish {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Finish {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Mean finish time in seconds if B runs from now on and A joins it after `moment` seconds, or when B
    /// ends if that is earlier: simulated, without any formula.
    fn joining_after(
        moment: f64,
        (rest_a, rate_a): (f64, f64),
        (rest_b, rate_b): (f64, f64),
    ) -> f64 {
        let joined = moment.min(rest_b);
        let rest_b = rest_b - joined;
        let (alone_a, alone_b) = (rest_a / rate_a, rest_b / rate_b);
        // The other job runs alone once the first has ended.
        let (end_a, end_b) = if alone_a >= alone_b {
            (alone_b + rest_a - alone_b * rate_a, alone_b)
        } else {
            (alone_a, alone_a + rest_b - alone_a * rate_b)
        };
        joined + (end_a + end_b) / 2.0
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn sharing_from_now_on_or_not_at_all_is_best(
            remaining in (1_u32..100_000, 1_u32..100_000),
            rates in (100_000_u32..=1_000_000, 100_000_u32..=1_000_000),
        ) {
            let a = (f64::from(remaining.0), f64::from(rates.0) / 1e6);
            let b = (f64::from(remaining.1), f64::from(rates.1) / 1e6);
            let twice = |seconds: u32| Work(u128::from(seconds) * 2_000_000_000_000);
            let (pending, host) = ((twice(remaining.0), Ppm(rates.0)), (twice(remaining.1), Ppm(rates.1)));
            let together = Finish::together(pending, host);
            let in_turn = Finish::in_turn(pending.0, host.0);
            prop_assert!(close(together.seconds(), joining_after(0.0, a, b)));
            prop_assert!(close(in_turn.seconds(), joining_after(b.0, a, b)));
            let gain = (in_turn.seconds() - together.seconds()).max(0.0);
            prop_assert!((in_turn.since(together).seconds() - gain).abs() <= 1e-9 * in_turn.seconds());

            // 200 moments from now until B ends.
            let moments: Vec<f64> = (0..=200).map(|step| b.0 * f64::from(step) / 200.0).collect();
            let means: Vec<f64> = moments.iter().map(|&at| joining_after(at, a, b)).collect();
            let best = means[0].min(means[200]);
            for &mean in &means {
                prop_assert!(mean >= best || close(mean, best));
            }
            // Piecewise linear with one bend, which two neighbouring differences can show.
            let slopes: Vec<f64> = means.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let scale = means.iter().copied().fold(1.0, f64::max);
            let bends = slopes.windows(2).filter(|pair| (pair[1] - pair[0]).abs() > 1e-9 * scale);
            prop_assert!(bends.count() <= 2);
        }

        #[test]
        fn comparisons_are_exact_at_any_size(
            remaining in (any::<u64>(), any::<u64>()),
            rates in (0_u32..2_000_000, 0_u32..2_000_000),
        ) {
            let twice = |micros: u64| Work(u128::from(micros) * 2_000_000);
            let (pending, host) = ((twice(remaining.0), Ppm(rates.0)), (twice(remaining.1), Ppm(rates.1)));
            let (one, other) = (Finish::together(pending, host), Finish::together(host, pending));
            prop_assert_eq!(one.cmp(&other), Ordering::Equal, "the mean is symmetric in the two jobs");
            let in_turn = Finish::in_turn(pending.0, host.0);
            prop_assert_eq!(in_turn.since(one) == in_turn.since(in_turn), one >= in_turn);
        }
    }

    #[test]
    fn equality_is_not_sharing() {
        // 1 − a/2 = b: beside a longer job at rate a, a host at rate b gains nothing.
        let twice = Work(2_000_000_000_000);
        let pending = (twice.times(tandem_core::Ratio::new(10, 1)), Ppm(500_000));
        for (rate, shares) in [(749_999, false), (750_000, false), (750_001, true)] {
            let together = Finish::together(pending, (twice, Ppm(rate)));
            assert_eq!(together < Finish::in_turn(pending.0, twice), shares, "{rate}");
        }
    }
}
