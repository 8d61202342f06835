//! State changes of jobs as a stream of server-sent events.

use super::types::ErrorAnswer;
use super::{Api, ApiError};
use crate::command::Caller;
use crate::publish::OwnedChange;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Interval of keep-alive comments on an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A change as the caller may see it.
pub(super) fn event(owned: &OwnedChange, caller: &Caller, daemon_uid: u32) -> Event {
    let data = owned.text(caller.may_change(owned.uid, daemon_uid));
    Event::default().id(owned.change.seq.to_string()).event("job").data(data)
}

/// What is sent first: it flushes the headers, so that the client knows that it is subscribed.
pub(super) fn hello() -> Event {
    Event::default().comment("listening")
}

/// Changes of jobs as server-sent events, each a `JobChange`
#[utoipa::path(get, path = "/events", params(
    ("last-event-id" = Option<u64>, Header, description = "Continue after this event")),
    responses((status = 200, body = String, content_type = "text/event-stream"),
        (status = "default", body = ErrorAnswer)))]
pub(super) async fn events(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let permit = super::asker::stream()?;
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let (missed, live) = api.feed.subscribe(after);
    let changes = Changes {
        hello: Some(hello()),
        missed: missed.into(),
        live,
        shutdown: api.shutdown.clone(),
        caller,
        daemon_uid: api.uid,
        _permit: permit,
    };
    let stream = futures_util::stream::unfold(changes, |mut changes| async {
        let event = changes.next().await?;
        Some((Ok::<Event, Infallible>(event), changes))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("still here");
    Ok(Sse::new(stream).keep_alive(keep_alive).into_response())
}

struct Changes {
    hello: Option<Event>,
    missed: VecDeque<Arc<OwnedChange>>,
    live: Receiver<Arc<OwnedChange>>,
    shutdown: watch::Receiver<bool>,
    caller: Caller,
    daemon_uid: u32,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Changes {
    /// The next change; `None` if the daemon stops, or if the client was too slow: it reconnects with its last
    /// event id.
    async fn next(&mut self) -> Option<Event> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        let change = match self.missed.pop_front() {
            Some(change) => change,
            None => tokio::select! {
                change = self.live.recv() => change.ok()?,
                _ = self.shutdown.wait_for(|shutdown| *shutdown) => return None,
            },
        };
        Some(event(&change, &self.caller, self.daemon_uid))
    }
}
