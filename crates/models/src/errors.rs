//! Errors of predictions.

use serde::Serialize;

/// Error measures over a set of predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// Number of predictions.
    pub rows: usize,
    /// Share of the variance that is explained (R²); absent where the measured values do not vary.
    pub r2: Option<f64>,
    /// Mean absolute error, in the unit of the measured values.
    pub mae: f64,
    /// Mean of |error| ÷ measured value.
    pub relative: f64,
}

impl Errors {
    /// From pairs of predicted and measured values; zero for none.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let count = pairs.len().max(1) as f64;
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            pairs.iter().map(|&(predicted, measured)| of(predicted, measured)).sum()
        };
        let mean = sum(&|_, measured| measured) / count;
        let spread = sum(&|_, measured| (measured - mean).powi(2));
        let left = sum(&|predicted, measured| (predicted - measured).powi(2));
        Self {
            rows: pairs.len(),
            r2: (spread > 0.0).then(|| 1.0 - left / spread),
            mae: sum(&|predicted, measured| (predicted - measured).abs()) / count,
            relative: sum(&|predicted, measured| ((predicted - measured) / measured).abs()) / count,
        }
    }
}

/// Spearman's rank correlation: Pearson's of the ranks, where equal values share their mean rank. `None` if
/// either side does not vary.
pub fn spearman(pairs: &[(u64, u64)]) -> Option<f64> {
    let left = ranks(pairs, |&(left, _)| left);
    let right = ranks(pairs, |&(_, right)| right);
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let sum_of = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    let spread = (sum_of(&left, &left) * sum_of(&right, &right)).sqrt();
    (spread > 0.0).then(|| sum_of(&left, &right) / spread)
}

fn ranks(pairs: &[(u64, u64)], value: impl Fn(&(u64, u64)) -> u64) -> Vec<f64> {
    let mut order: Vec<_> = pairs.iter().map(value).zip(0..).collect();
    order.sort_unstable();
    let mut ranks = vec![0.0; pairs.len()];
    let mut before = 0;
    for equal in order.chunk_by(|(a, _), (b, _)| a == b) {
        let rank = before as f64 + (equal.len() as f64 + 1.0) / 2.0;
        equal.iter().for_each(|&(_, index): &(u64, usize)| ranks[index] = rank);
        before += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_prediction_has_no_error_and_the_mean_explains_nothing() {
        let exact = Errors::of(&[(1.0, 1.0), (3.0, 3.0)]);
        assert_eq!((exact.r2, exact.mae, exact.relative), (Some(1.0), 0.0, 0.0));
        let mean = Errors::of(&[(2.0, 1.0), (2.0, 3.0)]);
        assert_eq!((mean.r2, mean.mae), (Some(0.0), 1.0));
        assert_eq!(Errors::of(&[(2.0, 1.0)]).r2, None);
    }

    #[test]
    fn rank_correlation_shares_ranks_among_ties() {
        assert_eq!(spearman(&[(1, 10), (2, 20), (3, 30)]), Some(1.0));
        assert_eq!(spearman(&[(1, 30), (2, 20), (3, 10)]), Some(-1.0));
        assert_eq!(spearman(&[(1, 7), (2, 7)]), None);
        let tied = spearman(&[(1, 1), (1, 2), (2, 3)]).unwrap();
        assert!((tied - 0.75_f64.sqrt()).abs() < 1e-12);
    }
}
