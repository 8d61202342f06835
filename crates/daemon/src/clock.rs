//! The daemon's clock: it never runs backwards, whatever happens to the wall's, and goes on where an
//! earlier daemon left off.

use crate::scheduler::Now;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tandem_core::Time;

/// Reads the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    base_us: u64,
}

impl Clock {
    /// Goes on after `last`, by as much as the wall's clock says has passed since.
    pub fn after(last: Option<Now>) -> Self {
        let base_us = last.map_or(0, |last| {
            let passed = unix_us().saturating_sub(last.unix_us);
            last.at_us + passed.max(1)
        });
        Self { began: Instant::now(), base_us }
    }

    /// Now.
    pub fn now(&self) -> Now {
        let passed = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Now { at_us: self.base_us + passed, unix_us: unix_us() }
    }

    /// How long until `at`; no time if it has passed.
    pub fn until(&self, at: Time) -> Duration {
        Duration::from_micros(at.0.saturating_sub(self.now().at_us))
    }
}

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
