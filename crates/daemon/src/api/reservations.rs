//! Reservations over the HTTP API: made and cancelled by operators, seen by everybody.

use super::routes::{DONE, JsonResult, json_body, path_param};
use super::types::{Done, ErrorAnswer, SCHEMA};
use super::{Api, ApiError};
use crate::clock::unix_us;
use crate::command::{Caller, UserCommand};
use crate::cycle::Present;
use crate::scheduler::Booking;
use crate::time::iso;
use crate::users;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest reason.
const REASON_MAX: usize = 255;
/// Times beyond this are typing errors: the year 5138.
const UNIX_S_MAX: f64 = 1e11;
/// The most reservations that are not over, and users of one.
const RESERVATIONS_MAX: usize = 1000;
const USERS_MAX: usize = 1000;
/// Characters of a name that a message repeats.
const NAME_SHOWN: usize = 64;

/// GPUs to be reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReservationRequest {
    /// How many GPUs; the daemon chooses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// Which GPUs, instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<u32>>,
    /// Seconds since 1970.
    pub start_unix_s: f64,
    /// Seconds since 1970.
    pub end_unix_s: f64,
    /// So long before its start no other job starts on its GPUs.
    pub lead_s: f64,
    /// Users whose jobs may name it; none for maintenance.
    pub users: Vec<String>,
    /// Only keep new jobs away and stop none: for a GPU that is drained for a time.
    pub drain: bool,
    /// Why.
    pub reason: String,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationInfo {
    /// Its number, which jobs name.
    pub id: u32,
    /// Its GPUs.
    pub devices: Vec<u32>,
    /// From then on no other job starts there.
    pub closes: String,
    /// From then on only jobs of its users run there.
    pub start: String,
    /// Until then.
    pub end: String,
    /// Users whose jobs may name it.
    pub users: Vec<String>,
    /// Why.
    pub reason: String,
    /// Who made it.
    pub by: String,
}

/// A new reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewReservation {
    /// Version of this JSON.
    pub schema: u32,
    /// The reservation.
    pub reservation: ReservationInfo,
}

/// The reservations that are not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationList {
    /// Version of this JSON.
    pub schema: u32,
    /// By number.
    pub reservations: Vec<ReservationInfo>,
}

fn shown(booking: &Booking) -> ReservationInfo {
    ReservationInfo {
        id: booking.id,
        devices: booking.devices.clone(),
        closes: iso(booking.closes_us),
        start: iso(booking.start_us),
        end: iso(booking.end_us),
        users: booking.users.clone(),
        reason: booking.reason.clone(),
        by: booking.by.clone(),
    }
}

/// Reserve GPUs for some users, or for maintenance; operators only
#[utoipa::path(post, path = "/v1/reservations", operation_id = "create_reservation", request_body = ReservationRequest, responses(
    (status = 201, body = NewReservation), (status = "default", body = ErrorAnswer)))]
pub(super) async fn create(
    State(api): State<Api>,
    caller: Caller,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let mut request: ReservationRequest = json_body(bytes)?;
    // Names are only looked up for those who may reserve.
    if !caller.is_operator(api.uid) {
        let message = "only operators make and cancel reservations";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    request.users = existing(std::mem::take(&mut request.users)).await?;
    let by = caller.user.clone();
    let booking = api.query(move |present| booking(&request, present, by)).await??;
    api.command(caller, UserCommand::Reserve(Box::new(booking.clone()))).await?;
    let answer = NewReservation { schema: SCHEMA, reservation: shown(&booking) };
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// The names of users who exist: nobody else could use a reservation for a misspelt name.
async fn existing(names: Vec<String>) -> Result<Vec<String>, ApiError> {
    if names.len() > USERS_MAX || names.iter().any(|name| name.len() > REASON_MAX) {
        return Err(ApiError::bad("users: give at most 1000 names"));
    }
    let find = |name: String| {
        users::find(&name).map(|user| user.name).ok_or_else(|| {
            let shown: String = name.escape_debug().take(NAME_SHOWN).collect();
            ApiError::bad(format!("users: there is no user '{shown}'"))
        })
    };
    let found = tokio::task::spawn_blocking(move || names.into_iter().map(find).collect()).await;
    found.map_err(|error| ApiError::internal(error.to_string()))?
}

/// A request as a booking, with a number and devices.
fn booking(
    request: &ReservationRequest,
    present: &Present<'_>,
    by: String,
) -> Result<Booking, ApiError> {
    let times = [request.start_unix_s, request.end_unix_s, request.lead_s];
    let now_s = unix_us() as f64 / 1e6;
    let start_s = request.start_unix_s.max(now_s);
    if times.iter().any(|time| !(0.0..=UNIX_S_MAX).contains(time)) {
        return Err(ApiError::bad("end_unix_s: give times from 1970 to the year 5138"));
    }
    if request.end_unix_s <= start_s {
        let than = if request.start_unix_s > now_s { "start_unix_s" } else { "now" };
        return Err(ApiError::bad(format!("end_unix_s: is not later than {than}")));
    }
    if request.reason.len() > REASON_MAX || request.reason.contains(char::is_control) {
        return Err(ApiError::bad("reason: give at most 255 printable characters"));
    }
    let scheduler = present.scheduler;
    if scheduler.bookings().count() >= RESERVATIONS_MAX {
        let message = "there are 1000 reservations; cancel one";
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    let micros = |seconds: f64| (seconds * 1e6) as u64;
    let (start_us, end_us) = (micros(start_s), micros(request.end_unix_s));
    let closes_us = micros((start_s - request.lead_s).max(0.0)).max(unix_us().min(start_us));
    let overlaps = |other: &&Booking| other.closes_us < end_us && closes_us < other.end_us;
    let taken: Vec<u32> =
        scheduler.bookings().filter(overlaps).flat_map(|other| other.devices.clone()).collect();
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    let devices: Vec<u32> = match (&request.devices, request.gpus) {
        (Some(named), None) => named.clone(),
        // The last ones: policies fill devices from the first.
        (None, Some(wanted)) => {
            (0..count).rev().filter(|one| !taken.contains(one)).take(wanted as usize).collect()
        }
        _ => return Err(ApiError::bad("gpus: give a number, or devices")),
    };
    let wanted = request.gpus.map_or(devices.len(), |gpus| gpus as usize);
    let is_free = |device: &u32| *device < count && !taken.contains(device);
    if devices.is_empty() || devices.len() < wanted || !devices.iter().all(is_free) {
        let message = "gpus: too few GPUs, or not these, are free of reservations at that time";
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", message));
    }
    Ok(Booking {
        id: scheduler.bookings().map(|other| other.id).max().unwrap_or(0) + 1,
        devices,
        closes_us: if request.drain { start_us } else { closes_us },
        start_us: if request.drain { end_us } else { start_us },
        end_us,
        users: request.users.clone(),
        reason: request.reason.clone(),
        by,
    })
}

/// The reservations that are not over
#[utoipa::path(get, path = "/v1/reservations", operation_id = "list_reservations", responses(
    (status = 200, body = ReservationList), (status = "default", body = ErrorAnswer)))]
pub(super) async fn list(State(api): State<Api>, _: Caller) -> JsonResult<ReservationList> {
    let read = |present: &Present<'_>| present.scheduler.bookings().map(shown).collect();
    let reservations = api.query(read).await?;
    Ok(Json(ReservationList { schema: SCHEMA, reservations }))
}

/// Cancel a reservation; operators only
#[utoipa::path(delete, path = "/v1/reservations/{id}", operation_id = "cancel_reservation",
    params(("id" = u32, Path, description = "Reservation")),
    responses((status = 200, body = Done), (status = "default", body = ErrorAnswer)))]
pub(super) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    id: Result<Path<u32>, PathRejection>,
) -> JsonResult<Done> {
    api.command(caller, UserCommand::Unreserve(path_param(id)?)).await?;
    Ok(DONE)
}
