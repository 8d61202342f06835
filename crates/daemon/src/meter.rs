//! Turns step reports and usage samples into facts. Reports and samples arrive many times a second; a fact
//! is a change that can alter a scheduling decision, and only facts are journalled.

use crate::scheduler::{Fact, Phase, Report, Scheduler};
use std::collections::BTreeMap;
use tandem_backends::UsageSample;
use tandem_core::Time;

/// How long to observe before a value counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterOptions {
    /// Memory counts as measured once it has not grown for this time,
    pub settle_s: f64,
    /// or for this many steps.
    pub settle_steps: u64,
    /// Fewest steps in a window in which a rate is measured.
    pub window_steps: u64,
    /// Shortest such window.
    pub window_s: f64,
}

impl Default for MeterOptions {
    fn default() -> Self {
        Self { settle_s: 60.0, settle_steps: 100, window_steps: 50, window_s: 1.0 }
    }
}

/// Cap on reported work (about 95 years), so that a false report cannot overflow.
const DONE_MAX_US: f64 = 3e15;
/// Relative growth of memory below this is ignored.
const MEMORY_GROWTH_MIN: f64 = 0.02;
/// Relative change of a rate below this is noise.
const RATE_CHANGE_MIN: f64 = 0.02;
/// Minimum interval between two pair-rate observations of a job.
const PAIR_INTERVAL_US: u64 = 5_000_000;
/// Relative standard deviation of a rate measured in the shortest window.
const WINDOW_NOISE: f64 = 0.05;

/// Measures memory and rates of running jobs.
#[derive(Debug, Default)]
pub struct Meter {
    options: MeterOptions,
    jobs: BTreeMap<u64, JobMeter>,
    /// Memory and number of foreign processes as last reported, by device.
    foreign: BTreeMap<u32, (u64, u32)>,
}

#[derive(Debug, Default)]
struct JobMeter {
    /// Steps of this run, as last reported.
    steps: u64,
    accum: u32,
    window: Option<RateWindow>,
    memory: MemoryPlateau,
    /// Rate relative to solo in the last progress fact.
    reported_rate: Option<f64>,
    pair_reported_at: u64,
}

/// Peak memory, and since when it has not grown.
#[derive(Debug, Default)]
struct MemoryPlateau {
    peak: u64,
    since: u64,
    at_steps: u64,
    reported: u64,
}

/// Steps with the same co-located jobs and the same number of sub-batches.
#[derive(Clone, Debug, PartialEq)]
struct RateWindow {
    since: u64,
    steps: u64,
    accum: u32,
    co_located: Vec<u64>,
}

impl Meter {
    /// A meter without measurements.
    pub fn new(options: MeterOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// A job reported `n` steps since the start of this run, with `accum` sub-batches each.
    pub fn steps(
        &mut self,
        job: u64,
        n: u64,
        accum: u32,
        now: Time,
        scheduler: &Scheduler,
    ) -> Vec<Fact> {
        let Some(active) = scheduler.job(job) else { return Vec::new() };
        let meter = self.jobs.entry(job).or_default();
        let (before, now) = (meter.steps, now.0);
        meter.steps = n;
        meter.accum = accum;
        if active.phase != Phase::Running || n < before {
            meter.window = None;
            return Vec::new();
        }
        let co_located = scheduler.co_located(job);
        let same = |window: &RateWindow| window.accum == accum && window.co_located == co_located;
        let Some(window) = meter.window.as_ref().filter(|window| same(window)) else {
            meter.window = Some(RateWindow { since: now, steps: n, accum, co_located });
            return Vec::new();
        };
        let seconds = now.saturating_sub(window.since) as f64 / 1e6;
        let steps = n - window.steps;
        if steps < self.options.window_steps || seconds < self.options.window_s {
            return Vec::new();
        }
        let rate = steps as f64 / seconds;
        meter.window =
            Some(RateWindow { since: now, steps: n, accum, co_located: co_located.clone() });
        let class = &active.job.class;
        let known = scheduler.classes().get(class);
        let solo = known.and_then(|known| known.solo.get(&accum)).copied();
        let mut facts = Vec::new();
        if co_located.is_empty() {
            // Exponential smoothing: other load on the machine may disturb one window.
            let next = solo.map_or(rate, |solo| solo + 0.3 * (rate - solo));
            if solo.is_none_or(|solo| (next / solo - 1.0).abs() > RATE_CHANGE_MIN) {
                let class = class.clone();
                facts.push(Fact::Solo { class, accum, steps_per_s: next });
            }
        }
        // Rates are relative to running alone with whole batches.
        let reference = known.and_then(|known| known.solo.get(&1)).copied().or(solo);
        let relative = match reference {
            Some(reference) => rate / reference,
            None if co_located.is_empty() => 1.0,
            None => return facts,
        };
        if let Some(solo) = solo
            && !co_located.is_empty()
            && now.saturating_sub(meter.pair_reported_at) >= PAIR_INTERVAL_US
        {
            meter.pair_reported_at = now;
            let noise = WINDOW_NOISE / (seconds / self.options.window_s).sqrt().max(1.0);
            facts.extend(scheduler.observation(job, rate / solo, noise));
        }
        let changed = meter
            .reported_rate
            .is_none_or(|reported| (relative / reported - 1.0).abs() > RATE_CHANGE_MIN);
        if changed || !active.rate_is_measured() {
            meter.reported_rate = Some(relative);
            let done_us = match reference {
                Some(reference) => (n as f64 / reference * 1e6).min(DONE_MAX_US) as u64,
                None => active.done_us(Time(now)),
            };
            let rate_ppm = (relative.clamp(0.0, 10.0) * 1e6).round() as u32;
            let report = Report { done_us, done_millionths: 0, at_us: now, rate_ppm };
            facts.push(Fact::Progress { job, report });
        }
        facts
    }

    /// Takes a sample of the memory of runs.
    pub fn sample(&mut self, sample: &UsageSample, now: Time, scheduler: &Scheduler) -> Vec<Fact> {
        let mut facts = Vec::new();
        for run in &sample.runs {
            let Some(active) = scheduler.job(run.run.job) else { continue };
            let meter = self.jobs.entry(run.run.job).or_default();
            if active.phase != Phase::Running {
                meter.memory.since = now.0;
                continue;
            }
            let memory = &mut meter.memory;
            if run.memory_bytes as f64 > memory.peak as f64 * (1.0 + MEMORY_GROWTH_MIN) {
                (memory.peak, memory.since, memory.at_steps) =
                    (run.memory_bytes, now.0, meter.steps);
                continue;
            }
            let settled = now.0.saturating_sub(memory.since) as f64 / 1e6 >= self.options.settle_s
                || meter.steps.saturating_sub(memory.at_steps) >= self.options.settle_steps;
            if settled && memory.peak > 0 && memory.reported != memory.peak {
                memory.reported = memory.peak;
                let accum = meter.accum.max(1);
                let class = active.job.class.clone();
                facts.push(Fact::Memory { class, accum, bytes: memory.peak });
            }
        }
        facts
    }

    /// Foreign processes were seen on a device.
    pub fn foreign(&mut self, device: u32, bytes: u64, processes: u32) -> Option<Fact> {
        let reported = self.foreign.get(&device).copied().unwrap_or((0, 0));
        // Rounded to 64 MiB, so that small fluctuations cause no facts.
        let rounded = bytes.next_multiple_of(64 << 20);
        if reported == (rounded, processes)
            || (reported.0 == rounded && (reported.1 > 0) == (processes > 0))
        {
            return None;
        }
        self.foreign.insert(device, (rounded, processes));
        Some(Fact::Foreign { device, bytes: rounded, processes })
    }

    /// Peak memory of a job, as measured.
    pub fn memory_peak(&self, job: u64) -> u64 {
        self.jobs.get(&job).map_or(0, |meter| meter.memory.peak)
    }

    /// The job or a co-located job was paused: discards the current window.
    pub fn interrupt(&mut self, job: u64) {
        if let Some(meter) = self.jobs.get_mut(&job) {
            meter.window = None;
        }
    }

    /// A run ended: discards its measurements.
    pub fn forget(&mut self, job: u64) {
        self.jobs.remove(&job);
    }
}
