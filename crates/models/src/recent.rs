//! Recency-weighted durations: users change their work, so later jobs say more.

use tandem_core::Span;

/// The weight of a job halves with this many later jobs of its group.
const HALF_LIFE: f64 = 4.0;

/// The weight of a job after which this many others of its group finished.
pub(crate) fn weight(later: usize) -> f64 {
    (-(later as f64) / HALF_LIFE).exp2()
}

/// The weighted median of durations, the latest first, and the sum of the weights; `None` if there are none.
pub(crate) fn median(latest_first: impl Iterator<Item = Span>) -> Option<(Span, f64)> {
    let mut weighted: Vec<(Span, f64)> =
        latest_first.enumerate().map(|(later, span)| (span, weight(later))).collect();
    weighted.sort_by_key(|&(span, _)| span);
    let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    let median = weighted.iter().find(|(_, weight)| {
        below += weight;
        below >= total / 2.0
    });
    median.map(|&(span, _)| (span, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_jobs_decide() {
        assert_eq!(median(std::iter::empty()), None);
        let spans = |latest_first: &[u64]| {
            let spans = latest_first.iter().map(|&seconds| Span::from_secs(seconds));
            median(spans).unwrap()
        };
        assert_eq!(spans(&[7]), (Span::from_secs(7), 1.0));
        // Five recent jobs outweigh twenty older ones.
        let mut mixed = vec![10; 5];
        mixed.extend([1000; 20]);
        assert_eq!(spans(&mixed).0, Span::from_secs(10));
        mixed.rotate_left(5);
        assert_eq!(spans(&mixed).0, Span::from_secs(1000));
    }
}
