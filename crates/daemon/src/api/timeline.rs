//! What happened: placements over time, what sharing gained, decisions and series.

use super::live_types::{
    DecisionInfo, Decisions, DeviceSeries, JobSeries, MachineSeries, PlacementInfo, Savings,
    Timeline,
};
use super::routes::{JsonResult, find, path_param, query_params};
use super::types::{ErrorAnswer, SCHEMA};
use super::{Api, ApiError};
use crate::command::Caller;
use crate::cycle::Present;
use crate::history::PlacementRecord;
use crate::savings;
use crate::store::PlacementFilter;
use crate::time::iso;
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use std::collections::BTreeMap;
use utoipa::IntoParams;

const PAGE_MAX: u32 = 20_000;
const PAGE_DEFAULT: u32 = 5_000;
/// Placements of a job that are told as decisions.
const DECISIONS_MAX: u32 = 500;
const POINTS_MAX: usize = 1_000;
const POINTS_DEFAULT: usize = 300;
const SERIES_DEFAULT_S: f64 = 3600.0;
/// Placements that are counted for what sharing gained.
const SAVINGS_MAX: u32 = 200_000;

/// Seconds since 1970 in microseconds.
fn micros(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e6) as u64
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TimelineQuery {
    /// Placements that had not ended by then, in seconds since 1970.
    #[serde(default, deserialize_with = "super::params::seconds")]
    #[param(minimum = 0)]
    since: Option<f64>,
    /// Placements that had begun by then, in seconds since 1970.
    #[serde(default, deserialize_with = "super::params::seconds")]
    #[param(minimum = 0)]
    until: Option<f64>,
    /// Before this number.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    before: Option<u64>,
    /// At most this many, 5000 by default, 20000 at most.
    #[param(maximum = 4_294_967_295_i64)]
    limit: Option<u32>,
}

/// Placements over time
#[utoipa::path(get, path = "/v1/timeline", params(TimelineQuery), responses(
    (status = 200, body = Timeline), (status = "default", body = ErrorAnswer)))]
pub(super) async fn timeline(
    State(api): State<Api>,
    _: Caller,
    params: Result<Query<TimelineQuery>, QueryRejection>,
) -> JsonResult<Timeline> {
    let params = query_params(params)?;
    let limit = params.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let filter = PlacementFilter {
        since_us: params.since.map_or(0, micros),
        until_us: params.until.map(micros),
        before: params.before,
        limit,
    };
    let records = api.read(move |reader| reader.placements(&filter)).await?;
    let next_before =
        records.last().filter(|_| records.len() == limit as usize).map(|record| record.seq);
    let live = move |present: &Present<'_>| {
        let placements = records.iter().map(|record| placement(record, Some(present))).collect();
        Timeline { schema: SCHEMA, time: iso(present.now.unix_us), placements, next_before }
    };
    Ok(Json(api.query(live).await?))
}

/// A placement as it is shown; an open one has the present rate.
pub(crate) fn placement(record: &PlacementRecord, present: Option<&Present<'_>>) -> PlacementInfo {
    let lasts = record.to_us.is_none();
    let active =
        present.filter(|_| lasts).and_then(|present| present.scheduler.job(record.placed.job));
    let rate = match active {
        Some(active) => Some(f64::from(active.rate().0) / 1e6),
        None if lasts => record.predicted,
        None => record.rate,
    };
    let measured = active.map_or(record.measured, |active| active.rate_is_measured());
    PlacementInfo {
        seq: record.seq,
        placed: record.placed.clone(),
        from: iso(record.from_us),
        to: record.to_us.map(iso),
        rate,
        rate_measured: measured,
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SavingsQuery {
    /// Since then, in seconds since 1970.
    #[serde(default, deserialize_with = "super::params::seconds")]
    #[param(minimum = 0)]
    since: Option<f64>,
}

/// What sharing has gained
#[utoipa::path(get, path = "/v1/savings", params(SavingsQuery), responses(
    (status = 200, body = Savings), (status = "default", body = ErrorAnswer)))]
pub(super) async fn savings(
    State(api): State<Api>,
    _: Caller,
    params: Result<Query<SavingsQuery>, QueryRejection>,
) -> JsonResult<Savings> {
    let since_us = query_params(params)?.since.map_or(0, micros);
    // Open placements have no mean rate yet: the work up to now counts.
    let live = |present: &Present<'_>| {
        let done = |record: &PlacementRecord| {
            let active = present.scheduler.job(record.placed.job);
            let done_us = active.map(|active| active.done_us(present.now.time()));
            (record.placed.job, done_us.unwrap_or(record.done_us))
        };
        let done: BTreeMap<u64, u64> = present.history.placements.all_open().map(done).collect();
        (present.now.unix_us, done)
    };
    let (now_us, done) = api.query(live).await?;
    let filter = PlacementFilter { since_us, limit: SAVINGS_MAX, ..PlacementFilter::default() };
    let gained = api
        .read(move |reader| {
            let records = reader.placements(&filter)?;
            Ok(savings::since(&records, since_us, now_us, &done))
        })
        .await?;
    Ok(Json(gained))
}

/// What was decided about a job, and why
#[utoipa::path(get, path = "/v1/jobs/{id}/decisions", params(("id" = u64, Path, description = "Job")),
    responses((status = 200, body = Decisions), (status = "default", body = ErrorAnswer)))]
pub(super) async fn decisions(
    State(api): State<Api>,
    _: Caller,
    id: Result<Path<u64>, PathRejection>,
) -> JsonResult<Decisions> {
    let id = path_param(id)?;
    find(&api, id).await?;
    let mut records = api.read(move |reader| reader.placements_of(id, DECISIONS_MAX)).await?;
    records.reverse();
    Ok(Json(Decisions { schema: SCHEMA, decisions: decided(&records) }))
}

/// Placements of a job as decisions, in order of time.
fn decided(records: &[PlacementRecord]) -> Vec<DecisionInfo> {
    let mut decisions = Vec::new();
    let mut goes_on = false;
    for record in records {
        let decision = |time_us: u64, action: &str, reason: &str| DecisionInfo {
            time: iso(time_us),
            action: action.to_owned(),
            devices: record.placed.devices.clone(),
            beside: record.placed.beside.clone(),
            predicted_rate: record.predicted,
            reason: reason.to_owned(),
        };
        let action = if goes_on { "regroup" } else { "start" };
        decisions.push(decision(record.from_us, action, &record.why));
        if let (Some(to_us), Some(end)) = (record.to_us, &record.end) {
            decisions.push(decision(to_us, "stop", end));
        }
        goes_on = record.end.is_none();
    }
    decisions
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PointsQuery {
    /// At most this many points, 300 by default, 1000 at most.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    points: Option<usize>,
}

/// How a job did over time
#[utoipa::path(get, path = "/v1/jobs/{id}/series", params(("id" = u64, Path, description = "Job"), PointsQuery),
    responses((status = 200, body = JobSeries), (status = "default", body = ErrorAnswer)))]
pub(super) async fn job_series(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u64>, PathRejection>,
    params: Result<Query<PointsQuery>, QueryRejection>,
) -> JsonResult<JobSeries> {
    let id = path_param(id)?;
    let points = query_params(params)?.points.unwrap_or(POINTS_DEFAULT).clamp(1, POINTS_MAX);
    let job = find(&api, id).await?;
    let sees_all = caller.may_change(job.uid, api.uid);
    let read = move |present: &Present<'_>| {
        present.samples().job(id, points).map(|columns| (columns, present.now.unix_us))
    };
    let read = api.query(read).await?;
    let columns = read.map_or_else(crate::history::JobColumns::default, |(columns, _)| columns);
    let from_us = if columns.from_us == 0 { job.submit_us } else { columns.from_us };
    Ok(Json(JobSeries {
        schema: SCHEMA,
        from: iso(from_us),
        step_s: columns.step_us as f64 / 1e6,
        rate: columns.rate,
        steps_per_s: columns.speed,
        memory_bytes: columns.memory,
        share: columns.share,
        p50_ms: columns.p50_ms,
        p99_ms: columns.p99_ms,
        scalars: if sees_all { columns.scalars } else { BTreeMap::new() },
    }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct SeriesQuery {
    /// The last so many seconds, 3600 by default; at most a day is kept.
    #[serde(default, deserialize_with = "super::params::seconds")]
    #[param(minimum = 0)]
    seconds: Option<f64>,
    /// At most this many points, 300 by default, 1000 at most.
    #[serde(default, deserialize_with = "super::params::number")]
    #[param(maximum = 9_223_372_036_854_775_807_i64)]
    points: Option<usize>,
}

/// How the devices did over time
#[utoipa::path(get, path = "/v1/series", params(SeriesQuery), responses(
    (status = 200, body = MachineSeries), (status = "default", body = ErrorAnswer)))]
pub(super) async fn series(
    State(api): State<Api>,
    _: Caller,
    params: Result<Query<SeriesQuery>, QueryRejection>,
) -> JsonResult<MachineSeries> {
    let params = query_params(params)?;
    let points = params.points.unwrap_or(POINTS_DEFAULT).clamp(1, POINTS_MAX);
    let seconds = params.seconds.unwrap_or(SERIES_DEFAULT_S);
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err(ApiError::bad("seconds: give a number above 0"));
    }
    let read = move |present: &Present<'_>| {
        let since_us = present.now.unix_us.saturating_sub(micros(seconds));
        let columns = present.samples().machine(since_us, points).unwrap_or_default();
        let from_us = if columns.from_us == 0 { present.now.unix_us } else { columns.from_us };
        let device = |(index, device): (u32, crate::history::DeviceColumns)| DeviceSeries {
            index,
            utilization: device.utilisation,
            memory_used_bytes: device.memory,
            throughput: device.throughput,
        };
        MachineSeries {
            schema: SCHEMA,
            from: iso(from_us),
            step_s: columns.step_us as f64 / 1e6,
            devices: (0..).zip(columns.devices).map(device).collect(),
            pending: columns.pending,
            running: columns.running,
        }
    };
    Ok(Json(api.query(read).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_starts_is_regrouped_and_stops() {
        let record = |from_us, to_us, why: &str, end: Option<&str>| PlacementRecord {
            from_us,
            to_us,
            why: why.to_owned(),
            end: end.map(str::to_owned),
            ..PlacementRecord::default()
        };
        let records = [
            record(1_000_000, Some(2_000_000), "alone", None),
            record(2_000_000, Some(3_000_000), "job 2 joined", Some("paused by its user")),
            record(9_000_000, None, "alone", None),
        ];
        let told: Vec<(String, String)> =
            decided(&records).into_iter().map(|one| (one.action, one.reason)).collect();
        let told: Vec<(&str, &str)> = told.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let expected = [
            ("start", "alone"),
            ("regroup", "job 2 joined"),
            ("stop", "paused by its user"),
            ("start", "alone"),
        ];
        assert_eq!(told, expected);
    }
}
