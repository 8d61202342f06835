//! Routes that change jobs and devices.

use super::asker::blocking;
use super::routes::{DONE, JsonResult, json_body, large_body, path_param};
use super::types::{
    AccumBody, BulkAnswer, BulkBody, BulkFailure, Done, DrainBody, ErrorAnswer, SCHEMA,
};
use super::{Api, ApiError};
use crate::command::{Caller, UserCommand};
use crate::request::Selector;
use crate::scheduler::JobAction;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};

/// The most selectors of a request.
const SELECTORS_MAX: usize = 10_000;
/// The most numbers of jobs and tasks in all selectors of a request.
const NUMBERS_MAX: usize = 100_000;
/// The longest reason for draining a device, in characters.
const REASON_MAX: usize = 200;

/// Cancel, hold, release, pause, resume or requeue several jobs; others are served in between
#[utoipa::path(post, path = "/v1/jobs/change", request_body = BulkBody,
    responses((status = 200, body = BulkAnswer), (status = "default", body = ErrorAnswer)))]
pub(super) async fn change(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<BulkAnswer> {
    let BulkBody { action, jobs } = large_body(bytes).await?;
    if jobs.len() > SELECTORS_MAX {
        return Err(ApiError::bad(format!("jobs: give at most {SELECTORS_MAX} selectors")));
    }
    let selectors = blocking(move || selectors(&jobs)).await??;
    let outcome = api.command(caller, UserCommand::ChangeMany(action, selectors)).await?;
    let failed = outcome.failed.into_iter().map(|(id, refusal)| {
        let ApiError { code, message, .. } = refusal.into();
        BulkFailure { id, code: code.to_owned(), error: message }
    });
    Ok(Json(BulkAnswer { schema: SCHEMA, done: outcome.done, failed: failed.collect() }))
}

/// The selectors of a request, which name a limited number of jobs and tasks.
fn selectors(texts: &[String]) -> Result<Vec<Selector>, ApiError> {
    let (mut selectors, mut left) = (Vec::new(), NUMBERS_MAX);
    for text in texts {
        let selector = Selector::parse(text)
            .map_err(|error| ApiError::bad(format!("jobs: {}", Selector::problem(text, error))))?;
        left = left.checked_sub(selector.len()).ok_or_else(|| {
            ApiError::bad(format!("jobs: name more than {NUMBERS_MAX} numbers in all; give fewer"))
        })?;
        selectors.push(selector);
    }
    Ok(selectors)
}

/// Cancel a job: one that can save a checkpoint is asked to first
#[utoipa::path(delete, path = "/v1/jobs/{id}", params(("id" = u64, Path, description = "Job")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Change(JobAction::Cancel, path_param(id)?)).await?;
    Ok(DONE)
}

macro_rules! job_command {
    ($name:ident, $path:literal, $action:path, $doc:literal) => {
        #[doc = $doc]
        #[utoipa::path(post, path = $path, params(("id" = u64, Path, description = "Job")),
            responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
        pub(super) async fn $name(
            State(api): State<Api>,
            caller: Caller,
            id: Result<Path<u64>, PathRejection>,
        ) -> JsonResult<Done> {
            api.command(caller, UserCommand::Change($action, path_param(id)?)).await?;
            Ok(DONE)
        }
    };
}

job_command!(hold, "/v1/jobs/{id}/hold", JobAction::Hold, "Hold a pending job");
job_command!(release, "/v1/jobs/{id}/release", JobAction::Release, "Release a held job");
job_command!(
    pause,
    "/v1/jobs/{id}/pause",
    JobAction::Pause,
    "Pause a running job; it keeps its devices"
);
job_command!(resume, "/v1/jobs/{id}/resume", JobAction::Resume, "Resume a paused job");
job_command!(
    requeue,
    "/v1/jobs/{id}/requeue",
    JobAction::Requeue,
    "End the process of a job and queue it again, from its checkpoint if it can save one"
);

/// Set the number of sub-batches of a job
#[utoipa::path(put, path = "/v1/jobs/{id}/accum", params(("id" = u64, Path, description = "Job")),
    request_body = AccumBody, responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn accum(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<Done> {
    let (id, body): (u64, AccumBody) = (path_param(id)?, json_body(bytes)?);
    api.command(caller, UserCommand::Accum(id, body.accum)).await?;
    Ok(DONE)
}

/// Drain a device: no further job starts there
#[utoipa::path(post, path = "/v1/devices/{device}/drain", params(("device" = u32, Path, description = "Device")),
    request_body(content = Option<DrainBody>, description = "May be empty"),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn drain(
    State(api): State<Api>,
    caller: Caller,
    device: Result<Path<u32>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<Done> {
    let is_empty = bytes.as_ref().is_ok_and(Bytes::is_empty);
    let reason = if is_empty { None } else { json_body::<DrainBody>(bytes)?.reason };
    let is_long = |text: &String| text.chars().count() > REASON_MAX;
    if reason.as_ref().is_some_and(|text| is_long(text) || text.chars().any(char::is_control)) {
        let message = format!("reason: give at most {REASON_MAX} characters, in one line");
        return Err(ApiError::bad(message));
    }
    let reason = reason.filter(|text| !text.trim().is_empty());
    api.command(caller, UserCommand::Drain(path_param(device)?, reason)).await?;
    Ok(DONE)
}

/// Undrain a device
#[utoipa::path(post, path = "/v1/devices/{device}/undrain", params(("device" = u32, Path, description = "Device")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn undrain(
    State(api): State<Api>,
    caller: Caller,
    device: Result<Path<u32>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Undrain(path_param(device)?)).await?;
    Ok(DONE)
}
