//! How long jobs take from submission to end: what the completion times of others are measured by, so that
//! a low mean is not bought with a long tail. Jobs of all partitions count: who is among the slowest is
//! asked of the cluster.

use std::collections::BTreeMap;
use tandem_core::PPM_ONE;

/// A delay counts for its price and at most so many eighths of the job's own weight more,
const TAIL_EIGHTHS: i128 = 3;
/// half of that for a job that takes this many times as long as usual.
const TAIL_AT: i128 = 3;
/// Lengths are counted in steps of one part in this of a power of two.
const STEPS: u64 = 16;
/// One job in so many is among the slowest.
const SLOWEST: u64 = 100;

/// The lengths of all jobs that are over.
#[derive(Default)]
pub(super) struct Usual {
    jobs: u64,
    sum_ms: i128,
    /// How many were how long, by the step that their length is in.
    steps: BTreeMap<u64, u64>,
}

/// What is usual at a moment; nothing as long as no job is over.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    mean_ms: i128,
    /// All but the slowest took less.
    most_ms: i128,
}

impl Usual {
    pub(super) fn add(&mut self, took_ms: i64) {
        self.jobs += 1;
        self.sum_ms += i128::from(took_ms);
        *self.steps.entry(step(took_ms)).or_default() += 1;
    }

    pub(super) fn lengths(&self) -> Option<Lengths> {
        let mut slower = 0;
        let (step, _) = self.steps.iter().rev().find(|&(_, jobs)| {
            slower += jobs;
            slower > self.jobs / SLOWEST
        })?;
        let mean_ms = self.sum_ms / i128::from(self.jobs);
        Some(Lengths { mean_ms, most_ms: end_ms(*step) })
    }
}

impl Lengths {
    /// What a delay of a job that takes `takes_ms` and counts for `weight` counts for beside its price.
    pub(super) fn tail(&self, takes_ms: i64, weight: i64) -> i64 {
        let takes = i128::from(takes_ms);
        let part = (takes + TAIL_AT * self.mean_ms).max(1);
        let tail = i128::from(weight) * TAIL_EIGHTHS * takes / (8 * part);
        i64::try_from(tail).unwrap_or(i64::MAX)
    }

    /// How much more urgent a job is that takes `takes_ms`, in parts per million. One that may still be
    /// kept from being among the slowest counts for more the nearer it comes to them, up to
    /// two and a half times as much; one that is late beyond help counts like any other again.
    pub(super) fn urgency(&self, takes_ms: i64) -> i128 {
        let (one, beyond) = (i128::from(PPM_ONE), i128::from(takes_ms) - self.most_ms / 2);
        if (0..self.most_ms).contains(&beyond) {
            one + one * 3 * beyond / (2 * self.most_ms)
        } else {
            one
        }
    }
}

fn step(ms: i64) -> u64 {
    let ms = ms.unsigned_abs().max(STEPS);
    let octave = ms.ilog2() - STEPS.ilog2();
    u64::from(octave) * STEPS + (ms >> octave) % STEPS
}

/// Where a step ends.
fn end_ms(step: u64) -> i128 {
    i128::from(step % STEPS + STEPS + 1) << (step / STEPS)
}

#[cfg(test)]
mod tests {
    use super::{Usual, end_ms, step};
    use tandem_core::PPM_ONE;

    #[test]
    fn a_length_is_just_below_the_end_of_its_step() {
        for ms in (16..5000).chain([1_000_000_007, 1 << 45]) {
            let (before, end) = (end_ms(step(ms) - u64::from(ms > 16)), end_ms(step(ms)));
            assert!(i128::from(ms) < end && (ms == 16 || before <= i128::from(ms)), "{ms}");
            assert!(end <= i128::from(ms) * 17 / 16 + 1, "{ms}: {end}");
        }
    }

    #[test]
    fn who_may_still_be_among_the_others_is_urgent() {
        let mut usual = Usual::default();
        assert!(usual.lengths().is_none());
        // One in a hundred is the slowest one, who is not counted.
        (0..99).for_each(|_| usual.add(1023));
        usual.add(1 << 40);
        let lengths = usual.lengths().unwrap();
        assert_eq!(lengths.most_ms, 1024);
        let one = i128::from(PPM_ONE);
        let urgency = [1, 511, 512, 1024, 1535, 1536, 1 << 40].map(|ms| lengths.urgency(ms));
        assert_eq!(urgency[..3], [one; 3]);
        assert_eq!(urgency[3], one * 7 / 4);
        assert!(urgency[4] > one * 249 / 100 && urgency[4] < one * 5 / 2);
        assert_eq!(urgency[5..], [one; 2]);
    }
}
