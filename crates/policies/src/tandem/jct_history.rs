//! Completion times of finished jobs, by which the tail is known: a low mean must not be bought with a
//! long tail.

use super::tuning::Tuning;
use std::collections::BTreeMap;
use tandem_core::PPM_ONE;

/// Buckets for each power of two of milliseconds.
const BUCKETS: u64 = 16;
/// The p99 leaves out one job in this many.
const TAIL_PART: u64 = 100;

/// A histogram of the JCTs of finished jobs.
#[derive(Default)]
pub(super) struct JctHistory {
    jobs: u64,
    /// The number of jobs by bucket.
    buckets: BTreeMap<u64, u64>,
}

/// The p99 of the JCTs so far.
#[derive(Clone, Copy)]
pub(super) struct JctSummary {
    pub(super) p99_ms: i128,
}

impl JctHistory {
    pub(super) fn add(&mut self, jct_ms: i64) {
        self.jobs += 1;
        *self.buckets.entry(bucket(jct_ms)).or_default() += 1;
    }

    /// `None` as long as no job has finished.
    pub(super) fn summary(&self) -> Option<JctSummary> {
        let mut slower = 0;
        let (bucket, _) = self.buckets.iter().rev().find(|&(_, jobs)| {
            slower += jobs;
            slower > self.jobs / TAIL_PART
        })?;
        Some(JctSummary { p99_ms: bucket_end_ms(*bucket) })
    }
}

impl JctSummary {
    /// The urgency of a job, in parts per million: with a projected JCT of 0.5-1.5x the p99 it gets up to
    /// 2.5x weight, because it can still be kept out of the tail. A job beyond that is in the tail anyway.
    pub(super) fn urgency(&self, projected_ms: i64, tuning: &Tuning) -> i128 {
        let one = i128::from(PPM_ONE);
        let from = self.p99_ms * tuning.urgency_from_percent / 100;
        let beyond = i128::from(projected_ms) - from;
        if (0..self.p99_ms).contains(&beyond) {
            one + one * tuning.urgency_percent * beyond / (100 * self.p99_ms)
        } else {
            one
        }
    }
}

fn bucket(ms: i64) -> u64 {
    let ms = ms.unsigned_abs().max(BUCKETS);
    let octave = ms.ilog2() - BUCKETS.ilog2();
    u64::from(octave) * BUCKETS + (ms >> octave) % BUCKETS
}

fn bucket_end_ms(bucket: u64) -> i128 {
    i128::from(bucket % BUCKETS + BUCKETS + 1) << (bucket / BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jct_is_just_below_the_end_of_its_bucket() {
        for ms in (16..5000).chain([1_000_000_007, 1 << 45]) {
            let end = bucket_end_ms(bucket(ms));
            let before = bucket_end_ms(bucket(ms) - u64::from(ms > 16));
            assert!(i128::from(ms) < end && (ms == 16 || before <= i128::from(ms)), "{ms}");
            assert!(end <= i128::from(ms) * 17 / 16 + 1, "{ms}: {end}");
        }
    }

    #[test]
    fn a_job_near_the_p99_is_urgent() {
        let mut history = JctHistory::default();
        assert!(history.summary().is_none());
        // One job in a hundred is beyond the p99.
        (0..99).for_each(|_| history.add(1023));
        history.add(1 << 40);
        let summary = history.summary().unwrap();
        assert_eq!(summary.p99_ms, 1024);
        let one = i128::from(PPM_ONE);
        let tuning = Tuning::default();
        let urgency =
            [1, 511, 512, 1024, 1535, 1536, 1 << 40].map(|ms| summary.urgency(ms, &tuning));
        assert_eq!(urgency[..3], [one; 3]);
        assert_eq!(urgency[3], one * 7 / 4);
        assert!(urgency[4] > one * 249 / 100 && urgency[4] < one * 5 / 2);
        assert_eq!(urgency[5..], [one; 2]);
    }
}
