//! Authentication. On a unix socket the kernel identifies the caller (`SO_PEERCRED`); on TCP a token stands
//! for its user.

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

/// A TCP listener and how it encrypts.
pub struct Tcp {
    /// The address.
    pub listener: tokio::net::TcpListener,
    /// TLS; plain HTTP, on a loopback address, if absent.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

/// Rejects requests without a valid token; a caller with one is its user, within its scopes.
pub(super) async fn with_token(
    State(api): State<Api>,
    mut request: Request,
    next: Next,
) -> Response {
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer "));
    match given.and_then(|secret| api.authenticate(secret)) {
        Some(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        None => {
            let message = "missing, wrong or expired token; make one with tandem token create, \
                           send the header Authorization: Bearer TOKEN";
            ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).into_response()
        }
    }
}

impl Api {
    /// The caller that a token stands for: its user, within its scopes. `None` if it is not valid.
    pub fn authenticate(&self, secret: &str) -> Option<Caller> {
        let mut caller = self.tokens.authenticate(secret, crate::clock::unix_us())?.caller();
        caller.rights.is_listed = self.operators.contains(&caller.uid);
        Some(caller)
    }
}

impl FromRequestParts<Api> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        if let Some(caller) = parts.extensions.get::<Caller>() {
            return Ok(caller.clone());
        }
        let credentials = parts.extensions.get::<ConnectInfo<Credentials>>();
        match credentials {
            Some(ConnectInfo(Credentials(Some((uid, gid))))) => {
                let mut caller = Caller::local(*uid, *gid, user_name(*uid));
                caller.rights.is_listed = api.operators.contains(uid);
                Ok(caller)
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
