//! The job's end of the job protocol: JSON lines over a unix socket.
//!
//! Nothing here makes the job wait or fail. What does not fit into the socket's buffer is dropped, whole
//! lines only; without a daemon the settings stay and a connection is tried again every two seconds.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The version of the protocol.
const VERSION: u32 = 1;
/// The longest line that is read.
const LINE_MAX: usize = 64 * 1024;
/// The longest gate that is obeyed: a mistyped one must not stop the job for a week.
const GATE_MAX: Duration = Duration::from_secs(60);
const RECONNECT: Duration = Duration::from_secs(2);
const REPORT_EVERY: Duration = Duration::from_millis(10);
/// Time that the last line has to be sent.
const FAREWELL: Duration = Duration::from_millis(500);
/// Interval between two polls of the socket.
const LOOK: Duration = Duration::from_millis(5);

/// Settings that the daemon has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DaemonSettings {
    /// Parts in which a batch is computed.
    pub(crate) accum: usize,
    /// Wait before each step.
    pub(crate) gate: Duration,
    /// Finish the step, save, leave.
    pub(crate) stop: bool,
}

/// The connection to the daemon, if there is one.
pub(crate) struct Reporter {
    path: Option<PathBuf>,
    job: String,
    batch: usize,
    /// The number of steps at which the job is done.
    total: u64,
    settings: DaemonSettings,
    line: Option<DaemonLine>,
    try_again: Instant,
    /// When and at which step the last report was made.
    reported: (Instant, u64),
    /// The loss of the last step.
    loss: Option<f64>,
}

impl Reporter {
    /// Connects to `path`, if there is one and someone listens.
    pub(crate) fn new(
        path: Option<PathBuf>,
        job: String,
        batch: usize,
        accum: usize,
        (done, total): (u64, u64),
    ) -> Self {
        let settings = DaemonSettings { accum, gate: Duration::ZERO, stop: false };
        let now = Instant::now();
        let reported = (now, done);
        let mut new = Self {
            path,
            job,
            batch,
            total,
            settings,
            line: None,
            try_again: now,
            reported,
            loss: None,
        };
        new.poll();
        new
    }

    /// Reads the messages of the daemon and returns the current settings.
    pub(crate) fn poll(&mut self) -> DaemonSettings {
        self.connect();
        let Some(line) = &mut self.line else { return self.settings };
        let mut heard = Vec::new();
        let open = line.flush() && line.receive(&mut heard);
        for text in heard {
            self.obey(&text);
        }
        if !open {
            self.lost();
        }
        self.settings
    }

    /// Waits for the gate, unless the daemon changes it or disconnects.
    pub(crate) fn pass_gate(&mut self) -> DaemonSettings {
        let start = Instant::now();
        loop {
            let settings = self.poll();
            let left = settings.gate.saturating_sub(start.elapsed());
            if settings.stop || left.is_zero() {
                return settings;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// Reports step `n` and its loss if the last report is old enough.
    pub(crate) fn step(&mut self, n: u64, accum: usize, loss: f64) {
        // JSON has no NaN and no infinity.
        self.loss = loss.is_finite().then_some(loss);
        if self.reported.0.elapsed() >= REPORT_EVERY {
            self.report(n, accum);
        }
    }

    /// Sends the last report and `bye`, and waits a moment until both are sent.
    pub(crate) fn bye(&mut self, n: u64, accum: usize, done: bool) {
        // A daemon that was just restarted gets the message, too.
        self.try_again = Instant::now();
        self.connect();
        self.report(n, accum);
        let Some(line) = &mut self.line else { return };
        line.push(&json!({ "op": "bye", "done": done }));
        let start = Instant::now();
        while line.flush() && !line.unsent.is_empty() && start.elapsed() < FAREWELL {
            std::thread::sleep(LOOK);
        }
    }

    /// Reports requests that were answered in the last `dt` seconds.
    pub(crate) fn requests(&mut self, n: usize, p50_ms: f64, p99_ms: f64, dt: f64) {
        self.connect();
        if let Some(line) = &mut self.line {
            let op =
                json!({ "op": "requests", "n": n, "p50_ms": p50_ms, "p99_ms": p99_ms, "dt": dt });
            line.push(&op);
        }
    }

    /// Takes leave without a report of steps.
    pub(crate) fn leave(&mut self, done: bool) {
        let (_, reported) = self.reported;
        self.bye(reported, 1, done);
    }

    fn report(&mut self, n: u64, accum: usize) {
        let (since, before) = self.reported;
        if n <= before {
            return;
        }
        let now = Instant::now();
        let seconds = now.duration_since(since).as_secs_f64() / (n - before) as f64;
        let Some(line) = &mut self.line else {
            self.reported = (now, n);
            return;
        };
        let open = line.flush();
        // A report that does not fit into the buffer is dropped; the next one covers its steps.
        if open && line.unsent.is_empty() {
            let mut step =
                json!({ "op": "step", "n": n, "dt": seconds, "accum": accum, "total": self.total });
            if let Some(loss) = self.loss {
                step["loss"] = loss.into();
            }
            line.push(&step);
            self.reported = (now, n);
        }
        if !(open && line.flush()) {
            self.lost();
        }
    }

    fn connect(&mut self) {
        let Some(path) = &self.path else { return };
        let now = Instant::now();
        if self.line.is_some() || now < self.try_again {
            return;
        }
        self.try_again = now + RECONNECT;
        let Some(stream) = open(path) else { return };
        let mut line =
            DaemonLine { stream, unsent: Vec::new(), unread: Vec::new(), too_long: false };
        line.push(&json!({
            "op": "hello",
            "v": VERSION,
            "job": self.job,
            "pid": std::process::id(),
            "batch": self.batch,
            "caps": ["accum", "stop", "gate"],
        }));
        self.line = Some(line);
    }

    /// Without a daemon the gate is open; the other settings stay.
    fn lost(&mut self) {
        self.line = None;
        self.settings.gate = Duration::ZERO;
        self.try_again = Instant::now() + RECONNECT;
    }

    fn obey(&mut self, text: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Value>(text) else { return };
        match said.get("op").and_then(Value::as_str) {
            Some("set") => {
                if let Some(accum) = said.get("accum").and_then(whole) {
                    self.settings.accum = accum.clamp(1, self.batch);
                }
                if let Some(gate) = said.get("gate_ms").and_then(Value::as_f64) {
                    let gate = Duration::try_from_secs_f64(gate.max(0.0) / 1000.0);
                    self.settings.gate = gate.unwrap_or(GATE_MAX).min(GATE_MAX);
                }
            }
            Some("stop") => self.settings.stop = true,
            _ => {}
        }
    }
}

/// A whole number, those below 0 taken for 0.
fn whole(value: &Value) -> Option<usize> {
    match (value.as_u64(), value.as_i64()) {
        (Some(number), _) => Some(usize::try_from(number).unwrap_or(usize::MAX)),
        (None, Some(_)) => Some(0),
        (None, None) => None,
    }
}

/// Connecting must not block either: a daemon that does not accept may have a full backlog.
fn open(path: &PathBuf) -> Option<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(UnixStream::from(socket))
}

/// One connection.
struct DaemonLine {
    stream: UnixStream,
    /// The rest of a line that the socket did not take.
    unsent: Vec<u8>,
    /// The beginning of a line whose end is still to come.
    unread: Vec<u8>,
    /// Whether what comes up to the end of the line belongs to one that is too long.
    too_long: bool,
}

impl DaemonLine {
    fn push(&mut self, message: &Value) {
        self.unsent.extend_from_slice(message.to_string().as_bytes());
        self.unsent.push(b'\n');
    }

    /// Sends what the socket takes. Returns false if the connection is closed.
    fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return false,
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Collects the lines that have arrived. Returns false if the connection is closed.
    fn receive(&mut self, lines: &mut Vec<Vec<u8>>) -> bool {
        let mut buffer = [0; 4096];
        // Bounded, so that a flood of messages does not stop the job.
        for _ in 0..2 * LINE_MAX / buffer.len() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => self.take(&buffer[..count], lines),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, bytes: &[u8], lines: &mut Vec<Vec<u8>>) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            self.too_long |= self.unread.len() + text.len() > LINE_MAX;
            if self.too_long {
                self.unread.clear();
            } else {
                self.unread.extend_from_slice(text);
            }
            if ended {
                let line = std::mem::take(&mut self.unread);
                if !std::mem::take(&mut self.too_long) {
                    lines.push(line);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;

    /// Far more than a socket buffers.
    const REPORTS: u64 = 20_000;

    #[test]
    fn a_full_socket_costs_reports_but_no_time_and_no_half_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut reporter = Reporter::new(Some(path), "17".to_owned(), 64, 1, (0, 9));
        let (stream, _) = listener.accept().unwrap();
        for n in 1..=REPORTS {
            reporter.report(n, 1);
        }
        assert!(reporter.reported.1 < REPORTS, "the socket takes all of it");
        assert!(reporter.line.as_ref().unwrap().unsent.len() < 200, "no more than a line is kept");
        // Read at last: the next report covers what was left out.
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(stream).lines();
            lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
        });
        while reporter.reported.1 < REPORTS {
            reporter.report(REPORTS, 1);
            std::thread::sleep(LOOK);
        }
        reporter.bye(REPORTS, 1, true);
        drop(reporter);
        let said: Vec<Value> = reader.join().unwrap();
        let (bye, said) = said.split_last().unwrap();
        assert_eq!(*bye, json!({ "op": "bye", "done": true }));
        let steps: Vec<u64> = said[1..].iter().map(|said| said["n"].as_u64().unwrap()).collect();
        assert!(steps.is_sorted_by(|a, b| a < b));
        assert_eq!(steps.last(), Some(&REPORTS));
    }

    #[test]
    fn a_step_tells_its_loss_unless_that_is_no_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut reporter = Reporter::new(Some(path), String::new(), 64, 1, (0, 9));
        for (n, loss) in [(1, 0.5), (2, f64::NAN)] {
            std::thread::sleep(REPORT_EVERY);
            reporter.step(n, 1, loss);
        }
        reporter.bye(2, 1, true);
        drop(reporter);
        let lines = std::io::BufReader::new(listener.accept().unwrap().0);
        let said: Vec<Value> = std::io::BufRead::lines(lines)
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect();
        let losses: Vec<&Value> =
            said.iter().filter(|said| said["op"] == "step").map(|said| &said["loss"]).collect();
        assert_eq!(losses, [&json!(0.5), &Value::Null]);
    }

    #[test]
    fn a_full_backlog_does_not_hold_the_job_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        // Nobody accepts. At some point connecting would wait for that.
        let connected: Vec<_> = std::iter::from_fn(|| open(&path)).take(100_000).collect();
        assert!(connected.len() < 100_000);
        let mut reporter = Reporter::new(Some(path), String::new(), 64, 1, (0, 9));
        reporter.step(1, 1, 0.5);
        reporter.bye(1, 1, true);
        assert!(reporter.line.is_none());
    }
}
