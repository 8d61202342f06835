//! The progress of a job that only prints: a pattern finds step numbers in its output file.

use crate::cycle::Message;
use crate::job_sockets::{FromJob, LINE_MAX};
use regex::Regex;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tandem_backends::Owner;
use tandem_backends::local::as_user;

/// Bytes of output that are searched at a time.
const READ_MAX: u64 = 256 << 10;
/// Interval at which the output is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The output file of a job, read with the permissions of its user.
pub(crate) struct OutputTail {
    pattern: Regex,
    path: PathBuf,
    owner: Option<Owner>,
    file: Option<File>,
    offset: u64,
    /// An incomplete last line.
    partial: Vec<u8>,
}

impl OutputTail {
    pub(crate) fn new(pattern: Regex, path: PathBuf, owner: Option<Owner>) -> Self {
        Self { pattern, path, owner, file: None, offset: 0, partial: Vec::new() }
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

    /// The last step number in the output that is new.
    fn read_progress(&mut self) -> Option<u64> {
        let is_deleted = |file: &File| file.metadata().map_or(true, |data| data.nlink() == 0);
        if self.file.as_ref().is_none_or(is_deleted) {
            self.open();
        }
        if self.size()? < self.offset {
            self.offset = 0;
        }
        let mut file = self.file.as_ref()?;
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        self.offset += file.take(READ_MAX).read_to_end(&mut self.partial).ok()? as u64;
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else {
            if self.partial.len() as u64 > LINE_MAX {
                self.partial.clear();
            }
            return None;
        };
        let lines = String::from_utf8_lossy(&self.partial[..end]).into_owned();
        self.partial.drain(..=end);
        let numbers = self.pattern.captures_iter(&lines);
        numbers.filter_map(|found| found.get(1)?.as_str().parse().ok()).last()
    }
}

/// Polls the output of a job and reports the last step number that the pattern finds.
pub(crate) async fn follow(job: u64, mut tail: OutputTail, inbox: Sender<Message>) {
    // On a blocking thread: file I/O and matching may take long.
    let opened = tokio::task::spawn_blocking(move || {
        tail.seek_to_end();
        tail
    });
    let Ok(opened) = opened.await else { return };
    tail = opened;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let read = tokio::task::spawn_blocking(move || (tail.read_progress(), tail)).await;
        let Ok((progress, next)) = read else { return };
        tail = next;
        let Some(n) = progress else { continue };
        if inbox.send(Message::Job { job, said: FromJob::Steps { n, accum: None } }).is_err() {
            return;
        }
    }
}
