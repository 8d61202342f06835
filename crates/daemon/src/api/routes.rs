//! The paths of the interface, and their description.

use super::auth::{Tcp, with_token};
use super::connections::{ConnectionLimits, serve_tcp, serve_unix};
use super::types::{
    AccumBody, Classes, DaemonInfo, Devices, Done, ErrorAnswer, Explanation, JobAnswer, JobChange,
    JobPage, SCHEMA, Submitted, Usage, UserUsage,
};
use super::{Api, ApiError, dashboard, events, metrics, responses};
use crate::command::{Caller, UserCommand};
use crate::job::{Job, JobState};
use crate::request::JobRequest;
use crate::scheduler::{Active, View};
use crate::store::{JobFilter, StoreReader};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use tandem_backends::Owner;
use tandem_backends::local::as_user;
use tokio::net::UnixListener;
use utoipa::{IntoParams, OpenApi};

/// The largest request: 4 MiB hold the largest environment and command twice over.
const BODY_MAX: usize = 4 << 20;
const PAGE_MAX: u32 = 10_000;
const LOG_MAX: u64 = 4 << 20;

/// Serves the unix socket, and TCP if there is a listener, until the daemon leaves.
pub(crate) async fn serve(api: Api, unix: UnixListener, tcp: Option<Tcp>) {
    let limits = ConnectionLimits::new(api.uid);
    let on_unix = serve_unix(unix, router(api.clone()), limits.clone(), api.shutdown.clone());
    let Some(Tcp { listener, token }) = tcp else {
        return on_unix.await;
    };
    let uid = api.uid;
    let gid = rustix::process::getgid().as_raw();
    let caller = Caller { uid, gid, user: crate::users::name(uid) };
    let app = router(api.clone())
        .layer(middleware::from_fn_with_state((Arc::new(token), caller), with_token));
    let on_tcp = serve_tcp(listener, app, limits, api.shutdown.clone());
    tokio::join!(on_unix, on_tcp);
}

fn router(api: Api) -> Router {
    let jobs = Router::new()
        .route("/", post(submit).get(list))
        .route("/dry-run", post(dry_run))
        .route("/{id}", get(info).delete(cancel))
        .route("/{id}/explain", get(explain))
        .route("/{id}/logs", get(logs))
        .route("/{id}/hold", post(hold))
        .route("/{id}/release", post(release))
        .route("/{id}/pause", post(pause))
        .route("/{id}/resume", post(resume))
        .route("/{id}/accum", put(accum));
    Router::new()
        .nest("/v1/jobs", jobs)
        .route("/v1/devices", get(devices))
        .route("/v1/devices/{device}/drain", post(drain))
        .route("/v1/devices/{device}/undrain", post(undrain))
        .route("/v1/classes", get(classes))
        .route("/v1/usage", get(usage))
        .route("/v1/info", get(daemon))
        .route("/events", get(events::events))
        .route("/openapi.json", get(description))
        .route("/metrics", get(prometheus))
        .route("/healthz", get(health))
        .merge(dashboard::routes())
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such path")
        })
        .method_not_allowed_fallback(async || {
            let message = "this path does not know that method";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "bad_request", message)
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(api)
}

/// The interface as OpenAPI describes it.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut description = Description::openapi();
    description.merge(dashboard::Description::openapi());
    description
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Tandem", description = "Shares GPUs between deep-learning jobs where that pays"),
    paths(
        submit, list, dry_run, info, cancel, explain, logs, hold, release, pause, resume, accum, devices,
        drain, undrain, classes, usage, daemon, events::events, description, prometheus, health
    ),
    components(schemas(JobChange, ErrorAnswer)),
    modifiers(&Token),
    security((), ("token" = []))
)]
struct Description;

/// Documents the bearer token that TCP requires.
struct Token;

impl utoipa::Modify for Token {
    fn modify(&self, description: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
        let about = "Over TCP: the token of the daemon's file. On the unix socket the system says who asks.";
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
        let components = description.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

pub(super) type JsonResult<T> = Result<Json<T>, ApiError>;

/// A body of JSON; whatever is wrong with it is said in our way.
pub(super) fn json_body<T: DeserializeOwned>(
    bytes: Result<Bytes, BytesRejection>,
) -> Result<T, ApiError> {
    let bytes = bytes.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = "the request is larger than 4 MiB; put large things into files";
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        }
        _ => ApiError::bad(rejection.body_text()),
    })?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::bad(format!("body: {error}")))
}

pub(super) fn path_param<T>(path: Result<Path<T>, PathRejection>) -> Result<T, ApiError> {
    path.map(|Path(value)| value).map_err(|rejection| ApiError::bad(rejection.body_text()))
}

pub(super) fn query_params<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(value)| value).map_err(|rejection| ApiError::bad(rejection.body_text()))
}

const DONE: Json<Done> = Json(Done { schema: SCHEMA });

/// Hand in a job, or several at once
#[utoipa::path(post, path = "/v1/jobs", request_body = JobRequest, responses(
    (status = 201, body = Submitted), (status = "default", body = ErrorAnswer)))]
async fn submit(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let request: JobRequest = json_body(bytes)?;
    if request.webhook.is_some() && !api.webhooks {
        let message = "webhook: this daemon calls none; see daemon.webhooks";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let ids = api.command(caller, UserCommand::Submit(Box::new(request))).await?;
    Ok((StatusCode::CREATED, Json(Submitted { schema: SCHEMA, ids })).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct PolicyQuery {
    /// Another policy than that of the daemon.
    policy: Option<String>,
}

/// What would become of a job, without handing it in
#[utoipa::path(post, path = "/v1/jobs/dry-run", request_body = JobRequest, params(PolicyQuery),
    responses((status = 200, body = Explanation), (status = "default", body = ErrorAnswer)))]
async fn dry_run(
    State(api): State<Api>,
    caller: Caller,
    params: Result<Query<PolicyQuery>, QueryRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<Explanation> {
    let (request, params): (JobRequest, _) = (json_body(bytes)?, query_params(params)?);
    request.check().map_err(|error| ApiError::bad(error.to_string()))?;
    let policy = policy(&api, params.policy)?;
    let question = api.query(move |present| crate::forecast::of_request(present, &caller, request));
    let question = question.await??;
    run_forecast(question, policy).await
}

pub(super) fn policy(
    api: &Api,
    named: Option<String>,
) -> Result<tandem_policies::PolicySpec, ApiError> {
    let text = named.unwrap_or_else(|| api.policy.clone());
    tandem_policies::PolicySpec::parse(&text)
        .map_err(|error| ApiError::bad(format!("policy: {error}")))
}

async fn run_forecast(
    question: crate::forecast::Question,
    policy: tandem_policies::PolicySpec,
) -> JsonResult<Explanation> {
    /// Looks ahead that are taken at a time; they may take seconds.
    static FORECASTS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);
    let _turn = FORECASTS.acquire().await;
    let work = tokio::task::spawn_blocking(move || question.answer(&policy));
    work.await.map(Json).map_err(|error| ApiError::internal(error.to_string()))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    /// States, separated by commas; `active` stands for all that are not over.
    state: Option<String>,
    /// Of this user.
    user: Option<String>,
    /// Beyond this number.
    after: Option<u64>,
    /// At most so many, 1000 unless told.
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
                ApiError::bad(format!("state: '{name}' is none of active, {}", known()))
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
    let (limit, descending) = (filter.limit as usize, filter.descending);
    let states = filter.states.clone();
    let jobs: Vec<Job> = api.read(move |reader| reader.page(&filter)).await?;
    let next_after = jobs.last().filter(|_| jobs.len() == limit).map(|job| job.id);
    let line = {
        let daemon_uid = api.uid;
        move |job: &Job, view: Option<&View>| {
            responses::line(job, view, caller.may_change(job.uid, daemon_uid))
        }
    };
    let shown = line.clone();
    // Those that are not over are shown as they are at this moment.
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
    // Those that ended after they were read are read again: they would be shown as they were, beside
    // whoever came in their place.
    if !ended.is_empty() {
        let read = move |reader: &StoreReader| ended.iter().map(|&id| reader.job(id)).collect();
        let over: Vec<Option<Job>> = api.read(read).await?;
        lines.extend(over.iter().flatten().map(|job| line(job, None)));
        lines.sort_by_key(|line| line.id);
        if descending {
            lines.reverse();
        }
    }
    lines.retain(|line| states.is_empty() || states.contains(&line.state));
    Ok(Json(JobPage { schema: SCHEMA, jobs: lines, next_after }))
}

/// A job as it is, and how it does.
pub(super) async fn find(api: &Api, id: u64) -> Result<Job, ApiError> {
    api.read(move |reader| reader.job(id)).await?.ok_or_else(|| ApiError::no_job(id))
}

/// All about a job
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
    let shown = match api.query(live).await? {
        Some(shown) => shown,
        // It ended after it was read.
        None => {
            let job = find(&api, id).await?;
            api.query(move |present| responses::info(&job, None, env, present)).await?
        }
    };
    Ok(Json(JobAnswer { schema: SCHEMA, job: shown }))
}

/// Withdraw a job
#[utoipa::path(delete, path = "/v1/jobs/{id}", params(("id" = u64, Path, description = "Job")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Cancel(path_param(id)?)).await?;
    Ok(DONE)
}

/// Why a job waits and when it will start
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", params(("id" = u64, Path, description = "Job"), PolicyQuery),
    responses((status = 200, body = Explanation), (status = "default", body = ErrorAnswer)))]
async fn explain(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<PolicyQuery>, QueryRejection>,
) -> JsonResult<Explanation> {
    let (id, params) = (path_param(id)?, query_params(params)?);
    let policy = policy(&api, params.policy)?;
    let job = find(&api, id).await?;
    let sees_all = caller.may_change(job.uid, api.uid);
    match api.query(move |present| crate::forecast::of_job(present, id, sees_all)).await? {
        Some(question) => run_forecast(question, policy).await,
        // It may have ended after it was read.
        None => Ok(Json(crate::forecast::of_the_past(&find(&api, id).await?, policy.text))),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct LogQuery {
    /// `stdout` or `stderr`.
    stream: Option<String>,
    /// From this byte on.
    offset: Option<u64>,
    /// At most so many bytes.
    limit: Option<u64>,
}

/// What a job printed; the header x-tandem-size tells the size of the file
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", params(("id" = u64, Path, description = "Job"), LogQuery),
    responses((status = 200, description = "Bytes as they were printed", content_type = "application/octet-stream"),
        (status = "default", body = ErrorAnswer)))]
async fn logs(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (id, params) = (path_param(id)?, query_params(params)?);
    let job = find(&api, id).await?;
    let file = log_file(&api, &caller, &job, params.stream.as_deref())?;
    let limit = params.limit.unwrap_or(LOG_MAX).min(LOG_MAX);
    let offset = params.offset.unwrap_or(0);
    let read = move || read_log(&file, offset, limit);
    let read = tokio::task::spawn_blocking(read).await;
    let (bytes, size) = read.map_err(|error| ApiError::internal(error.to_string()))??;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::HeaderName::from_static("x-tandem-size"), size.to_string()),
    ];
    Ok((headers, bytes).into_response())
}

/// A file that a job prints to, and its user.
pub(super) struct LogFile {
    file: std::path::PathBuf,
    owner: Owner,
}

/// The file of one of a job's streams, for those who may read it.
pub(super) fn log_file(
    api: &Api,
    caller: &Caller,
    job: &Job,
    stream: Option<&str>,
) -> Result<LogFile, ApiError> {
    let id = job.id;
    if !caller.may_change(job.uid, api.uid) {
        let message = format!("job {id} is not yours");
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    if job.external.is_some() {
        return Err(ApiError::bad(format!("job {id} runs in a cluster, which has its output")));
    }
    let file = match stream {
        None | Some("stdout") => job.stdout(),
        Some("stderr") => job.stderr().unwrap_or_else(|| job.stdout()),
        Some(_) => return Err(ApiError::bad("stream: give stdout or stderr")),
    };
    Ok(LogFile { file, owner: Owner { uid: job.uid, gid: job.gid } })
}

/// Reads a file as the job's user: a root daemon must not read for somebody what only root may, by way of
/// a link in the place of the log, nor touch a device.
pub(super) fn read_log(
    LogFile { file, owner }: &LogFile,
    offset: u64,
    limit: u64,
) -> Result<(Vec<u8>, u64), ApiError> {
    use std::os::unix::fs::OpenOptionsExt;
    let shown = file.display();
    let flags = rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(flags);
    let mut opened = match as_user(Some(*owner), || options.open(file)).and_then(|opened| opened) {
        Ok(opened) => opened,
        // It has printed nothing yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(ApiError::bad(format!("{shown}: {error}"))),
    };
    let metadata = opened.metadata().map_err(|error| ApiError::bad(format!("{shown}: {error}")))?;
    if !metadata.is_file() {
        return Err(ApiError::bad(format!("{shown}: is no file")));
    }
    let mut bytes = Vec::new();
    let read = opened
        .seek(SeekFrom::Start(offset))
        .and_then(|_| opened.take(limit).read_to_end(&mut bytes));
    read.map_err(|error| ApiError::bad(format!("{shown}: {error}")))?;
    Ok((bytes, metadata.len()))
}

macro_rules! job_command {
    ($name:ident, $path:literal, $command:path, $doc:literal) => {
        #[doc = $doc]
        #[utoipa::path(post, path = $path, params(("id" = u64, Path, description = "Job")),
            responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
        async fn $name(
            State(api): State<Api>,
            caller: Caller,
            id: Result<Path<u64>, PathRejection>,
        ) -> JsonResult<Done> {
            api.command(caller, $command(path_param(id)?)).await?;
            Ok(DONE)
        }
    };
}

job_command!(hold, "/v1/jobs/{id}/hold", UserCommand::Hold, "Keep a job waiting");
job_command!(release, "/v1/jobs/{id}/release", UserCommand::Release, "Let a held job go on");
job_command!(
    pause,
    "/v1/jobs/{id}/pause",
    UserCommand::Pause,
    "Let a job stand still on its devices"
);
job_command!(resume, "/v1/jobs/{id}/resume", UserCommand::Resume, "Let a paused job go on");

/// Say in how many parts a job computes its batches
#[utoipa::path(put, path = "/v1/jobs/{id}/accum", params(("id" = u64, Path, description = "Job")),
    request_body = AccumBody, responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
async fn accum(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> JsonResult<Done> {
    let (id, body): (u64, AccumBody) = (path_param(id)?, json_body(bytes)?);
    api.command(caller, UserCommand::Accum(id, body.accum)).await?;
    Ok(DONE)
}

/// The devices and who is there
#[utoipa::path(get, path = "/v1/devices", responses(
    (status = 200, body = Devices), (status = "default", body = ErrorAnswer)))]
async fn devices(State(api): State<Api>, _: Caller) -> JsonResult<Devices> {
    let provider = api.provider.clone();
    Ok(Json(api.query(move |present| responses::devices(present, &provider)).await?))
}

/// Let a device run dry
#[utoipa::path(post, path = "/v1/devices/{device}/drain", params(("device" = u32, Path, description = "Device")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
async fn drain(
    State(api): State<Api>,
    caller: Caller,
    device: Result<Path<u32>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Drain(path_param(device)?)).await?;
    Ok(DONE)
}

/// Use a drained device again
#[utoipa::path(post, path = "/v1/devices/{device}/undrain", params(("device" = u32, Path, description = "Device")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
async fn undrain(
    State(api): State<Api>,
    caller: Caller,
    device: Result<Path<u32>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Undrain(path_param(device)?)).await?;
    Ok(DONE)
}

/// What is known about classes of jobs
#[utoipa::path(get, path = "/v1/classes", responses(
    (status = 200, body = Classes), (status = "default", body = ErrorAnswer)))]
async fn classes(State(api): State<Api>, _: Caller) -> JsonResult<Classes> {
    Ok(Json(api.query(responses::classes).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    /// Jobs that ended since then, in seconds since 1970, or have not.
    since: Option<f64>,
}

/// GPU-hours by user
#[utoipa::path(get, path = "/v1/usage", params(UsageQuery), responses(
    (status = 200, body = Usage), (status = "default", body = ErrorAnswer)))]
async fn usage(
    State(api): State<Api>,
    _: Caller,
    params: Result<Query<UsageQuery>, QueryRejection>,
) -> JsonResult<Usage> {
    let since_us = query_params(params)?.since.map_or(0, |since| (since * 1e6) as u64);
    let totals = api.read(move |reader| reader.usage(since_us)).await?;
    let hours = |us: u64| us as f64 / 3.6e9;
    let users = totals.into_iter().map(|total| UserUsage {
        user: total.user,
        jobs: total.jobs,
        gpu_hours: hours(total.gpu_us),
        shared_gpu_hours: hours(total.shared_gpu_us),
    });
    Ok(Json(Usage { schema: SCHEMA, users: users.collect() }))
}

/// What the daemon is
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

/// Figures for Prometheus
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"),
    (status = "default", body = ErrorAnswer)))]
async fn prometheus(State(api): State<Api>) -> Result<Response, ApiError> {
    let text = api.query(metrics::text).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

/// Whether the daemon does its work
#[utoipa::path(get, path = "/healthz", responses((status = 200, body = String, content_type = "text/plain"),
    (status = "default", body = ErrorAnswer)))]
async fn health(State(api): State<Api>) -> Result<&'static str, ApiError> {
    api.query(|_| ()).await?;
    Ok("ok\n")
}
