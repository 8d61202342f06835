//! The live half of `tandem bench fidelity`: classes and pairs are measured first, then the stream runs.

use super::others::Watch;
use super::stream::{CLASSES, MeasuredClass, StreamEntry, TrainingClass, request};
use crate::commands::bench_session::{self, POLL};
use crate::commands::demo_live::Daemon;
use crate::commands::live::export::seconds;
use crate::failure::Failure;
use crate::progress::ProgressDisplay;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tandem_daemon::api::types::{ClassInfo, JobInfo};
use tandem_daemon::client::Client;
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

/// Measurements of each job of a pair.
const MEASUREMENTS: u64 = 3;
/// Time for which a class trains alone.
const ALONE: Duration = Duration::from_secs(3);
/// Jobs one after the other, for the time from the end of one to the start of the next.
const TURNS: usize = 6;
/// A policy that shares whatever fits, so that every pair can be measured.
const MEASURING_POLICY: &str = "sjf-ffs";
const ENDLESS: u64 = 1_000_000_000;

/// What the daemon learned before the run.
pub(super) struct Learned {
    pub(super) classes: Vec<ClassInfo>,
    pub(super) measured: Vec<MeasuredClass>,
    pub(super) memory_bytes: u64,
    /// The fraction of the cores that other programs used meanwhile.
    pub(super) used_by_others: f64,
    /// The daemon that learned. Daemons of the run start from a copy of its state.
    daemon: Daemon,
}

impl Learned {
    fn state(&self) -> PathBuf {
        self.daemon.folder.path().join("state")
    }
}

/// A daemon and how jobs are submitted to it.
struct LearningSession<'a> {
    client: Client,
    train: &'a Path,
    folder: PathBuf,
}

/// Measures the first `count` classes alone and in pairs on one device, while all other devices are busy.
pub(super) fn learn(
    train: &Path,
    devices: u32,
    count: usize,
    quiet: bool,
) -> Result<Learned, Failure> {
    let known = &CLASSES[..count];
    let mut daemon = Daemon::start(MEASURING_POLICY, devices, None)?;
    let client = daemon.client()?;
    let mut session = LearningSession { client, train, folder: daemon.folder.path().to_owned() };
    let watch = Watch::start(daemon.folder.path());
    for _ in 1..devices {
        let filler = request(train, &session.folder, &CLASSES[0], ENDLESS);
        let class = Some("filler".to_owned());
        session.submit(&JobRequest { exclusive: true, class, ..filler })?;
    }
    let pairs: Vec<(usize, usize)> =
        (0..count).flat_map(|one| (one..count).map(move |other| (one, other))).collect();
    let progress = ProgressDisplay::start((count + pairs.len()) as u64, quiet);
    let mut speeds = Vec::new();
    for class in known {
        speeds.push(session.measure_alone(class)?);
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    let turnaround_s = session.measure_turnaround()?;
    for (one, other) in pairs {
        session.measure_pair(&CLASSES[one], &CLASSES[other])?;
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    let classes = session.client.classes()?.value.classes;
    let measured = known.iter().zip(speeds).map(|(class, (steps_per_s, overhead_s))| {
        let info = classes.iter().find(|info| info.name == class.name);
        let memory = info.and_then(|info| info.memory_bytes).unwrap_or(0) as f64 / 1_048_576.0;
        let duty = info.and_then(|info| info.duty);
        // A device is as long without a training job as it takes to start the next one.
        let overhead_s = overhead_s + turnaround_s;
        MeasuredClass { steps_per_s, overhead_s, memory_mib: memory.max(1.0), duty }
    });
    let measured = measured.collect();
    let devices = session.client.devices()?.value.devices;
    let memory_bytes = devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
    let used_by_others = watch.stop();
    daemon.end();
    Ok(Learned { classes, measured, memory_bytes, used_by_others, daemon })
}

impl LearningSession<'_> {
    fn submit(&mut self, request: &JobRequest) -> Result<u64, Failure> {
        bench_session::submit(&mut self.client, request)
    }

    fn start(&mut self, class: &TrainingClass, steps: u64) -> Result<u64, Failure> {
        let request = request(self.train, &self.folder, class, steps);
        self.submit(&request)
    }

    fn job(&mut self, id: u64) -> Result<JobInfo, Failure> {
        Ok(self.client.job(id)?.value.job)
    }

    fn wait(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        bench_session::wait_until(what, || is_so(self))
    }

    fn wait_for_end(&mut self, id: u64) -> Result<JobInfo, Failure> {
        self.wait("ending a job", |session| Ok(session.job(id)?.line.state.is_over()))?;
        self.job(id)
    }

    /// Steps per second alone, and the time of a job that is not training.
    fn measure_alone(&mut self, class: &TrainingClass) -> Result<(f64, f64), Failure> {
        let id = self.start(class, ENDLESS)?;
        let is_measured = |session: &mut Self| Ok(session.job(id)?.steps_per_s_alone.is_some());
        self.wait(&format!("measuring {} alone", class.name), is_measured)?;
        std::thread::sleep(ALONE);
        let speed = self.job(id)?.steps_per_s_alone.unwrap_or(f64::NAN);
        self.client.cancel(id)?;
        self.wait_for_end(id)?;
        let steps = (speed * ALONE.as_secs_f64()).ceil() as u64;
        let id = self.start(class, steps)?;
        let job = self.wait_for_end(id)?;
        // The overhead of a whole job: start, data and end.
        let training_s = steps as f64 / speed;
        Ok((speed, (job.line.run_s - training_s).max(0.0)))
    }

    /// The mean time from the end of a job to the start of one that waits for its device.
    fn measure_turnaround(&mut self) -> Result<f64, Failure> {
        let mut ids = Vec::new();
        for _ in 0..=TURNS {
            let short = request(self.train, &self.folder, &CLASSES[0], 1);
            ids.push(self.submit(&JobRequest { exclusive: true, ..short })?);
        }
        let mut turns = Vec::new();
        let mut ended: Option<f64> = None;
        for id in ids {
            let job = self.wait_for_end(id)?;
            let of = |time: Option<&String>| time.and_then(|time| seconds(time));
            let (start, end) = (of(job.line.start_time.as_ref()), of(job.line.end_time.as_ref()));
            if let (Some(ended), Some(start)) = (ended, start) {
                turns.push((start - ended).max(0.0));
            }
            ended = end;
        }
        Ok(turns.iter().sum::<f64>() / turns.len().max(1) as f64)
    }

    fn measure_pair(&mut self, one: &TrainingClass, other: &TrainingClass) -> Result<(), Failure> {
        let ids = [self.start(one, ENDLESS)?, self.start(other, ENDLESS)?];
        let is_measured = |session: &mut Self| {
            let classes = session.client.classes()?.value.classes;
            let measurements = |of: &str, beside: &str| {
                let class = classes.iter().find(|class| class.name == of);
                class.and_then(|class| class.beside.get(beside)).map_or(0, |pair| pair.measurements)
            };
            Ok(measurements(one.name, other.name) >= MEASUREMENTS
                && measurements(other.name, one.name) >= MEASUREMENTS)
        };
        let what = format!("measuring {} beside {}", one.name, other.name);
        let measured = self.wait(&what, is_measured);
        for id in ids {
            self.client.cancel(id)?;
            self.wait_for_end(id)?;
        }
        measured
    }
}

/// A stream that ran on this machine.
pub(super) struct RealRun {
    /// The JCT of every task, in order of submission.
    pub(super) jcts_s: Vec<f64>,
    /// The fraction of the cores that other programs used meanwhile.
    pub(super) used_by_others: f64,
}

/// Runs the stream under a policy.
pub(super) fn run(
    policy: &str,
    devices: u32,
    train: &Path,
    learned: &Learned,
    stream: &[StreamEntry],
    quiet: bool,
) -> Result<RealRun, Failure> {
    let mut daemon = Daemon::start(policy, devices, Some(&learned.state()))?;
    let client = daemon.client()?;
    let mut session = LearningSession { client, train, folder: daemon.folder.path().to_owned() };
    let watch = Watch::start(daemon.folder.path());
    let tasks = stream.iter().map(|one| one.tasks).sum::<usize>();
    let progress = ProgressDisplay::start(tasks as u64, quiet);
    let began = Instant::now();
    let mut ids = Vec::new();
    for one in stream {
        let at = Duration::from_secs_f64(one.at_s);
        std::thread::sleep(at.saturating_sub(began.elapsed()));
        let request = one.request(train, &session.folder);
        ids.extend(session.client.submit(&request)?.value.ids);
    }
    let work_s: f64 = stream.iter().map(|one| one.duration_s * one.tasks as f64).sum();
    let limit = Duration::from_secs_f64(10.0 * work_s + 60.0);
    let mut jcts_s = Vec::new();
    for id in ids {
        jcts_s.push(jct(&completed(&mut session, id, began + limit)?)?);
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(RealRun { jcts_s, used_by_others: watch.stop() })
}

/// Waits until a job has completed.
fn completed(
    session: &mut LearningSession<'_>,
    id: u64,
    latest: Instant,
) -> Result<JobInfo, Failure> {
    loop {
        let job = session.job(id)?;
        match job.line.state {
            JobState::Completed => return Ok(job),
            state if state.is_over() => {
                return Err(Failure::failed(format!("job {id} is {}", state.name())));
            }
            _ if Instant::now() > latest => {
                let problem = "the jobs take more than ten times as long as alone";
                return Err(Failure::failed(problem));
            }
            _ => std::thread::sleep(POLL),
        }
    }
}

fn jct(job: &JobInfo) -> Result<f64, Failure> {
    let end = job.line.end_time.as_deref().and_then(seconds);
    let times = seconds(&job.line.submit_time).zip(end);
    times
        .map(|(submit, end)| end - submit)
        .ok_or_else(|| Failure::failed(format!("job {} has no times", job.line.id)))
}
