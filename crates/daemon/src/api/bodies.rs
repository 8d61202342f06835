//! Request bodies: read whole before a request is handled, within a memory budget for all of them. A body that
//! never ends holds neither memory nor a connection for long.

use super::ApiError;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The largest request body: twice the largest command and environment together.
pub(super) const BODY_MAX: usize = 4 << 20;
/// Memory budget of all request bodies in progress.
const ALL_MAX: usize = 64 << 20;
/// Memory budget of one user's.
const USER_MAX: usize = 16 << 20;
/// A body that has not arrived by then is refused.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Memory held by bodies in progress, by user.
#[derive(Clone, Default)]
pub struct BodyBudget(Arc<Mutex<BTreeMap<Option<u32>, usize>>>);

impl BodyBudget {
    /// A part of the budget, returned when dropped.
    fn take(&self, uid: Option<u32>, bytes: usize) -> Option<BodyShare> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        let own = taken.entry(uid).or_default();
        // Root is served even when others have used up the budget.
        let is_too_much = *own + bytes > USER_MAX || (uid != Some(0) && all + bytes > ALL_MAX);
        if is_too_much {
            return None;
        }
        *own += bytes;
        Some(BodyShare { budget: self.clone(), uid, bytes })
    }
}

struct BodyShare {
    budget: BodyBudget,
    uid: Option<u32>,
    bytes: usize,
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let mut taken = self.budget.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.uid) {
            *own -= self.bytes;
            if *own == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

/// Reads the body of a request before the request is handled.
pub(super) async fn read_body(
    State(budget): State<BodyBudget>,
    request: Request,
    next: Next,
) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let uid = super::asker::uid_of(&request);
    // A body without a length counts as the largest allowed.
    let length = request.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let length = length.unwrap_or(BODY_MAX);
    if length > BODY_MAX {
        return too_large().into_response();
    }
    let Some(_share) = budget.take(uid, length) else {
        let message = "too many request bodies are under way; try again in a moment";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return ApiError::new(status, "unavailable", message).into_response();
    };
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, BODY_MAX).collect();
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return too_large().into_response(),
        Ok(Err(error)) => return ApiError::bad(format!("body: {error}")).into_response(),
        Err(_) => {
            let message = "the body did not arrive in time";
            let status = StatusCode::REQUEST_TIMEOUT;
            return ApiError::new(status, "bad_request", message).into_response();
        }
    };
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}

pub(super) fn too_large() -> ApiError {
    let message = "the request is larger than 4 MiB; put large data into files";
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_bodies_are_bounded_per_user_and_in_all() {
        let budget = BodyBudget::default();
        let take = |uid: u32| -> Vec<BodyShare> {
            (0..150).map_while(|_| budget.take(Some(uid), BODY_MAX)).collect()
        };
        let own = take(1);
        assert_eq!(own.len(), 4);
        let others: Vec<BodyShare> = (2..20).flat_map(take).collect();
        assert_eq!(own.len() + others.len(), 16);
        assert_eq!(take(0).len(), 4, "root is served all the same");
        drop((own, others));
        assert_eq!(take(1).len(), 4);
    }
}
