//! The stream of state changes of jobs.

use super::ClientError;
use super::connection::{Endpoint, HttpSender};
use crate::api::types::JobChange;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// The longest line of the stream.
const LINE_MAX_BYTES: usize = 1 << 20;

/// State changes of jobs as they happen. The iterator ends with the connection.
pub struct Events {
    endpoint: Endpoint,
    body: Incoming,
    parser: EventParser,
    /// Keeps the connection open.
    _sender: HttpSender,
    runtime: Runtime,
}

impl Events {
    pub(super) fn open(endpoint: Endpoint, after: Option<u64>) -> Result<Self, ClientError> {
        let runtime = super::runtime()?;
        let mut request = endpoint.request(&Method::GET, "/events", &[])?;
        if let Some(seq) = after {
            request.headers_mut().insert("last-event-id", HeaderValue::from(seq));
        }
        let (sender, body) = runtime.block_on(async {
            let mut sender = endpoint.connect().await?;
            let answer = endpoint.send(&mut sender, request).await?;
            if !answer.status().is_success() {
                return Err(super::response_error(&endpoint.read(answer).await?));
            }
            Ok((sender, answer.into_body()))
        })?;
        Ok(Self { endpoint, body, parser: EventParser::default(), _sender: sender, runtime })
    }

    /// The next change; `Ok(None)` if there was none in that time.
    pub fn next_within(&mut self, most: Duration) -> Result<Option<JobChange>, ClientError> {
        let Self { endpoint, body, parser, runtime, .. } = self;
        runtime.block_on(async {
            match timeout(most, next(endpoint, body, parser)).await {
                Ok(change) => change.map(Some),
                Err(_) => Ok(None),
            }
        })
    }
}

impl Iterator for Events {
    type Item = Result<JobChange, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { endpoint, body, parser, runtime, .. } = self;
        Some(runtime.block_on(next(endpoint, body, parser)))
    }
}

/// Waits for the next change. Cancel-safe.
async fn next(
    endpoint: &Endpoint,
    body: &mut Incoming,
    parser: &mut EventParser,
) -> Result<JobChange, ClientError> {
    loop {
        if let Some(change) = parser.change()? {
            return Ok(change);
        }
        match body.frame().await {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    parser.buffer.extend_from_slice(bytes);
                }
            }
            Some(Err(error)) => {
                return Err(endpoint.unreachable(format!("the event stream was cut off: {error}")));
            }
            None => return Err(endpoint.unreachable("the event stream ended")),
        }
    }
}

/// Parser of server-sent events, with the bytes not yet consumed.
#[derive(Default)]
struct EventParser {
    buffer: Vec<u8>,
    /// The `data` of the current event.
    data: String,
    /// The `event` field of the current event.
    kind: String,
}

impl EventParser {
    /// The next change in the buffer; other events are skipped.
    fn change(&mut self) -> Result<Option<JobChange>, ClientError> {
        while let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                let (data, kind) = (std::mem::take(&mut self.data), std::mem::take(&mut self.kind));
                if !data.is_empty() && kind == "job" {
                    let change = serde_json::from_str(&data);
                    return change
                        .map(Some)
                        .map_err(|error| ClientError::Protocol(error.to_string()));
                }
                continue;
            }
            // A line that begins with a colon is a comment, used as keep-alive.
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "data" => self.data.push_str(value),
                "event" => value.clone_into(&mut self.kind),
                _ => {}
            }
        }
        if self.buffer.len() > LINE_MAX_BYTES || self.data.len() > LINE_MAX_BYTES {
            return Err(ClientError::Protocol("an event exceeds 1 MiB".to_owned()));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_may_arrive_in_pieces() {
        let text = ": hello\n\nid: 7\nevent: other\ndata: {}\n\nid: 8\r\nevent: job\r\ndata: {\"seq\":8,\"time\":\"t\",\
                    \"id\":3,\"state\":\"running\",\"reason\":null,\"devices\":[0],\"exit_code\":null}\r\n\r\n";
        let mut parser = EventParser::default();
        let mut changes = Vec::new();
        for byte in text.bytes() {
            parser.buffer.push(byte);
            changes.extend(parser.change().unwrap());
        }
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].seq, changes[0].id), (8, 3));
        parser.buffer.extend_from_slice(b"event: job\ndata: nonsense\n\n");
        assert!(matches!(parser.change(), Err(ClientError::Protocol(_))));
    }
}
