//! Series of jobs and devices, in memory and bounded. A job's series covers its whole life: when it is full,
//! two points become one. Those of devices cover the last hour and the last day: when they are full, the
//! oldest points go.

use super::scalars::{SCALARS_MAX, Scalars};
use crate::cycle::Present;
use crate::job::LatencyRecord;
use crate::meter::Meter;
use crate::scheduler::{Phase, Scheduler};
use std::collections::{BTreeMap, VecDeque};
use tandem_backends::{DeviceSample, RunSample};

/// Points of a series.
const POINTS_MAX: usize = 720;
/// Points of the series of a job.
const JOB_POINTS_MAX: usize = 300;
/// Ended jobs whose series are kept.
const ENDED_MAX: usize = 100;
const SECOND_US: u64 = 1_000_000;
/// Time between points of the last hour, and of the last day.
const HOUR_STEP_US: u64 = 5 * SECOND_US;
const DAY_STEP_US: u64 = 120 * SECOND_US;
/// The speed of a job is taken over at least this long.
const SPEED_WINDOW_US: u64 = SECOND_US;

/// The mean of the values of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct IntervalMean {
    sum: f64,
    count: u32,
}

impl IntervalMean {
    fn add(&mut self, other: IntervalMean) {
        self.sum += other.sum;
        self.count += other.count;
    }

    fn mean(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// What happens to a series that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// Two points become one.
    Halve,
    /// The oldest points go.
    Slide,
}

/// Columns of values at equal intervals.
#[derive(Clone, Debug)]
struct IntervalSeries {
    from_us: u64,
    step_us: u64,
    points_max: usize,
    full: Full,
    columns: Vec<Vec<IntervalMean>>,
    length: usize,
}

impl IntervalSeries {
    fn new(from_us: u64, step_us: u64, points_max: usize, full: Full) -> Self {
        Self { from_us, step_us, points_max, full, columns: Vec::new(), length: 0 }
    }

    /// The start of the first interval, in microseconds since 1970.
    fn start_us(&self) -> u64 {
        self.from_us
    }

    fn add(&mut self, at_us: u64, column: usize, value: f64) {
        if !value.is_finite() {
            return;
        }
        let mut at = self.place(at_us);
        while at >= self.points_max {
            match self.full {
                Full::Halve => self.halve(),
                Full::Slide => self.slide(at),
            }
            at = self.place(at_us);
        }
        if column >= self.columns.len() {
            self.columns.resize(column + 1, Vec::new());
        }
        let cells = &mut self.columns[column];
        if at >= cells.len() {
            cells.resize(at + 1, IntervalMean::default());
        }
        cells[at].add(IntervalMean { sum: value, count: 1 });
        self.length = self.length.max(at + 1);
    }

    fn place(&self, at_us: u64) -> usize {
        usize::try_from(at_us.saturating_sub(self.from_us) / self.step_us).unwrap_or(usize::MAX)
    }

    fn halve(&mut self) {
        for cells in &mut self.columns {
            let pairs = cells.chunks(2).map(|pair| {
                let mut cell = pair[0];
                pair.iter().skip(1).for_each(|&other| cell.add(other));
                cell
            });
            *cells = pairs.collect();
        }
        self.length = self.length.div_ceil(2);
        self.step_us = self.step_us.saturating_mul(2);
    }

    /// Appends a point. Allocates room for a quarter more points at a time.
    fn slide(&mut self, at: usize) {
        let by = (at + 1 - self.points_max).saturating_add(self.points_max / 4);
        for cells in &mut self.columns {
            cells.drain(..by.min(cells.len()));
        }
        self.length = self.length.saturating_sub(by);
        self.from_us += self.step_us.saturating_mul(by as u64);
    }

    /// The means of a column in at most `points` intervals since an instant. Also returns the start of the
    /// first interval and their length.
    fn read(&self, column: usize, since_us: u64, points: usize) -> Vec<Option<f64>> {
        let (first, stride) = self.window(since_us, points);
        let cells = self.columns.get(column).map_or(&[][..], Vec::as_slice);
        let cell = |at: usize| cells.get(at).copied().unwrap_or_default();
        let mean = |start: usize| {
            let mut all = IntervalMean::default();
            (start..(start + stride).min(self.length)).for_each(|at| all.add(cell(at)));
            all.mean()
        };
        (first..self.length).step_by(stride).map(mean).collect()
    }

    /// The first point to return, and how many points to merge into one.
    fn window(&self, since_us: u64, points: usize) -> (usize, usize) {
        let first = self.place(since_us).min(self.length);
        (first, (self.length - first).div_ceil(points.max(1)).max(1))
    }

    /// Start of the first interval and length of an interval, in microseconds.
    fn axis(&self, since_us: u64, points: usize) -> (u64, u64) {
        let (first, stride) = self.window(since_us, points);
        (self.from_us + self.step_us * first as u64, self.step_us * stride as u64)
    }
}

/// Columns of a job.
const RATE: usize = 0;
const SPEED: usize = 1;
const MEMORY: usize = 2;
const SHARE: usize = 3;
const P50: usize = 4;
const P99: usize = 5;
const SCALARS: usize = 6;

/// The series of a job.
#[derive(Clone, Debug)]
struct JobSamples {
    series: IntervalSeries,
    /// Scalars in order of appearance.
    names: Vec<String>,
    latest: Scalars,
    /// Steps at the last sample, and its time.
    counted: Option<(u64, u64)>,
    speed: Option<f64>,
    memory_bytes: Option<u64>,
    /// Requests that were counted: their latencies are in the series.
    requests: u64,
}

impl JobSamples {
    fn new(at_us: u64) -> Self {
        Self {
            series: IntervalSeries::new(at_us, SECOND_US, JOB_POINTS_MAX, Full::Halve),
            names: Vec::new(),
            latest: Scalars::new(),
            counted: None,
            speed: None,
            memory_bytes: None,
            requests: 0,
        }
    }

    /// Adds the latencies of a service, once for each of its reports.
    fn serve(&mut self, at_us: u64, latency: &LatencyRecord) {
        if latency.requests > self.requests {
            self.series.add(at_us, P50, latency.p50_us as f64 / 1e3);
            self.series.add(at_us, P99, latency.p99_us as f64 / 1e3);
        }
        self.requests = latency.requests;
    }

    fn count(&mut self, at_us: u64, steps: Option<u64>) {
        let Some(steps) = steps else { return };
        match self.counted {
            Some((before, since)) if steps >= before => {
                let passed = at_us.saturating_sub(since);
                if passed >= SPEED_WINDOW_US {
                    self.speed = Some((steps - before) as f64 * 1e6 / passed as f64);
                    self.counted = Some((steps, at_us));
                }
            }
            _ => {
                self.counted = Some((steps, at_us));
                self.speed = None;
            }
        }
    }
}

/// The series of a job, as returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobColumns {
    /// Start of the first interval, in microseconds since 1970.
    pub from_us: u64,
    /// Time between two points.
    pub step_us: u64,
    /// Speed relative to running alone.
    pub rate: Vec<Option<f64>>,
    /// Steps per second.
    pub speed: Vec<Option<f64>>,
    /// Memory in bytes.
    pub memory: Vec<Option<f64>>,
    /// Its share of each device.
    pub share: Vec<Option<f64>>,
    /// Half of the requests took at most this; empty if there were none, like the next.
    pub p50_ms: Vec<Option<f64>>,
    /// 99 of 100 requests took at most this.
    pub p99_ms: Vec<Option<f64>>,
    /// Scalars of the job, by name.
    pub scalars: BTreeMap<String, Vec<Option<f64>>>,
}

/// The series of one device, as returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceColumns {
    /// Share of time in which it was busy.
    pub utilisation: Vec<Option<f64>>,
    /// Memory in use, in bytes.
    pub memory: Vec<Option<f64>>,
    /// Sum of the rates of its tenants.
    pub throughput: Vec<Option<f64>>,
}

/// The series of the machine, as returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineColumns {
    /// Start of the first interval, in microseconds since 1970.
    pub from_us: u64,
    /// Time between two points.
    pub step_us: u64,
    /// By device.
    pub devices: Vec<DeviceColumns>,
    /// Pending jobs.
    pub pending: Vec<Option<f64>>,
    /// Running jobs.
    pub running: Vec<Option<f64>>,
}

/// Columns of the machine, and of each device after them.
const PENDING: usize = 0;
const RUNNING: usize = 1;
const DEVICES: usize = 2;
const PER_DEVICE: usize = 3;

/// Series of jobs and devices.
#[derive(Debug, Default)]
pub struct Samples {
    jobs: BTreeMap<u64, JobSamples>,
    ended: VecDeque<(u64, JobSamples)>,
    /// For the last hour, and for the last day.
    machine: Option<[IntervalSeries; 2]>,
    devices: usize,
}

impl Samples {
    /// A job reported scalars with its steps.
    pub fn report(&mut self, job: u64, at_us: u64, scalars: &Scalars) {
        if scalars.is_empty() {
            return;
        }
        let samples = self.jobs.entry(job).or_insert_with(|| JobSamples::new(at_us));
        for (name, &value) in scalars {
            let known = samples.names.iter().position(|known| known == name);
            let column = match known {
                Some(column) => column,
                None if samples.names.len() < SCALARS_MAX => {
                    samples.names.push(name.clone());
                    samples.names.len() - 1
                }
                None => continue,
            };
            samples.series.add(at_us, SCALARS + column, value);
            samples.latest.insert(name.clone(), value);
        }
    }

    /// Takes a sample of runs and devices.
    pub fn sample(
        &mut self,
        at_us: u64,
        scheduler: &Scheduler,
        meter: &Meter,
        runs: &[RunSample],
        devices: &[DeviceSample],
    ) {
        for run in runs {
            let job = run.run.job;
            let Some(active) = scheduler.job(job).filter(|active| active.phase == Phase::Running)
            else {
                continue;
            };
            let samples = self.jobs.entry(job).or_insert_with(|| JobSamples::new(at_us));
            samples.count(at_us, meter.steps_of(job));
            samples.memory_bytes = Some(run.memory_bytes);
            samples.series.add(at_us, RATE, f64::from(active.rate().0) / 1e6);
            samples.series.add(at_us, MEMORY, run.memory_bytes as f64);
            samples.series.add(at_us, SHARE, f64::from(active.budget().0) / 1e6);
            samples.serve(at_us, &active.job.latency);
            if let Some(speed) = samples.speed {
                samples.series.add(at_us, SPEED, speed);
            }
        }
        self.sample_machine(at_us, scheduler, devices);
        self.retire(scheduler);
    }

    fn sample_machine(&mut self, at_us: u64, scheduler: &Scheduler, devices: &[DeviceSample]) {
        let count = |state: crate::job::JobState| {
            let found = scheduler.by_state().find(|&(name, _)| name == state.name());
            found.map_or(0.0, |(_, count)| count as f64)
        };
        let pending = count(crate::job::JobState::Pending);
        let running = count(crate::job::JobState::Running);
        self.devices = devices.len();
        let new = |step| IntervalSeries::new(at_us, step, POINTS_MAX, Full::Slide);
        let machine = self.machine.get_or_insert_with(|| [HOUR_STEP_US, DAY_STEP_US].map(new));
        for series in machine {
            series.add(at_us, PENDING, pending);
            series.add(at_us, RUNNING, running);
            for (index, device) in (0_u32..).zip(devices) {
                let first = DEVICES + PER_DEVICE * index as usize;
                if let Some(utilisation) = device.utilisation {
                    series.add(at_us, first, utilisation);
                }
                series.add(at_us, first + 1, device.memory_used_bytes as f64);
                series.add(at_us, first + 2, throughput(scheduler, index));
            }
        }
    }

    /// Moves the series of ended jobs to those that are kept for a while.
    fn retire(&mut self, scheduler: &Scheduler) {
        let over: Vec<u64> =
            self.jobs.keys().copied().filter(|&job| scheduler.job(job).is_none()).collect();
        for job in over {
            if let Some(samples) = self.jobs.remove(&job) {
                self.ended.push_back((job, samples));
            }
        }
        while self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    fn of(&self, job: u64) -> Option<&JobSamples> {
        let ended = || self.ended.iter().rev().find(|(id, _)| *id == job).map(|(_, found)| found);
        self.jobs.get(&job).or_else(ended)
    }

    /// Steps per second of a job at the last sample.
    pub fn speed(&self, job: u64) -> Option<f64> {
        self.jobs.get(&job)?.speed
    }

    /// Memory of a job at the last sample.
    pub fn memory_bytes(&self, job: u64) -> Option<u64> {
        self.jobs.get(&job)?.memory_bytes
    }

    /// The latest scalars of a job, by name.
    pub fn scalars(&self, job: u64) -> Option<&Scalars> {
        self.of(job).map(|samples| &samples.latest)
    }

    /// The series of a job over its whole life, in at most `points` points.
    pub fn job(&self, job: u64, points: usize) -> Option<JobColumns> {
        let JobSamples { series, names, requests, .. } = self.of(job)?;
        let (from_us, step_us) = series.axis(series.start_us(), points);
        let column = |column| series.read(column, series.start_us(), points);
        let latencies = |at| if *requests > 0 { column(at) } else { Vec::new() };
        Some(JobColumns {
            from_us,
            step_us,
            rate: column(RATE),
            speed: column(SPEED),
            memory: column(MEMORY),
            share: column(SHARE),
            p50_ms: latencies(P50),
            p99_ms: latencies(P99),
            scalars: (SCALARS..).zip(names).map(|(at, name)| (name.clone(), column(at))).collect(),
        })
    }

    /// The series of the machine since an instant, in at most `points` points.
    pub fn machine(&self, since_us: u64, points: usize) -> Option<MachineColumns> {
        let [hour, day] = self.machine.as_ref()?;
        let series = if hour.start_us() <= since_us || day.start_us() >= hour.start_us() {
            hour
        } else {
            day
        };
        let (from_us, step_us) = series.axis(since_us, points);
        let column = |column| series.read(column, since_us, points);
        let device = |index: usize| {
            let first = DEVICES + PER_DEVICE * index;
            DeviceColumns {
                utilisation: column(first),
                memory: column(first + 1),
                throughput: column(first + 2),
            }
        };
        Some(MachineColumns {
            from_us,
            step_us,
            devices: (0..self.devices).map(device).collect(),
            pending: column(PENDING),
            running: column(RUNNING),
        })
    }
}

/// The sum of the rates of the tenants of a device.
fn throughput(scheduler: &Scheduler, device: u32) -> f64 {
    let rate = |job| match scheduler.job(job) {
        Some(active) if active.phase == Phase::Running => f64::from(active.rate().0) / 1e6,
        _ => 0.0,
    };
    scheduler.present(device).map(rate).sum()
}

impl Present<'_> {
    /// Series of jobs and devices.
    pub(crate) fn samples(&self) -> &Samples {
        &self.history.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_series_of_a_job_halves_and_keeps_its_means() {
        let mut series = IntervalSeries::new(0, SECOND_US, 8, Full::Halve);
        for at in 0..64 {
            series.add(at * SECOND_US, 0, at as f64);
        }
        assert_eq!((series.step_us, series.length), (8 * SECOND_US, 8));
        let means = series.read(0, 0, 100);
        assert_eq!(means[0], Some(3.5));
        assert_eq!(means[7], Some(59.5));
        assert_eq!(series.read(0, 0, 2), [Some(15.5), Some(47.5)]);
        assert_eq!(series.axis(0, 2), (0, 32 * SECOND_US));
    }

    #[test]
    fn a_full_series_of_a_device_slides() {
        let mut series = IntervalSeries::new(0, SECOND_US, 8, Full::Slide);
        for at in 0..100 {
            series.add(at * SECOND_US, 1, at as f64);
        }
        assert!(series.length <= 8 && series.start_us() >= 92 * SECOND_US, "{series:?}");
        assert_eq!(series.read(1, 0, 100).last(), Some(&Some(99.0)));
        assert!(series.read(0, 0, 100).iter().all(Option::is_none), "never written");
        // After a long silence only what is new is left.
        series.add(10_000 * SECOND_US, 1, 7.0);
        let read = series.read(1, 0, 100);
        assert_eq!(read.iter().flatten().count(), 1, "{read:?}");
        assert!(read.len() <= 8);
    }

    #[test]
    fn gaps_stay_gaps_and_what_is_not_a_number_is_ignored() {
        let mut series = IntervalSeries::new(0, SECOND_US, 8, Full::Halve);
        series.add(0, 0, 1.0);
        series.add(3 * SECOND_US, 0, f64::NAN);
        series.add(5 * SECOND_US, 0, 2.0);
        assert_eq!(series.read(0, 0, 9), [Some(1.0), None, None, None, None, Some(2.0)]);
        assert_eq!(series.read(0, 5 * SECOND_US, 9), [Some(2.0)]);
        assert_eq!(series.read(0, 99 * SECOND_US, 9), []);
    }

    #[test]
    fn scalars_are_bounded_and_the_latest_is_known() {
        let mut samples = Samples::default();
        for at in 0_u32..20 {
            let scalars: Scalars = (0..at).map(|n| (format!("s{n}"), f64::from(n))).collect();
            samples.report(1, u64::from(at) * SECOND_US, &scalars);
        }
        let read = samples.job(1, 50).expect("it reported");
        assert_eq!(read.scalars.len(), SCALARS_MAX);
        assert_eq!(samples.scalars(1).and_then(|all| all.get("s3")), Some(&3.0));
        assert_eq!(samples.job(2, 50), None);
    }

    #[test]
    fn latencies_are_kept_once_for_each_report() {
        let mut samples = Samples::default();
        let mut service = JobSamples::new(0);
        let reported =
            |requests, p99_us| LatencyRecord { requests, p99_us, ..LatencyRecord::default() };
        for (at, record) in [(0, reported(0, 0)), (1, reported(5, 9_000)), (2, reported(5, 9_000))]
        {
            service.serve(at * SECOND_US, &record);
        }
        service.series.add(3 * SECOND_US, RATE, 1.0);
        samples.jobs.insert(1, service);
        samples.jobs.insert(2, JobSamples::new(0));
        let read = samples.job(1, 50).expect("it has a series");
        assert_eq!(read.p99_ms, [None, Some(9.0), None, None]);
        assert_eq!(samples.job(2, 50).map(|job| job.p99_ms), Some(Vec::new()), "no service");
    }

    #[test]
    fn speed_is_steps_over_time_and_begins_anew_with_a_run() {
        let mut samples = JobSamples::new(0);
        samples.count(0, Some(100));
        assert_eq!(samples.speed, None);
        samples.count(SECOND_US / 2, Some(110));
        assert_eq!(samples.speed, None, "too short");
        samples.count(2 * SECOND_US, Some(140));
        assert_eq!(samples.speed, Some(20.0));
        samples.count(3 * SECOND_US, Some(5));
        assert_eq!(samples.speed, None, "counted from the start again");
        samples.count(4 * SECOND_US, None);
        assert_eq!(samples.speed, None);
    }
}
