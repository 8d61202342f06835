//! The JSON of what the dashboard shows beyond jobs and devices: placements over time, series, forecasts of
//! the whole queue and what-if.

use super::types::LatencyInfo;
use crate::history::PlacedJob;
use crate::request::JobRequest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A page of placements over time, the latest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    /// Version of this JSON.
    pub schema: u32,
    /// The present.
    pub time: String,
    /// The placements.
    pub placements: Vec<PlacementInfo>,
    /// Ask with `before` set to this for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}

/// A job on GPUs, from one change of its co-located jobs to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacementInfo {
    /// Counted through the life of the store.
    pub seq: u64,
    /// The job and its GPUs.
    #[serde(flatten)]
    pub placed: PlacedJob,
    /// Start.
    pub from: String,
    /// End; absent while it lasts.
    pub to: Option<String>,
    /// Mean speed relative to running alone; the present one while it lasts.
    pub rate: Option<f64>,
    /// The rate was measured; otherwise it is predicted.
    pub rate_measured: bool,
}

/// When every job will start and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueForecast {
    /// Version of this JSON.
    pub schema: u32,
    /// The present from which it looks ahead.
    pub time: String,
    /// The policy.
    pub policy: String,
    /// Draws of the unknown durations.
    pub draws: u32,
    /// The jobs that are not over.
    pub jobs: Vec<ForecastJob>,
    /// Placements if all takes as long as expected, in order of their start.
    pub placements: Vec<ForecastPlacement>,
}

/// When a job will start and end, in seconds from now: earliest, median and latest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastJob {
    /// The job.
    pub id: u64,
    /// Its start; absent if it runs, or if that cannot be foreseen.
    pub start_in_s: Option<[f64; 3]>,
    /// Its end; absent if that cannot be foreseen.
    pub end_in_s: Option<[f64; 3]>,
    /// Why it waits; absent if it does not.
    pub waits: Option<String>,
}

/// A placement that is to come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastPlacement {
    /// The job.
    pub job: u64,
    /// Its GPUs.
    pub devices: Vec<u32>,
    /// Start, in seconds from now.
    pub from_s: f64,
    /// End, in seconds from now.
    pub to_s: f64,
}

/// What sharing gained since an instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Savings {
    /// Version of this JSON.
    pub schema: u32,
    /// Since then.
    pub since: String,
    /// Work of co-located jobs in hours of running alone, less the hours of the GPUs on which they ran.
    pub gpu_hours: f64,
    /// Hours during which GPUs were shared.
    pub shared_gpu_hours: f64,
    /// Hours that jobs ran on a GPU which another job already had, and would otherwise have waited.
    pub wait_saved_h: f64,
    /// Hours by which co-located jobs were held up.
    pub slowdown_cost_h: f64,
    /// Jobs that shared a GPU.
    pub jobs_shared: u64,
    /// The part of the shared time in which rates were measured; in the rest they are predicted.
    pub measured_share: f64,
    /// How these figures come about.
    pub method: String,
}

/// The devices over time, at equal intervals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineSeries {
    /// Version of this JSON.
    pub schema: u32,
    /// Start of the first interval.
    pub from: String,
    /// Length of an interval.
    pub step_s: f64,
    /// By index.
    pub devices: Vec<DeviceSeries>,
    /// Pending jobs.
    pub pending: Vec<Option<f64>>,
    /// Running jobs.
    pub running: Vec<Option<f64>>,
}

/// A device over time; absent values were not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceSeries {
    /// Its index.
    pub index: u32,
    /// Share of time in which it was busy.
    pub utilization: Vec<Option<f64>>,
    /// Memory in use.
    pub memory_used_bytes: Vec<Option<f64>>,
    /// Sum of the rates of its tenants.
    pub throughput: Vec<Option<f64>>,
}

/// A job over time, at equal intervals; absent values were not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSeries {
    /// Version of this JSON.
    pub schema: u32,
    /// Start of the first interval.
    pub from: String,
    /// Length of an interval.
    pub step_s: f64,
    /// Speed relative to running alone.
    pub rate: Vec<Option<f64>>,
    /// Steps per second.
    pub steps_per_s: Vec<Option<f64>>,
    /// Memory in use.
    pub memory_bytes: Vec<Option<f64>>,
    /// Its share of each device, from 0 to 1.
    #[serde(default)]
    pub share: Vec<Option<f64>>,
    /// Half of the requests of a service took at most this; empty for other jobs, like the next.
    #[serde(default)]
    pub p50_ms: Vec<Option<f64>>,
    /// 99 of 100 requests took at most this.
    #[serde(default)]
    pub p99_ms: Vec<Option<f64>>,
    /// What the job reports with its steps, such as `loss`, by name; for its owner and root only.
    pub scalars: BTreeMap<String, Vec<Option<f64>>>,
}

/// The decisions about a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Decisions {
    /// Version of this JSON.
    pub schema: u32,
    /// In order of time; the oldest may have been deleted.
    pub decisions: Vec<DecisionInfo>,
}

/// A decision about a job, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionInfo {
    /// When.
    pub time: String,
    /// `start`, `regroup` when its co-located jobs changed, or `stop`.
    pub action: String,
    /// Its GPUs.
    pub devices: Vec<u32>,
    /// The co-located jobs.
    pub beside: Vec<u64>,
    /// Predicted speed relative to running alone.
    pub predicted_rate: Option<f64>,
    /// Why, in a few words.
    pub reason: String,
}

/// A hypothetical change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WhatIfBody {
    /// Another policy.
    pub policy: Option<String>,
    /// One more job.
    pub job: Option<JobRequest>,
    /// GPUs that take no new jobs.
    pub drain: Vec<u32>,
    /// More GPUs like those that are there.
    pub add_devices: u32,
}

/// What a change would bring, in the median of several draws of the unknown durations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhatIfAnswer {
    /// Version of this JSON.
    pub schema: u32,
    /// The policy as it is.
    pub policy_before: String,
    /// The policy with the change.
    pub policy: String,
    /// Draws.
    pub draws: u32,
    /// As it is.
    pub before: WhatIfTotals,
    /// With the change.
    pub after: WhatIfTotals,
    /// The job that was added, then those whose end changes most.
    pub jobs: Vec<WhatIfJob>,
    /// Jobs that are not listed.
    pub jobs_left_off: u64,
}

/// The jobs that are not over, from now on; the job that is added does not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhatIfTotals {
    /// Jobs.
    pub jobs: u64,
    /// Those that start in what can be foreseen.
    pub started: u64,
    /// Mean time until jobs that wait start.
    pub mean_wait_s: f64,
    /// Mean time until jobs end.
    pub mean_end_s: f64,
    /// Time until the last one ends.
    pub last_end_s: f64,
}

/// What a change would bring to a job, in seconds from now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhatIfJob {
    /// The job; absent for the one that is added.
    pub id: Option<u64>,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// Start as it is; absent if it runs or cannot be foreseen.
    pub start_before_s: Option<f64>,
    /// Start with the change.
    pub start_after_s: Option<f64>,
    /// End as it is; absent if it cannot be foreseen.
    pub end_before_s: Option<f64>,
    /// End with the change.
    pub end_after_s: Option<f64>,
}

/// The health of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Version of this JSON.
    pub schema: u32,
    /// All checks passed.
    pub healthy: bool,
    /// The checks.
    pub checks: Vec<HealthCheck>,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// What.
    pub name: String,
    /// It passed.
    pub ok: bool,
    /// What was found.
    pub text: String,
}

/// The running jobs and the devices, streamed as `sample` events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When.
    pub time: String,
    /// The running jobs.
    pub jobs: Vec<SampleJob>,
    /// The devices.
    pub devices: Vec<SampleDevice>,
}

/// A running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampleJob {
    /// The job.
    pub id: u64,
    /// Its owner.
    #[serde(skip)]
    pub uid: u32,
    /// Speed relative to running alone.
    pub rate: Option<f64>,
    /// The rate was measured; otherwise it is predicted.
    pub rate_measured: bool,
    /// Steps per second.
    pub steps_per_s: Option<f64>,
    /// Memory in use.
    pub memory_bytes: Option<u64>,
    /// Its share of each device.
    pub share: f64,
    /// The latency of a service; absent for other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyInfo>,
    /// The co-located jobs.
    pub beside: Vec<u64>,
    /// What it reported last, such as `loss`; for its owner and root only.
    pub scalars: BTreeMap<String, f64>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampleDevice {
    /// Its index.
    pub index: u32,
    /// Memory in use.
    pub memory_used_bytes: Option<u64>,
    /// Share of time in which it was busy.
    pub utilization: Option<f64>,
    /// `up`, `drained`, `foreign` or `closed`.
    pub state: String,
    /// Jobs there.
    pub jobs: Vec<u64>,
    /// Sum of their speeds relative to running alone.
    pub normalised_throughput: Option<f64>,
    /// All of those speeds were measured.
    pub measured: bool,
}

/// What a job has printed since the last part, streamed as `log` events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPart {
    /// The text; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// It starts anew, with the end of the file.
    pub restart: bool,
}
