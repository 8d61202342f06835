//! The paths of the dashboard beyond those that the command line uses.

use super::{Api, health, live, live_types, shares, tail, timeline, whatif};
use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;

pub(super) fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/events", get(live::live))
        .route("/v1/timeline", get(timeline::timeline))
        .route("/v1/savings", get(timeline::savings))
        .route("/v1/series", get(timeline::series))
        .route("/v1/forecast", get(whatif::forecast))
        .route("/v1/what-if", post(whatif::what_if))
        .route("/v1/health", get(health::health_report))
        .route("/v1/shares", get(shares::list))
        .route("/v1/jobs/{id}/series", get(timeline::job_series))
        .route("/v1/jobs/{id}/decisions", get(timeline::decisions))
        .route("/v1/jobs/{id}/logs/tail", get(tail::tail))
}

#[derive(OpenApi)]
#[openapi(
    paths(
        live::live,
        timeline::timeline,
        timeline::savings,
        timeline::series,
        whatif::forecast,
        whatif::what_if,
        health::health_report,
        shares::list,
        timeline::job_series,
        timeline::decisions,
        tail::tail
    ),
    components(schemas(
        live_types::PlacementInfo,
        live_types::Sample,
        live_types::SampleJob,
        live_types::SampleDevice,
        live_types::LogPart
    ))
)]
pub(super) struct DashboardRoutes;
