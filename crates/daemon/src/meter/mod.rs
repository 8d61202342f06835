//! Turns step reports and usage samples into facts. Reports and samples arrive many times a second; a fact
//! is a change that can alter a scheduling decision, and only facts are journalled.

mod duty;
mod memory;
mod steps;

use crate::scheduler::{Fact, Scheduler};
use duty::DutyMeter;
use memory::MemoryPlateau;
use std::collections::BTreeMap;
use steps::RateWindow;
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

/// Slow steps: so few are enough for a window, and for steady memory, if they took this long.
const FEW_STEPS: u64 = 5;
const FEW_STEPS_S: f64 = 10.0;
/// Relative change of a rate below this is noise.
const RATE_CHANGE_MIN: f64 = 0.02;
/// Minimum interval between two pair-rate observations of a job.
const PAIR_INTERVAL_US: u64 = 5_000_000;

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
    duty: DutyMeter,
    /// Rate relative to solo in the last progress fact.
    reported_rate: Option<f64>,
    /// Work in all by the last fact about it, in microseconds of running alone.
    reported_total_us: Option<u64>,
    pair_reported_at: u64,
}

/// A report of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// Steps since the start of this run,
    pub n: u64,
    /// of so many, if the job knows.
    pub total: Option<u64>,
    /// Sub-batches of a step.
    pub accum: u32,
}

impl Meter {
    /// A meter without measurements.
    pub fn new(options: MeterOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Takes a sample of the usage of runs.
    pub fn sample(&mut self, sample: &UsageSample, now: Time, scheduler: &Scheduler) -> Vec<Fact> {
        let mut facts = Vec::new();
        for run in &sample.runs {
            let Some(active) = scheduler.job(run.run.job) else { continue };
            let meter = self.jobs.entry(run.run.job).or_default();
            facts.extend(meter.memory(run, active, &self.options, now));
            facts.extend(meter.duty(run, active, &self.options, now, scheduler));
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
        self.jobs.get(&job).map_or(0, |meter| meter.memory.highest())
    }

    /// Steps of this run, as the job reported them.
    pub fn steps_of(&self, job: u64) -> Option<u64> {
        self.jobs.get(&job).map(|meter| meter.steps).filter(|&steps| steps > 0)
    }

    /// The job or a co-located job was paused: discards the current windows.
    pub fn interrupt(&mut self, job: u64) {
        if let Some(meter) = self.jobs.get_mut(&job) {
            meter.window = None;
            meter.duty.interrupt();
        }
    }

    /// A run ended: discards its measurements.
    pub fn forget(&mut self, job: u64) {
        self.jobs.remove(&job);
    }
}
