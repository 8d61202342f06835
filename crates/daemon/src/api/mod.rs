//! The HTTP API: on a unix socket, where the kernel identifies the caller, and on TCP with a token.

mod asker;
mod auth;
mod bodies;
mod changes;
mod connections;
mod dashboard;
mod events;
mod health;
pub mod live;
pub mod live_types;
mod logs;
mod metrics;
mod params;
mod reservations;
mod responses;
mod routes;
pub mod shares;
mod tail;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;
mod token_routes;
pub mod types;
mod unix_socket;
mod web;
mod whatif;

pub use asker::Askers;
pub use auth::Tcp;
pub use bodies::BodyBudget;
pub use reservations::{NewReservation, ReservationInfo, ReservationList, ReservationRequest};
pub(crate) use responses::latency;
pub use routes::openapi;
pub(crate) use routes::serve;
pub use token_routes::{NewToken, TokenInfo, TokenList, TokenRequest};
pub use unix_socket::UnixSocket;
pub use web::Web;
pub use whatif::CachedForecast;

use crate::command::{Caller, CommandOutcome, Refusal, UserCommand};
use crate::cycle::{Message, Present};
use crate::publish::Feed;
use crate::store::{StoreError, StoreReader, StoreTransaction};
use crate::tokens::Tokens;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use tandem_backends::local::Cgroups;
use tokio::sync::{oneshot, watch};
use types::{ErrorAnswer, ErrorBody};

/// State shared by all handlers.
#[derive(Clone)]
pub struct Api {
    /// Messages to the scheduling loop.
    pub inbox: Sender<Message>,
    /// State changes of jobs.
    pub feed: Feed,
    /// The file of the store.
    pub store: PathBuf,
    /// What each user has under way.
    pub askers: Askers,
    /// What the bodies of requests under way may take.
    pub bodies: BodyBudget,
    /// Idle read connections to the store.
    pub readers: Arc<Mutex<Vec<StoreReader>>>,
    /// The user of the daemon.
    pub uid: u32,
    /// `cpu`, `nvidia` or `fake`.
    pub provider: String,
    /// The partition of the cluster whose jobs it places.
    pub partition: Option<String>,
    /// The policy.
    pub policy: String,
    /// When it was started, in microseconds since the Unix epoch.
    pub started_us: u64,
    /// Becomes true when the daemon shuts down.
    pub shutdown: watch::Receiver<bool>,
    /// Webhooks are enabled.
    pub webhooks: bool,
    /// Where control groups for jobs can be created.
    pub groups: Option<Cgroups>,
    /// The tokens of users.
    pub tokens: Tokens,
    /// Users who are operators besides root and the user of the daemon.
    pub operators: Arc<BTreeSet<u32>>,
    /// The latest forecast of the queue.
    pub queue_forecast: CachedForecast,
}

/// The longest error message, in characters.
const MESSAGE_MAX: usize = 1000;
/// The most digits of a number in an error message.
const DIGITS_MAX: usize = 24;
/// Most idle read connections.
const READERS_MAX: usize = 8;

impl Api {
    /// Sends a command to the scheduling loop and waits until it is durable.
    async fn command(
        &self,
        caller: Caller,
        command: UserCommand,
    ) -> Result<CommandOutcome, ApiError> {
        if !caller.rights.submit && !caller.is_operator(self.uid) {
            let message = "this token only reads; make one with the scope submit";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
        }
        let (reply, answer) = oneshot::channel();
        let message = Message::Command { caller, command, reply };
        self.inbox.send(message).map_err(|_| ApiError::shutting_down())?;
        Ok(answer.await.map_err(|_| ApiError::shutting_down())??)
    }

    /// Writes what the scheduler need not know, and waits until it is durable.
    async fn write(
        &self,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), ApiError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Write { write: Box::new(write), reply };
        self.inbox.send(message).map_err(|_| ApiError::shutting_down())?;
        Ok(answer.await.map_err(|_| ApiError::shutting_down())??)
    }

    /// Reads the state of the scheduler between two turns.
    async fn query<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Present<'_>) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let question = Box::new(move |present: &Present<'_>| drop(reply.send(read(present))));
        let ask = Message::Ask { uid: asker::uid(), question };
        self.inbox.send(ask).map_err(|_| ApiError::shutting_down())?;
        answer.await.map_err(|_| ApiError::shutting_down())
    }

    /// Reads from the store on a blocking thread.
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
        asker::blocking(work).await?.map_err(|error| ApiError::internal(error.to_string()))
    }
}

/// An error response.
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

    fn shutting_down() -> Self {
        let message = "the daemon is shutting down; try again in a moment";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

impl ApiError {
    /// The JSON of the error: one line of limited length, without control characters.
    fn body(&self) -> ErrorAnswer {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let message = short_numbers(&self.message);
        let message = message.chars().take(MESSAGE_MAX).map(plain).collect();
        ErrorAnswer { error: ErrorBody { code: self.code.to_owned(), message } }
    }
}

/// A message without the tail of a number of hundreds of digits that a request gave.
fn short_numbers(message: &str) -> String {
    let mut digits = 0;
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
        match digits {
            0..=DIGITS_MAX => text.push(character),
            _ if text.ends_with('…') => {}
            _ => text.push('…'),
        }
    }
    text
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match &refusal {
            Refusal::Bad(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            Refusal::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Refusal::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
            Refusal::Infeasible(_) => (StatusCode::UNPROCESSABLE_ENTITY, "infeasible"),
            Refusal::Limit(_) => (StatusCode::TOO_MANY_REQUESTS, "limit"),
            Refusal::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        Self::new(status, code, refusal.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.body())).into_response()
    }
}

#[cfg(test)]
mod message_tests {
    use super::*;

    #[test]
    fn a_message_does_not_repeat_hundreds_of_digits() {
        let refused = ApiError::bad(format!("gpus: is {}; give fewer", "9".repeat(300)));
        let expected = format!("gpus: is {}…; give fewer", "9".repeat(DIGITS_MAX));
        assert_eq!(refused.body().error.message, expected);
        let plain = "job 18446744073709551615 is not yours";
        assert_eq!(short_numbers(plain), plain);
    }
}
