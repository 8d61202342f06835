//! Services: their promises, the feedback of measured latencies, and restarts after failures.

use super::active::{Active, Phase};
use super::{Scheduler, Setup};
use crate::job::RequestWindow;
use crate::request::JobRequest;
use tandem_backends::RunId;
use tandem_core::{Event, PPM_ONE, Ppm, Promise, Span, Time};
use tandem_models::feedback::{Adjustment, PromiseLoop};

/// The remaining time of a service when jobs are ranked. It has no end, so any constant will do.
pub(super) const ESTIMATE: Span = Span::from_secs(60);
/// Delay before a failed service is started again: the first time, and at most.
const BACKOFF: Span = Span::from_secs(1);
const BACKOFF_MAX: Span = Span::from_secs(60);
/// A failure after a run of this length counts as the first one again.
const STEADY: Span = Span::from_secs(60);
/// Time for which a service is alone after no budget kept its promise.
const PARTED: Span = Span::from_secs(600);
/// Windows alone before the latency of a class counts as known.
const WINDOWS_ALONE: u32 = 3;
/// Weight of the latest window in the smoothed latency.
const SMOOTHING: f64 = 0.2;
/// Plans aim at this fraction of a promised latency, to leave a margin for noise.
const TARGET: f64 = 0.8;

/// State of a service, lost when the daemon restarts.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceState {
    /// Failures in a row.
    failures: u32,
    /// Time on its devices at the last failure.
    ran_us: u64,
    control: PromiseLoop,
    /// It does not share before this time.
    pub(super) alone_until: Option<Time>,
}

/// Smoothed latencies of a class alone, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LatencyAlone {
    /// Number of windows.
    pub windows: u32,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

impl LatencyAlone {
    fn add(&mut self, window: RequestWindow) {
        let weight = if self.windows == 0 { 1.0 } else { SMOOTHING };
        self.windows = self.windows.saturating_add(1);
        self.p50_us += weight * (window.p50_us as f64 - self.p50_us);
        self.p99_us += weight * (window.p99_us as f64 - self.p99_us);
    }

    /// Whether there were enough windows.
    pub(super) fn is_known(&self) -> bool {
        self.windows >= WINDOWS_ALONE
    }
}

/// Whether the work of a job goes before that of its neighbours: where the back end can, a promised latency or speed
/// costs them only the time that the job uses.
pub(super) fn goes_first(request: &JobRequest, setup: &Setup) -> bool {
    let is_promised = request.latency_promise().is_some() || request.max_slowdown.is_some();
    setup.live_budgets && is_promised && !request.exclusive
}

impl Scheduler {
    /// Takes a report of a service.
    pub(super) fn requests(&mut self, id: u64, window: RequestWindow) {
        let Some(active) = self.jobs.get_mut(id).filter(|active| active.job.request.is_service())
        else {
            return;
        };
        if active.phase != Phase::Running {
            return;
        }
        let promise = active.job.request.latency_promise();
        let kept = |(p50, p99)| promise.is_none_or(|promise| promise.is_kept_by(p50, p99));
        let is_kept = window.requests == 0 || kept((window.p50_us, window.p99_us));
        active.job.latency.add(window, is_kept);
        let is_new = !active.job.caps.reports;
        active.job.caps.reports = true;
        self.jobs.mark_changed(id);
        if self.co_located(id).is_empty() {
            if window.requests > 0 {
                self.learn_alone(id, window);
            }
        } else if let Some(promise) = promise {
            let latency = promise.of(window.p50_us, window.p99_us) as f64;
            self.feed_back(id, latency / promise.limit_us as f64);
        }
        if is_new {
            self.describe(id);
        }
    }

    /// Updates the latency of a class alone, which bounds how much a service of it can be slowed down.
    fn learn_alone(&mut self, id: u64, window: RequestWindow) {
        let class = self.jobs.expect(id).job.class.clone();
        let before = self.learning.get(&class).and_then(|known| known.latency);
        let mut alone = before.unwrap_or_default();
        alone.add(window);
        self.learning.set_latency(&class, alone);
        let moved = before.is_none_or(|before| {
            !before.is_known() || (alone.p99_us / before.p99_us.max(1.0) - 1.0).abs() > 0.1
        });
        if moved {
            self.describe_class(&class);
            self.request_sharing();
        }
    }

    /// Adjusts the budgets of the jobs beside a service. `latency` is relative to the promise.
    fn feed_back(&mut self, id: u64, latency: f64) {
        if !self.setup.live_budgets {
            return;
        }
        let is_guest = |active: &Active| active.job.request.latency_promise().is_none();
        let guests: Vec<u64> = self
            .co_located(id)
            .into_iter()
            .filter(|&other| self.jobs.get(other).is_some_and(is_guest))
            .collect();
        let budget = |&guest: &u64| {
            let active = self.jobs.get(guest)?;
            let allocation = active.allocation.as_ref()?;
            Some(Ppm(allocation.share_ppm))
        };
        let Some(cap) = guests.iter().filter_map(budget).max() else { return };
        let Some(active) = self.jobs.get_mut(id) else { return };
        let most = Ppm(PPM_ONE - active.job.request.floor_ppm().min(PPM_ONE));
        match active.service.control.window(latency, cap, most) {
            Adjustment::Keep => {}
            Adjustment::Cap(next) => {
                for guest in guests {
                    let Some(active) = self.jobs.get_mut(guest) else { continue };
                    active.job.budget_ppm = Some(next.0);
                    self.jobs.mark_changed(guest);
                    self.processes.mark(guest);
                }
            }
            Adjustment::Separate => self.part(id),
        }
    }

    /// Separates a service for a while, because no budget keeps its promise.
    fn part(&mut self, id: u64) {
        let until = self.now.time() + PARTED;
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.service.alone_until = Some(until);
        self.jobs.add_timer(until, id);
        self.describe(id);
        self.planner.replan();
        self.planner.request_sharing();
    }

    /// Lets a service share again.
    pub(super) fn unpart(&mut self, id: u64) {
        if let Some(active) = self.jobs.get_mut(id) {
            active.service.alone_until = None;
            self.describe(id);
            self.request_sharing();
        }
    }

    /// The budget of a job by the feedback, while it is beside a service with a promise.
    pub(super) fn fed_back_budget(&self, id: u64, devices: &[u32]) -> Option<u32> {
        let budget = self.jobs.get(id)?.job.budget_ppm?;
        let is_promised = |other: u64| {
            let request = self.jobs.get(other).map(|active| &active.job.request);
            other != id && request.is_some_and(|request| request.latency_promise().is_some())
        };
        let beside = |&device: &u32| self.planner.tenants(device).any(is_promised);
        devices.iter().any(beside).then_some(budget)
    }

    /// The promise to a job when it shares.
    pub(super) fn promise(&self, active: &Active) -> Promise {
        let request = &active.job.request;
        let floor = Ppm(request.floor_ppm());
        let goes_first = goes_first(request, &self.setup);
        let Some(_) = &request.service else {
            return Promise { floor, goes_first, ..Promise::default() };
        };
        let least_rate = self.least_rate(active).unwrap_or(Ppm::ZERO);
        Promise { is_service: true, least_rate, floor, goes_first }
    }

    /// The least rate at which a service keeps its promise. With utilisation u, latency
    /// grows with 1 / (y − u) at rate y; alone y is 1.
    fn least_rate(&self, active: &Active) -> Option<Ppm> {
        let promise = active.job.request.latency_promise()?;
        let class = self.learning.get(&active.job.class)?;
        let alone = class.latency?;
        let latency = match promise.percentile {
            crate::request::Percentile::P50 => alone.p50_us,
            crate::request::Percentile::P99 => alone.p99_us,
        };
        let used = class.duty.unwrap_or(0.5).clamp(0.0, 1.0);
        let least = used + latency / (TARGET * promise.limit_us as f64) * (1.0 - used);
        Some(Ppm((least.clamp(0.0, 1.0) * f64::from(PPM_ONE)).round() as u32))
    }

    /// Why a service must not share; `None` if it may.
    pub(super) fn why_service_alone(&self, active: &Active) -> Option<&'static str> {
        let request = &active.job.request;
        request.service.as_ref()?;
        let promises = request.latency_promise().is_some();
        let class = self.learning.get(&active.job.class);
        let latency = class.and_then(|class| class.latency);
        if active.service.alone_until.is_some() {
            Some("because no budget of others kept its latency")
        } else if promises && !self.setup.live_budgets {
            Some("because budgets cannot be enforced here")
        } else if latency.is_some_and(|alone| alone.is_known())
            || request.max_slowdown.is_some()
            || request.share.is_some() && !promises
        {
            None
        } else {
            Some("until it has reported latencies")
        }
    }

    /// Starts a failed service again after a delay, which doubles with every failure.
    pub(super) fn restart_service(&mut self, run: RunId, reason: &str) {
        let id = run.job;
        let Some(active) = self.jobs.get_mut(id) else { return };
        let ran = Span(active.job.ran_us.saturating_sub(active.service.ran_us));
        active.service.ran_us = active.job.ran_us;
        active.service.failures = if ran >= STEADY { 1 } else { active.service.failures + 1 };
        let doubled = BACKOFF.0 << (active.service.failures - 1).min(10);
        let delay = Span(doubled).min(BACKOFF_MAX);
        active.job.retried += 1;
        active.job.ending = None;
        self.wait_outside(id, delay, reason);
    }

    /// Takes a job out of the queue for a while, so that other jobs get its devices.
    pub(super) fn wait_outside(&mut self, id: u64, delay: Span, reason: &str) {
        let at = self.now.time() + delay;
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.job.placed = false;
        active.job.entered_us = None;
        active.begin = Some(at);
        if let Some(entry) = self.jobs.take_entry(id) {
            self.planner.tell(Event::Cancelled { job: entry });
        }
        self.jobs.add_timer(at, id);
        let seconds = delay.0.div_ceil(1_000_000);
        self.jobs.set_reason(id, Some(format!("{reason}; tried again in {seconds} s")));
        self.jobs.mark_changed(id);
    }
}
