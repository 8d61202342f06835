//! `tandem logs`, and the output of a job that is run.

use super::{connect, select};
use crate::failure::Failure;
use crate::live_args::LogsArgs;
use std::io::Write;
use std::time::Duration;
use tandem_daemon::client::{Client, ClientError, LogPiece, Stream};

/// Bytes per request.
const PIECE: u64 = 1 << 20;
/// Bytes per request in search of the last lines.
const TAIL_PIECE: u64 = 1 << 16;
/// Interval between two polls of a growing file; it doubles while nothing is written.
const LOOK_FIRST: Duration = Duration::from_millis(100);
const LOOK_LAST: Duration = Duration::from_millis(1000);

pub(super) fn run(args: &LogsArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let id = select::job(&mut client, &args.job)?;
    let stream = if args.stderr { Stream::Stderr } else { Stream::Stdout };
    let mut log = Log::new(id, stream);
    if let Some(lines) = args.lines {
        log.offset = tail(&mut client, id, stream, lines)?;
    }
    let mut out = std::io::stdout().lock();
    if args.common.json {
        let mut text = Vec::new();
        log.copy(&mut client, &mut text)?;
        let text = String::from_utf8_lossy(&text);
        let answer = serde_json::json!({ "schema": 1, "id": id, "text": text });
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    if args.follow {
        let mut logs = [(log, &mut out as &mut dyn Write)];
        return follow(&mut client, id, &mut logs);
    }
    log.copy(&mut client, &mut out)?;
    Ok(())
}

/// A position in an output file.
pub(super) struct Log {
    id: u64,
    stream: Stream,
    offset: u64,
}

impl Log {
    pub(super) fn new(id: u64, stream: Stream) -> Self {
        Self { id, stream, offset: 0 }
    }

    /// Copies the available output. Returns whether there was any.
    fn copy(&mut self, client: &mut Client, out: &mut dyn Write) -> Result<bool, Failure> {
        let begin = self.offset;
        loop {
            let LogPiece { bytes, size } =
                match client.logs(self.id, self.stream, self.offset, PIECE) {
                    // A job that has not been started has no file.
                    Err(error)
                        if error.code() == Some("not_found") && client.job(self.id).is_ok() =>
                    {
                        return Ok(false);
                    }
                    piece => piece?,
                };
            if size < self.offset {
                // The file was truncated.
                self.offset = 0;
                continue;
            }
            if bytes.is_empty() {
                out.flush()?;
                return Ok(self.offset > begin);
            }
            out.write_all(&bytes)?;
            self.offset += bytes.len() as u64;
        }
    }
}

/// Copies the output until the job has ended.
pub(super) fn follow(
    client: &mut Client,
    id: u64,
    logs: &mut [(Log, &mut dyn Write)],
) -> Result<(), Failure> {
    let mut pause = LOOK_FIRST;
    loop {
        // Polled before the copy, so that the copy after the end is complete.
        let is_over = match client.job(id) {
            Err(ClientError::Unreachable { .. }) => false,
            answer => answer?.job.line.state.is_over(),
        };
        let mut any = false;
        for (log, out) in &mut *logs {
            match log.copy(client, *out) {
                Ok(copied) => any |= copied,
                Err(failure) if failure.is_unreachable() && !is_over => {
                    // Jobs outlive their daemon.
                    super::wait::until_back(client)?;
                }
                Err(failure) => return Err(failure),
            }
        }
        if is_over {
            return Ok(());
        }
        pause = if any { LOOK_FIRST } else { (pause * 2).min(LOOK_LAST) };
        std::thread::sleep(pause);
    }
}

/// The offset of the last lines.
fn tail(client: &mut Client, id: u64, stream: Stream, lines: usize) -> Result<u64, Failure> {
    let size = match client.logs(id, stream, 0, 1) {
        Err(error) if error.code() == Some("not_found") && client.job(id).is_ok() => return Ok(0),
        piece => piece?.size,
    };
    let mut begin = size;
    let mut count = 0;
    while begin > 0 {
        let from = begin.saturating_sub(TAIL_PIECE);
        let piece = client.logs(id, stream, from, begin - from)?.bytes;
        for (index, &byte) in piece.iter().enumerate().rev() {
            let position = from + index as u64;
            // The end of the last line is not the beginning of another.
            if byte == b'\n' && position + 1 < size {
                count += 1;
                if count == lines {
                    return Ok(position + 1);
                }
            }
        }
        begin = from;
    }
    Ok(if lines == 0 { size } else { 0 })
}
