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
/// The same for the first window in which a job makes steps: other jobs wait for it.
const LENGTH_FIRST: f64 = 2.0;
/// Smallest change of the duty that is reported.
const CHANGE_MIN: f64 = 0.05;
/// A job with a lower duty is not slowed down measurably.
const IDLE: f64 = 0.1;
/// Standard deviation of a rate from usage. Usage is less precise than steps.
const NOISE: f64 = 0.1;

/// How much a job uses its devices.
#[derive(Debug, Default)]
pub(super) struct DutyMeter {
    window: Option<DutyWindow>,
    /// The job made steps during a window that has ended.
    has_stepped: bool,
    /// It has shown a duty from before its first step.
    shown_before_steps: bool,
}

impl DutyMeter {
    /// Discards the present window.
    pub(super) fn interrupt(&mut self) {
        self.window = None;
    }
}

/// Usage with the same co-located jobs.
#[derive(Clone, Debug)]
struct DutyWindow {
    since: u64,
    cpu_s: f64,
    wait_s: f64,
    threads_s: f64,
    /// Sum and number of samples of the utilisation of a GPU.
    used: (f64, u32),
    co_located: Vec<u64>,
    /// The job had made steps before it.
    steps: bool,
}

/// The result of a window.
struct DutySample {
    /// Fraction of time in which the job used its devices.
    used: f64,
    /// The same without the time in which it waited for them.
    duty: f64,
}

impl DutyWindow {
    fn begin(run: &RunSample, now: u64, co_located: Vec<u64>, steps: bool) -> Self {
        let wait_s = run.wait_s.unwrap_or(0.0);
        let (cpu_s, threads_s) = (run.cpu_s, run.threads_s);
        Self { since: now, cpu_s, wait_s, threads_s, used: (0.0, 0), co_located, steps }
    }

    fn usage(&self, run: &RunSample, devices: usize, seconds: f64) -> Option<DutySample> {
        let share = |value: f64| value.clamp(0.0, 1.0);
        match run.wait_s {
            Some(wait_s) => {
                let time = seconds * devices.max(1) as f64;
                let ran = (run.cpu_s - self.cpu_s).max(0.0);
                let waited = self.waited(run, wait_s, ran);
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

    /// How long it waited for its cores. Threads and children that have ended took their waiting time with
    /// them; they are taken to have waited as those did that exist.
    fn waited(&self, run: &RunSample, wait_s: f64, ran: f64) -> f64 {
        let seen = (run.threads_s - self.threads_s, wait_s - self.wait_s);
        let (threads, waited) =
            if seen.0 > 0.0 && seen.1 >= 0.0 { seen } else { (run.threads_s, wait_s) };
        if threads > 0.0 { waited * (ran / threads).max(1.0) } else { waited.max(0.0) }
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
            self.duty.window = None;
            return Vec::new();
        }
        let co_located = scheduler.co_located(active.job.id);
        let steps = self.steps > 0;
        // What a job does before its first step, such as loading its data, is not what it does later.
        let is_same =
            |window: &&mut DutyWindow| window.co_located == co_located && window.steps == steps;
        let Some(window) = self.duty.window.as_mut().filter(is_same) else {
            self.duty.window = Some(DutyWindow::begin(run, now, co_located, steps));
            return Vec::new();
        };
        if let Some(used) = run.device_use {
            window.used = (window.used.0 + used, window.used.1 + 1);
        }
        let seconds = now.saturating_sub(window.since) as f64 / 1e6;
        let is_first = steps && !self.duty.has_stepped;
        let length = if is_first { LENGTH_FIRST } else { LENGTH };
        if seconds < length * options.window_s {
            return Vec::new();
        }
        let devices = active.allocation.as_ref().map_or(1, |allocation| allocation.devices.len());
        let usage = window.usage(run, devices, seconds);
        let is_alone = co_located.is_empty();
        self.duty.window = Some(DutyWindow::begin(run, now, co_located, steps));
        let Some(usage) = usage else { return Vec::new() };
        self.duty.has_stepped |= steps;
        let mut facts = Vec::new();
        let class = scheduler.classes().get(&active.job.class);
        let known = class.and_then(|known| known.duty);
        let makes_steps = class.is_some_and(|known| !known.solo.is_empty());
        // Beside others, the utilisation of a GPU does not show what one job would use alone.
        if (is_alone || run.wait_s.is_some()) && (steps || !makes_steps) {
            // What the first job of a class showed before its first step does not count any more.
            let before = known.filter(|_| !(is_first && self.duty.shown_before_steps));
            self.duty.shown_before_steps |= !steps;
            let next = before.map_or(usage.duty, |known| known + 0.5 * (usage.duty - known));
            if known.is_none_or(|known| (next - known).abs() > CHANGE_MIN) {
                facts.push(Fact::Duty { class: active.job.class.clone(), duty: next });
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

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_backends::RunId;

    fn sample(cpu_s: f64, threads_s: f64, wait_s: f64) -> RunSample {
        let run = RunId { job: 1, run: 1 };
        let wait_s = Some(wait_s);
        RunSample {
            run,
            cpu_s,
            memory_bytes: 0,
            wait_s,
            threads_s,
            device_use: None,
            stopped: false,
        }
    }

    fn duty(before: &RunSample, after: &RunSample) -> f64 {
        let window = DutyWindow::begin(before, 0, Vec::new(), false);
        window.usage(after, 1, 10.0).expect("cores show their use").duty
    }

    #[test]
    fn waiting_for_a_core_is_not_idle_time() {
        let begin = sample(1.0, 1.0, 0.5);
        assert_eq!(duty(&begin, &sample(6.0, 6.0, 5.5)), 1.0, "it ran whenever it could");
        assert!((duty(&begin, &sample(4.0, 4.0, 0.5)) - 0.3).abs() < 1e-9);
        assert!((duty(&begin, &sample(4.0, 4.0, 4.5)) - 0.5).abs() < 1e-9, "on a busy machine");
        assert_eq!(duty(&begin, &begin), 0.0);
    }

    #[test]
    fn children_that_have_ended_waited_like_those_that_are_there() {
        // A shell that starts one short program after the other: 4.9 of 5 s are those of ended children.
        let begin = sample(1.0, 0.1, 0.1);
        assert!(duty(&begin, &sample(6.0, 0.2, 0.2)) > 0.99, "it ran half of the time and waited");
        let quiet = duty(&begin, &sample(6.0, 0.2, 0.101));
        assert!((0.5..0.55).contains(&quiet), "it sleeps half of the time: {quiet}");
        // A thread that ended took its times with it.
        let fewer = duty(&sample(6.0, 6.0, 6.0), &sample(11.0, 2.0, 2.0));
        assert!(fewer > 0.99, "{fewer}");
    }
}
