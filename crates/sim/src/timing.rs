//! The only clock of this crate: the CPU time of decisions, which other programs on the machine hardly
//! change. It goes to `timing` in the JSON and nowhere else, so that all other outputs are equal in every
//! run.

use crate::metrics::Timing;
use rustix::time::{ClockId, clock_gettime};

/// Beyond this many decisions only one in [`STRIDE`] is timed: otherwise reading the clock would be a good
/// part of the result.
const TIMED_ALL: u64 = 1024;
const STRIDE: u64 = 64;

/// Why the engine was stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lap {
    /// An event.
    Event,
    /// A wake-up that the policy had requested: the end of a time slice, a review.
    Slice,
}

/// Decision times of one kind.
#[derive(Default)]
struct Laps {
    count: u64,
    /// In nanoseconds, each with the number of decisions that it represents. More than four seconds count as
    /// four.
    timed: Vec<(u32, u32)>,
}

pub(crate) struct Stopwatch {
    cpu_begin_ns: u64,
    /// By [`Lap`].
    laps: [Laps; 2],
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { cpu_begin_ns: thread_cpu_ns(), laps: Default::default() }
    }

    /// The start of a lap, if this one is timed.
    pub(crate) fn begin_lap(&mut self, lap: Lap) -> Option<u64> {
        let laps = &mut self.laps[lap as usize];
        laps.count += 1;
        let timed = laps.count <= TIMED_ALL || laps.count.is_multiple_of(STRIDE);
        timed.then(thread_cpu_ns)
    }

    pub(crate) fn end_lap(&mut self, lap: Lap, begun: Option<u64>) {
        if let Some(begun) = begun {
            let laps = &mut self.laps[lap as usize];
            let stands_for = if laps.count <= TIMED_ALL { 1 } else { STRIDE as u32 };
            let nanos = u32::try_from(thread_cpu_ns() - begun).unwrap_or(u32::MAX);
            laps.timed.push((nanos, stands_for));
        }
    }

    pub(crate) fn stop(self) -> Timing {
        let cpu_s = (thread_cpu_ns() - self.cpu_begin_ns) as f64 / 1e9;
        let [mut events, mut slices] = self.laps.map(|laps| laps.timed);
        let (event_p99_ms, slice_p99_ms) = (p99_ms(&mut events), p99_ms(&mut slices));
        events.append(&mut slices);
        Timing {
            decision_p99_ms: p99_ms(&mut events).unwrap_or(0.0),
            event_p99_ms,
            slice_p99_ms,
            cpu_s,
        }
    }
}

/// The time that at least 99 % of the decisions do not exceed; `None` if there were none.
fn p99_ms(timed: &mut [(u32, u32)]) -> Option<f64> {
    timed.sort_unstable_by_key(|&(nanos, _)| nanos);
    let weight = |&(_, stands_for): &(u32, u32)| u64::from(stands_for);
    let rank = (timed.iter().map(weight).sum::<u64>() * 99).div_ceil(100);
    let mut below = 0;
    let found = timed.iter().find(|lap| {
        below += weight(lap);
        below >= rank
    });
    found.map(|&(nanos, _)| f64::from(nanos) / 1e6)
}

/// CPU time of this thread so far, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timed_decision_represents_those_that_were_not_timed() {
        assert_eq!(p99_ms(&mut []), None);
        assert_eq!(p99_ms(&mut [(5_000_000, 1)]), Some(5.0));
        let mut laps: Vec<(u32, u32)> = (1..=99).map(|ms| (ms * 1_000_000, 16)).collect();
        laps.push((1_000_000_000, 16));
        assert_eq!(p99_ms(&mut laps), Some(99.0));
        // Sixteen slow decisions among a hundred timed ones are more than one in a hundred.
        let mut laps = vec![(1_000_000, 1); 84];
        laps.push((7_000_000, 16));
        assert_eq!(p99_ms(&mut laps), Some(7.0));
    }

    #[test]
    fn wake_ups_and_events_are_timed_separately() {
        let mut stopwatch = Stopwatch::start();
        let lap = stopwatch.begin_lap(Lap::Event);
        stopwatch.end_lap(Lap::Event, lap);
        let timing = stopwatch.stop();
        assert_eq!(timing.slice_p99_ms, None);
        assert_eq!(timing.event_p99_ms, Some(timing.decision_p99_ms));
    }
}
