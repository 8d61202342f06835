//! The forecast of the whole queue, and what-if.

use super::live_types::{QueueForecast, WhatIfAnswer, WhatIfBody};
use super::routes::{JsonResult, large_body, policy};
use super::types::ErrorAnswer;
use super::{Api, ApiError};
use crate::command::Caller;
use crate::forecast;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, Semaphore};

/// A forecast is served to all callers for at least this long,
const FRESH_MIN: Duration = Duration::from_secs(1);
/// and for this many times as long as it took: forecasts must not load the machine.
const FRESH_FACTOR: u32 = 10;
/// What-if questions that are computed at a time.
static RUNNING: Semaphore = Semaphore::const_new(1);

/// The latest forecast of the queue.
#[derive(Clone, Default)]
pub struct CachedForecast(Arc<Mutex<Option<Computed>>>);

struct Computed {
    at: Instant,
    took: Duration,
    forecast: Arc<QueueForecast>,
}

impl Computed {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH_MIN.max(self.took * FRESH_FACTOR)
    }
}

/// When every job will start and end
#[utoipa::path(get, path = "/v1/forecast", responses(
    (status = 200, body = QueueForecast), (status = "default", body = ErrorAnswer)))]
pub(super) async fn forecast(State(api): State<Api>, _: Caller) -> JsonResult<Arc<QueueForecast>> {
    // A caller waits for a forecast that is under way.
    let mut latest = api.queue_forecast.0.lock().await;
    if let Some(look) = latest.as_ref().filter(|look| look.is_fresh()) {
        return Ok(Json(look.forecast.clone()));
    }
    let policy = policy(&api, None)?;
    let question = api.query(forecast::of_queue).await?;
    let began = Instant::now();
    let work = tokio::task::spawn_blocking(move || question.answer(&policy));
    let made = Arc::new(work.await.map_err(|error| ApiError::internal(error.to_string()))?);
    let look = Computed { at: Instant::now(), took: began.elapsed(), forecast: made.clone() };
    *latest = Some(look);
    Ok(Json(made))
}

/// What a change would bring
#[utoipa::path(post, path = "/v1/what-if", request_body = WhatIfBody, responses(
    (status = 200, body = WhatIfAnswer), (status = "default", body = ErrorAnswer)))]
pub(super) async fn what_if(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<WhatIfAnswer> {
    let change: WhatIfBody = large_body(bytes).await?;
    let (change, checked) = super::asker::blocking(move || {
        let checked = change.job.as_ref().map_or(Ok(()), crate::request::JobRequest::check);
        (change, checked)
    })
    .await?;
    checked.map_err(|error| ApiError::bad(format!("job: {error}")))?;
    let before = policy(&api, None)?;
    let after = policy(&api, change.policy.clone())?;
    let what_if = api.query(move |present| forecast::of_change(present, &caller, change));
    let what_if = what_if.await??;
    let _permit = RUNNING.acquire().await;
    let work = tokio::task::spawn_blocking(move || what_if.answer(&before, &after));
    work.await.map(Json).map_err(|error| ApiError::internal(error.to_string()))
}
