//! Changes of jobs as a stream of server-sent events.

use super::Api;
use super::types::JobChange;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// A stream without news says that it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

fn text(change: &JobChange) -> Bytes {
    let data = serde_json::to_string(change).unwrap_or_default();
    Bytes::from(format!("id: {}\nevent: job\ndata: {data}\n\n", change.seq))
}

/// Streams changes; `Last-Event-ID` continues where an earlier stream broke off.
pub(super) async fn events(State(api): State<Api>, headers: HeaderMap) -> Response {
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let (missed, live) = api.feed.listen(after);
    let missed: VecDeque<Arc<JobChange>> = missed.into();
    let state = (missed, live, api.leaving.clone(), true);
    let stream = futures_stream(state);
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(stream)).into_response()
}

type Listening = (
    VecDeque<Arc<JobChange>>,
    tokio::sync::broadcast::Receiver<Arc<JobChange>>,
    tokio::sync::watch::Receiver<bool>,
    bool,
);

fn futures_stream(
    state: Listening,
) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures_util::stream::unfold(state, |(mut missed, mut live, mut leaving, first)| async move {
        if first {
            // So that a client knows at once that it is listened to.
            let hello = Bytes::from_static(b": listening\n\n");
            return Some((Ok(hello), (missed, live, leaving, false)));
        }
        if let Some(change) = missed.pop_front() {
            return Some((Ok(text(&change)), (missed, live, leaving, false)));
        }
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(KEEP_ALIVE, live.recv()) => next,
                _ = leaving.wait_for(|leaving| *leaving) => return None,
            };
            let bytes = match next {
                Err(_) => Bytes::from_static(b": still here\n\n"),
                Ok(Ok(change)) => text(&change),
                // Too slow: it comes back with the last number that it got.
                Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => return None,
            };
            return Some((Ok(bytes), (missed, live, leaving, false)));
        }
    })
}
