//! Who asks. On a unix socket the system says so; on TCP a token stands for the user of the daemon.

use super::{Api, ApiError};
use crate::command::Caller;
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UnixStream;

/// What the system says about the other end of a unix socket; `None` for TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credentials(Option<(u32, u32)>);

impl Credentials {
    pub(super) fn of(stream: &UnixStream) -> Self {
        Self(stream.peer_cred().ok().map(|peer| (peer.uid(), peer.gid())))
    }

    /// The user.
    pub(super) fn uid(self) -> Option<u32> {
        self.0.map(|(uid, _)| uid)
    }
}

/// A listener on TCP and the token that it asks for.
pub struct Tcp {
    /// The address.
    pub listener: tokio::net::TcpListener,
    /// The token.
    pub token: String,
}

/// Lets only those pass who know the token; they are the user of the daemon.
pub(super) async fn with_token(
    State((token, caller)): State<(Arc<String>, Caller)>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    if !given.is_some_and(|given| equal(given.as_bytes(), token.as_bytes())) {
        let message = "give the daemon's token: Authorization: Bearer TOKEN";
        return ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Compares in a time that does not tell where the first difference is.
fn equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

impl FromRequestParts<Api> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let credentials = parts.extensions.get::<ConnectInfo<Credentials>>();
        match credentials {
            Some(ConnectInfo(Credentials(Some((uid, gid))))) => {
                Ok(Caller { uid: *uid, gid: *gid, user: user_name(*uid) })
            }
            _ => {
                let message = "the system does not say who asks";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
            }
        }
    }
}

/// The name of a user, looked up once.
fn user_name(uid: u32) -> String {
    static KNOWN: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(uid).or_insert_with(|| crate::users::name(uid)).clone()
}
