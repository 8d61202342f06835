//! Duration estimates from finished jobs: from those with the same user, name, GPUs and class, and from
//! larger groups with less in common.
//!
//! Each group gives a recency-weighted median. The medians are blended in the logarithm, from the coarsest
//! group to the finest: the finer group counts with the weight of its jobs, the coarser ones together as two
//! jobs. A group of one job thus moves the estimate without deciding it, and an empty one falls back to the
//! coarser.

use crate::recent;
use std::collections::{BTreeMap, VecDeque};
use tandem_core::{ClassId, Span, UserId};

/// The estimate before any job has finished: ten minutes, about the median GPU job of published cluster
/// traces.
pub const UNKNOWN: Span = Span::from_secs(600);
/// Jobs that a group keeps; the weight of earlier ones is below a sixteenth.
const REMEMBERED_MAX: usize = 16;
/// The weight of the coarser groups, in jobs.
const COARSER_WEIGHT: f64 = 2.0;

/// Properties that jobs may have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Its user.
    pub user: UserId,
    /// The pattern of its name (see [`pattern`]), numbered by the caller.
    pub name: Option<u32>,
    /// GPUs of its gang.
    pub gpus: u32,
    /// Its class.
    pub class: Option<ClassId>,
}

/// A group of jobs; `None` means any.
type HistoryKey = (Option<UserId>, Option<u32>, Option<u32>, Option<ClassId>);

impl Traits {
    /// The groups of a job, coarsest first. A group that adds nothing to the one before, because name or
    /// class is unknown, is left out.
    fn groups(&self) -> impl Iterator<Item = HistoryKey> {
        let Self { user, name, gpus, class } = *self;
        let (user, gpus) = (Some(user), Some(gpus));
        let named = name.is_some();
        let groups = [
            (true, (None, None, None, None)),
            (true, (None, None, gpus, None)),
            (true, (user, None, None, None)),
            (true, (user, None, gpus, None)),
            (named, (user, name, None, None)),
            (named, (user, name, gpus, None)),
            (class.is_some(), (user, name, gpus, class)),
        ];
        groups.into_iter().filter(|(says_more, _)| *says_more).map(|(_, group)| group)
    }
}

/// The name with every run of digits replaced by one `#`: the common part of repeated submissions.
pub fn pattern(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for character in name.chars() {
        if !character.is_ascii_digit() {
            pattern.push(character);
        } else if !pattern.ends_with('#') {
            pattern.push('#');
        }
    }
    pattern
}

/// Finished jobs.
#[derive(Clone, Debug, Default)]
pub struct RunTimes {
    /// Durations in order of finishing.
    finished: BTreeMap<HistoryKey, VecDeque<Span>>,
}

impl RunTimes {
    /// Adds a finished job with its solo duration by its own progress reports.
    pub fn finish(&mut self, job: &Traits, duration: Span) {
        for group in job.groups() {
            let durations = self.finished.entry(group).or_default();
            if durations.len() == REMEMBERED_MAX {
                durations.pop_front();
            }
            durations.push_back(duration);
        }
    }

    /// The estimate for a job; [`UNKNOWN`] before any job has finished.
    pub fn estimate(&self, job: &Traits) -> Span {
        let mut log = (UNKNOWN.0 as f64).ln();
        for group in job.groups() {
            let finished = self.finished.get(&group).into_iter().flatten();
            let Some((median, weight)) = recent::median(finished.rev().copied()) else { continue };
            let finer = (median.0.max(1) as f64).ln() * weight;
            log = (finer + log * COARSER_WEIGHT) / (weight + COARSER_WEIGHT);
        }
        Span(log.exp().round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(user: u32, name: u32, gpus: u32, class: u32) -> Traits {
        Traits { user: UserId(user), name: Some(name), gpus, class: Some(ClassId(class)) }
    }

    fn seconds(history: &RunTimes, job: &Traits) -> u64 {
        history.estimate(job).0 / 1_000_000
    }

    #[test]
    fn the_more_a_job_has_in_common_the_nearer_the_estimate() {
        let mut history = RunTimes::default();
        assert_eq!(history.estimate(&job(0, 0, 1, 0)), UNKNOWN);
        for _ in 0..8 {
            history.finish(&job(0, 0, 1, 0), Span::from_secs(10_000));
            history.finish(&job(1, 1, 2, 1), Span::from_secs(10));
        }
        let same = seconds(&history, &job(0, 0, 1, 0));
        let same_user = seconds(&history, &job(0, 5, 4, 5));
        let other_user = seconds(&history, &job(7, 5, 4, 5));
        assert!(same > 9_000, "{same}");
        assert!(same > same_user && same_user > other_user, "{same} {same_user} {other_user}");
    }

    #[test]
    fn later_jobs_count_more_and_one_job_decides_nothing() {
        let mut history = RunTimes::default();
        for _ in 0..16 {
            history.finish(&job(0, 0, 1, 0), Span::from_secs(100));
        }
        history.finish(&job(0, 0, 1, 0), Span::from_secs(100_000));
        assert!(seconds(&history, &job(0, 0, 1, 0)) < 200);
        for _ in 0..5 {
            history.finish(&job(0, 0, 1, 0), Span::from_secs(100_000));
        }
        assert!(seconds(&history, &job(0, 0, 1, 0)) > 50_000);
    }

    #[test]
    fn names_become_patterns() {
        assert_eq!(pattern("train-resnet50-run0123"), "train-resnet#-run#");
        assert_eq!(pattern(""), "");
    }

    proptest! {
        #[test]
        fn estimates_lie_between_what_was_seen_and_the_start(
            jobs in prop::collection::vec((0u32..3, 0u32..3, 1u32..4, 0u32..3, 1u64..1 << 50), 0..40)
        ) {
            let mut history = RunTimes::default();
            let (mut low, mut high) = (UNKNOWN.0, UNKNOWN.0);
            for (user, name, gpus, class, micros) in jobs {
                let traits = job(user, name, gpus, class);
                let estimate = history.estimate(&traits).0 as f64;
                prop_assert!(estimate >= low as f64 * 0.999_999 && estimate <= high as f64 * 1.000_001 + 1.0);
                history.finish(&traits, Span(micros));
                (low, high) = (low.min(micros), high.max(micros));
            }
        }
    }
}
