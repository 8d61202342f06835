//! Authentication. On a unix socket the kernel identifies the caller (`SO_PEERCRED`); on TCP the token stands
//! for the user of the daemon.

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

/// User and group of the peer of a unix socket, if the kernel knows them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credentials(Option<(u32, u32)>);

impl Credentials {
    pub(super) fn of(stream: &UnixStream) -> Self {
        Self(stream.peer_cred().ok().map(|peer| (peer.uid(), peer.gid())))
    }

    /// The user id.
    pub(super) fn uid(self) -> Option<u32> {
        self.0.map(|(uid, _)| uid)
    }
}

/// A TCP listener and the token that it requires.
pub struct Tcp {
    /// The address.
    pub listener: tokio::net::TcpListener,
    /// The token.
    pub token: String,
}

/// Rejects requests without the token; a caller with it acts as the user of the daemon.
pub(super) async fn with_token(
    State((token, caller)): State<(Arc<String>, Caller)>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    if !given.is_some_and(|given| equal(given.as_bytes(), token.as_bytes())) {
        let message = "missing or wrong token; send the header Authorization: Bearer TOKEN";
        return ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Compares in constant time.
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
                let message = "the kernel does not tell the user of this connection";
                Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
            }
        }
    }
}

/// The name of a user, cached.
fn user_name(uid: u32) -> String {
    static KNOWN: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(uid).or_insert_with(|| crate::users::name(uid)).clone()
}
