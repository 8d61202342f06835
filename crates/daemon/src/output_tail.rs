//! Progress and latencies of jobs that only print: numbers in their output, found by a pattern or in progress
//! bars.

use crate::cycle::Message;
use crate::job::RequestWindow;
use crate::job_sockets::{FromJob, LINE_MAX};
use crate::progress::{Printed, ProgressTracker};
use regex::Regex;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tandem_backends::Owner;
use tandem_backends::local::as_user;

/// Bytes of output read at a time.
const READ_MAX: u64 = 256 << 10;
/// If a job prints faster than its output is read, output further behind than this is skipped.
const BEHIND_MAX: u64 = 4 << 20;
/// Interval at which the output is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Finds steps in output.
pub(crate) enum StepFinder {
    /// The first group of a pattern is the number.
    Pattern(Regex),
    /// Progress bars, and lines such as `step 120/300`.
    Bars(ProgressTracker),
}

impl StepFinder {
    fn find(&mut self, text: &str) -> Option<Printed> {
        match self {
            Self::Pattern(pattern) => {
                let numbers = pattern.captures_iter(text);
                let last = numbers.filter_map(|found| found.get(1)?.as_str().parse().ok()).last();
                last.map(|steps| Printed { steps, total: None })
            }
            Self::Bars(tracker) => tracker.read(text),
        }
    }

    /// A byte at which output can be cut. A pattern matches whole lines; a bar ends with a carriage return.
    fn is_end(&self, byte: u8) -> bool {
        byte == b'\n' || (byte == b'\r' && matches!(self, Self::Bars(_)))
    }
}

/// The output file of a job, read with the permissions of its user.
pub(crate) struct OutputTail {
    path: PathBuf,
    owner: Option<Owner>,
    file: Option<File>,
    offset: u64,
    /// An incomplete last line.
    partial: Vec<u8>,
}

impl OutputTail {
    pub(crate) fn new(path: PathBuf, owner: Option<Owner>) -> Self {
        Self { path, owner, file: None, offset: 0, partial: Vec::new() }
    }

    /// Skips the output of earlier runs.
    fn seek_to_end(&mut self) {
        self.open();
        self.offset = self.size().unwrap_or(0);
    }

    /// Opens a regular file; reading a pipe or a device could block.
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

    /// The last steps in the output that is new.
    fn read_progress(&mut self, finder: &mut StepFinder) -> Option<Printed> {
        let lines = self.read_lines(|byte| finder.is_end(byte))?;
        finder.find(&lines)
    }

    /// The complete lines in the output that is new.
    fn read_lines(&mut self, is_end: impl Fn(u8) -> bool) -> Option<String> {
        let is_deleted = |file: &File| file.metadata().map_or(true, |data| data.nlink() == 0);
        if self.file.as_ref().is_none_or(is_deleted) {
            self.open();
        }
        let size = self.size()?;
        if size < self.offset {
            self.offset = 0;
        }
        if size - self.offset > BEHIND_MAX {
            self.offset = size - READ_MAX;
            self.partial.clear();
        }
        let mut file = self.file.as_ref()?;
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        self.offset += file.take(READ_MAX).read_to_end(&mut self.partial).ok()? as u64;
        let Some(end) = self.partial.iter().rposition(|&byte| is_end(byte)) else {
            if self.partial.len() as u64 > LINE_MAX {
                self.partial.clear();
            }
            return None;
        };
        let lines = String::from_utf8_lossy(&self.partial[..end]).into_owned();
        self.partial.drain(..=end);
        Some(lines)
    }
}

/// The output files of a job, and what to find in them.
struct JobOutput {
    files: Vec<OutputTail>,
    finder: StepFinder,
}

impl JobOutput {
    fn read(&mut self) -> Option<Printed> {
        let Self { files, finder } = self;
        files.iter_mut().filter_map(|file| file.read_progress(finder)).last()
    }
}

/// Polls the output of a job and reports the last steps in it.
pub(crate) async fn follow(
    job: u64,
    files: Vec<OutputTail>,
    finder: StepFinder,
    inbox: Sender<Message>,
) {
    let mut output = JobOutput { files, finder };
    // Runs on a blocking thread, because file I/O and matching may take long.
    let opened = tokio::task::spawn_blocking(move || {
        output.files.iter_mut().for_each(OutputTail::seek_to_end);
        output
    });
    let Ok(opened) = opened.await else { return };
    output = opened;
    let mut reported = 0;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let read = tokio::task::spawn_blocking(move || (output.read(), output)).await;
        let Ok((progress, next)) = read else { return };
        output = next;
        let Some(Printed { steps: n, total }) = progress else { continue };
        // A redrawn bar without new steps is no report.
        if std::mem::replace(&mut reported, n) == n && n != 0 {
            continue;
        }
        if inbox.send(Message::StoredJob { job, said: FromJob::Printed { n, total } }).is_err() {
            return;
        }
    }
}

/// Shortest window of latencies.
const LATENCY_WINDOW: Duration = Duration::from_secs(1);
/// Latencies kept per window; enough for its percentiles.
const LATENCIES_MAX: usize = 100_000;

/// Polls the output of a service for the latencies of its requests, in milliseconds, and reports them window
/// by window.
pub(crate) async fn follow_latencies(
    job: u64,
    mut file: OutputTail,
    pattern: Regex,
    inbox: Sender<Message>,
) {
    let opened = tokio::task::spawn_blocking(move || {
        file.seek_to_end();
        file
    });
    let Ok(mut file) = opened.await else { return };
    let mut latencies: Vec<f64> = Vec::new();
    let mut since = std::time::Instant::now();
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let pattern = pattern.clone();
        let read = tokio::task::spawn_blocking(move || {
            let lines = file.read_lines(|byte| byte == b'\n').unwrap_or_default();
            (latencies_in(&pattern, &lines), file)
        });
        let Ok((found, next)) = read.await else { return };
        file = next;
        let room = LATENCIES_MAX - latencies.len();
        latencies.extend(found.into_iter().take(room));
        if since.elapsed() < LATENCY_WINDOW || latencies.is_empty() {
            continue;
        }
        let window = window_of(&mut latencies, since.elapsed());
        since = std::time::Instant::now();
        latencies.clear();
        if inbox.send(Message::StoredJob { job, said: FromJob::Requests(window) }).is_err() {
            return;
        }
    }
}

/// The latencies in these lines, in milliseconds. Invalid ones are skipped.
fn latencies_in(pattern: &Regex, lines: &str) -> Vec<f64> {
    let found = pattern.captures_iter(lines);
    let numbers = found.filter_map(|found| found.get(1)?.as_str().parse::<f64>().ok());
    numbers.filter(|ms| (0.0..=3.6e6).contains(ms)).collect()
}

fn window_of(latencies: &mut [f64], length: Duration) -> RequestWindow {
    latencies.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| {
        let rank = (part * latencies.len() as f64).ceil() as usize;
        let ms = latencies.get(rank.saturating_sub(1)).copied().unwrap_or(0.0);
        (ms * 1e3).round() as u64
    };
    RequestWindow {
        requests: latencies.len() as u64,
        window_us: u64::try_from(length.as_micros()).unwrap_or(u64::MAX),
        p50_us: at(0.5),
        p99_us: at(0.99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_found_in_lines_and_summed_up() {
        let pattern = Regex::new(r"took (\S+) ms").unwrap();
        let lines = "GET / took 3.5 ms\nGET / took -1 ms\ntook x ms\nGET / took 9 ms\n";
        let mut found = latencies_in(&pattern, lines);
        assert_eq!(found, [3.5, 9.0]);
        let window = window_of(&mut found, Duration::from_secs(2));
        assert_eq!((window.requests, window.window_us), (2, 2_000_000));
        assert_eq!((window.p50_us, window.p99_us), (3500, 9000));
    }
}
