//! The output of jobs, read with the permissions of their users.

use super::asker::blocking;
use super::routes::{find, path_param, query_params};
use super::types::ErrorAnswer;
use super::{Api, ApiError};
use crate::command::Caller;
use crate::job::StoredJob;
use crate::scheduler::Phase;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::io::{Read, Seek, SeekFrom};
use tandem_backends::Owner;
use tandem_backends::local::as_user;
use utoipa::IntoParams;

/// The most bytes of output in one response.
const LOG_MAX: u64 = 4 << 20;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    /// `stdout` or `stderr`.
    stream: Option<String>,
    /// The first byte to return.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    offset: Option<u64>,
    /// The most bytes to return.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    limit: Option<u64>,
}

/// The output of a job; the header x-tandem-size is the size of the file
#[utoipa::path(get, path = "/v1/jobs/{id}/logs", params(("id" = u64, Path, description = "Job"), LogQuery),
    responses((status = 200, description = "The bytes of the output", content_type = "application/octet-stream"),
        (status = "default", body = ErrorAnswer)))]
pub(super) async fn logs(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<LogQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (id, params) = (path_param(id)?, query_params(params)?);
    let job = find(&api, id).await?;
    let file = log_file(&api, &caller, &job, params.stream.as_deref())?;
    // Before the first run has opened its file, a file of that name is of somebody else.
    let has_output = move |present: &crate::cycle::Present<'_>| match present.scheduler.job(id) {
        Some(active) => {
            active.job.runs > 1 || (active.job.runs == 1 && active.phase != Phase::Starting)
        }
        None => job.runs > 0,
    };
    if !api.query(has_output).await? {
        return Ok(
            ([(header::HeaderName::from_static("x-tandem-size"), "0")], Vec::new()).into_response()
        );
    }
    let limit = params.limit.unwrap_or(LOG_MAX).min(LOG_MAX);
    let offset = params.offset.unwrap_or(0);
    let read = move || read_log(&file, offset, limit);
    let (bytes, size) = blocking(read).await??;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::HeaderName::from_static("x-tandem-size"), size.to_string()),
    ];
    Ok((headers, bytes).into_response())
}

/// The output file of a job, and the job's user.
pub(super) struct LogFile {
    file: std::path::PathBuf,
    owner: Owner,
}

/// The file of one of a job's output streams, if the caller may read it.
pub(super) fn log_file(
    api: &Api,
    caller: &Caller,
    job: &StoredJob,
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

/// Reads a file with the permissions of the job's user. A root daemon must not follow a symbolic link to a
/// file that only root may read, nor open a device.
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
        // The job has not written any output yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
        Err(error) => return Err(ApiError::bad(format!("{shown}: {error}"))),
    };
    let metadata = opened.metadata().map_err(|error| ApiError::bad(format!("{shown}: {error}")))?;
    if !metadata.is_file() {
        return Err(ApiError::bad(format!("{shown}: not a regular file")));
    }
    let mut bytes = Vec::new();
    let read = opened
        .seek(SeekFrom::Start(offset))
        .and_then(|_| opened.take(limit).read_to_end(&mut bytes));
    read.map_err(|error| ApiError::bad(format!("{shown}: {error}")))?;
    Ok((bytes, metadata.len()))
}
