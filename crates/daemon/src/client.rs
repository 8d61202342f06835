//! A blocking client of the HTTP API with one persistent connection.

mod connection;
mod events;

use crate::api::live_types::Health;
use crate::api::types::{
    AccumBody, BulkAnswer, BulkBody, Classes, DaemonInfo, Devices, Done, DrainBody, ErrorAnswer,
    Explanation, JobAction, JobAnswer, JobPage, Submitted, Usage,
};
use crate::api::{
    NewReservation, NewToken, ReservationList, ReservationRequest, TokenList, TokenRequest,
};
use crate::job::JobState;
use crate::request::JobRequest;
pub use connection::Address;
use connection::{Endpoint, HttpSender, RawResponse};
pub use events::Events;
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::ops::Deref;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    /// The daemon cannot be reached.
    #[error("the daemon is not reachable at {address}: {cause}{}", start_advice(address, cause))]
    Unreachable {
        /// The address of the daemon.
        address: String,
        /// The cause.
        cause: String,
    },
    /// The daemon answered with an error.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Error code such as `bad_request` or `not_found`.
        code: String,
        /// What is wrong and what to do, in one line.
        message: String,
    },
    /// The response cannot be decoded.
    #[error("cannot decode the response of the daemon: {0}; compare versions with: tandem doctor")]
    Protocol(String),
}

/// What to do if no daemon of this machine listens; other causes are not mended by another daemon.
fn start_advice(address: &str, cause: &str) -> &'static str {
    let is_absent = [connection::NO_SOCKET, connection::REFUSED].contains(&cause);
    if is_absent && !address.starts_with("http") {
        "; start it with: tandem daemon start"
    } else {
        ""
    }
}

impl ClientError {
    /// The error code, if the daemon answered with an error.
    pub fn code(&self) -> Option<&str> {
        match self {
            ClientError::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// A response and its JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiResponse<T> {
    /// The decoded response.
    pub value: T,
    /// The JSON as received.
    pub raw: String,
}

impl<T> Deref for ApiResponse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// An output stream of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// A piece of a job's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// The piece.
    pub bytes: Vec<u8>,
    /// The size of the whole file.
    pub size: u64,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// In one of these states; in any state if empty.
    pub states: Vec<JobState>,
    /// Of this user.
    pub user: Option<String>,
    /// After this id, in the order of the page.
    pub after: Option<u64>,
    /// The most jobs.
    pub limit: Option<u32>,
    /// By descending id.
    pub latest_first: bool,
}

impl JobQuery {
    fn path(&self) -> String {
        let mut query = Query::new("/v1/jobs");
        let states: Vec<&str> = self.states.iter().map(|state| state.name()).collect();
        query.add("state", (!states.is_empty()).then(|| states.join(",")));
        query.add("user", self.user.clone());
        query.add("after", self.after.map(|after| after.to_string()));
        query.add("limit", self.limit.map(|limit| limit.to_string()));
        query.add("order", self.latest_first.then(|| "desc".to_owned()));
        query.path
    }
}

/// A client of one daemon.
pub struct Client {
    endpoint: Endpoint,
    sender: Option<HttpSender>,
    runtime: Runtime,
}

impl Client {
    /// A client of the daemon at an address. Connects on the first request.
    pub fn new(address: Address, token: Option<String>) -> Result<Self, ClientError> {
        Ok(Self { endpoint: Endpoint { address, token }, sender: None, runtime: runtime()? })
    }

    /// The address of the daemon.
    pub fn address(&self) -> &Address {
        &self.endpoint.address
    }

    /// Submits a job.
    pub fn submit(&mut self, request: &JobRequest) -> Result<ApiResponse<Submitted>, ClientError> {
        self.json(Method::POST, "/v1/jobs", body(request)?)
    }

    /// Forecasts a job without submitting it, under the policy of the daemon or another.
    pub fn dry_run(
        &mut self,
        request: &JobRequest,
        policy: Option<&str>,
    ) -> Result<ApiResponse<Explanation>, ClientError> {
        let mut query = Query::new("/v1/jobs/dry-run");
        query.add("policy", policy.map(str::to_owned));
        self.json(Method::POST, &query.path, body(request)?)
    }

    /// A page of jobs.
    pub fn jobs(&mut self, query: &JobQuery) -> Result<ApiResponse<JobPage>, ClientError> {
        self.get(&query.path())
    }

    /// Everything about a job.
    pub fn job(&mut self, id: u64) -> Result<ApiResponse<JobAnswer>, ClientError> {
        self.get(&format!("/v1/jobs/{id}"))
    }

    /// Why a job is pending and when it is expected to start.
    pub fn explain(
        &mut self,
        id: u64,
        policy: Option<&str>,
    ) -> Result<ApiResponse<Explanation>, ClientError> {
        let mut query = Query::new(&format!("/v1/jobs/{id}/explain"));
        query.add("policy", policy.map(str::to_owned));
        self.get(&query.path)
    }

    /// A piece of a job's output from `offset` on, at most `limit` bytes.
    pub fn logs(
        &mut self,
        id: u64,
        stream: Stream,
        offset: u64,
        limit: u64,
    ) -> Result<LogPiece, ClientError> {
        let path =
            format!("/v1/jobs/{id}/logs?stream={}&offset={offset}&limit={limit}", stream.name());
        let response = self.send(&Method::GET, &path, &[])?;
        let read = offset + response.body.len() as u64;
        Ok(LogPiece { size: response.size.unwrap_or(read), bytes: response.body.to_vec() })
    }

    /// Cancels a job.
    pub fn cancel(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::DELETE, &format!("/v1/jobs/{id}"), Vec::new())
    }

    /// Changes all jobs that are named, in one transaction.
    pub fn change(
        &mut self,
        action: JobAction,
        jobs: &[String],
    ) -> Result<ApiResponse<BulkAnswer>, ClientError> {
        let change = BulkBody { action, jobs: jobs.to_vec() };
        self.json(Method::POST, "/v1/jobs/change", body(&change)?)
    }

    /// Holds a pending job.
    pub fn hold(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::POST, &format!("/v1/jobs/{id}/hold"), Vec::new())
    }

    /// Releases a held job.
    pub fn release(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::POST, &format!("/v1/jobs/{id}/release"), Vec::new())
    }

    /// Pauses a running job.
    pub fn pause(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::POST, &format!("/v1/jobs/{id}/pause"), Vec::new())
    }

    /// Resumes a paused job.
    pub fn resume(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::POST, &format!("/v1/jobs/{id}/resume"), Vec::new())
    }

    /// Sets the number of sub-batches of a job; the policy decides on `None`.
    pub fn set_accum(
        &mut self,
        id: u64,
        accum: Option<u32>,
    ) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::PUT, &format!("/v1/jobs/{id}/accum"), body(&AccumBody { accum })?)
    }

    /// The devices.
    pub fn devices(&mut self) -> Result<ApiResponse<Devices>, ClientError> {
        self.get("/v1/devices")
    }

    /// What the daemon checked about itself.
    pub fn health(&mut self) -> Result<ApiResponse<Health>, ClientError> {
        self.get("/v1/health")
    }

    /// Drains a device: no further job starts there.
    pub fn drain(
        &mut self,
        device: u32,
        reason: Option<&str>,
    ) -> Result<ApiResponse<Done>, ClientError> {
        let reason = DrainBody { reason: reason.map(str::to_owned) };
        self.json(Method::POST, &format!("/v1/devices/{device}/drain"), body(&reason)?)
    }

    /// Undrains a device.
    pub fn undrain(&mut self, device: u32) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::POST, &format!("/v1/devices/{device}/undrain"), Vec::new())
    }

    /// The learned job classes.
    pub fn classes(&mut self) -> Result<ApiResponse<Classes>, ClientError> {
        self.get("/v1/classes")
    }

    /// GPU time by user, since a Unix time in seconds; also by what a list of user, account, month says.
    pub fn usage(
        &mut self,
        since_unix_s: Option<f64>,
        by: Option<String>,
    ) -> Result<ApiResponse<Usage>, ClientError> {
        let mut query = Query::new("/v1/usage");
        query.add("by", by);
        query.add("since", since_unix_s.map(|since| since.to_string()));
        self.get(&query.path)
    }

    /// Reserves devices.
    pub fn reserve(
        &mut self,
        request: &ReservationRequest,
    ) -> Result<ApiResponse<NewReservation>, ClientError> {
        self.json(Method::POST, "/v1/reservations", body(request)?)
    }

    /// The reservations that are not over.
    pub fn reservations(&mut self) -> Result<ApiResponse<ReservationList>, ClientError> {
        self.get("/v1/reservations")
    }

    /// Cancels a reservation.
    pub fn cancel_reservation(&mut self, id: u32) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::DELETE, &format!("/v1/reservations/{id}"), Vec::new())
    }

    /// Makes a token for TCP.
    pub fn create_token(
        &mut self,
        request: &TokenRequest,
    ) -> Result<ApiResponse<NewToken>, ClientError> {
        self.json(Method::POST, "/v1/tokens", body(request)?)
    }

    /// The tokens of the user; of all users for operators.
    pub fn tokens(&mut self) -> Result<ApiResponse<TokenList>, ClientError> {
        self.get("/v1/tokens")
    }

    /// Revokes a token.
    pub fn revoke_token(&mut self, id: u64) -> Result<ApiResponse<Done>, ClientError> {
        self.json(Method::DELETE, &format!("/v1/tokens/{id}"), Vec::new())
    }

    /// Version, policy and state of the daemon.
    pub fn info(&mut self) -> Result<ApiResponse<DaemonInfo>, ClientError> {
        self.get("/v1/info")
    }

    /// Subscribes to state changes of jobs, from the one after `after` on. Uses a connection of its own.
    pub fn events(&self, after: Option<u64>) -> Result<Events, ClientError> {
        Events::open(self.endpoint.clone(), after)
    }

    /// The response to a GET as text: for `/metrics`, `/openapi.json` and `/healthz`.
    pub fn text(&mut self, path: &str) -> Result<String, ClientError> {
        let response = self.send(&Method::GET, path, &[])?;
        Ok(String::from_utf8_lossy(&response.body).into_owned())
    }

    fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<ApiResponse<T>, ClientError> {
        self.json(Method::GET, path, Vec::new())
    }

    #[allow(clippy::needless_pass_by_value)] // One line per request above.
    fn json<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<ApiResponse<T>, ClientError> {
        let response = self.send(&method, path, &body)?;
        let undecodable = |problem: String| ClientError::Protocol(format!("{path}: {problem}"));
        let raw = String::from_utf8(response.body.to_vec());
        let raw = raw.map_err(|_| undecodable("the response is not UTF-8".to_owned()))?;
        let value = serde_json::from_str(&raw).map_err(|error| undecodable(error.to_string()))?;
        Ok(ApiResponse { value, raw })
    }

    fn send(
        &mut self,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> Result<RawResponse, ClientError> {
        let Self { endpoint, sender, runtime } = self;
        let request = || endpoint.request(method, path, body);
        let response = runtime.block_on(async {
            // The daemon may have closed the persistent connection, which shows only when a request fails.
            // A POST must not be repeated and therefore uses a new connection.
            let kept = sender.take().filter(|kept| *method != Method::POST && !kept.is_closed());
            if let Some(mut kept) = kept
                && let Ok(answer) = endpoint.send(&mut kept, request()?).await
            {
                let response = endpoint.read(answer).await?;
                *sender = Some(kept);
                return Ok(response);
            }
            let mut new = endpoint.connect().await?;
            let answer = endpoint.send(&mut new, request()?).await?;
            let response = endpoint.read(answer).await?;
            *sender = Some(new);
            Ok(response)
        })?;
        if (200..300).contains(&response.status) {
            Ok(response)
        } else {
            Err(response_error(&response))
        }
    }
}

fn runtime() -> Result<Runtime, ClientError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| ClientError::Protocol(format!("cannot start the I/O runtime: {error}")))
}

fn body<T: Serialize>(value: &T) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|error| ClientError::Protocol(error.to_string()))
}

/// The error of a response; a proxy may answer without JSON.
fn response_error(response: &RawResponse) -> ClientError {
    let status = response.status;
    if let Ok(ErrorAnswer { error }) = serde_json::from_slice(&response.body) {
        return ClientError::Refused { status, code: error.code, message: error.message };
    }
    let code = match status {
        401 => "unauthorized",
        403 => "forbidden",
        404 | 405 => "not_found",
        409 => "conflict",
        413 => "too_large",
        422 => "infeasible",
        429 => "limit",
        400..=499 => "bad_request",
        503 => "unavailable",
        _ => "internal",
    };
    let text = String::from_utf8_lossy(&response.body);
    let line = text.lines().next().unwrap_or_default().trim();
    let message = if line.is_empty() {
        format!("the daemon answered with HTTP status {status}")
    } else {
        format!("the daemon answered with HTTP status {status}: {line}")
    };
    ClientError::Refused { status, code: code.to_owned(), message }
}

/// A path with a query.
struct Query {
    path: String,
    has_any: bool,
}

impl Query {
    fn new(path: &str) -> Self {
        Self { path: path.to_owned(), has_any: false }
    }

    fn add(&mut self, key: &str, value: Option<String>) {
        let Some(value) = value else { return };
        self.path.push(if self.has_any { '&' } else { '?' });
        self.has_any = true;
        self.path.push_str(key);
        self.path.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~,:".contains(&byte) {
                self.path.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(self.path, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let query = JobQuery {
            states: vec![JobState::Pending, JobState::Oom],
            user: Some("a b&c=ä".to_owned()),
            after: Some(17),
            latest_first: true,
            ..JobQuery::default()
        };
        assert_eq!(
            query.path(),
            "/v1/jobs?state=pending,oom&user=a%20b%26c%3D%C3%A4&after=17&order=desc"
        );
        assert_eq!(JobQuery::default().path(), "/v1/jobs");
    }

    #[test]
    fn a_refusal_without_json_still_has_a_code() {
        let response =
            |status, body: &'static str| RawResponse { status, size: None, body: body.into() };
        let code = |status| response_error(&response(status, "")).code().map(str::to_owned);
        assert_eq!(code(404).as_deref(), Some("not_found"));
        assert_eq!(code(502).as_deref(), Some("internal"));
        let json = response(422, r#"{"error":{"code":"infeasible","message":"too large"}}"#);
        assert_eq!(response_error(&json).to_string(), "too large");
    }

    #[test]
    fn an_absent_daemon_is_unreachable() {
        let mut client =
            Client::new(Address::Unix("/nonexistent/daemon.sock".into()), None).unwrap();
        let error = client.info().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }));
        assert!(error.to_string().ends_with("; start it with: tandem daemon start"), "{error}");
        let certificate = ClientError::Unreachable {
            address: "https://gpu:7007".to_owned(),
            cause: "invalid peer certificate".to_owned(),
        };
        assert!(!certificate.to_string().contains("start it"), "{certificate}");
    }
}
