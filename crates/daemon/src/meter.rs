//! From what jobs and devices show to facts. Reports and samples come many times a second; a fact is
//! what the scheduler would decide differently for, and only facts are journalled.

use crate::scheduler::{Fact, Phase, Report, Scheduler};
use std::collections::BTreeMap;
use tandem_backends::UsageSample;
use tandem_core::Time;

/// How much has to be seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeterOptions {
    /// Memory that has not grown for so long is what a job takes,
    pub settle_s: f64,
    /// or for so many steps.
    pub settle_steps: u64,
    /// A rate is measured over at least so many steps,
    pub window_steps: u64,
    /// and so long.
    pub window_s: f64,
}

impl Default for MeterOptions {
    fn default() -> Self {
        Self { settle_s: 60.0, settle_steps: 100, window_steps: 50, window_s: 1.0 }
    }
}

/// A job that claims to have done more, a century, is not believed.
const DONE_MAX_US: f64 = 3e15;
/// Growth below this share is none.
const FLAT: f64 = 0.02;
/// A change of a speed below this share is noise.
const STEADY: f64 = 0.02;
/// Pair rates of one constellation are told again after so long.
const PAIR_AGAIN_US: u64 = 5_000_000;
/// What a window of the least length leaves uncertain; longer ones less.
const NOISE: f64 = 0.05;

/// Watches jobs that run.
#[derive(Debug, Default)]
pub struct Meter {
    options: MeterOptions,
    jobs: BTreeMap<u64, Watched>,
    /// Memory of strangers as last told, by device.
    foreign: BTreeMap<u32, (u64, u32)>,
}

#[derive(Debug, Default)]
struct Watched {
    /// Steps of the present run as last reported.
    steps: u64,
    accum: u32,
    window: Option<Window>,
    memory: Flat,
    /// Work done before the present run and steps that count towards it.
    told_rate: Option<f64>,
    told_pair_at: u64,
}

/// Memory that has stopped growing.
#[derive(Debug, Default)]
struct Flat {
    peak: u64,
    since: u64,
    at_steps: u64,
    told: u64,
}

/// Steps in one constellation.
#[derive(Clone, Debug, PartialEq)]
struct Window {
    since: u64,
    steps: u64,
    accum: u32,
    beside: Vec<u64>,
}

impl Meter {
    /// A meter that has seen nothing.
    pub fn new(options: MeterOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// A job reported its steps: `n` so far in this run, in `accum` parts each.
    pub fn steps(
        &mut self,
        job: u64,
        n: u64,
        accum: u32,
        now: Time,
        scheduler: &Scheduler,
    ) -> Vec<Fact> {
        let Some(active) = scheduler.job(job) else { return Vec::new() };
        let watched = self.jobs.entry(job).or_default();
        let (before, now) = (watched.steps, now.0);
        watched.steps = n;
        watched.accum = accum;
        if active.phase != Phase::Running || n < before {
            watched.window = None;
            return Vec::new();
        }
        let beside = scheduler.neighbours(job);
        let same = |window: &Window| window.accum == accum && window.beside == beside;
        let Some(window) = watched.window.as_ref().filter(|window| same(window)) else {
            watched.window = Some(Window { since: now, steps: n, accum, beside });
            return Vec::new();
        };
        let seconds = now.saturating_sub(window.since) as f64 / 1e6;
        let steps = n - window.steps;
        if steps < self.options.window_steps || seconds < self.options.window_s {
            return Vec::new();
        }
        let rate = steps as f64 / seconds;
        watched.window = Some(Window { since: now, steps: n, accum, beside: beside.clone() });
        let class = &active.job.class;
        let known = scheduler.classes().get(class);
        let solo = known.and_then(|known| known.solo.get(&accum)).copied();
        let mut facts = Vec::new();
        if beside.is_empty() {
            // Slowly follows: a machine may be busy with other things for a moment.
            let next = solo.map_or(rate, |solo| solo + 0.3 * (rate - solo));
            if solo.is_none_or(|solo| (next / solo - 1.0).abs() > STEADY) {
                let class = class.clone();
                facts.push(Fact::Solo { class, accum, steps_per_s: next });
            }
        }
        // Whole batches are what running alone means.
        let reference = known.and_then(|known| known.solo.get(&1)).copied().or(solo);
        let relative = match reference {
            Some(reference) => rate / reference,
            None if beside.is_empty() => 1.0,
            None => return facts,
        };
        if let Some(solo) = solo
            && !beside.is_empty()
            && now.saturating_sub(watched.told_pair_at) >= PAIR_AGAIN_US
        {
            watched.told_pair_at = now;
            let noise = NOISE / (seconds / self.options.window_s).sqrt().max(1.0);
            facts.extend(scheduler.observation(job, rate / solo, noise));
        }
        let changed = watched.told_rate.is_none_or(|told| (relative / told - 1.0).abs() > STEADY);
        if changed || !active.rate_is_measured() {
            watched.told_rate = Some(relative);
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

    /// How runs and devices do.
    pub fn sample(&mut self, sample: &UsageSample, now: Time, scheduler: &Scheduler) -> Vec<Fact> {
        let mut facts = Vec::new();
        for run in &sample.runs {
            let Some(active) = scheduler.job(run.run.job) else { continue };
            let watched = self.jobs.entry(run.run.job).or_default();
            if active.phase != Phase::Running {
                watched.memory.since = now.0;
                continue;
            }
            let flat = &mut watched.memory;
            if run.memory_bytes as f64 > flat.peak as f64 * (1.0 + FLAT) {
                (flat.peak, flat.since, flat.at_steps) = (run.memory_bytes, now.0, watched.steps);
                continue;
            }
            let settled = now.0.saturating_sub(flat.since) as f64 / 1e6 >= self.options.settle_s
                || watched.steps.saturating_sub(flat.at_steps) >= self.options.settle_steps;
            if settled && flat.peak > 0 && flat.told != flat.peak {
                flat.told = flat.peak;
                let accum = watched.accum.max(1);
                let class = active.job.class.clone();
                facts.push(Fact::Memory { class, accum, bytes: flat.peak });
            }
        }
        facts
    }

    /// Memory of strangers on a device was seen.
    pub fn foreign(&mut self, device: u32, bytes: u64, processes: u32) -> Option<Fact> {
        let told = self.foreign.get(&device).copied().unwrap_or((0, 0));
        // Memory is told in steps of 64 MiB: strangers' jobs breathe.
        let rounded = bytes.next_multiple_of(64 << 20);
        if told == (rounded, processes) || (told.0 == rounded && (told.1 > 0) == (processes > 0)) {
            return None;
        }
        self.foreign.insert(device, (rounded, processes));
        Some(Fact::Foreign { device, bytes: rounded, processes })
    }

    /// The most memory that a job was seen to take.
    pub fn memory_peak(&self, job: u64) -> u64 {
        self.jobs.get(&job).map_or(0, |watched| watched.memory.peak)
    }

    /// Steps that a job reported.
    pub fn steps_of(&self, job: u64) -> Option<u64> {
        self.jobs.get(&job).map(|watched| watched.steps).filter(|&steps| steps > 0)
    }

    /// A job stood still, or somebody beside it did: what was counted so far measures nothing.
    pub fn interrupt(&mut self, job: u64) {
        if let Some(watched) = self.jobs.get_mut(&job) {
            watched.window = None;
        }
    }

    /// A run is over.
    pub fn forget(&mut self, job: u64) {
        self.jobs.remove(&job);
    }
}
