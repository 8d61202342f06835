//! State changes of jobs as a stream of server-sent events.

use super::Api;
use super::types::{ErrorAnswer, JobChange};
use crate::command::Caller;
use crate::job::public_reason;
use crate::publish::OwnedChange;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// Interval of keep-alive comments on an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A change as the caller may see it.
pub(super) fn text(owned: &OwnedChange, caller: &Caller, daemon_uid: u32) -> Bytes {
    let OwnedChange { uid, change } = owned;
    let public = (!caller.may_change(*uid, daemon_uid)).then(|| JobChange {
        reason: change.reason.as_deref().map(public_reason),
        ..change.clone()
    });
    let data = serde_json::to_string(public.as_ref().unwrap_or(change)).unwrap_or_default();
    Bytes::from(format!("id: {}\nevent: job\ndata: {data}\n\n", change.seq))
}

/// Changes of jobs as server-sent events, each a `JobChange`
#[utoipa::path(get, path = "/events", params(
    ("last-event-id" = Option<u64>, Header, description = "Continue after this event")),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = "default", body = ErrorAnswer)))]
pub(super) async fn events(State(api): State<Api>, caller: Caller, headers: HeaderMap) -> Response {
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let (missed, live) = api.feed.subscribe(after);
    let missed: VecDeque<Arc<OwnedChange>> = missed.into();
    let state = (missed, live, api.shutdown.clone(), true);
    let stream = event_stream(state, caller, api.uid);
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(stream)).into_response()
}

type EventStreamState = (
    VecDeque<Arc<OwnedChange>>,
    tokio::sync::broadcast::Receiver<Arc<OwnedChange>>,
    tokio::sync::watch::Receiver<bool>,
    bool,
);

fn event_stream(
    state: EventStreamState,
    caller: Caller,
    daemon_uid: u32,
) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    let text = move |owned: &OwnedChange| text(owned, &caller, daemon_uid);
    let text = Arc::new(text);
    futures_util::stream::unfold(state, move |(mut missed, mut live, mut shutdown, first)| {
        let text = text.clone();
        async move {
            if first {
                // Flushes the headers, so that the client knows that it is subscribed.
                let hello = Bytes::from_static(b": listening\n\n");
                return Some((Ok(hello), (missed, live, shutdown, false)));
            }
            if let Some(change) = missed.pop_front() {
                return Some((Ok(text(&change)), (missed, live, shutdown, false)));
            }
            let next = tokio::select! {
                next = tokio::time::timeout(KEEP_ALIVE, live.recv()) => next,
                _ = shutdown.wait_for(|shutdown| *shutdown) => return None,
            };
            let bytes = match next {
                Err(_) => Bytes::from_static(b": still here\n\n"),
                Ok(Ok(change)) => text(&change),
                // The client was too slow: it reconnects with its last event id.
                Ok(Err(RecvError::Lagged(_) | RecvError::Closed)) => return None,
            };
            Some((Ok(bytes), (missed, live, shutdown, false)))
        }
    })
}
