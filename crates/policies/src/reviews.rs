//! Reviews at fixed intervals, for policies that preempt only then.

use crate::spec::{Param, Value};
use tandem_core::{Span, Time};

/// The parameter that sets the interval, in seconds.
pub(crate) const fn interval(name: &'static str, default_s: u64) -> Param {
    let help = "seconds between two reviews; only a review preempts";
    Param { name, default: Value::Whole(default_s), help }
}

/// The instants that are whole multiples of an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reviews {
    interval: Span,
}

impl Reviews {
    /// An interval of zero would never end, and counts as one second.
    pub(crate) fn every(interval_s: u64) -> Self {
        Self { interval: Span::from_secs(interval_s.max(1)) }
    }

    pub(crate) fn is_at(self, now: Time) -> bool {
        now.0.is_multiple_of(self.interval.0)
    }

    /// The first review strictly after `at`.
    pub(crate) fn after(self, at: Time) -> Time {
        Time((at.0 / self.interval.0 + 1).saturating_mul(self.interval.0))
    }
}
