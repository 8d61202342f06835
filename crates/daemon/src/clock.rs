//! The clock of the daemon: monotonic even if the wall clock is set, and continued across restarts.

use crate::scheduler::Now;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tandem_core::Time;

/// A clock that continues the one of an earlier daemon.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Monotonic clock of the machine minus this clock.
    offset_us: i64,
}

/// The offset to the monotonic clock of one boot, kept for the next daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockMark {
    boot: String,
    offset_us: i64,
}

impl Clock {
    /// Continues after `last`: by the monotonic clock within one boot, otherwise by the wall-clock time that
    /// passed.
    pub fn resume(last: Option<Now>, mark: Option<&ClockMark>) -> Self {
        Self::resume_at(last, mark, &boot_id(), monotonic_us(), unix_us())
    }

    fn resume_at(
        last: Option<Now>,
        mark: Option<&ClockMark>,
        boot: &str,
        monotonic_us: i64,
        unix_us: u64,
    ) -> Self {
        let Some(last) = last else { return Self { offset_us: monotonic_us } };
        let last_us = i64::try_from(last.at_us).unwrap_or(i64::MAX);
        let at_us = match mark.filter(|mark| !boot.is_empty() && mark.boot == boot) {
            Some(mark) => monotonic_us.saturating_sub(mark.offset_us),
            None => {
                let passed = unix_us.saturating_sub(last.unix_us);
                last_us.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
            }
        };
        let at_us = at_us.max(last_us.saturating_add(1));
        Self { offset_us: monotonic_us.saturating_sub(at_us) }
    }

    /// The mark for the next daemon.
    pub fn mark(&self) -> ClockMark {
        ClockMark { boot: boot_id(), offset_us: self.offset_us }
    }

    /// The current time.
    pub fn now(&self) -> Now {
        Now { at_us: self.at_us(monotonic_us()), unix_us: unix_us() }
    }

    fn at_us(&self, monotonic_us: i64) -> u64 {
        u64::try_from(monotonic_us.saturating_sub(self.offset_us)).unwrap_or(0)
    }

    /// Time until `at`; zero if it has passed.
    pub fn until(&self, at: Time) -> Duration {
        Duration::from_micros(at.0.saturating_sub(self.now().at_us))
    }
}

/// The monotonic clock of the machine.
fn monotonic_us() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

/// The id of the current boot; empty if unknown.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Microseconds since the Unix epoch.
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn last() -> Option<Now> {
        Some(Now { at_us: 5_000_000, unix_us: 100 * HOUR })
    }

    fn resume_at(mark: Option<&ClockMark>, unix_us: u64) -> u64 {
        Clock::resume_at(last(), mark, "this", 9_000_000, unix_us).at_us(9_000_000)
    }

    #[test]
    fn a_first_clock_starts_at_zero_and_runs_forward() {
        let clock = Clock::resume(None, None);
        let first = clock.now().at_us;
        assert!(first < 1_000_000, "{first}");
        assert!(clock.now().at_us >= first);
        assert_eq!(clock.until(Time(0)), Duration::ZERO);
    }

    #[test]
    fn within_one_boot_the_wall_clock_is_ignored() {
        let mark = ClockMark { boot: "this".to_owned(), offset_us: 1_000_000 };
        for unix_us in [0, 99 * HOUR, 100 * HOUR, 500 * HOUR] {
            assert_eq!(resume_at(Some(&mark), unix_us), 8_000_000);
        }
    }

    #[test]
    fn after_a_boot_the_wall_clock_counts_and_time_never_runs_backwards() {
        let mark = ClockMark { boot: "another".to_owned(), offset_us: 1_000_000 };
        for mark in [None, Some(&mark)] {
            assert_eq!(resume_at(mark, 101 * HOUR), 5_000_000 + HOUR);
            assert_eq!(resume_at(mark, 100 * HOUR), 5_000_001);
            assert_eq!(resume_at(mark, 99 * HOUR), 5_000_001);
            assert_eq!(resume_at(mark, 0), 5_000_001);
        }
    }

    #[test]
    fn a_mark_never_turns_time_back() {
        let mark = ClockMark { boot: "this".to_owned(), offset_us: 8_000_000 };
        assert_eq!(resume_at(Some(&mark), 100 * HOUR), 5_000_001);
    }

    #[test]
    fn the_next_clock_of_this_boot_continues_this_one() {
        let clock = Clock::resume(Some(Now { at_us: 77, unix_us: unix_us() }), None);
        let now = clock.now();
        let next = Clock::resume(Some(now), Some(&clock.mark()));
        let (first, second) = (clock.now().at_us, next.now().at_us);
        assert!(first.abs_diff(second) < 1_000_000, "{first} {second}");
        assert!(second > now.at_us);
    }
}
