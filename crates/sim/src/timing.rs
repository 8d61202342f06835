//! The only clock of this crate: how long decisions take. Its readings go to `timing` in the JSON
//! and nowhere else, so that everything else is the same in every run.

use crate::metrics::Timing;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

pub(crate) struct Stopwatch {
    cpu_begin_ns: u64,
    lap_began: Instant,
    /// Decision times in nanoseconds; a decision above four seconds counts as four.
    laps_ns: Vec<u32>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu_begin_ns: thread_cpu_ns(), lap_began: Instant::now(), laps_ns: Vec::new() }
    }

    pub(crate) fn lap_begins(&mut self) {
        self.lap_began = Instant::now();
    }

    pub(crate) fn lap_ends(&mut self) {
        let nanos = self.lap_began.elapsed().as_nanos();
        self.laps_ns.push(u32::try_from(nanos).unwrap_or(u32::MAX));
    }

    pub(crate) fn stop(mut self) -> Timing {
        let rank = (self.laps_ns.len() * 99).div_ceil(100).max(1) - 1;
        let p99_ns = match self.laps_ns.is_empty() {
            true => 0,
            false => *self.laps_ns.select_nth_unstable(rank).1,
        };
        Timing {
            decision_p99_ms: f64::from(p99_ns) / 1e6,
            cpu_s: (thread_cpu_ns() - self.cpu_begin_ns) as f64 / 1e9,
        }
    }
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}
