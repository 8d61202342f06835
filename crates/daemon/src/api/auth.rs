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
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::OnceCell;

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
                let mut caller = Caller::local(*uid, *gid, user_name(*uid).await?);
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

/// How long the name service may take to name a user.
const NAME_WITHIN: Duration = Duration::from_secs(10);

/// The name of a user, cached. A slow name service keeps only that user waiting.
async fn user_name(uid: u32) -> Result<String, ApiError> {
    static KNOWN: Mutex<BTreeMap<u32, Arc<OnceCell<String>>>> = Mutex::new(BTreeMap::new());
    let name = {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(uid).or_default().clone()
    };
    let find = async move || {
        let found = tokio::task::spawn_blocking(move || crate::users::name(uid)).await;
        found.map_err(|error| ApiError::internal(error.to_string()))
    };
    // Whoever comes later waits for the same search.
    let search = tokio::spawn(async move { name.get_or_try_init(find).await.cloned() });
    match tokio::time::timeout(NAME_WITHIN, search).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Err(ApiError::internal(error.to_string())),
        Err(_) => {
            let message = format!("the name service does not tell who {uid} is; try again later");
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message))
        }
    }
}
