//! The interface over HTTP: on a unix socket, where the system says who asks, and on TCP with a token.

mod auth;
mod connections;
mod dashboard;
mod events;
mod health;
pub mod live;
pub mod live_types;
mod metrics;
mod responses;
mod routes;
mod tail;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
pub mod types;
mod whatif;

pub use auth::Tcp;
pub use routes::openapi;
pub(crate) use routes::serve;
pub use whatif::Outlook;

use crate::command::{Caller, Refusal, UserCommand};
use crate::cycle::{Message, Present};
use crate::publish::Feed;
use crate::store::{StoreError, StoreReader};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use tandem_backends::local::Cgroups;
use tokio::sync::{oneshot, watch};
use types::{ErrorAnswer, ErrorBody};

/// What the handlers share.
#[derive(Clone)]
pub struct Api {
    /// The cycle.
    pub inbox: Sender<Message>,
    /// Changes of jobs.
    pub feed: Feed,
    /// The store.
    pub store: PathBuf,
    /// Readers that nobody uses at present.
    pub readers: Arc<Mutex<Vec<StoreReader>>>,
    /// Whose daemon it is.
    pub uid: u32,
    /// `cpu`, `nvidia` or `fake`.
    pub provider: String,
    /// The policy.
    pub policy: String,
    /// When it was started, in microseconds since 1970.
    pub started_us: u64,
    /// Becomes true when the daemon is about to leave.
    pub shutdown: watch::Receiver<bool>,
    /// Webhooks are called.
    pub webhooks: bool,
    /// Where control groups can be made for jobs.
    pub groups: Option<Cgroups>,
    /// The latest forecast of the queue.
    pub outlook: Outlook,
}

/// The longest message of a refusal, in characters.
const MESSAGE_MAX: usize = 1000;
/// Readers that are kept for later.
const READERS_MAX: usize = 8;

impl Api {
    /// Hands a command to the cycle and waits until it is durable.
    async fn command(&self, caller: Caller, command: UserCommand) -> Result<Vec<u64>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Command { caller, command, reply };
        self.inbox.send(message).map_err(|_| ApiError::shutdown())?;
        Ok(answer.await.map_err(|_| ApiError::shutdown())??)
    }

    /// Looks at the present between two turns.
    async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Present<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let ask = move |present: &Present<'_>| drop(reply.send(look(present)));
        self.inbox.send(Message::Ask(Box::new(ask))).map_err(|_| ApiError::shutdown())?;
        answer.await.map_err(|_| ApiError::shutdown())
    }

    /// Reads from the store on a thread that may wait.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&StoreReader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (readers, store) = (self.readers.clone(), self.store.clone());
        let work = move || {
            let kept = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = kept.map_or_else(|| StoreReader::open(&store), Ok)?;
            let result = read(&reader)?;
            let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS_MAX {
                readers.push(reader);
            }
            Ok::<T, StoreError>(result)
        };
        let result = tokio::task::spawn_blocking(work).await;
        let result = result.map_err(|error| ApiError::internal(error.to_string()))?;
        result.map_err(|error| ApiError::internal(error.to_string()))
    }
}

/// An answer that says no, with its status and code.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn no_job(id: u64) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no job {id}"))
    }

    fn shutdown() -> Self {
        let message = "the daemon is about to stop; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

impl ApiError {
    /// One line, not too long, whatever was put into it.
    fn answer(&self) -> ErrorAnswer {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let message = self.message.chars().take(MESSAGE_MAX).map(plain).collect();
        ErrorAnswer { error: ErrorBody { code: self.code.to_owned(), message } }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match &refusal {
            Refusal::Bad(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            Refusal::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Refusal::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Refusal::Infeasible(_) => (StatusCode::UNPROCESSABLE_ENTITY, "infeasible"),
            Refusal::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self::new(status, code, refusal.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.answer())).into_response()
    }
}
