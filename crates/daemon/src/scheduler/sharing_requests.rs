//! When sharing is decided: policies review it at intervals, and a driver that has news about it may ask
//! earlier. The first job of a class has shown what it needs, a pair was measured, a job of a known class was
//! submitted: none of them waits for the next review.

use super::Scheduler;
use tandem_core::{Span, Time};

/// The shortest interval between two decisions, unless somebody waits for the answer to a submission.
const INTERVAL_MIN: Span = Span(500_000);
/// A decision ranks all jobs: the interval grows with their number, so that decisions take little of the time.
const INTERVAL_PER_JOB: Span = Span(200);

/// Requests for decisions about sharing.
#[derive(Default)]
pub(super) struct SharingRequests {
    /// Something has become known in this step.
    is_wanted: bool,
    /// A job was submitted in this step.
    is_urgent: bool,
    last: Option<Time>,
    /// When a request that came too early is passed on.
    at: Option<Time>,
}

impl SharingRequests {
    /// When to step again because of a request.
    pub(super) fn next(&self) -> Option<Time> {
        self.at
    }
}

impl Scheduler {
    /// Something is news for sharing.
    pub(super) fn request_sharing(&mut self) {
        self.sharing_requests.is_wanted |= self.setup.learn && self.setup.share;
    }

    /// A job was submitted: its user is told whether it shares.
    pub(super) fn request_sharing_at_once(&mut self) {
        self.request_sharing();
        self.sharing_requests.is_urgent = true;
    }

    /// Passes a request on to the engine, unless the last one was a moment ago; whether there was one.
    pub(super) fn pass_on_sharing_request(&mut self) -> bool {
        let now = self.now.time();
        let requests = &mut self.sharing_requests;
        if requests.at.is_some_and(|at| at <= now) {
            requests.at = None;
            requests.is_wanted = true;
        }
        if !std::mem::take(&mut requests.is_wanted) {
            return false;
        }
        let jobs = u64::try_from(self.jobs.number()).unwrap_or(u64::MAX);
        let is_urgent = std::mem::take(&mut requests.is_urgent);
        let least = if is_urgent { Span(0) } else { INTERVAL_MIN };
        let interval = least.max(Span(INTERVAL_PER_JOB.0.saturating_mul(jobs)));
        match requests.last.map(|last| last + interval).filter(|&due| due > now) {
            Some(due) => {
                requests.at = Some(due);
                false
            }
            None => {
                requests.last = Some(now);
                requests.at = None;
                self.planner.request_sharing();
                true
            }
        }
    }
}
