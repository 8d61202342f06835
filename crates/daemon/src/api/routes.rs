//! The routes of the HTTP API, and their OpenAPI description.

use super::asker::{blocking, with_asker};
use super::auth::{Tcp, with_token};
use super::bodies::{BODY_MAX, read_body, too_large};
use super::connections::{ConnectionLimits, TlsListener, serve_listener};
use super::types::{
    Classes, DaemonInfo, Devices, Done, ErrorAnswer, Explanation, JobAnswer, JobChange, JobPage,
    SCHEMA, Submitted, Usage, UsageRow, UserUsage,
};
use super::web::{self, Web};
use super::{
    Api, ApiError, changes, dashboard, events, logs, metrics, reservations, responses, token_routes,
};
use crate::command::{Caller, UserCommand};
use crate::job::{JobState, StoredJob};
use crate::request::{CheckedRequest, JobRequest};
use crate::scheduler::{Active, View};
use crate::store::{GroupTotal, JobFilter, JobRows, StoreReader, UsageBy};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};
use utoipa::{IntoParams, OpenApi};

const PAGE_MAX: u32 = 10_000;
/// A body from this size on is parsed on a thread of its own.
const LARGE_BODY: usize = 32 << 10;

/// Serves the unix socket, and TCP and the dashboard if they have listeners, until the daemon shuts down.
pub(crate) async fn serve(api: Api, unix: super::UnixSocket, tcp: Option<Tcp>, web: Option<Web>) {
    let limits = ConnectionLimits::new(api.uid);
    let unix = serve_listener(unix, router(api.clone()), limits.clone(), api.shutdown.clone());
    tokio::join!(unix, serve_tcp(&api, tcp, limits.clone()), serve_web(&api, web, limits));
}

async fn serve_tcp(api: &Api, tcp: Option<Tcp>, limits: ConnectionLimits) {
    let Some(Tcp { listener, tls }) = tcp else { return };
    let app = router(api.clone()).layer(middleware::from_fn_with_state(api.clone(), with_token));
    let shutdown = api.shutdown.clone();
    match tls {
        Some(tls) => {
            let listener = TlsListener { listener, acceptor: tls.into() };
            serve_listener(listener, app, limits, shutdown).await;
        }
        None => serve_listener(listener, app, limits, shutdown).await,
    }
}

async fn serve_web(api: &Api, web: Option<Web>, limits: ConnectionLimits) {
    let Some(Web { listener, tls }) = web else { return };
    let listener = TlsListener { listener, acceptor: tls.into() };
    let app = web::with_sessions(router(api.clone()), api.clone());
    serve_listener(listener, app, limits, api.shutdown.clone()).await;
}

fn router(api: Api) -> Router {
    let (bodies, askers) = (api.bodies.clone(), api.askers.clone());
    let jobs = Router::new()
        .route("/", post(submit).get(list))
        .route("/dry-run", post(dry_run))
        .route("/change", post(changes::change))
        .route("/{id}", get(info).delete(changes::cancel))
        .route("/{id}/explain", get(explain))
        .route("/{id}/logs", get(logs::logs))
        .route("/{id}/hold", post(changes::hold))
        .route("/{id}/release", post(changes::release))
        .route("/{id}/pause", post(changes::pause))
        .route("/{id}/resume", post(changes::resume))
        .route("/{id}/requeue", post(changes::requeue))
        .route("/{id}/accum", put(changes::accum));
    Router::new()
        .nest("/v1/jobs", jobs)
        .route("/v1/devices", get(devices))
        .route("/v1/devices/{device}/drain", post(changes::drain))
        .route("/v1/devices/{device}/undrain", post(changes::undrain))
        .route("/v1/classes", get(classes))
        .route("/v1/usage", get(usage))
        .route("/v1/reservations", post(reservations::create).get(reservations::list))
        .route("/v1/reservations/{id}", delete(reservations::cancel))
        .route("/v1/tokens", post(token_routes::create).get(token_routes::list))
        .route("/v1/tokens/{id}", delete(token_routes::revoke))
        .route("/v1/info", get(daemon))
        .route("/events", get(events::events))
        .route("/openapi.json", get(description))
        .route("/metrics", get(prometheus))
        .route("/healthz", get(health))
        .merge(dashboard::routes())
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path; see /openapi.json")
        })
        .method_not_allowed_fallback(async || {
            let message = "this path does not support that method; see /openapi.json";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", message)
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(bodies, read_body))
        .layer(middleware::from_fn_with_state(askers, with_asker))
        .with_state(api)
}

/// The OpenAPI description of the HTTP API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = Description::openapi();
    description.merge(dashboard::DashboardRoutes::openapi());
    description
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Tandem", description = "Shares GPUs between deep-learning jobs where that pays"),
    paths(
        submit, list, dry_run, changes::change, info, changes::cancel, explain, logs::logs, changes::hold,
        changes::release, changes::pause, changes::resume, changes::requeue, changes::accum, devices,
        changes::drain, changes::undrain, classes, usage, reservations::create, reservations::list,
        reservations::cancel, token_routes::create, token_routes::list,
        token_routes::revoke, daemon, events::events, description, prometheus, health
    ),
    components(schemas(JobChange, ErrorAnswer)),
    modifiers(&TokenSecurity),
    security((), ("token" = []))
)]
struct Description;

/// Documents the bearer token that TCP requires.
struct TokenSecurity;

impl utoipa::Modify for TokenSecurity {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let about = "Over TCP: a token of the user, made with tandem token create. On the unix socket the kernel identifies the user (SO_PEERCRED).";
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

pub(super) type JsonResult<T> = Result<Json<T>, ApiError>;

/// Parses a JSON body.
pub(super) fn json_body<T: DeserializeOwned>(
    bytes: Result<Bytes, BytesRejection>,
) -> Result<T, ApiError> {
    let bytes = bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => ApiError::bad(rejection.body_text()),
    })?;
    // A list would do where fields are expected, in their order, which nobody wants to depend on.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|&byte| byte == b'[') {
        return Err(ApiError::bad("body: is a list; give an object"));
    }
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad(format!("body: {error}")))
}

/// Parses a JSON body that may be large: others are served meanwhile.
pub(super) async fn large_body<T: DeserializeOwned + Send + 'static>(
    bytes: Result<Bytes, BytesRejection>,
) -> Result<T, ApiError> {
    if bytes.as_ref().is_ok_and(|bytes| bytes.len() > LARGE_BODY) {
        return blocking(move || json_body(bytes)).await?;
    }
    json_body(bytes)
}

pub(super) fn path_param<T>(path: Result<Path<T>, PathRejection>) -> Result<T, ApiError> {
    path.map(|Path(value)| value).map_err(|rejection| ApiError::bad(rejection.body_text()))
}

pub(super) fn query_params<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(value)| value).map_err(|rejection| ApiError::bad(rejection.body_text()))
}

pub(super) const DONE: Json<Done> = Json(Done { schema: SCHEMA });

/// Submit a job, or several tasks at once
#[utoipa::path(post, path = "/v1/jobs", request_body = JobRequest, responses(
    (status = 201, body = Submitted), (status = "default", body = ErrorAnswer)))]
async fn submit(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let request: JobRequest = large_body(bytes).await?;
    if request.webhook.is_some() && !api.webhooks {
        let message = "webhook: webhooks are disabled on this daemon; see daemon.webhooks";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let request = check(request).await?;
    let ids = api.command(caller, UserCommand::Submit(Box::new(request))).await?.new;
    let new = ids.clone();
    let outlook = api.query(move |present| crate::reasons::outlook(present, &new)).await?;
    Ok((StatusCode::CREATED, Json(Submitted { schema: SCHEMA, ids, outlook })).into_response())
}

/// Checks a request beside the scheduling loop, which never does work that a user can size.
async fn check(request: JobRequest) -> Result<CheckedRequest, ApiError> {
    let checked = blocking(move || CheckedRequest::new(request)).await?;
    checked.map_err(|error| ApiError::bad(error.to_string()))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct PolicyQuery {
    /// A policy other than the one of the daemon.
    policy: Option<String>,
}

/// Forecast a job without submitting it
#[utoipa::path(post, path = "/v1/jobs/dry-run", request_body = JobRequest, params(PolicyQuery),
    responses((status = 200, body = Explanation), (status = "default", body = ErrorAnswer)))]
async fn dry_run(
    State(api): State<Api>,
    caller: Caller,
    params: Result<Query<PolicyQuery>, QueryRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<Explanation> {
    let asked = Instant::now();
    let (request, params): (JobRequest, _) = (large_body(bytes).await?, query_params(params)?);
    let request = check(request).await?.into_request();
    let policy = policy(&api, params.policy)?;
    let question = api.query(move |present| crate::forecast::of_request(present, &caller, request));
    let question = question.await??;
    run_forecast(question, policy, asked).await
}

pub(super) fn policy(
    api: &Api,
    named: Option<String>,
) -> Result<tandem_policies::PolicySpec, ApiError> {
    let text = named.unwrap_or_else(|| api.policy.clone());
    tandem_policies::PolicySpec::parse(&text)
        .map_err(|error| ApiError::bad(format!("policy: {error}")))
}

/// Answers within two seconds, with what is known without a forecast if that takes longer or too many others
/// are under way.
async fn run_forecast(
    question: crate::forecast::Question,
    policy: tandem_policies::PolicySpec,
    asked: Instant,
) -> JsonResult<Explanation> {
    /// Forecasts at a time.
    static FORECASTS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);
    const TURN_WITHIN: Duration = Duration::from_millis(400);
    /// Of the time since it was asked; the scheduler may have kept the question waiting.
    const ANSWER_WITHIN: Duration = Duration::from_millis(1700);
    let mut known = question.known(&policy);
    known.start_note = Some("the forecast takes too long at present".to_owned());
    let Ok(Ok(permit)) = tokio::time::timeout(TURN_WITHIN, FORECASTS.acquire()).await else {
        return Ok(Json(known));
    };
    let work = tokio::task::spawn_blocking(move || {
        // Held until the work is over, also if nobody waits for it any more.
        let _permit = permit;
        question.answer(&policy)
    });
    let left = ANSWER_WITHIN.saturating_sub(asked.elapsed());
    match tokio::time::timeout(left, work).await {
        Ok(answer) => answer.map(Json).map_err(|error| ApiError::internal(error.to_string())),
        Err(_) => Ok(Json(known)),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// States, separated by commas; `active` stands for all that are not terminal.
    state: Option<String>,
    /// Jobs of this user.
    user: Option<String>,
    /// Jobs after this id, in the order of the page.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<u64>,
    /// The most jobs on a page; 1000 by default.
    #[param(maximum = 4_294_967_295_i64)]
    limit: Option<u32>,
    /// `asc` or `desc`.
    order: Option<String>,
}

impl ListQuery {
    fn filter(self) -> Result<JobFilter, ApiError> {
        let mut states = Vec::new();
        for name in self.state.iter().flat_map(|list| list.split(',')) {
            if name == "active" {
                states.extend(JobState::ALL.into_iter().filter(|state| !state.is_over()));
                continue;
            }
            let known = || {
                let names: Vec<&str> = JobState::ALL.iter().map(|state| state.name()).collect();
                names.join(", ")
            };
            states.push(JobState::parse(name).ok_or_else(|| {
                let name = name.escape_debug();
                ApiError::bad(format!("state: unknown state '{name}'; give active, {}", known()))
            })?);
        }
        let descending = match self.order.as_deref() {
            None | Some("asc") => false,
            Some("desc") => true,
            Some(_) => return Err(ApiError::bad("order: give asc or desc")),
        };
        let limit = self.limit.unwrap_or(1000).clamp(1, PAGE_MAX);
        Ok(JobFilter { states, user: self.user, after: self.after, descending, limit })
    }
}

/// A page of jobs
#[utoipa::path(get, path = "/v1/jobs", params(ListQuery), responses(
    (status = 200, body = JobPage), (status = "default", body = ErrorAnswer)))]
async fn list(
    State(api): State<Api>,
    caller: Caller,
    params: Result<Query<ListQuery>, QueryRejection>,
) -> JsonResult<JobPage> {
    let filter = query_params(params)?.filter()?;
    let descending = filter.descending;
    let states = filter.states.clone();
    let JobRows { jobs, next_after } = api.read(move |reader| reader.page(&filter)).await?;
    let line = {
        let daemon_uid = api.uid;
        move |job: &StoredJob, view: Option<&View>| {
            responses::line(job, view, caller.may_change(job.uid, daemon_uid))
        }
    };
    let shown = line.clone();
    // Active jobs are shown with their current state.
    let live = move |present: &crate::cycle::Present<'_>| {
        let (mut lines, mut ended) = (Vec::new(), Vec::new());
        for job in &jobs {
            match present.scheduler.job(job.id) {
                Some(Active { job, .. }) => {
                    let view = present.scheduler.view(job.id, present.now.time());
                    lines.push(shown(job, view.as_ref()));
                }
                None if job.state.is_over() => lines.push(shown(job, None)),
                None => ended.push(job.id),
            }
        }
        (lines, ended)
    };
    let (mut lines, ended) = api.query(live).await?;
    // Jobs that ended in between are read again: their stored record is stale, and shown beside jobs that
    // started in their place it would be inconsistent.
    if !ended.is_empty() {
        let read = move |reader: &StoreReader| ended.iter().map(|&id| reader.job(id)).collect();
        let over: Vec<Option<StoredJob>> = api.read(read).await?;
        lines.extend(over.iter().flatten().map(|job| line(job, None)));
        lines.sort_by_key(|line| line.id);
        if descending {
            lines.reverse();
        }
    }
    lines.retain(|line| states.is_empty() || states.contains(&line.state));
    Ok(Json(JobPage { schema: SCHEMA, jobs: lines, next_after }))
}

/// A job as stored.
pub(super) async fn find(api: &Api, id: u64) -> Result<StoredJob, ApiError> {
    api.read(move |reader| reader.job(id)).await?.ok_or_else(|| ApiError::no_job(id))
}

/// Everything about a job
#[utoipa::path(get, path = "/v1/jobs/{id}", params(("id" = u64, Path, description = "Job")),
    responses((status = 200, body = JobAnswer), (status = "default", body = ErrorAnswer)))]
async fn info(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
) -> JsonResult<JobAnswer> {
    let id = path_param(id)?;
    let job = find(&api, id).await?;
    let env = if caller.may_change(job.uid, api.uid) {
        Some(api.read(move |reader| reader.env(id)).await?)
    } else {
        None
    };
    let shown = env.clone();
    let live = move |present: &crate::cycle::Present<'_>| {
        let view = present.scheduler.view(id, present.now.time());
        let active = present.scheduler.job(id).map(|active| &active.job);
        let job = active.or_else(|| job.state.is_over().then_some(&job))?;
        Some(responses::info(job, view.as_ref(), shown, present))
    };
    let mut shown = match api.query(live).await? {
        Some(shown) => shown,
        // It ended after it was read from the store.
        None => {
            let job = find(&api, id).await?;
            api.query(move |present| responses::info(&job, None, env, present)).await?
        }
    };
    // A token may be for reading only.
    shown.may_change &= caller.rights.submit || caller.is_operator(api.uid);
    Ok(Json(JobAnswer { schema: SCHEMA, job: shown }))
}

/// Why a job is pending and when it is expected to start
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", params(("id" = u64, Path, description = "Job"), PolicyQuery),
    responses((status = 200, body = Explanation), (status = "default", body = ErrorAnswer)))]
async fn explain(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<PolicyQuery>, QueryRejection>,
) -> JsonResult<Explanation> {
    let asked = Instant::now();
    let (id, params) = (path_param(id)?, query_params(params)?);
    let policy = policy(&api, params.policy)?;
    let job = find(&api, id).await?;
    let sees_all = caller.may_change(job.uid, api.uid);
    match api.query(move |present| crate::forecast::of_job(present, id, sees_all)).await? {
        Some(question) => run_forecast(question, policy, asked).await,
        // It may have ended after it was read from the store.
        None => Ok(Json(crate::forecast::of_the_past(&find(&api, id).await?, policy.text))),
    }
}

/// The devices and their jobs
#[utoipa::path(get, path = "/v1/devices", responses(
    (status = 200, body = Devices), (status = "default", body = ErrorAnswer)))]
async fn devices(State(api): State<Api>, _: Caller) -> JsonResult<Devices> {
    let provider = api.provider.clone();
    Ok(Json(api.query(move |present| responses::devices(present, &provider)).await?))
}

/// What has been learned about job classes
#[utoipa::path(get, path = "/v1/classes", responses(
    (status = 200, body = Classes), (status = "default", body = ErrorAnswer)))]
async fn classes(State(api): State<Api>, caller: Caller) -> JsonResult<Classes> {
    let is_operator = caller.uid == 0 || caller.uid == api.uid;
    let sees = move |uid: u32| is_operator || uid == caller.uid;
    Ok(Json(api.query(move |present| responses::classes(present, sees)).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    /// Unix time in seconds: counts jobs that ended since then or have not ended.
    #[serde(default, deserialize_with = "super::params::seconds")]
    #[param(minimum = 0)]
    since: Option<f64>,
    /// Rows by `user`, `account` and `month`, separated by commas.
    by: Option<String>,
}

/// GPU-hours by user
#[utoipa::path(get, path = "/v1/usage", params(UsageQuery), responses(
    (status = 200, body = Usage), (status = "default", body = ErrorAnswer)))]
async fn usage(
    State(api): State<Api>,
    _: Caller,
    params: Result<Query<UsageQuery>, QueryRejection>,
) -> JsonResult<Usage> {
    let UsageQuery { since, by } = query_params(params)?;
    let since_us = since.map_or(0, |since| (since * 1e6) as u64);
    let rows = match by {
        Some(text) => usage_rows(&api, since_us, &text).await?,
        None => Vec::new(),
    };
    let totals = api.read(move |reader| reader.usage(since_us)).await?;
    let hours = |us: u64| us as f64 / 3.6e9;
    let users = totals.into_iter().map(|total| UserUsage {
        user: total.user,
        jobs: total.jobs,
        gpu_hours: hours(total.gpu_us),
        shared_gpu_hours: hours(total.shared_gpu_us),
    });
    Ok(Json(Usage { schema: SCHEMA, users: users.collect(), rows }))
}

/// Usage by the words of a list.
async fn usage_rows(api: &Api, since_us: u64, by: &str) -> Result<Vec<UsageRow>, ApiError> {
    let mut wanted = UsageBy::default();
    for word in by.split(',') {
        match word {
            "user" => wanted.user = true,
            "account" => wanted.account = true,
            "month" => wanted.month = true,
            _ => return Err(ApiError::bad("by: give user, account and month, with commas")),
        }
    }
    let totals = api.read(move |reader| reader.usage_by(since_us, wanted)).await?;
    let hours = |us: u64| us as f64 / 3.6e9;
    let row = |total: GroupTotal| {
        let [user, account, month] = total.of;
        let (gpu_hours, shared_gpu_hours) = (hours(total.gpu_us), hours(total.shared_gpu_us));
        UsageRow { user, account, month, jobs: total.jobs, gpu_hours, shared_gpu_hours }
    };
    Ok(totals.into_iter().map(row).collect())
}

/// Version, policy and state of the daemon
#[utoipa::path(get, path = "/v1/info", responses(
    (status = 200, body = DaemonInfo), (status = "default", body = ErrorAnswer)))]
async fn daemon(State(api): State<Api>, _: Caller) -> JsonResult<DaemonInfo> {
    let own = api.clone();
    Ok(Json(api.query(move |present| responses::daemon(present, &own)).await?))
}

/// This description
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Object),
    (status = "default", body = ErrorAnswer)))]
async fn description() -> Json<utoipa::openapi::OpenApi> {
    Json(openapi())
}

/// Metrics for Prometheus
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"),
    (status = "default", body = ErrorAnswer)))]
async fn prometheus(State(api): State<Api>) -> Result<Response, ApiError> {
    let text = api.query(metrics::text).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Whether the scheduling loop responds and the store can be written
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String, content_type = "text/plain"),
    (status = "default", body = ErrorAnswer)))]
async fn health(State(api): State<Api>) -> Result<&'static str, ApiError> {
    if let Some(trouble) = api.query(|present| present.trouble.map(str::to_owned)).await? {
        let message = format!("the store cannot be written: {trouble}");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message));
    }
    Ok("ok\n")
}
