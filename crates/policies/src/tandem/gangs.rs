//! What a gang counts for beside a single job.
//!
//! A gang of g counts g^¼ times: between one job and g jobs, because gangs are harder to place again, and
//! because whoever is passed over for long are the large ones. One that needs a good part of its
//! partition finds room by itself only when hardly anyone else is there, so it counts for more than that, and
//! how much depends on the others:
//!
//! - Where jobs that take longer ask for the whole partition, they and those that come after them would
//!   keep it waiting for as long as the crowd lasts. It counts for up to two and a half times as much. Less
//!   where the queue is deep: then there is always someone who makes better use of the GPUs.
//! - Where only a few narrow jobs are left, it waits for them and for nobody else. It counts for less.

use crate::remaining::left_ms;
use tandem_core::{Job, PPM_ONE, Time};

/// Gangs below one in so many of the partition's GPUs meet others like single jobs do: only their size
/// counts.
const LARGE_PART: u64 = 16;
/// Narrow jobs, those of half the gang's GPUs or fewer, are few if they ask for less than one in so many
/// of the partition's GPUs.
const FEW_PART: u64 = 5;
/// A queue is deep if all jobs together ask for more than this many times the partition.
const DEEP_TIMES: u64 = 2;

/// What the jobs of a partition ask for.
pub(super) struct Crowd {
    /// GPUs of the partition.
    gpus: u64,
    /// GPUs that all jobs ask for.
    asked: u64,
    /// Times that are left, and the GPUs asked for by jobs with so much left or more; the most first.
    by_left: Vec<(i64, u64)>,
    /// Sizes, and the GPUs asked for by jobs of that size or less; the least first.
    by_size: Vec<(u32, u64)>,
}

impl Crowd {
    pub(super) fn of<'a, Jobs: Iterator<Item = &'a Job>>(
        jobs: impl Fn() -> Jobs,
        now: Time,
        gpus: u32,
    ) -> Self {
        let gpus = u64::from(gpus.max(1));
        let asks = |job: &Job| (left_ms(job, now), job.spec.gpus);
        // Only large gangs care.
        if jobs().any(|job| is_large(job.spec.gpus, gpus)) {
            Self::new(gpus, jobs().map(asks).collect())
        } else {
            Self::new(gpus, Vec::new())
        }
    }

    fn new(gpus: u64, mut asks: Vec<(i64, u32)>) -> Self {
        let sum = |sum: &mut u64, gpus: u32| {
            *sum += u64::from(gpus);
            Some(*sum)
        };
        asks.sort_unstable_by(|a, b| b.cmp(a));
        let sums = asks.iter().scan(0, |so_far, &(_, gpus)| sum(so_far, gpus));
        let by_left = asks.iter().map(|&(left, _)| left).zip(sums).collect();
        asks.sort_unstable_by_key(|&(_, gpus)| gpus);
        let sums = asks.iter().scan(0, |so_far, &(_, gpus)| sum(so_far, gpus));
        let by_size: Vec<(u32, u64)> = asks.iter().map(|&(_, gpus)| gpus).zip(sums).collect();
        let asked = by_size.last().map_or(0, |&(_, sum)| sum);
        Self { gpus, asked, by_left, by_size }
    }

    /// What a job of so many GPUs and with so much left counts for, in parts per million.
    pub(super) fn factor(&self, gpus: u32, left_ms: i64) -> i128 {
        let (one, all) = (i128::from(PPM_ONE), i128::from(self.gpus));
        let root = (u128::from(gpus) * u128::from(PPM_ONE).pow(4)).isqrt().isqrt();
        let root = i128::try_from(root).expect("a root of 112 bits is small");
        let (gang, mut crowded, mut lonely) = (i128::from(gpus), 0, 0);
        if is_large(gpus, self.gpus) {
            let many = one.min(one * i128::from(FEW_PART * self.narrow(gpus)) / all);
            let longer = one.min(one * i128::from(self.longer(left_ms)) / all);
            let asked = i128::from(self.asked.max(1));
            let shallow = one.min(one * i128::from(DEEP_TIMES) * all / asked);
            (crowded, lonely) = (longer * shallow / one * many / one, one - many);
        }
        let root = root - (root - one) * lonely / one * gang / (2 * all);
        root + root * gang * (one + 2 * crowded) / (2 * all * one)
    }

    /// GPUs that jobs of half the gang or less ask for.
    fn narrow(&self, gang: u32) -> u64 {
        let end = self.by_size.partition_point(|&(gpus, _)| gpus <= gang / 2);
        end.checked_sub(1).map_or(0, |last| self.by_size[last].1)
    }

    /// GPUs that jobs with more left ask for.
    fn longer(&self, left_ms: i64) -> u64 {
        let end = self.by_left.partition_point(|&(left, _)| left > left_ms);
        end.checked_sub(1).map_or(0, |last| self.by_left[last].1)
    }
}

fn is_large(gang: u32, gpus: u64) -> bool {
    gang > 1 && u64::from(gang) * LARGE_PART >= gpus
}

#[cfg(test)]
mod tests {
    use super::Crowd;

    /// The factor of a gang of 64 GPUs of 64 with 100 left beside others, in percent.
    fn factor(others: &[(i64, u32)]) -> i128 {
        let asks = others.iter().copied().chain([(100, 64)]).collect();
        Crowd::new(64, asks).factor(64, 100) / 10_000
    }

    #[test]
    fn a_gang_of_the_whole_partition_counts_for_what_its_crowd_makes_of_it() {
        // 64^¼ is 2.83. Alone, and beside few: between that and a single job, and half as much again.
        assert_eq!(factor(&[]), 287);
        assert!((287..424).contains(&factor(&[(900, 1); 5])), "{}", factor(&[(900, 1); 5]));
        // Beside many that take less time: the whole of it.
        assert_eq!(factor(&[(50, 8); 8]), 424);
        // Beside many that take longer, up to two and a half times as much; less in a deep queue.
        assert_eq!(factor(&[(900, 8); 8]), 707);
        assert_eq!(factor(&[(900, 4); 8]), 565);
        assert!((424..565).contains(&factor(&[(900, 8); 64])), "{}", factor(&[(900, 8); 64]));
        // Gangs like itself are no narrow jobs.
        assert_eq!(factor(&[(900, 64); 2]), 287);
    }

    #[test]
    fn small_gangs_count_by_their_size() {
        let crowd = |others: Vec<(i64, u32)>| Crowd::new(1024, others).factor(16, 100);
        assert_eq!(crowd(Vec::new()) / 1000, 2015);
        assert_eq!(crowd(vec![(900, 8); 1000]), crowd(Vec::new()));
        assert_eq!(Crowd::new(8, vec![(900, 1); 8]).factor(1, 100) / 1000, 1062);
    }
}
