//! Rates and remaining work from reported steps.

use super::{
    FEW_STEPS, FEW_STEPS_S, JobMeter, Meter, MeterOptions, PAIR_INTERVAL_US, RATE_CHANGE_MIN,
    StepReport,
};
use crate::scheduler::{Active, Fact, Phase, RateSource, Report, Scheduler};
use tandem_core::Time;

/// Cap on reported work (about 95 years), so that a false report cannot overflow.
const DONE_MAX_US: f64 = 3e15;
/// Relative standard deviation of a rate measured in the shortest window.
const WINDOW_NOISE: f64 = 0.05;
/// Relative change of the work in all below this is not worth a fact.
const TOTAL_CHANGE_MIN: f64 = 0.05;

/// Steps with the same co-located jobs and the same number of sub-batches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RateWindow {
    since: u64,
    steps: u64,
    accum: u32,
    co_located: Vec<u64>,
}

/// A window that has ended.
struct ClosedWindow {
    /// Steps per second.
    rate: f64,
    seconds: f64,
    co_located: Vec<u64>,
}

/// Speeds of a class alone, in steps per second.
struct Solo {
    /// With the present number of sub-batches.
    same: Option<f64>,
    /// With whole batches if that is known: rates are relative to it.
    reference: Option<f64>,
}

impl Meter {
    /// A job reported steps.
    pub fn steps(
        &mut self,
        job: u64,
        report: StepReport,
        now: Time,
        scheduler: &Scheduler,
    ) -> Vec<Fact> {
        let Some(active) = scheduler.job(job) else { return Vec::new() };
        let options = self.options;
        let meter = self.jobs.entry(job).or_default();
        let Some(measured) = meter.window_of(report, active, &options, now.0, scheduler) else {
            return Vec::new();
        };
        let class = &active.job.class;
        let known = scheduler.classes().get(class);
        let solo = |accum| known.and_then(|known| known.solo.get(&accum)).copied();
        let mut solo = Solo { same: solo(report.accum), reference: solo(1).or(solo(report.accum)) };
        let mut facts = Vec::new();
        if measured.co_located.is_empty() {
            // Exponential smoothing: other load on the machine may disturb one window.
            let next = solo.same.map_or(measured.rate, |solo| solo + 0.3 * (measured.rate - solo));
            if solo.same.is_none_or(|solo| (next / solo - 1.0).abs() > RATE_CHANGE_MIN) {
                let (class, accum) = (class.clone(), report.accum);
                facts.push(Fact::Solo { class, accum, steps_per_s: next });
            }
            solo.reference = solo.reference.or(Some(next));
        }
        meter.add_rates(&measured, &solo, report, active, &options, now.0, scheduler, &mut facts);
        facts
    }
}

impl JobMeter {
    /// Adds a report to the present window; the window if it ends.
    fn window_of(
        &mut self,
        report: StepReport,
        active: &Active,
        options: &MeterOptions,
        now: u64,
        scheduler: &Scheduler,
    ) -> Option<ClosedWindow> {
        let StepReport { n, accum, .. } = report;
        let before = std::mem::replace(&mut self.steps, n);
        self.accum = accum;
        if active.phase != Phase::Running || n < before {
            self.window = None;
            return None;
        }
        let co_located = scheduler.co_located(active.job.id);
        let same = |window: &RateWindow| window.accum == accum && window.co_located == co_located;
        let next = RateWindow { since: now, steps: n, accum, co_located: co_located.clone() };
        let Some(window) = self.window.as_ref().filter(|window| same(window)) else {
            self.window = Some(next);
            return None;
        };
        let seconds = now.saturating_sub(window.since) as f64 / 1e6;
        let steps = n - window.steps;
        let is_long = (steps >= options.window_steps && seconds >= options.window_s)
            || (steps >= FEW_STEPS && seconds >= FEW_STEPS_S);
        if !is_long {
            return None;
        }
        self.window = Some(next);
        Some(ClosedWindow { rate: steps as f64 / seconds, seconds, co_located })
    }

    /// Rates relative to running alone with whole batches, and the work that is left.
    #[expect(clippy::too_many_arguments, reason = "one window, and what it is compared with")]
    fn add_rates(
        &mut self,
        measured: &ClosedWindow,
        solo: &Solo,
        report: StepReport,
        active: &Active,
        options: &MeterOptions,
        now: u64,
        scheduler: &Scheduler,
        facts: &mut Vec<Fact>,
    ) {
        let Some(reference) = solo.reference else { return };
        let job = active.job.id;
        let relative = measured.rate / reference;
        if let Some(solo) = solo.same
            && !measured.co_located.is_empty()
            && now.saturating_sub(self.pair_reported_at) >= PAIR_INTERVAL_US
        {
            self.pair_reported_at = now;
            let noise = WINDOW_NOISE / (measured.seconds / options.window_s).sqrt().max(1.0);
            facts.extend(scheduler.observation(job, measured.rate / solo, noise));
        }
        let is_change = |reported: f64| (relative / reported - 1.0).abs() > RATE_CHANGE_MIN;
        let done_us = (report.n as f64 / reference * 1e6).min(DONE_MAX_US) as u64;
        if self.reported_rate.is_none_or(is_change) || active.rate_source() != RateSource::Steps {
            self.reported_rate = Some(relative);
            let rate_ppm = (relative.clamp(0.0, 10.0) * 1e6).round() as u32;
            let report = Report { done_us, done_millionths: 0, at_us: now, rate_ppm };
            facts.push(Fact::Progress { job, report, from: RateSource::Steps });
        }
        if let Some(total) = report.total {
            let left = total.saturating_sub(report.n) as f64 / reference * 1e6;
            let total_us = done_us.saturating_add(left.min(DONE_MAX_US) as u64).max(1);
            let is_change =
                |reported: u64| (total_us as f64 / reported as f64 - 1.0).abs() > TOTAL_CHANGE_MIN;
            if self.reported_total_us.is_none_or(is_change) {
                self.reported_total_us = Some(total_us);
                facts.push(Fact::Total { job, total_us });
            }
        }
    }
}
