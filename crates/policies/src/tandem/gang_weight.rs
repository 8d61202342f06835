//! How much more a gang counts than a single job.
//!
//! A gang of g counts g^¼ times: it is harder to place again than a single job, and large gangs are the
//! ones that wait longest. A gang that needs a good part of its partition fits only when hardly any other
//! job runs. Its weight depends on the demand of the other jobs:
//!
//! - Where longer jobs ask for the whole partition, they and those that follow them would keep it
//!   waiting. It counts up to 2.5 times as much; less in a deep queue, where other jobs make better use
//!   of the GPUs.
//! - Where only a few narrow jobs are left, it waits for them alone. It counts less.

use super::tuning::Tuning;
use crate::kit::remaining_ms;
use tandem_core::{Job, PPM_ONE, Time};

const ONE: i128 = PPM_ONE as i128;

/// What the jobs of a partition ask for.
pub(super) struct Demand {
    /// GPUs of the partition.
    gpus: u64,
    /// GPUs that all jobs ask for.
    asked: u64,
    /// Remaining times, and the GPUs that jobs with at least that much ask for; the longest first.
    by_remaining: Vec<(i64, u64)>,
    /// Gang sizes, and the GPUs that jobs of at most that size ask for; the smallest first.
    by_size: Vec<(u32, u64)>,
}

impl Demand {
    pub(super) fn of<'a, Jobs: Iterator<Item = &'a Job>>(
        jobs: impl Fn() -> Jobs,
        now: Time,
        gpus: u32,
        tuning: &Tuning,
    ) -> Self {
        let gpus = u64::from(gpus.max(1));
        let asks = |job: &Job| (remaining_ms(job, now), job.spec.gpus);
        // Only the weight of large gangs depends on demand.
        if jobs().any(|job| is_large(job.spec.gpus, gpus, tuning)) {
            Self::new(gpus, jobs().map(asks).collect())
        } else {
            Self::new(gpus, Vec::new())
        }
    }

    /// `asks` has the remaining time and the GPUs of every job.
    fn new(gpus: u64, mut asks: Vec<(i64, u32)>) -> Self {
        let sum = |sum: &mut u64, gpus: u32| {
            *sum += u64::from(gpus);
            Some(*sum)
        };
        asks.sort_unstable_by(|a, b| b.cmp(a));
        let sums = asks.iter().scan(0, |so_far, &(_, gpus)| sum(so_far, gpus));
        let by_remaining = asks.iter().map(|&(remaining, _)| remaining).zip(sums).collect();
        asks.sort_unstable_by_key(|&(_, gpus)| gpus);
        let sums = asks.iter().scan(0, |so_far, &(_, gpus)| sum(so_far, gpus));
        let by_size: Vec<(u32, u64)> = asks.iter().map(|&(_, gpus)| gpus).zip(sums).collect();
        let asked = by_size.last().map_or(0, |&(_, sum)| sum);
        Self { gpus, asked, by_remaining, by_size }
    }

    /// The weight of a gang of `gpus` GPUs with `remaining_ms`, in parts per million of a single job.
    pub(super) fn gang_weight(&self, gpus: u32, remaining_ms: i64, tuning: &Tuning) -> i128 {
        let (gang, all) = (i128::from(gpus), i128::from(self.gpus));
        let root = root(gpus, tuning.gang_exponent_quarters);
        let (mut crowded, mut idle) = (0, 0);
        if is_large(gpus, self.gpus, tuning) {
            let many = ONE.min(ONE * tuning.gang_few_part * i128::from(self.narrow(gpus)) / all);
            let longer = ONE.min(ONE * i128::from(self.longer(remaining_ms)) / all);
            let asked = i128::from(self.asked.max(1));
            let shallow = ONE.min(ONE * tuning.gang_deep_queue_times * all / asked);
            (crowded, idle) = (longer * shallow / ONE * many / ONE, ONE - many);
        }
        let taken_back = (root - ONE) * idle / ONE * gang * tuning.gang_idle_percent / (100 * all);
        let root = root - taken_back;
        let percent = tuning.gang_share_percent * ONE + tuning.gang_crowd_percent * crowded;
        root + root * gang * percent / (100 * all * ONE)
    }

    /// GPUs that jobs of half the gang or less ask for.
    fn narrow(&self, gang: u32) -> u64 {
        let end = self.by_size.partition_point(|&(gpus, _)| gpus <= gang / 2);
        end.checked_sub(1).map_or(0, |last| self.by_size[last].1)
    }

    /// GPUs that jobs with a longer remaining time ask for.
    fn longer(&self, remaining_ms: i64) -> u64 {
        let end = self.by_remaining.partition_point(|&(remaining, _)| remaining > remaining_ms);
        end.checked_sub(1).map_or(0, |last| self.by_remaining[last].1)
    }
}

/// `gpus` to the power of `quarters`/4, in parts per million.
fn root(gpus: u32, quarters: u32) -> i128 {
    // g^n · 10²⁴ has to fit 128 bits.
    let power = u128::from(gpus).saturating_pow(quarters).min(1 << 48);
    let root = (power * u128::from(PPM_ONE).pow(4)).isqrt().isqrt();
    i128::try_from(root).expect("a fourth root of 128 bits has 32")
}

fn is_large(gang: u32, gpus: u64, tuning: &Tuning) -> bool {
    gang > 1 && u64::from(gang) * tuning.gang_large_part >= gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weight of a gang of 64 GPUs of 64 with 100 ms left beside others, in percent.
    fn weight(others: &[(i64, u32)]) -> i128 {
        let asks = others.iter().copied().chain([(100, 64)]).collect();
        Demand::new(64, asks).gang_weight(64, 100, &Tuning::default()) / 10_000
    }

    #[test]
    fn the_weight_of_a_gang_of_the_whole_partition_depends_on_demand() {
        // 64^¼ is 2.83. Alone, and beside few: between that and a single job, and half as much again.
        assert_eq!(weight(&[]), 287);
        assert!((287..424).contains(&weight(&[(900, 1); 5])), "{}", weight(&[(900, 1); 5]));
        // Beside many shorter jobs: the whole of it.
        assert_eq!(weight(&[(50, 8); 8]), 424);
        // Beside many longer jobs, up to two and a half times as much; less in a deep queue.
        assert_eq!(weight(&[(900, 8); 8]), 707);
        assert_eq!(weight(&[(900, 4); 8]), 565);
        assert!((424..565).contains(&weight(&[(900, 8); 64])), "{}", weight(&[(900, 8); 64]));
        // Gangs like itself are no narrow jobs.
        assert_eq!(weight(&[(900, 64); 2]), 287);
    }

    #[test]
    fn the_weight_of_a_small_gang_depends_on_its_size_alone() {
        let tuning = Tuning::default();
        let weight =
            |others: Vec<(i64, u32)>| Demand::new(1024, others).gang_weight(16, 100, &tuning);
        assert_eq!(weight(Vec::new()) / 1000, 2015);
        assert_eq!(weight(vec![(900, 8); 1000]), weight(Vec::new()));
        let single = Demand::new(8, vec![(900, 1); 8]).gang_weight(1, 100, &tuning);
        assert_eq!(single / 1000, 1062);
    }
}
