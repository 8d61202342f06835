//! The output of a job as it is printed.

use super::asker::{self, Reads};
use super::live::event;
use super::live_types::LogPart;
use super::logs::{LogFile, log_file, read_log};
use super::routes::{find, path_param, query_params};
use super::types::ErrorAnswer;
use super::{Api, ApiError};
use crate::command::Caller;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use utoipa::IntoParams;

/// The end of the file that is sent first.
const END_BYTES: u64 = 64 << 10;
/// The most bytes of one event.
const PART_BYTES: u64 = 256 << 10;
/// Interval at which the file is read.
const READ_INTERVAL: Duration = Duration::from_millis(400);
/// Interval of `ping` events on an idle stream.
const PING_EVERY: Duration = Duration::from_secs(15);

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TailQuery {
    /// `stdout` or `stderr`.
    stream: Option<String>,
}

/// The end of a job's output, and what it prints from now on, as server-sent events
#[utoipa::path(get, path = "/v1/jobs/{id}/logs/tail", params(("id" = u64, Path, description = "Job"), TailQuery),
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "`log` events are a `LogPart`; `ping` keeps an idle stream open"),
        (status = "default", body = ErrorAnswer)))]
pub(super) async fn tail(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<TailQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (id, params) = (path_param(id)?, query_params(params)?);
    let job = find(&api, id).await?;
    let file = log_file(&api, &caller, &job, params.stream.as_deref())?;
    let tail = Tail { file, offset: None, rest: Vec::new() };
    let reads = asker::reads();
    let first = (tail, api.shutdown.clone(), asker::stream()?);
    let parts = futures_util::stream::unfold(first, move |(tail, shutdown, permit)| {
        let reads = reads.clone();
        async move {
            let (event, tail) = next(tail, &reads, shutdown.clone()).await?;
            Some((Ok::<Event, Infallible>(event), (tail, shutdown, permit)))
        }
    });
    Ok(Sse::new(parts).into_response())
}

/// The next event, when there is one.
async fn next(
    mut tail: Tail,
    reads: &Reads,
    mut shutdown: watch::Receiver<bool>,
) -> Option<(Event, Tail)> {
    let began = Instant::now();
    loop {
        let read = reads.blocking(move || (tail.read(), tail)).await;
        let (part, next) = read.ok()?;
        tail = next;
        match part {
            Ok(Some(part)) => return Some((event("log", &part), tail)),
            Ok(None) if began.elapsed() >= PING_EVERY => {
                return Some((event("ping", &BTreeMap::<u8, u8>::new()), tail));
            }
            Ok(None) => {}
            Err(_) => return None,
        }
        tokio::select! {
            () = tokio::time::sleep(READ_INTERVAL) => {}
            _ = shutdown.wait_for(|shutdown| *shutdown) => return None,
        }
    }
}

struct Tail {
    file: LogFile,
    /// The next byte; nothing was read yet if absent.
    offset: Option<u64>,
    /// The beginning of a character whose end was not printed yet.
    rest: Vec<u8>,
}

impl Tail {
    /// What was printed since the last part.
    fn read(&mut self) -> Result<Option<LogPart>, ApiError> {
        let (_, size) = read_log(&self.file, 0, 0)?;
        // A file that became shorter was begun anew.
        let restart = self.offset.is_none_or(|offset| size < offset);
        let offset =
            if restart { size.saturating_sub(END_BYTES) } else { self.offset.unwrap_or(0) };
        if restart {
            self.rest.clear();
        } else if size == offset {
            return Ok(None);
        }
        let (mut bytes, _) = read_log(&self.file, offset, PART_BYTES)?;
        self.offset = Some(offset + bytes.len() as u64);
        if restart && offset > 0 {
            // The first line is cut.
            let cut = bytes.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            bytes.drain(..cut);
        }
        self.rest.append(&mut bytes);
        let text = take_text(&mut self.rest);
        Ok((restart || !text.is_empty()).then_some(LogPart { text, restart }))
    }
}

/// Takes whole characters; one that has only begun stays.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        // Without an error length the input ends inside a character.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => match bytes.len().checked_sub(3) {
            Some(_) => bytes.len() - unfinished(bytes),
            None => bytes.len(),
        },
    };
    let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
    bytes.drain(..whole);
    text
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let end = &bytes[bytes.len().saturating_sub(3)..];
    let begins = |length: usize| {
        let tail = &end[end.len() - length..];
        matches!(std::str::from_utf8(tail), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=end.len()).rev().find(|&length| begins(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_sent_when_it_is_whole() {
        let mut bytes = "schön ".as_bytes().to_vec();
        let last = "€".as_bytes();
        bytes.extend(&last[..2]);
        assert_eq!(take_text(&mut bytes), "schön ");
        bytes.push(last[2]);
        assert_eq!(take_text(&mut bytes), "€");
        let mut bad = b"a\xff\xfeb".to_vec();
        bad.extend(&last[..1]);
        assert_eq!(take_text(&mut bad), "a\u{fffd}\u{fffd}b");
        assert_eq!(bad, &last[..1]);
        assert_eq!(take_text(&mut Vec::new()), "");
    }
}
