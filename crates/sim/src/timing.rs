//! The only clock of this crate: how long decisions take. Its readings go to `timing` in the JSON
//! and nowhere else, so that everything else is the same in every run.

use crate::metrics::Timing;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Up to here every decision is timed, beyond only one in [`STRIDE`]: reading the clock would
/// otherwise be a good part of what it measures.
const TIMED_ALL: u64 = 4096;
const STRIDE: u64 = 16;

pub(crate) struct Stopwatch {
    cpu_begin_ns: u64,
    laps: u64,
    /// Decision times in nanoseconds; a decision above four seconds counts as four.
    timed_ns: Vec<u32>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu_begin_ns: thread_cpu_ns(), laps: 0, timed_ns: Vec::new() }
    }

    pub(crate) fn begin_lap(&mut self) -> Option<Instant> {
        self.laps += 1;
        let timed = self.laps <= TIMED_ALL || self.laps.is_multiple_of(STRIDE);
        timed.then(Instant::now)
    }

    pub(crate) fn end_lap(&mut self, begun: Option<Instant>) {
        if let Some(begun) = begun {
            self.timed_ns.push(u32::try_from(begun.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
    }

    pub(crate) fn stop(mut self) -> Timing {
        let rank = (self.timed_ns.len() * 99).div_ceil(100).max(1) - 1;
        let p99_ns = match self.timed_ns.is_empty() {
            true => 0,
            false => *self.timed_ns.select_nth_unstable(rank).1,
        };
        Timing {
            decision_p99_ms: f64::from(p99_ns) / 1e6,
            cpu_s: (thread_cpu_ns() - self.cpu_begin_ns) as f64 / 1e9,
        }
    }
}

/// CPU time of this thread so far, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}
