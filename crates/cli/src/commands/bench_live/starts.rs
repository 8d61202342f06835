//! Start latencies: from a free device, or from the submission, to the running process.

use super::figures::{Latencies, millis};
use super::load::ids;
use super::server::BenchDaemon;
use crate::failure::Failure;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tandem_daemon::client::JobQuery;
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

/// Timeout of all short jobs.
const ENDS_WITHIN: Duration = Duration::from_secs(600);
/// Jobs that are submitted one by one to idle devices.
const IDLE: u32 = 50;

/// Latencies between consecutive jobs on a device.
#[derive(Default)]
pub(super) struct Starts {
    /// From the time at which the daemon saw a job end to the output of the next process.
    pub(super) seen_to_run: Latencies,
    /// From the output of a process, with which it ends, to that of the next.
    pub(super) word_to_word: Latencies,
    /// From the first start to the last end.
    pub(super) took: Duration,
}

/// A job that prints the time and ends.
fn short(server: &BenchDaemon) -> JobRequest {
    let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    JobRequest {
        command: ["date", "+%s%N"].map(str::to_owned).to_vec(),
        class: Some("bench-short".to_owned()),
        estimate_s: Some(0.01),
        exclusive: true,
        dir: server.output().to_owned(),
        stdout: Some("word-%j".into()),
        env: [path].into(),
        ..JobRequest::default()
    }
}

/// Submits short jobs, each on its own.
pub(super) fn submit(server: &BenchDaemon, count: u32) -> Result<BTreeSet<u64>, Failure> {
    let body = body(&short(server))?;
    let mut connection = server.connect()?;
    let mut submitted = BTreeSet::new();
    for _ in 0..count {
        let answer = connection.ask("POST", "/v1/jobs", &body)?;
        submitted.extend(ids(answer).map_err(Failure::failed)?);
    }
    Ok(submitted)
}

pub(super) fn body(request: &JobRequest) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(request).map_err(Failure::failed)
}

/// Waits until jobs have ended, by their output files, without asking the daemon.
pub(super) fn wait(server: &BenchDaemon, jobs: &BTreeSet<u64>) -> Result<(), Failure> {
    let began = Instant::now();
    let mut client = server.client()?;
    for &id in jobs {
        while word(server, id).is_err() {
            if began.elapsed() > ENDS_WITHIN {
                return Err(Failure::failed(format!("short job {id} has not run")));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    for &id in jobs {
        while !client.job(id)?.job.line.state.is_over() {
            if began.elapsed() > ENDS_WITHIN {
                return Err(Failure::failed(format!("short job {id} has not ended")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Evaluates short jobs that have ended.
pub(super) fn measure(server: &BenchDaemon, jobs: &BTreeSet<u64>) -> Result<Starts, Failure> {
    let mut client = server.client()?;
    let mut by_device: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    let mut after = jobs.first().map_or(0, |first| first.saturating_sub(1));
    let last = jobs.last().copied().unwrap_or(0);
    while after < last {
        let query = JobQuery { after: Some(after), limit: Some(10_000), ..JobQuery::default() };
        let page = client.jobs(&query)?;
        let Some(end) = page.jobs.last() else { break };
        after = end.id;
        for job in page.jobs.iter().filter(|job| jobs.contains(&job.id)) {
            let (state, id) = (job.state, job.id);
            let (JobState::Completed, Some(ended)) = (state, &job.end_time) else {
                let problem = format!("short job {id} is {}: {:?}", state.name(), job.reason);
                return Err(Failure::failed(problem));
            };
            let device = job.devices.first().copied().unwrap_or(0);
            by_device.entry(device).or_default().push((word(server, id)?, instant(ended)?));
        }
    }
    let mut starts = Starts::default();
    let (mut first, mut final_end) = (f64::MAX, 0.0_f64);
    for ran in by_device.values_mut() {
        ran.sort_by(|one, other| one.0.total_cmp(&other.0));
        for pair in ran.windows(2) {
            let ((word, seen), (next, _)) = (pair[0], pair[1]);
            starts.seen_to_run.add(next - seen);
            starts.word_to_word.add(next - word);
        }
        first = ran.iter().fold(first, |first, ran| first.min(ran.0));
        final_end = ran.iter().fold(final_end, |last, ran| last.max(ran.1));
    }
    starts.took = Duration::try_from_secs_f64((final_end - first) / 1e3).unwrap_or_default();
    Ok(starts)
}

/// From the request to the output of the process, one job at a time on idle devices.
pub(super) fn idle(server: &BenchDaemon) -> Result<Latencies, Failure> {
    let body = body(&short(server))?;
    let mut connection = server.connect()?;
    let mut times = Latencies::default();
    for _ in 0..IDLE {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let answer = connection.ask("POST", "/v1/jobs", &body)?;
        let submitted = ids(answer).map_err(Failure::failed)?;
        wait(server, &submitted.iter().copied().collect())?;
        for id in submitted {
            times.add(word(server, id)? - millis(began));
        }
    }
    Ok(times)
}

/// The time that a job printed, in milliseconds since 1970.
fn word(server: &BenchDaemon, id: u64) -> Result<f64, Failure> {
    let file = server.output().join(format!("word-{id}"));
    let text = std::fs::read_to_string(&file)?;
    let nanos: f64 = text.trim().parse().map_err(|_| {
        Failure::failed(format!("job {id} printed {:?} instead of the time", text.trim()))
    })?;
    Ok(nanos / 1e6)
}

/// Milliseconds since 1970.
fn instant(text: &str) -> Result<f64, Failure> {
    let at: jiff::Timestamp = text.parse().map_err(Failure::failed)?;
    Ok(at.as_millisecond() as f64)
}

/// Numbers of all jobs.
pub(super) fn all(server: &BenchDaemon) -> Result<BTreeSet<u64>, Failure> {
    let mut connection = server.connect()?;
    let mut found = BTreeSet::new();
    loop {
        let after = found.last().copied().unwrap_or(0);
        let path = format!("/v1/jobs?limit=10000&after={after}");
        let page: Value =
            serde_json::from_slice(connection.ask("GET", &path, &[])?).map_err(Failure::failed)?;
        let jobs = page["jobs"].as_array().map_or(&[][..], Vec::as_slice);
        if jobs.is_empty() {
            return Ok(found);
        }
        found.extend(jobs.iter().filter_map(|job| job["id"].as_u64()));
    }
}
