//! The JSON of the HTTP API. Times are ISO 8601 in UTC, durations seconds, sizes bytes.

use crate::job::{ArrayTask, JobState};
pub use crate::scheduler::JobAction;
use crate::scheduler::RateSource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The version of all JSON of the HTTP API.
pub const SCHEMA: u32 = 1;

/// The ids of the submitted jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// Version of this JSON.
    pub schema: u32,
    /// In the order of their tasks.
    pub ids: Vec<u64>,
    /// What becomes of them; absent if they have ended already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
}

/// What becomes of jobs that were just submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outlook {
    /// In plain words: `starts now on GPU 0 beside job 3 (expected slow-down 1.08)`, or why not.
    pub text: String,
    /// Jobs that start at once.
    pub starts_now: u64,
    /// Devices of the first of them.
    pub devices: Vec<u32>,
    /// Jobs on those devices.
    pub beside: Vec<u64>,
    /// Its expected slow-down beside them.
    pub slowdown: Option<f64>,
}

/// A page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// Version of this JSON.
    pub schema: u32,
    /// The jobs by id, ascending unless `order` is `desc`.
    pub jobs: Vec<JobLine>,
    /// The value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// The public part of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobLine {
    /// Job id.
    pub id: u64,
    /// The job id in the cluster, such as Slurm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// Its name.
    pub name: String,
    /// The user who submitted it.
    pub user: String,
    /// Current state.
    pub state: JobState,
    /// Reason of the state.
    pub reason: Option<String>,
    /// Its task, if it was submitted with several.
    pub task: Option<ArrayTask>,
    /// GPUs; below 1 for a fraction of one.
    pub gpus: f64,
    /// Its class.
    pub class: String,
    /// Devices of its current or last placement.
    pub devices: Vec<u32>,
    /// Co-located jobs.
    pub beside: Vec<u64>,
    /// Rate relative to running alone; absent unless it is running.
    pub rate: Option<f64>,
    /// Whether the rate is measured rather than predicted.
    pub rate_measured: bool,
    /// How the rate was found out: `steps`, `usage` or `prediction`; absent if nothing is known about it.
    #[serde(default)]
    pub rate_from: Option<RateSource>,
    /// Submission.
    pub submit_time: String,
    /// First start.
    pub start_time: Option<String>,
    /// End.
    pub end_time: Option<String>,
    /// Time on its devices without pauses.
    pub run_s: f64,
    /// The part of it spent co-located.
    pub shared_s: f64,
    /// Exit code, 128 + signal for a signal, 253 if it ran out of memory.
    pub exit_code: Option<i32>,
    /// The latency of a service; absent for other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyInfo>,
}

/// The latency of a service against its promise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyInfo {
    /// What it is promised, such as `p99=100ms`; absent if nothing is.
    pub slo: Option<String>,
    /// The promised latency; absent if none is.
    #[serde(default)]
    pub promised_ms: Option<f64>,
    /// Requests so far.
    pub requests: u64,
    /// Requests per second in the last window; absent before the first report, like the next two.
    pub rate_per_s: Option<f64>,
    /// Half of the requests of the last window took at most this.
    pub p50_ms: Option<f64>,
    /// 99 of 100 requests of the last window took at most this.
    pub p99_ms: Option<f64>,
    /// Whether the last window kept the promise.
    pub is_kept: Option<bool>,
    /// The part of the time in which the promise was kept.
    pub kept: Option<f64>,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAnswer {
    /// Version of this JSON.
    pub schema: u32,
    /// The job.
    pub job: JobInfo,
}

/// Everything about a job. Only its owner and operators see command, environment, directory and files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// The public part.
    #[serde(flatten)]
    pub line: JobLine,
    /// What only the owner and root may; absent for a job of a cluster, which has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<JobPrivate>,
    /// User id.
    pub uid: u32,
    /// Its process, if it runs on this machine.
    pub pid: Option<u32>,
    /// Runs so far.
    pub runs: u32,
    /// Retries after failures so far.
    pub retried: u32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its share of each device.
    pub share: f64,
    /// The share of each device that it is sure of beside others.
    #[serde(default)]
    pub share_promised: Option<f64>,
    /// How the share is enforced: none, advisory, cgroup, mps or mig.
    pub enforcement: String,
    /// Sub-batches per batch.
    pub sub_batches: u32,
    /// What the job supports: report, accum, stop.
    pub caps: Vec<String>,
    /// Predicted slowdown beside its co-located jobs.
    pub slowdown_predicted: Option<f64>,
    /// Measured slowdown beside its co-located jobs.
    pub slowdown_measured: Option<f64>,
    /// Sum of the rates of all jobs on its first device; absent unless it is running.
    pub normalised_throughput: Option<f64>,
    /// Work done, in seconds of running alone.
    pub done_s: f64,
    /// Estimated duration when running alone.
    pub estimate_s: Option<f64>,
    /// Where the estimate comes from.
    #[serde(default)]
    pub estimate_from: Option<String>,
    /// Measured peak memory on a device.
    pub memory_peak_bytes: u64,
    /// Requested memory on each device.
    pub gpu_memory_bytes: Option<u64>,
    /// It is never co-located.
    pub exclusive: bool,
    /// The largest slowdown that it accepts.
    pub max_slowdown: Option<f64>,
    /// Time limit on its devices.
    pub time_limit_s: Option<f64>,
    /// Priority.
    pub priority: i8,
    /// CPU time of its ended runs.
    pub cpu_s: f64,
    /// Its dependencies, as given.
    pub dependency: Option<String>,
    /// Earliest start.
    #[serde(default)]
    pub begin_time: Option<String>,
    /// Retries after failures that are left.
    #[serde(default)]
    pub retries_left: u32,
    /// The signal on which it saves a checkpoint.
    #[serde(default)]
    pub stop_signal: Option<String>,
    /// The caller may change it.
    #[serde(default)]
    pub may_change: bool,
    /// Steps per second at the last sample.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
    /// Steps per second alone, with the present number of sub-batches.
    #[serde(default)]
    pub steps_per_s_alone: Option<f64>,
}

/// The part of a job that only its owner and operators see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPrivate {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its values of the parameters of a sweep.
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// Working directory.
    pub dir: String,
    /// File of standard output.
    pub stdout: String,
    /// File of standard error.
    pub stderr: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

/// The command was carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// Version of this JSON.
    pub schema: u32,
}

/// A change of several jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkBody {
    /// What to do.
    pub action: JobAction,
    /// Jobs: `17` (with its whole array, if it is the first job of one), `1-10:2,14`, `17_3`, `17_*`, `last`
    /// or `all` (those of the caller that have not ended).
    pub jobs: Vec<String>,
}

/// What became of a change of several jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkAnswer {
    /// Version of this JSON.
    pub schema: u32,
    /// Jobs that were changed.
    pub done: Vec<u64>,
    /// Jobs that were not.
    pub failed: Vec<BulkFailure>,
}

/// A job that was not changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkFailure {
    /// The job.
    pub id: u64,
    /// The code of an error response.
    pub code: String,
    /// What is wrong and what to do, in one line.
    pub error: String,
}

/// Why a device is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DrainBody {
    /// The reason, for people.
    pub reason: Option<String>,
}

/// The number of sub-batches of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccumBody {
    /// Sub-batches per batch; the policy decides if absent.
    pub accum: Option<u32>,
}

/// Why a job is pending and when it is expected to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Version of this JSON.
    pub schema: u32,
    /// The job; absent for a dry run.
    pub id: Option<u64>,
    /// Current state.
    pub state: JobState,
    /// The policy of the forecast.
    pub policy: String,
    /// Why it is pending, in a sentence; absent if it is not.
    pub waits: Option<String>,
    /// For each device, why the job does not start there.
    pub devices: Vec<DeviceReason>,
    /// Pending jobs that are expected to start earlier.
    pub ahead: Vec<u64>,
    /// Running jobs that have to end or be preempted before it can start.
    pub after: Vec<u64>,
    /// When it will start, seconds from now: earliest, median and latest of several draws of the
    /// unknown durations; absent if it never does in what can be foreseen.
    pub start_in_s: Option<[f64; 3]>,
    /// Why that is not known, or how it was found; absent if it was simulated to its end.
    #[serde(default)]
    pub start_note: Option<String>,
    /// When it will be over, likewise.
    pub end_in_s: Option<[f64; 3]>,
    /// Jobs that it is expected to be co-located with.
    pub beside: Vec<u64>,
    /// Expected slowdown relative to running alone.
    pub slowdown: Option<f64>,
    /// Draws in which it started.
    pub draws_started: u32,
    /// Number of draws.
    pub draws: u32,
    /// Change of the mean completion time of all other jobs in seconds, for a dry run.
    pub effect_on_others_s: Option<f64>,
}

/// Why a job does not start on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceReason {
    /// The device.
    pub device: u32,
    /// The reason, in a sentence.
    pub reason: String,
}

/// The devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Devices {
    /// Version of this JSON.
    pub schema: u32,
    /// `cpu`, `nvidia` or `fake`.
    pub provider: String,
    /// By index.
    pub devices: Vec<DeviceInfo>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceInfo {
    /// Its index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Model of the device.
    pub kind: String,
    /// Its node; empty if all devices are on this machine.
    #[serde(default)]
    pub node: String,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory in use by all processes.
    pub memory_used_bytes: Option<u64>,
    /// Fraction of time in which it was busy.
    pub utilization: Option<f64>,
    /// `up`, `drained`, `foreign` or `closed`.
    pub state: String,
    /// Why it is drained or closed, and until when, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Memory of foreign processes.
    pub foreign_bytes: Option<u64>,
    /// Jobs on it.
    pub jobs: Vec<u64>,
    /// Sum of the rates of its jobs; above 1, sharing pays.
    pub normalised_throughput: Option<f64>,
    /// Whether all of those rates are measured.
    pub measured: bool,
}

/// What has been learned about job classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Classes {
    /// Version of this JSON.
    pub schema: u32,
    /// By name.
    pub classes: Vec<ClassInfo>,
}

/// What has been learned about a job class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassInfo {
    /// Its name.
    pub name: String,
    /// What defines it: program, script and arguments. Only shown to the user of its first job and to
    /// operators; absent if it was named with `--class`.
    #[serde(default)]
    pub defined_by: Option<String>,
    /// Arguments that were seen to make no difference, likewise.
    #[serde(default)]
    pub ignored: Vec<String>,
    /// Part of the time in which it uses its devices alone.
    #[serde(default)]
    pub duty: Option<f64>,
    /// How long its jobs take alone.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// Peak memory on a device.
    pub memory_bytes: Option<u64>,
    /// Steps per second alone, by number of sub-batches.
    pub steps_per_s: BTreeMap<u32, f64>,
    /// Finished jobs in the history.
    pub finished: u64,
    /// Believed rate beside other classes, and the number of measurements.
    pub beside: BTreeMap<String, PairInfo>,
}

/// The believed rate of a pair of classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PairInfo {
    /// Rate relative to running alone.
    pub rate: f64,
    /// Measurements in the history.
    pub measurements: u64,
    /// Standard error of the measurements of this pair alone; absent if there is none.
    #[serde(default)]
    pub uncertainty: Option<f64>,
    /// Measured rates of this pair alone, the latest last.
    #[serde(default)]
    pub recent: Vec<f64>,
}

/// GPU time by user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Version of this JSON.
    pub schema: u32,
    /// By GPU time, descending.
    pub users: Vec<UserUsage>,
    /// By what was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<UsageRow>,
}

/// GPU time of a group of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageRow {
    /// The user, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The account, if it was asked for and the jobs have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The month in UTC, as 2026-11, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// Jobs.
    pub jobs: u64,
    /// GPU-hours.
    pub gpu_hours: f64,
    /// GPU-hours spent co-located.
    pub shared_gpu_hours: f64,
}

/// GPU time of one user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserUsage {
    /// The user.
    pub user: String,
    /// Jobs.
    pub jobs: u64,
    /// GPU-hours.
    pub gpu_hours: f64,
    /// GPU-hours spent co-located.
    pub shared_gpu_hours: f64,
}

/// Version, policy and state of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    /// Version of this JSON.
    pub schema: u32,
    /// Its version.
    pub version: String,
    /// The policy.
    pub policy: String,
    /// The policies that what-if can try, by name.
    #[serde(default)]
    pub policies: Vec<String>,
    /// `cpu`, `nvidia`, `fake` or `slurm`.
    pub provider: String,
    /// The partition of the cluster whose jobs it places; absent on one machine.
    #[serde(default)]
    pub partition: Option<String>,
    /// Devices.
    pub devices: u32,
    /// Where it creates control groups for jobs, or why it cannot.
    #[serde(default)]
    pub cgroups: String,
    /// Seconds since its start.
    pub up_s: f64,
    /// User id of the daemon.
    pub uid: u32,
    /// Process id.
    pub pid: u32,
    /// Active jobs by state.
    pub jobs: BTreeMap<String, u64>,
    /// Plans that were rejected as illegal.
    pub plans_rejected: u64,
}

/// A state change of a job, as streamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobChange {
    /// Sequence number; increases across restarts.
    pub seq: u64,
    /// Time of the change.
    pub time: String,
    /// The job.
    pub id: u64,
    /// New state.
    pub state: JobState,
    /// Reason of the state.
    pub reason: Option<String>,
    /// Its devices.
    pub devices: Vec<u32>,
    /// Exit code.
    pub exit_code: Option<i32>,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its user.
    #[serde(default)]
    pub user: String,
    /// Its class.
    #[serde(default)]
    pub class: String,
    /// GPUs; below one is a part of one.
    #[serde(default)]
    pub gpus: f64,
    /// Submission.
    #[serde(default)]
    pub submit_time: String,
    /// First start.
    #[serde(default)]
    pub start_time: Option<String>,
    /// End.
    #[serde(default)]
    pub end_time: Option<String>,
    /// The latency of a service; absent for other jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyInfo>,
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorBody,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// `bad_request`, `unauthorized`, `forbidden`, `not_found`, `conflict`, `infeasible`, `too_large`,
    /// `unavailable` or `internal`.
    pub code: String,
    /// What is wrong and what to do, in one line.
    pub message: String,
}
