//! The sockets of jobs, and the output of those that only print. A job that speaks the protocol says how
//! far it is and is told in how many parts to compute its batches, or to leave; whatever it does, the
//! daemon never waits for it.

use crate::cycle::Message;
use crate::history::{SCALARS_MAX, Scalars};
use crate::request::progress_pattern;
use crate::scheduler::{ToJob, socket};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tandem_backends::local::as_user;
use tandem_backends::{Owner, crash};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// A line that is longer is not one of ours.
const LINE_MAX: u64 = 64 << 10;
/// Bad lines in a row after which nobody listens any more.
const BAD_LINES_MAX: u32 = 10;
/// Reports of steps are passed on no more often than this.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// Of all else it may say so much at once,
const MESSAGE_BURST: u32 = 32;
/// and one thing more each time this has passed.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(200);
/// What a job says about itself is believed up to this many parts of a batch.
const ACCUM_MAX: u32 = 65_536;
/// The longest name of something that a job measured.
const SCALAR_NAME_MAX: usize = 32;
/// Output that is looked at in one go.
const TAIL_MAX: u64 = 256 << 10;
/// The output of a job that only prints is looked at this often.
const TAIL_EVERY: Duration = Duration::from_millis(500);

/// What a job says.
#[derive(Clone, Debug, PartialEq)]
pub enum FromJob {
    /// Here I am.
    Hello {
        /// Takes sub-batches.
        accum: bool,
        /// Leaves when asked.
        stop: bool,
        /// Its batch size.
        batch: Option<u32>,
    },
    /// So many steps so far.
    Steps {
        /// How many.
        n: u64,
        /// In so many parts each, if it says so.
        accum: Option<u32>,
        /// What it measured, such as the loss, by name.
        scalars: Scalars,
    },
    /// I am about to leave.
    Bye {
        /// All work is done.
        done: bool,
    },
}

/// A line as it comes; fields that are not known are passed over.
#[derive(Deserialize)]
struct ProtocolLine {
    op: String,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default)]
    accum: Option<u32>,
    #[serde(default)]
    batch: Option<u32>,
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(default)]
    loss: Value,
    #[serde(default)]
    scalars: Value,
}

/// What a job measured: `loss`, and others by name. Whatever is none is passed over: it must not cost the
/// report of the steps that it came with.
fn scalars(line: &ProtocolLine) -> Scalars {
    let loss = line.loss.as_f64().map(|loss| ("loss".to_owned(), loss));
    let named = line.scalars.as_object().into_iter().flatten();
    let named = named.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
    let is_proper = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
        (1..=SCALAR_NAME_MAX).contains(&name.len()) && name.bytes().all(plain)
    };
    let proper =
        loss.into_iter().chain(named).filter(|(name, value)| is_proper(name) && value.is_finite());
    let mut scalars: Scalars = proper.collect();
    while scalars.len() > SCALARS_MAX {
        scalars.pop_last();
    }
    scalars
}

/// A line in the terms of the cycle: `None` for operations that are not known, an error for what is no
/// line of the protocol.
fn parse(line: &[u8]) -> Result<Option<FromJob>, ()> {
    let line: ProtocolLine = serde_json::from_slice(line).map_err(|_| ())?;
    let has = |cap: &str| line.caps.iter().any(|have| have == cap);
    Ok(match line.op.as_str() {
        "hello" => {
            Some(FromJob::Hello { accum: has("accum"), stop: has("stop"), batch: line.batch })
        }
        "step" => {
            let accum = line.accum.map(|accum| accum.clamp(1, ACCUM_MAX));
            Some(FromJob::Steps { n: line.n.ok_or(())?, accum, scalars: scalars(&line) })
        }
        "bye" => Some(FromJob::Bye { done: line.done.unwrap_or(true) }),
        _ => None,
    })
}

fn line(message: ToJob) -> String {
    match message {
        ToJob::Accum(accum) => format!("{{\"op\":\"set\",\"accum\":{accum},\"gate_ms\":0}}\n"),
        ToJob::Stop => "{\"op\":\"stop\"}\n".to_owned(),
    }
}

/// All sockets of jobs.
pub struct JobSockets {
    runtime: Handle,
    dir: PathBuf,
    inbox: Sender<Message>,
    /// Whose daemon it is.
    uid: u32,
    open: BTreeMap<u64, JobSocket>,
}

struct JobSocket {
    outbox: mpsc::UnboundedSender<ToJob>,
    task: AbortHandle,
    tail: Option<AbortHandle>,
}

impl JobSockets {
    /// Sockets go to `dir`, which is nobody else's; those of an earlier daemon are removed.
    pub fn new(runtime: Handle, dir: PathBuf, inbox: Sender<Message>, uid: u32) -> Self {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Self { runtime, dir, inbox, uid, open: BTreeMap::new() }
    }

    /// Listens to a job of this user.
    pub fn open(&mut self, job: u64, uid: u32) {
        self.close(job);
        let path = socket(&self.dir, job);
        let listener = match self.listen(&path, uid) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!("job {job}: no socket at {}: {error}", path.display());
                return;
            }
        };
        let (outbox, messages) = mpsc::unbounded_channel();
        let serve = serve(listener, messages, job, [uid, self.uid, 0], self.inbox.clone());
        let task = self.runtime.spawn(serve).abort_handle();
        self.open.insert(job, JobSocket { outbox, task, tail: None });
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

    /// Looks for progress in what a job of this user prints.
    pub fn tail(&mut self, job: u64, pattern: &str, file: &Path, owner: Option<Owner>) {
        let (Some(socket_task), Ok(pattern)) = (self.open.get_mut(&job), progress_pattern(pattern))
        else {
            return;
        };
        let tail = Tail::new(pattern, file.to_owned(), owner);
        let tail = follow(job, tail, self.inbox.clone());
        if let Some(before) = socket_task.tail.replace(self.runtime.spawn(tail).abort_handle()) {
            before.abort();
        }
    }

    /// Tells a job something, if it listens.
    pub fn send(&self, job: u64, message: ToJob) {
        if let Some(socket_task) = self.open.get(&job) {
            let _ = socket_task.outbox.send(message);
        }
    }

    /// Stops listening to a job.
    pub fn close(&mut self, job: u64) {
        if let Some(socket_task) = self.open.remove(&job) {
            socket_task.task.abort();
            if let Some(tail) = socket_task.tail {
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
    // What it has to know when it connects, or connects again.
    let mut setting: Option<ToJob> = None;
    let mut connection: Option<JobConnection> = None;
    let mut budget = MessageBudget::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // Too many files are open; they will not be for ever.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                };
                let uid = stream.peer_cred().map(|peer| peer.uid());
                if !uid.is_ok_and(|uid| allowed.contains(&uid)) {
                    tracing::warn!("job {job}: somebody else knocked at its socket");
                    continue;
                }
                let mut next = JobConnection::new(stream);
                if let Some(setting) = setting {
                    next.send(setting);
                }
                connection = Some(next);
            }
            message = messages.recv() => {
                let Some(message) = message else { return };
                // A stop concerns the run that was asked; a setting lasts.
                if let ToJob::Accum(_) = message {
                    setting = Some(message);
                }
                if let Some(connection) = &mut connection {
                    connection.send(message);
                }
            }
            received = next_message(&mut connection, &mut budget) => match received {
                Some(said) => {
                    if inbox.send(Message::Job { job, said }).is_err() {
                        return;
                    }
                }
                None => connection = None,
            },
        }
    }
}

/// What the job says next; `None` if it has gone or speaks nonsense. Waits for ever without a job.
async fn next_message(
    connection: &mut Option<JobConnection>,
    budget: &mut MessageBudget,
) -> Option<FromJob> {
    match connection {
        Some(connection) => {
            budget.wait().await;
            let said = connection.next().await?;
            if !matches!(said, FromJob::Steps { .. }) {
                budget.left -= 1;
            }
            Some(said)
        }
        None => std::future::pending().await,
    }
}

/// How much a job may say at once: everything but steps is journalled. One that says more is received
/// later, however often it connects.
struct MessageBudget {
    left: u32,
    since: Instant,
}

impl MessageBudget {
    fn new() -> Self {
        Self { left: MESSAGE_BURST, since: Instant::now() }
    }

    /// Returns when there is a word left. May be dropped at any time.
    async fn wait(&mut self) {
        loop {
            while self.left < MESSAGE_BURST && self.since.elapsed() >= MESSAGE_INTERVAL {
                self.left += 1;
                self.since += MESSAGE_INTERVAL;
            }
            if self.left == MESSAGE_BURST {
                self.since = Instant::now();
            }
            if self.left > 0 {
                return;
            }
            tokio::time::sleep(MESSAGE_INTERVAL).await;
        }
    }
}

struct JobConnection {
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
    buffer: Vec<u8>,
    bad: u32,
    last_report: Option<Instant>,
}

impl JobConnection {
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        let reader = BufReader::new(reader);
        Self { reader, writer, buffer: Vec::new(), bad: 0, last_report: None }
    }

    /// Never waits: a job that does not read misses what it is told, and is told again when it connects.
    fn send(&mut self, message: ToJob) {
        let _ = self.writer.try_write(line(message).as_bytes());
    }

    async fn next(&mut self) -> Option<FromJob> {
        loop {
            let left = LINE_MAX.saturating_sub(self.buffer.len() as u64);
            // What was read stays in the buffer if this future is dropped in between.
            let read = (&mut self.reader).take(left).read_until(b'\n', &mut self.buffer).await;
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
                Err(()) => {
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

/// The output of a job, read as its user, and how far.
struct Tail {
    pattern: Regex,
    path: PathBuf,
    owner: Option<Owner>,
    file: Option<File>,
    offset: u64,
    rest: Vec<u8>,
}

impl Tail {
    fn new(pattern: Regex, path: PathBuf, owner: Option<Owner>) -> Self {
        Self { pattern, path, owner, file: None, offset: 0, rest: Vec::new() }
    }

    /// What an earlier run has printed counts for nothing.
    fn begin(&mut self) {
        self.open();
        self.offset = self.size().unwrap_or(0);
    }

    /// Opens the file if it is one; anything else could make the reader wait.
    fn open(&mut self) {
        let nonblock = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let flags = i32::try_from(nonblock.bits()).unwrap_or(0);
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(flags);
        let opened = as_user(self.owner, || options.open(&self.path).ok()).ok().flatten();
        let is_file = |file: &File| file.metadata().is_ok_and(|metadata| metadata.is_file());
        self.file = opened.filter(is_file);
    }

    fn size(&self) -> Option<u64> {
        Some(self.file.as_ref()?.metadata().ok()?.len())
    }

    /// The last number in what is new.
    fn look(&mut self) -> Option<u64> {
        let is_gone = |file: &File| file.metadata().map_or(true, |data| data.nlink() == 0);
        if self.file.as_ref().is_none_or(is_gone) {
            self.open();
        }
        if self.size()? < self.offset {
            self.offset = 0;
        }
        let mut file = self.file.as_ref()?;
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        self.offset += file.take(TAIL_MAX).read_to_end(&mut self.rest).ok()? as u64;
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else {
            if self.rest.len() as u64 > LINE_MAX {
                self.rest.clear();
            }
            return None;
        };
        let lines = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest.drain(..=end);
        let numbers = self.pattern.captures_iter(&lines);
        numbers.filter_map(|found| found.get(1)?.as_str().parse().ok()).last()
    }
}

/// Follows a file and reports the last number that the pattern finds in it.
async fn follow(job: u64, mut tail: Tail, inbox: Sender<Message>) {
    // On threads that may wait: files and patterns take as long as they take.
    let begun = tokio::task::spawn_blocking(move || {
        tail.begin();
        tail
    });
    let Ok(begun) = begun.await else { return };
    tail = begun;
    loop {
        tokio::time::sleep(TAIL_EVERY).await;
        let look = tokio::task::spawn_blocking(move || (tail.look(), tail)).await;
        let Ok((found, next)) = look else { return };
        tail = next;
        let Some(n) = found else { continue };
        if inbox
            .send(Message::Job {
                job,
                said: FromJob::Steps { n, accum: None, scalars: Scalars::new() },
            })
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_protocol_are_understood_and_others_tolerated() {
        let said = |text: &str| parse(text.as_bytes());
        let hello =
            r#"{"op":"hello","v":1,"job":"17","pid":17,"batch":64,"caps":["accum","stop","gate"]}"#;
        let known = FromJob::Hello { accum: true, stop: true, batch: Some(64) };
        assert_eq!(said(hello), Ok(Some(known)));
        let step = r#"{"op":"step","n":60,"dt":0.02,"accum":4,"later":"field"}"#;
        let steps = |scalars: &[(&str, f64)]| {
            let scalars = scalars.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
            Ok(Some(FromJob::Steps { n: 60, accum: Some(4), scalars }))
        };
        assert_eq!(said(step), steps(&[]));
        let measured =
            r#"{"op":"step","n":60,"accum":4,"loss":2,"scalars":{"acc":0.5,"loss":1.5}}"#;
        assert_eq!(said(measured), steps(&[("acc", 0.5), ("loss", 1.5)]));
        // What is no number, or has no proper name, is passed over; the steps count all the same.
        let odd = r#"{"op":"step","n":60,"accum":4,"loss":null,"scalars":{"a b":1,"ok":1,"x":"y","":2,"n":[1]}}"#;
        assert_eq!(said(odd), steps(&[("ok", 1.0)]));
        let other = r#"{"op":"step","n":60,"accum":4,"loss":"low","scalars":[1]}"#;
        assert_eq!(said(other), steps(&[]));
        let many: String = (0..99).map(|n| format!("\"s{n:02}\":{n},")).collect();
        let many = format!(r#"{{"op":"step","n":60,"scalars":{{{many}"z":1}}}}"#);
        let Ok(Some(FromJob::Steps { scalars, .. })) = said(&many) else { panic!("no steps") };
        assert_eq!(scalars.len(), SCALARS_MAX);
        assert_eq!(said(r#"{"op":"bye","done":false}"#), Ok(Some(FromJob::Bye { done: false })));
        assert_eq!(said(r#"{"op":"sing"}"#), Ok(None));
        for bad in ["", "hello", "[]", r#"{"n":1}"#, r#"{"op":"step"}"#, r#"{"op":"step","n":-1}"#]
        {
            assert_eq!(said(bad), Err(()), "{bad}");
        }
        assert_eq!(line(ToJob::Accum(4)), "{\"op\":\"set\",\"accum\":4,\"gate_ms\":0}\n");
    }
}
