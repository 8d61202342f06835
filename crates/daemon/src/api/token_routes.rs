//! Tokens over the HTTP API: made and revoked on the unix socket, where the kernel identifies the caller.

use super::routes::{DONE, JsonResult, json_body, path_param};
use super::types::{Done, ErrorAnswer, SCHEMA};
use super::{Api, ApiError};
use crate::clock::unix_us;
use crate::command::Caller;
use crate::time::iso;
use crate::tokens::{self, Scope, Token};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A token to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 64)]
    pub name: String,
    /// The user it stands for; the caller if absent. Another user only for operators, root only by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What it allows; `read` and `submit` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    pub scopes: Option<Vec<Scope>>,
    /// Its life in seconds; 90 days if absent, ten years at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315360000)]
    pub expires_s: Option<u64>,
}

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Its number.
    pub id: u64,
    /// The user it stands for.
    pub user: String,
    /// What it is for.
    pub name: String,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// When it was made.
    pub created: String,
    /// When it ends.
    pub expires: String,
    /// Whether it has ended.
    pub expired: bool,
}

/// A new token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// Version of this JSON.
    pub schema: u32,
    /// The secret, shown this once.
    pub token: String,
    /// The token.
    pub info: TokenInfo,
}

/// The tokens of the caller; of all users for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// Version of this JSON.
    pub schema: u32,
    /// By number.
    pub tokens: Vec<TokenInfo>,
}

fn shown(token: Token) -> TokenInfo {
    TokenInfo {
        id: token.id,
        user: token.user,
        name: token.name,
        scopes: token.scopes,
        created: iso(token.created_us),
        expires: iso(token.expires_us),
        expired: token.expires_us <= unix_us(),
    }
}

fn forbidden(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "forbidden", message)
}

/// Tokens are managed on the unix socket: who finds a token cannot make another from it.
fn on_the_socket(caller: &Caller) -> Result<(), ApiError> {
    if caller.rights.is_token {
        return Err(forbidden("tokens are made and revoked on the unix socket of the daemon"));
    }
    Ok(())
}

/// Make a token for TCP; on the unix socket only
#[utoipa::path(post, path = "/v1/tokens", operation_id = "create_token", request_body = TokenRequest, responses(
    (status = 201, body = NewToken), (status = "default", body = ErrorAnswer)))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    on_the_socket(&caller)?;
    let request: TokenRequest = json_body(bytes)?;
    let (uid, gid, user) = owner(&api, &caller, request.user).await?;
    if request.name.chars().count() > tokens::NAME_MAX || request.name.contains(char::is_control) {
        let most = tokens::NAME_MAX;
        return Err(ApiError::bad(format!("name: give at most {most} printable characters")));
    }
    let life_s = request.expires_s.unwrap_or(tokens::LIFE_DEFAULT_S);
    if !(1..=tokens::LIFE_MAX_S).contains(&life_s) {
        return Err(ApiError::bad("expires_s: give 1 second to 3650 days"));
    }
    if request.scopes.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::bad("scopes: is empty; give read, submit or operate"));
    }
    let mut scopes = request.scopes.unwrap_or_else(|| vec![Scope::Read, Scope::Submit]);
    scopes.push(Scope::Read);
    scopes.sort_unstable();
    scopes.dedup();
    let now_us = unix_us();
    forget_ended(&api, uid, now_us).await?;
    let secret = tokens::new_secret().map_err(|error| ApiError::internal(error.to_string()))?;
    let token = Token {
        id: api.tokens.reserve_id(),
        uid,
        gid,
        user,
        name: request.name,
        scopes,
        created_us: now_us,
        expires_us: now_us.saturating_add(life_s * 1_000_000),
    };
    let hash = tokens::hash(&secret);
    let kept = token.clone();
    api.write(move |transaction| transaction.add_token(&hash, &kept)).await?;
    api.tokens.add(hash, token.clone());
    let answer = NewToken { schema: SCHEMA, token: secret, info: shown(token) };
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// The user that a token is to stand for.
async fn owner(
    api: &Api,
    caller: &Caller,
    named: Option<String>,
) -> Result<(u32, u32, String), ApiError> {
    let Some(name) = named else {
        if caller.uid == 0 {
            let message =
                "user: name the user of the token; root's acts as root only with --user root";
            return Err(ApiError::bad(message));
        }
        return Ok((caller.uid, caller.gid, caller.user.clone()));
    };
    let shown = name.escape_debug().to_string();
    let found = tokio::task::spawn_blocking(move || crate::users::find(&name)).await;
    let found = found.map_err(|error| ApiError::internal(error.to_string()))?;
    let found = found.ok_or_else(|| ApiError::bad(format!("user: there is no user '{shown}'")))?;
    if found.uid != caller.uid && !caller.is_operator(api.uid) {
        return Err(forbidden("only operators make tokens for others"));
    }
    // An operator who is not root must not become root this way.
    if found.uid == 0 && caller.uid != 0 {
        return Err(forbidden("only root makes tokens that act as root"));
    }
    Ok((found.uid, found.gid, found.name))
}

/// Deletes the tokens of a user that have ended; an error if the others are as many as are allowed.
async fn forget_ended(api: &Api, uid: u32, now_us: u64) -> Result<(), ApiError> {
    let own = api.tokens.list().into_iter().filter(|token| token.uid == uid);
    let (ended, valid): (Vec<Token>, Vec<Token>) = own.partition(|one| one.expires_us <= now_us);
    if valid.len() >= tokens::TOKENS_PER_USER_MAX {
        let message = format!("a user has at most {} tokens; revoke one", valid.len());
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    for token in ended {
        remove(api, token.id).await?;
    }
    Ok(())
}

async fn remove(api: &Api, id: u64) -> Result<(), ApiError> {
    api.write(move |transaction| transaction.remove_token(id)).await?;
    api.tokens.remove(id);
    Ok(())
}

/// The tokens of the caller; of all users for operators
#[utoipa::path(get, path = "/v1/tokens", operation_id = "list_tokens", responses(
    (status = 200, body = TokenList), (status = "default", body = ErrorAnswer)))]
pub(super) async fn list(State(api): State<Api>, caller: Caller) -> JsonResult<TokenList> {
    let own = |token: &Token| caller.may_change(token.uid, api.uid);
    let tokens = api.tokens.list().into_iter().filter(own).map(shown).collect();
    Ok(Json(TokenList { schema: SCHEMA, tokens }))
}

/// Revoke a token; on the unix socket only
#[utoipa::path(delete, path = "/v1/tokens/{id}", operation_id = "revoke_token", params(("id" = u64, Path, description = "Token")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn revoke(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
) -> JsonResult<Done> {
    on_the_socket(&caller)?;
    let id = path_param(id)?;
    let found = api.tokens.get(id).filter(|token| caller.may_change(token.uid, api.uid));
    if found.is_none() {
        let message = format!("you have no token {id}; see tandem token list");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message));
    }
    remove(&api, id).await?;
    Ok(DONE)
}
