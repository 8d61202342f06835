//! Many clients that submit at once.

use super::figures::{Latencies, millis};
use super::server::BenchDaemon;
use crate::failure::Failure;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tandem_daemon::request::JobRequest;

/// Number of classes of the pending jobs.
const CLASSES: u32 = 200;

/// The acknowledged submissions and their latencies.
pub(super) struct SubmissionLoad {
    /// Jobs that the daemon has acknowledged.
    pub(super) acknowledged: Vec<u64>,
    /// Time until the last acknowledgement.
    pub(super) took: Duration,
    /// From the request to its acknowledgement.
    pub(super) latency: Latencies,
    /// Acknowledged in each whole second.
    pub(super) by_second: Vec<u64>,
}

impl SubmissionLoad {
    pub(super) fn per_second(&self) -> f64 {
        self.latency.len() as f64 / self.took.as_secs_f64()
    }
}

/// A job that would sleep if it were started; class and estimate depend on the number.
pub(super) fn waiting(number: u32, hold: bool) -> JobRequest {
    let class = number % CLASSES;
    JobRequest {
        command: ["sleep", "600"].map(str::to_owned).to_vec(),
        class: Some(format!("bench-{class}")),
        // From a minute to most of a day, unevenly.
        estimate_s: Some(60.0 * f64::from(1 + class * class % 997)),
        stdout: Some(PathBuf::from("/dev/null")),
        env: environment(),
        hold,
        ..JobRequest::default()
    }
}

/// About a kibibyte, as a shell would pass it on.
fn environment() -> BTreeMap<String, String> {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let setting = |number: u32| (format!("BENCH_SETTING_{number}"), "0123456789".repeat(4));
    (0..16).map(setting).chain([("PATH".to_owned(), path)]).collect()
}

/// Submits from many threads for some time, then calls `then` while they still submit. Counts what was
/// acknowledged.
pub(super) fn submit(
    server: &mut BenchDaemon,
    clients: u32,
    time: Duration,
    hold: bool,
    then: impl FnOnce(&mut BenchDaemon) -> Result<(), Failure>,
) -> Result<SubmissionLoad, Failure> {
    let enough = Arc::new(AtomicBool::new(false));
    let ready = Arc::new(Barrier::new(clients as usize + 1));
    let socket = server.socket();
    let client = |number: u32| {
        let (enough, ready, socket) = (enough.clone(), ready.clone(), socket.clone());
        let work = move || -> Result<Vec<(Vec<u64>, Instant, Duration)>, String> {
            let mut connection = super::http::HttpConnection::open(&socket);
            let body = |number| serde_json::to_vec(&waiting(number, hold)).unwrap_or_default();
            let bodies: Vec<Vec<u8>> = (0..8).map(|turn| body(number * 8 + turn)).collect();
            ready.wait();
            let mut answers = Vec::new();
            for body in bodies.iter().cycle() {
                if enough.load(Ordering::Relaxed) {
                    break;
                }
                let began = Instant::now();
                let connection = connection.as_mut().map_err(|error| error.to_string())?;
                match connection.ask("POST", "/v1/jobs", body) {
                    Ok(answer) => {
                        let ended = Instant::now();
                        answers.push((ids(answer)?, ended, ended - began));
                    }
                    Err(_) if enough.load(Ordering::Relaxed) => break,
                    Err(error) => return Err(error.to_string()),
                }
            }
            Ok(answers)
        };
        std::thread::Builder::new().stack_size(512 << 10).spawn(work)
    };
    let threads = (0..clients).map(client).collect::<Result<Vec<_>, _>>()?;
    ready.wait();
    let began = Instant::now();
    std::thread::sleep(time);
    enough.store(true, Ordering::Relaxed);
    then(server)?;
    let mut acknowledged = Vec::new();
    let mut latency = Latencies::default();
    let mut by_second = vec![0; time.as_secs() as usize];
    let mut last = began;
    for thread in threads {
        let answers = thread.join().map_err(|_| Failure::failed("a client gave up"))?;
        for (ids, at, took) in
            answers.map_err(|error| Failure::failed(format!("a client: {error}")))?
        {
            acknowledged.extend(ids);
            latency.add(millis(took));
            last = last.max(at);
            if let Some(count) = by_second.get_mut((at - began).as_secs() as usize) {
                *count += 1;
            }
        }
    }
    Ok(SubmissionLoad { acknowledged, took: last - began, latency, by_second })
}

/// The numbers in an acknowledgement.
pub(super) fn ids(answer: &[u8]) -> Result<Vec<u64>, String> {
    let submitted: tandem_daemon::api::types::Submitted =
        serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    Ok(submitted.ids)
}
