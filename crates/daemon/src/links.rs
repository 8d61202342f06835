//! The sockets of jobs, and the output of those that only print. A job that speaks the protocol says how
//! far it is and is told in how many parts to compute its batches, or to leave; whatever it does, the
//! daemon never waits for it.

use crate::cycle::Message;
use crate::scheduler::{ToJob, socket};
use regex::Regex;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tandem_backends::crash;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// A line that is longer is not one of ours.
const LINE_MAX: u64 = 64 << 10;
/// Bad lines in a row after which nobody listens any more.
const BAD_MAX: u32 = 10;
/// Reports of steps are passed on no more often than this.
const REPORT_EVERY: Duration = Duration::from_millis(50);
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
    },
    /// I am about to leave.
    Bye {
        /// All work is done.
        done: bool,
    },
}

/// A line as it comes; fields that are not known are passed over.
#[derive(Deserialize)]
struct Line {
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
}

/// A line in the terms of the cycle: `None` for operations that are not known, an error for what is no
/// line of the protocol.
fn parse(line: &[u8]) -> Result<Option<FromJob>, ()> {
    let line: Line = serde_json::from_slice(line).map_err(|_| ())?;
    let has = |cap: &str| line.caps.iter().any(|have| have == cap);
    Ok(match line.op.as_str() {
        "hello" => {
            Some(FromJob::Hello { accum: has("accum"), stop: has("stop"), batch: line.batch })
        }
        "step" => Some(FromJob::Steps { n: line.n.ok_or(())?, accum: line.accum }),
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
pub struct Links {
    runtime: Handle,
    dir: PathBuf,
    inbox: Sender<Message>,
    /// Whose daemon it is.
    uid: u32,
    open: BTreeMap<u64, Link>,
}

struct Link {
    outbox: mpsc::UnboundedSender<ToJob>,
    task: AbortHandle,
    tail: Option<AbortHandle>,
}

impl Links {
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
        self.open.insert(job, Link { outbox, task, tail: None });
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

    /// Looks for progress in what a job prints.
    pub fn tail(&mut self, job: u64, pattern: &str, file: &Path) {
        let (Some(link), Ok(pattern)) = (self.open.get_mut(&job), Regex::new(pattern)) else {
            return;
        };
        let tail = tail(job, pattern, file.to_owned(), self.inbox.clone());
        if let Some(before) = link.tail.replace(self.runtime.spawn(tail).abort_handle()) {
            before.abort();
        }
    }

    /// Tells a job something, if it listens.
    pub fn send(&self, job: u64, message: ToJob) {
        if let Some(link) = self.open.get(&job) {
            let _ = link.outbox.send(message);
        }
    }

    /// Stops listening to a job.
    pub fn close(&mut self, job: u64) {
        if let Some(link) = self.open.remove(&job) {
            link.task.abort();
            if let Some(tail) = link.tail {
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
    let mut connection: Option<Connection> = None;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                let uid = stream.peer_cred().map(|peer| peer.uid());
                if !uid.is_ok_and(|uid| allowed.contains(&uid)) {
                    tracing::warn!("job {job}: somebody else knocked at its socket");
                    continue;
                }
                let mut next = Connection::new(stream);
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
            heard = hear(&mut connection) => match heard {
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
async fn hear(connection: &mut Option<Connection>) -> Option<FromJob> {
    match connection {
        Some(connection) => connection.next().await,
        None => std::future::pending().await,
    }
}

struct Connection {
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
    buffer: Vec<u8>,
    bad: u32,
    last_report: Option<Instant>,
}

impl Connection {
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
                    if let Some(said) = said.filter(|said| self.passes(said)) {
                        return Some(said);
                    }
                }
                Err(()) => {
                    self.bad += 1;
                    if self.bad >= BAD_MAX {
                        return None;
                    }
                }
            }
        }
    }

    fn passes(&mut self, said: &FromJob) -> bool {
        if !matches!(said, FromJob::Steps { .. }) {
            return true;
        }
        let now = Instant::now();
        if self.last_report.is_some_and(|last| now.duration_since(last) < REPORT_EVERY) {
            return false;
        }
        self.last_report = Some(now);
        true
    }
}

/// Follows a file and reports the last number that the pattern finds in it.
async fn tail(job: u64, pattern: Regex, file: PathBuf, inbox: Sender<Message>) {
    let mut offset = tokio::fs::metadata(&file).await.map_or(0, |metadata| metadata.len());
    let mut rest = Vec::new();
    loop {
        tokio::time::sleep(TAIL_EVERY).await;
        let Ok(mut opened) = tokio::fs::File::open(&file).await else { continue };
        let size = opened.metadata().await.map_or(0, |metadata| metadata.len());
        if size < offset {
            offset = 0;
        }
        if opened.seek(std::io::SeekFrom::Start(offset)).await.is_err() {
            continue;
        }
        let Ok(read) = opened.take(1 << 20).read_to_end(&mut rest).await else { continue };
        offset += read as u64;
        let Some(end) = rest.iter().rposition(|&byte| byte == b'\n') else {
            if rest.len() as u64 > LINE_MAX {
                rest.clear();
            }
            continue;
        };
        let lines = String::from_utf8_lossy(&rest[..end]).into_owned();
        rest.drain(..=end);
        let numbers = pattern.captures_iter(&lines);
        let n = numbers.filter_map(|found| found.get(1)?.as_str().parse().ok()).last();
        let Some(n) = n else { continue };
        if inbox.send(Message::Job { job, said: FromJob::Steps { n, accum: None } }).is_err() {
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
        assert_eq!(said(step), Ok(Some(FromJob::Steps { n: 60, accum: Some(4) })));
        assert_eq!(said(r#"{"op":"bye","done":false}"#), Ok(Some(FromJob::Bye { done: false })));
        assert_eq!(said(r#"{"op":"sing"}"#), Ok(None));
        for bad in ["", "hello", "[]", r#"{"n":1}"#, r#"{"op":"step"}"#, r#"{"op":"step","n":-1}"#]
        {
            assert_eq!(said(bad), Err(()), "{bad}");
        }
        assert_eq!(line(ToJob::Accum(4)), "{\"op\":\"set\",\"accum\":4,\"gate_ms\":0}\n");
    }
}
