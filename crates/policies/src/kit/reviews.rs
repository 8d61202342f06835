//! Reviews at fixed intervals, for policies that preempt only then.

use crate::spec::{PolicyParam, Value};
use tandem_core::{Span, Time};

/// The parameter that sets the interval, in seconds.
pub const fn interval(name: &'static str, default_s: u64) -> PolicyParam {
    let help = "seconds between two reviews; only a review preempts";
    PolicyParam { name, default: Value::Whole(default_s), help }
}

/// The instants that are whole multiples of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Reviews {
    interval: Span,
    last: Option<Time>,
}

impl Reviews {
    /// Every `interval_s` seconds. Zero counts as one second: it would never end.
    pub fn every(interval_s: u64) -> Self {
        Self { interval: Span::from_secs(interval_s.max(1)), last: None }
    }

    /// Whether a review is due at `now`.
    pub fn is_at(&self, now: Time) -> bool {
        now.0.is_multiple_of(self.interval.0)
    }

    /// Whether a review is due at `now` and has not begun yet. A policy that is asked to plan twice at
    /// one instant reviews once.
    pub fn begin(&mut self, now: Time) -> bool {
        self.is_at(now) && self.last.replace(now) != Some(now)
    }

    /// The first review strictly after `at`.
    pub fn after(&self, at: Time) -> Time {
        Time((at.0 / self.interval.0 + 1).saturating_mul(self.interval.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_begins_once_at_each_multiple_of_the_interval() {
        let mut reviews = Reviews::every(60);
        let at = Time::from_secs;
        assert_eq!(
            [60, 60, 61, 120, 120].map(|s| reviews.begin(at(s))),
            [true, false, false, true, false]
        );
        assert_eq!([0, 59, 60].map(|s| reviews.after(at(s))), [at(60), at(60), at(120)]);
        assert!(Reviews::every(0).is_at(at(1)));
    }
}
