//! How long jobs of a class take, and how sure that is. Classes are kept apart: what a class of one-second
//! jobs took says nothing about a training run. Other classes count only where there are several of them and
//! their jobs were not trivial.
//!
//! The logarithm of a duration is taken to be normal around the expected one. Its deviation has two parts:
//! what jobs of a class differ among each other, and what all of them are off together because the class is
//! little known. Only the second one adds up over a queue.

use crate::recent;
use tandem_core::Span;

/// What is expected of a duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// As likely to be exceeded as not.
    pub median: Span,
    /// Standard deviation of the logarithm, of each job by itself.
    pub own: f64,
    /// Standard deviation of the logarithm, of all jobs of the class together.
    pub common: f64,
}

/// Nothing is known: ten minutes, about the median GPU job of published cluster traces, give or take a
/// factor of six.
pub const GUESS: Expectation = Expectation { median: Span::from_secs(600), own: 0.8, common: 1.8 };

/// Deviation of jobs of a class, before any was seen twice; it counts as one job.
const OWN_BEFORE: f64 = 0.6;
/// Jobs shorter than this are trivial: a check of the command line, or a failure that exits with 0.
const TRIVIAL: Span = Span::from_secs(10);
/// Deviation if only a few trivial jobs were seen.
const TRIVIAL_COMMON: f64 = 1.0;
/// Trivial jobs that are many enough to believe.
const TRIVIAL_MANY: usize = 5;
/// Other classes are asked if there are at least this many whose jobs were not trivial.
const OTHERS_MIN: usize = 5;
/// Deviation of a class from the other classes, at least.
const OTHERS_COMMON: f64 = 1.2;

/// From the finished jobs of a class, the latest last, and from those that run longer than was expected, with
/// what they have done so far; `None` if there are none of either.
pub fn of_class(finished: &[Span], outlived: &[Span]) -> Option<Expectation> {
    // A job that runs on is expected to run half as long again.
    let running = outlived.iter().map(|done| Span(done.0.saturating_add(done.0 / 2)));
    let all: Vec<Span> = finished.iter().copied().chain(running).collect();
    let (median, weight) = recent::median(all.iter().rev().copied())?;
    let log = |span: Span| (span.0.max(1) as f64).ln();
    let squares: f64 = (all.iter().rev().enumerate())
        .map(|(later, &span)| recent::weight(later) * (log(span) - log(median)).powi(2))
        .sum();
    let own = ((squares + OWN_BEFORE.powi(2)) / (weight + 1.0)).sqrt();
    let is_doubtful = median < TRIVIAL && all.len() < TRIVIAL_MANY;
    let common = if is_doubtful { TRIVIAL_COMMON } else { own / weight.sqrt() };
    Some(Expectation { median, own, common })
}

/// Deviation that each factor of e adds by which jobs were longer or shorter than the one in question.
const SCALED: f64 = 0.3;

impl Expectation {
    /// From jobs that had so many times as much to do, or as little.
    pub fn scaled(self, factor: f64) -> Self {
        let doubt = SCALED * factor.max(f64::MIN_POSITIVE).ln().abs();
        Self { common: self.common.hypot(doubt), ..self }
    }
}

/// From the medians of other classes; `None` if they are too few or their jobs too short to tell.
pub fn of_others(medians: impl Iterator<Item = Span>) -> Option<Expectation> {
    let mut logs: Vec<f64> =
        medians.filter(|&median| median >= TRIVIAL).map(|median| (median.0 as f64).ln()).collect();
    if logs.len() < OTHERS_MIN {
        return None;
    }
    logs.sort_by(f64::total_cmp);
    let middle = logs[logs.len() / 2];
    let squares: f64 = logs.iter().map(|log| (log - middle).powi(2)).sum();
    let common = (squares / logs.len() as f64).sqrt().max(OTHERS_COMMON);
    Some(Expectation { median: Span(middle.exp().round() as u64), own: OWN_BEFORE, common })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(values: &[u64]) -> Vec<Span> {
        values.iter().map(|&value| Span::from_secs(value)).collect()
    }

    #[test]
    fn equal_jobs_make_a_class_known() {
        assert_eq!(of_class(&[], &[]), None);
        let one = of_class(&seconds(&[30]), &[]).expect("one is something");
        let many = of_class(&seconds(&[30; 16]), &[]).expect("so are many");
        assert_eq!((one.median, many.median), (Span::from_secs(30), Span::from_secs(30)));
        assert!(many.own < one.own && many.common < one.common / 2.0, "{one:?} {many:?}");
    }

    #[test]
    fn a_few_trivial_jobs_are_not_believed() {
        let few = of_class(&[Span(10_000); 3], &[]).expect("it is something");
        let many = of_class(&[Span(10_000); 8], &[]).expect("it is something");
        assert!(few.common >= 1.0 && many.common < 0.3, "{few:?} {many:?}");
    }

    #[test]
    fn jobs_that_run_on_raise_what_is_expected_of_others() {
        let before = of_class(&seconds(&[10; 4]), &[]).expect("four have finished");
        let after = of_class(&seconds(&[10; 4]), &seconds(&[600, 700, 800])).expect("likewise");
        assert_eq!(before.median, Span::from_secs(10));
        assert!(after.median >= Span::from_secs(900), "{after:?}");
        assert!(after.own > before.own);
    }

    #[test]
    fn jobs_of_other_lengths_tell_less() {
        let same = of_class(&seconds(&[30; 4]), &[]).expect("it is something");
        let (near, far) = (same.scaled(1.2), same.scaled(1000.0));
        assert!(near.common < same.common + 0.1 && far.common > 1.5, "{near:?} {far:?}");
        assert!((same.scaled(0.001).common - far.common).abs() < 1e-9);
        assert_eq!(same.scaled(1.0), same);
    }

    #[test]
    fn other_classes_count_if_they_are_several_and_not_trivial() {
        let of = |values: &[u64]| of_others(seconds(values).into_iter());
        assert_eq!(of(&[0, 0, 1, 2, 3, 4, 5, 6]), None, "trivial jobs tell nothing");
        assert_eq!(of(&[100, 200, 300, 400]), None, "four classes are too few");
        let known = of(&[100, 200, 300, 400, 500, 1]).expect("five classes are enough");
        assert!((299..=301).contains(&(known.median.0 / 1_000_000)), "{known:?}");
        assert!(known.common >= 1.2);
    }

    proptest! {
        #[test]
        fn expectations_lie_within_what_was_seen(
            finished in prop::collection::vec(1u64..1 << 50, 1..16),
            outlived in prop::collection::vec(1u64..1 << 50, 0..4),
        ) {
            let spans = |values: &[u64]| values.iter().map(|&value| Span(value)).collect::<Vec<_>>();
            let known = of_class(&spans(&finished), &spans(&outlived)).expect("at least one");
            let most = finished.iter().copied().chain(outlived.iter().map(|one| one + one / 2)).max();
            prop_assert!(known.median.0 <= most.unwrap_or(0));
            prop_assert!(known.own > 0.0 && known.common > 0.0 && known.own.is_finite());
        }
    }
}
