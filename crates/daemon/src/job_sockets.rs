//! One unix socket per job. A job that speaks the protocol reports its steps; the daemon tells it how many
//! sub-batches to compute a batch in, and when to stop. The daemon never blocks on a job.

use crate::cycle::Message;
use crate::history::{Scalars, scalars_of};
use crate::job::RequestWindow;
use crate::output_tail::{OutputTail, StepFinder, follow, follow_latencies};
use crate::progress::ProgressTracker;
use crate::request::progress_pattern;
use crate::scheduler::{ToJob, socket};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tandem_backends::{Owner, crash};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// The longest line of the protocol, and of output that is searched for progress.
pub(crate) const LINE_MAX: u64 = 64 << 10;
/// Malformed lines in a row after which the connection is closed.
const BAD_LINES_MAX: u32 = 10;
/// Minimum interval between two step reports that are passed on.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Messages other than step reports that a job may send in one burst.
const MESSAGE_BURST: u32 = 32;
/// Interval at which the burst is refilled by one message.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(200);
/// The most sub-batches that a job may claim.
const ACCUM_MAX: u32 = 65_536;

/// A message from a job.
#[derive(Clone, Debug, PartialEq)]
pub enum FromJob {
    /// The first message of a connection: what the job supports.
    Hello {
        /// It can change its number of sub-batches.
        accum: bool,
        /// It saves a checkpoint and exits when told to.
        stop: bool,
    },
    /// Steps since the start of this run.
    Steps {
        /// The number of steps.
        n: u64,
        /// The number of steps at which it is done, if reported.
        total: Option<u64>,
        /// Sub-batches per step, if reported.
        accum: Option<u32>,
        /// What the job measured, such as the loss, by name.
        scalars: Scalars,
    },
    /// Steps found in the output of the job.
    Printed {
        /// The number of steps.
        n: u64,
        /// The number of steps at which it is done, if the output shows it.
        total: Option<u64>,
    },
    /// Requests that a service answered in a window.
    Requests(RequestWindow),
    /// The job is about to exit.
    Bye {
        /// All of its work is done.
        done: bool,
    },
}

/// A line as received; unknown fields are ignored.
#[derive(Deserialize)]
struct ProtocolLine {
    op: String,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    total: Option<u64>,
    #[serde(default)]
    accum: Option<u32>,
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(default)]
    p50_ms: Option<f64>,
    #[serde(default)]
    p99_ms: Option<f64>,
    #[serde(default)]
    dt: Option<f64>,
    #[serde(default)]
    loss: Value,
    #[serde(default)]
    scalars: Value,
}

/// Decodes a line: `None` for an unknown operation; an error says why the line is malformed.
pub(crate) fn parse(line: &[u8]) -> Result<Option<FromJob>, String> {
    let line: ProtocolLine =
        serde_json::from_slice(line).map_err(|_| "not a message of the job protocol".to_owned())?;
    let has = |cap: &str| line.caps.iter().any(|have| have == cap);
    Ok(match line.op.as_str() {
        "hello" => Some(FromJob::Hello { accum: has("accum"), stop: has("stop") }),
        "step" => {
            let accum = line.accum.map(|accum| accum.clamp(1, ACCUM_MAX));
            let scalars = scalars_of(&line.loss, &line.scalars);
            let n = line.n.ok_or("a step message lacks n")?;
            let total = line.total;
            Some(FromJob::Steps { n, total, accum, scalars })
        }
        "requests" => Some(FromJob::Requests(requests(&line)?)),
        "bye" => Some(FromJob::Bye { done: line.done.unwrap_or(true) }),
        _ => None,
    })
}

/// The longest window of requests, in seconds.
const WINDOW_MAX_S: f64 = 3600.0;

/// The window of a `requests` message: `dt` in seconds, latencies in milliseconds.
fn requests(line: &ProtocolLine) -> Result<RequestWindow, String> {
    let requests = line.n.ok_or("a requests message lacks n")?;
    let dt = line.dt.unwrap_or(1.0);
    if !(dt > 0.0 && dt <= WINDOW_MAX_S) {
        return Err(format!("dt of a requests message is {dt}; give 0 to {WINDOW_MAX_S} seconds"));
    }
    let (p50, p99) = match (line.p50_ms, line.p99_ms) {
        _ if requests == 0 => (0.0, 0.0),
        (Some(p50), Some(p99)) => (p50, p99),
        (None, Some(p99)) => (p99, p99),
        _ => return Err("a requests message lacks p99_ms".to_owned()),
    };
    // Latencies above an hour are not plausible, and microseconds of an hour fit in every type.
    let is_latency = |ms: f64| (0.0..=3.6e6).contains(&ms);
    if !is_latency(p50) || !is_latency(p99) || p50 > p99 {
        return Err(format!("a requests message has p50 {p50} ms and p99 {p99} ms; ignored"));
    }
    let us = |value: f64| value.round() as u64;
    let window_us = us(dt * 1e6).max(1);
    Ok(RequestWindow { requests, window_us, p50_us: us(p50 * 1e3), p99_us: us(p99 * 1e3) })
}

fn encode(message: ToJob) -> String {
    match message {
        ToJob::Accum(accum) => format!("{{\"op\":\"set\",\"accum\":{accum}}}\n"),
        ToJob::Stop => "{\"op\":\"stop\"}\n".to_owned(),
    }
}

/// The sockets of all running jobs.
pub struct JobSockets {
    runtime: Handle,
    dir: PathBuf,
    inbox: Sender<Message>,
    /// The user of the daemon.
    uid: u32,
    by_job: BTreeMap<u64, JobSocket>,
}

struct JobSocket {
    outbox: mpsc::UnboundedSender<ToJob>,
    task: AbortHandle,
    tail: Option<AbortHandle>,
}

impl JobSockets {
    /// Creates sockets in `dir`, which only the daemon uses, and removes those of an earlier daemon.
    pub fn new(runtime: Handle, dir: PathBuf, inbox: Sender<Message>, uid: u32) -> Self {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Self { runtime, dir, inbox, uid, by_job: BTreeMap::new() }
    }

    /// Opens the socket of a job that runs as `uid`.
    pub fn open(&mut self, job: u64, uid: u32) {
        self.close(job);
        let path = socket(&self.dir, job);
        let listener = match self.listen(&path, uid) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!("job {job}: cannot open its socket {}: {error}", path.display());
                return;
            }
        };
        let (outbox, messages) = mpsc::unbounded_channel();
        let serve = serve(listener, messages, job, [uid, self.uid, 0], self.inbox.clone());
        let task = self.runtime.spawn(serve).abort_handle();
        self.by_job.insert(job, JobSocket { outbox, task, tail: None });
    }

    fn listen(&self, path: &Path, uid: u32) -> std::io::Result<UnixListener> {
        let _ = std::fs::remove_file(path);
        crash::point();
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        if uid != self.uid {
            std::os::unix::fs::chown(path, Some(uid), None)?;
        }
        listener.set_nonblocking(true)?;
        let _in_runtime = self.runtime.enter();
        UnixListener::from_std(listener)
    }

    /// Reads the progress of a job from its output, as the user of the job: by a pattern, or by the progress
    /// bars and steps that it prints.
    pub fn tail(
        &mut self,
        job: u64,
        pattern: Option<&str>,
        files: &[PathBuf],
        owner: Option<Owner>,
    ) {
        let Some(open) = self.by_job.get_mut(&job) else { return };
        let finder = match pattern.map(progress_pattern) {
            Some(Ok(pattern)) => StepFinder::Pattern(pattern),
            Some(Err(_)) => return,
            None => StepFinder::Bars(ProgressTracker::default()),
        };
        let files = files.iter().map(|file| OutputTail::new(file.clone(), owner)).collect();
        let tail = follow(job, files, finder, self.inbox.clone());
        if let Some(previous) = open.tail.replace(self.runtime.spawn(tail).abort_handle()) {
            previous.abort();
        }
    }

    /// Reads the latencies of a service from its output, as the user of the job.
    pub fn tail_latencies(&mut self, job: u64, pattern: &str, file: PathBuf, owner: Option<Owner>) {
        let Some(open) = self.by_job.get_mut(&job) else { return };
        let Ok(pattern) = progress_pattern(pattern) else { return };
        let tail = follow_latencies(job, OutputTail::new(file, owner), pattern, self.inbox.clone());
        if let Some(previous) = open.tail.replace(self.runtime.spawn(tail).abort_handle()) {
            previous.abort();
        }
    }

    /// Sends a message to a job if it is connected.
    pub fn send(&self, job: u64, message: ToJob) {
        if let Some(open) = self.by_job.get(&job) {
            let _ = open.outbox.send(message);
        }
    }

    /// Closes the socket of a job and stops reading its output.
    pub fn close(&mut self, job: u64) {
        if let Some(open) = self.by_job.remove(&job) {
            open.task.abort();
            if let Some(tail) = open.tail {
                tail.abort();
            }
            let _ = std::fs::remove_file(socket(&self.dir, job));
        }
    }
}

async fn serve(
    listener: UnixListener,
    mut messages: mpsc::UnboundedReceiver<ToJob>,
    job: u64,
    allowed: [u32; 3],
    inbox: Sender<Message>,
) {
    // Sent again whenever the job reconnects.
    let mut setting: Option<ToJob> = None;
    let mut connection: Option<JobConnection> = None;
    let mut budget = MessageBudget::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Out of file descriptors: retry.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                };
                match stream.peer_cred().map(|peer| peer.uid()) {
                    Ok(uid) if allowed.contains(&uid) => {}
                    Ok(uid) => {
                        tracing::warn!("job {job}: rejected a connection from uid {uid}");
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!("job {job}: rejected a connection: {error}");
                        continue;
                    }
                }
                let mut next = JobConnection::new(job, stream);
                if let Some(setting) = setting {
                    next.send(setting);
                }
                connection = Some(next);
            }
            message = messages.recv() => {
                let Some(message) = message else { return };
                // A stop applies to this run only; a setting outlasts reconnects.
                if let ToJob::Accum(_) = message {
                    setting = Some(message);
                }
                if let Some(connection) = &mut connection {
                    connection.send(message);
                }
            }
            received = next_message(&mut connection, &mut budget) => match received {
                Some(said) => {
                    if inbox.send(Message::StoredJob { job, said }).is_err() {
                        return;
                    }
                }
                None => connection = None,
            },
        }
    }
}

/// The next message of the job; `None` if it disconnected or sent too many malformed lines. Pending
/// for ever while no job is connected.
async fn next_message(
    connection: &mut Option<JobConnection>,
    budget: &mut MessageBudget,
) -> Option<FromJob> {
    match connection {
        Some(connection) => {
            budget.wait().await;
            let said = connection.next().await?;
            if !matches!(said, FromJob::Steps { .. }) {
                budget.available -= 1;
            }
            Some(said)
        }
        None => std::future::pending().await,
    }
}

/// A token bucket for all messages but step reports, because those are journalled. Messages beyond it are
/// delayed; reconnecting does not refill it.
struct MessageBudget {
    available: u32,
    refilled_at: Instant,
}

impl MessageBudget {
    fn new() -> Self {
        Self { available: MESSAGE_BURST, refilled_at: Instant::now() }
    }

    /// Returns when a message may be read. Cancel-safe.
    async fn wait(&mut self) {
        loop {
            while self.available < MESSAGE_BURST && self.refilled_at.elapsed() >= MESSAGE_INTERVAL {
                self.available += 1;
                self.refilled_at += MESSAGE_INTERVAL;
            }
            if self.available == MESSAGE_BURST {
                self.refilled_at = Instant::now();
            }
            if self.available > 0 {
                return;
            }
            tokio::time::sleep(MESSAGE_INTERVAL).await;
        }
    }
}

struct JobConnection {
    job: u64,
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
    buffer: Vec<u8>,
    bad: u32,
    last_report: Option<Instant>,
}

impl JobConnection {
    fn new(job: u64, stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(reader);
        Self { job, reader, writer, buffer: Vec::new(), bad: 0, last_report: None }
    }

    /// Never blocks: a job that does not read its socket misses messages; settings are repeated when it
    /// reconnects.
    fn send(&mut self, message: ToJob) {
        let _ = self.writer.try_write(encode(message).as_bytes());
    }

    async fn next(&mut self) -> Option<FromJob> {
        loop {
            let room = LINE_MAX.saturating_sub(self.buffer.len() as u64);
            // Cancel-safe: what was read stays in the buffer.
            let read = (&mut self.reader).take(room).read_until(b'\n', &mut self.buffer).await;
            if read.ok()? == 0 {
                return None;
            }
            if self.buffer.last() != Some(&b'\n') {
                if self.buffer.len() as u64 >= LINE_MAX {
                    return None;
                }
                continue;
            }
            let parsed = parse(&self.buffer);
            self.buffer.clear();
            match parsed {
                Ok(said) => {
                    self.bad = 0;
                    if let Some(said) = said.filter(|said| self.is_due(said)) {
                        return Some(said);
                    }
                }
                Err(problem) => {
                    // Log the first malformed message of a job only.
                    if self.bad == 0 {
                        tracing::warn!("job {}: {problem}", self.job);
                    }
                    self.bad += 1;
                    if self.bad >= BAD_LINES_MAX {
                        return None;
                    }
                }
            }
        }
    }

    fn is_due(&mut self, said: &FromJob) -> bool {
        if !matches!(said, FromJob::Steps { .. }) {
            return true;
        }
        let now = Instant::now();
        if self.last_report.is_some_and(|last| now.duration_since(last) < REPORT_INTERVAL) {
            return false;
        }
        self.last_report = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_lines_are_parsed_and_unknown_ones_ignored() {
        let said = |text: &str| parse(text.as_bytes());
        let hello =
            r#"{"op":"hello","v":1,"job":"17","pid":17,"batch":64,"caps":["accum","stop","gate"]}"#;
        let known = FromJob::Hello { accum: true, stop: true };
        assert_eq!(said(hello), Ok(Some(known)));
        let step = r#"{"op":"step","n":60,"dt":0.02,"accum":4,"later":"field"}"#;
        let steps =
            |total, scalars| Ok(Some(FromJob::Steps { n: 60, total, accum: Some(4), scalars }));
        assert_eq!(said(step), steps(None, Scalars::new()));
        let measured = r#"{"op":"step","n":60,"accum":4,"loss":0.5,"scalars":{"acc":"?"}}"#;
        assert_eq!(said(measured), steps(None, Scalars::from([("loss".to_owned(), 0.5)])));
        let step = r#"{"op":"step","n":60,"total":300,"dt":0.02,"accum":4}"#;
        assert_eq!(said(step), steps(Some(300), Scalars::new()));
        assert_eq!(said(r#"{"op":"bye","done":false}"#), Ok(Some(FromJob::Bye { done: false })));
        assert_eq!(said(r#"{"op":"sing"}"#), Ok(None));
        for bad in ["", "hello", "[]", r#"{"n":1}"#, r#"{"op":"step"}"#, r#"{"op":"step","n":-1}"#]
        {
            assert!(said(bad).is_err(), "{bad}");
        }
        let window =
            RequestWindow { requests: 50, window_us: 2_000_000, p50_us: 3500, p99_us: 9000 };
        let report = r#"{"op":"requests","n":50,"p50_ms":3.5,"p99_ms":9,"dt":2}"#;
        assert_eq!(said(report), Ok(Some(FromJob::Requests(window))));
        let idle = RequestWindow { window_us: 1_000_000, ..RequestWindow::default() };
        assert_eq!(said(r#"{"op":"requests","n":0}"#), Ok(Some(FromJob::Requests(idle))));
        for bad in [
            r#"{"op":"requests","n":5}"#,
            r#"{"op":"requests","n":-5,"p99_ms":1}"#,
            r#"{"op":"requests","n":5,"p99_ms":-1}"#,
            r#"{"op":"requests","n":5,"p50_ms":9,"p99_ms":1}"#,
            r#"{"op":"requests","n":5,"p99_ms":1,"dt":0}"#,
            r#"{"op":"requests","n":5,"p99_ms":1,"dt":-2}"#,
        ] {
            assert!(said(bad).is_err(), "{bad}");
        }
        assert_eq!(encode(ToJob::Accum(4)), "{\"op\":\"set\",\"accum\":4}\n");
    }
}
