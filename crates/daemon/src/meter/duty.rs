//! Duty: the fraction of time in which a job uses its devices, and the rate that follows for a job that reports
//! no steps.
//!
//! On cores, a job that runs for `run` seconds, waits for its core for `wait` and sleeps otherwise would use
//! the core for run / (run + sleep) of the time if it were alone. That is its duty, and it is the same
//! beside others and on a busy machine. What it runs beside others, relative to its duty, is its rate.

use super::{JobMeter, MeterOptions, PAIR_INTERVAL_US, RATE_CHANGE_MIN};
use crate::scheduler::{Active, Fact, Phase, RateSource, Report, Scheduler};
use tandem_backends::RunSample;
use tandem_core::Time;

/// Usage windows are this many times longer than the shortest window of steps.
const LENGTH: f64 = 4.0;
/// Smallest change of the duty that is reported.
const CHANGE_MIN: f64 = 0.05;
/// A job with a lower duty is not slowed down measurably.
const IDLE: f64 = 0.1;
/// Standard deviation of a rate from usage. Usage is less precise than steps.
const NOISE: f64 = 0.1;

/// Usage with the same co-located jobs.
#[derive(Clone, Debug)]
pub(super) struct DutyWindow {
    since: u64,
    cpu_s: f64,
    wait_s: f64,
    /// Sum and number of samples of the utilisation of a GPU.
    used: (f64, u32),
    co_located: Vec<u64>,
}

/// The result of a window.
struct DutySample {
    /// Fraction of time in which the job used its devices.
    used: f64,
    /// The same without the time in which it waited for them.
    duty: f64,
}

impl DutyWindow {
    fn begin(run: &RunSample, now: u64, co_located: Vec<u64>) -> Self {
        let wait_s = run.wait_s.unwrap_or(0.0);
        Self { since: now, cpu_s: run.cpu_s, wait_s, used: (0.0, 0), co_located }
    }

    fn usage(&self, run: &RunSample, devices: usize, seconds: f64) -> Option<DutySample> {
        let share = |value: f64| value.clamp(0.0, 1.0);
        match run.wait_s {
            Some(wait_s) => {
                let time = seconds * devices.max(1) as f64;
                let ran = (run.cpu_s - self.cpu_s).max(0.0);
                let waited = (wait_s - self.wait_s).max(0.0);
                let duty = if ran > 0.0 { ran / (time - waited).max(ran) } else { 0.0 };
                Some(DutySample { used: share(ran / time), duty: share(duty) })
            }
            None => {
                let (sum, count) = self.used;
                let used = share((count > 0).then(|| sum / f64::from(count))?);
                Some(DutySample { used, duty: used })
            }
        }
    }
}

impl JobMeter {
    /// Takes a sample; facts at the end of a window.
    pub(super) fn duty(
        &mut self,
        run: &RunSample,
        active: &Active,
        options: &MeterOptions,
        now: Time,
        scheduler: &Scheduler,
    ) -> Vec<Fact> {
        let now = now.0;
        if active.phase != Phase::Running {
            self.duty = None;
            return Vec::new();
        }
        let co_located = scheduler.co_located(active.job.id);
        let Some(window) = self.duty.as_mut().filter(|window| window.co_located == co_located)
        else {
            self.duty = Some(DutyWindow::begin(run, now, co_located));
            return Vec::new();
        };
        if let Some(used) = run.device_use {
            window.used = (window.used.0 + used, window.used.1 + 1);
        }
        let seconds = now.saturating_sub(window.since) as f64 / 1e6;
        if seconds < LENGTH * options.window_s {
            return Vec::new();
        }
        let devices = active.allocation.as_ref().map_or(1, |allocation| allocation.devices.len());
        let usage = window.usage(run, devices, seconds);
        let is_alone = co_located.is_empty();
        self.duty = Some(DutyWindow::begin(run, now, co_located));
        let Some(usage) = usage else { return Vec::new() };
        let mut facts = Vec::new();
        let class = &active.job.class;
        let known = scheduler.classes().get(class).and_then(|known| known.duty);
        // Beside others, the utilisation of a GPU does not show what one job would use alone.
        if is_alone || run.wait_s.is_some() {
            let next = known.map_or(usage.duty, |known| known + 0.5 * (usage.duty - known));
            if known.is_none_or(|known| (next - known).abs() > CHANGE_MIN) {
                facts.push(Fact::Duty { class: class.clone(), duty: next });
            }
        }
        if let Some(duty) = known.filter(|&duty| duty >= IDLE && !is_alone)
            && self.steps == 0
            && !active.job.caps.reports
        {
            self.add_rate((usage.used / duty).min(1.2), active, now, scheduler, &mut facts);
        }
        facts
    }

    fn add_rate(
        &mut self,
        rate: f64,
        active: &Active,
        now: u64,
        scheduler: &Scheduler,
        facts: &mut Vec<Fact>,
    ) {
        let job = active.job.id;
        if now.saturating_sub(self.pair_reported_at) >= PAIR_INTERVAL_US {
            self.pair_reported_at = now;
            facts.extend(scheduler.observation(job, rate, NOISE));
        }
        let is_change = |reported: f64| (rate / reported - 1.0).abs() > RATE_CHANGE_MIN;
        if self.reported_rate.is_none_or(is_change) || active.rate_source() != RateSource::Usage {
            self.reported_rate = Some(rate);
            let rate_ppm = (rate.clamp(0.0, 10.0) * 1e6).round() as u32;
            let done_us = active.done_us(Time(now));
            let report = Report { done_us, done_millionths: 0, at_us: now, rate_ppm };
            facts.push(Fact::Progress { job, report, from: RateSource::Usage });
        }
    }
}
