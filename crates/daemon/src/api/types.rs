//! The JSON of the interface. Times are ISO 8601 in UTC, spans seconds, sizes bytes.

use crate::job::{ArrayTask, JobState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The version of all JSON of the interface.
pub const SCHEMA: u32 = 1;

/// The numbers of the jobs that a submission has become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// Version of this JSON.
    pub schema: u32,
    /// In order of their tasks.
    pub ids: Vec<u64>,
}

/// A page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// Version of this JSON.
    pub schema: u32,
    /// The jobs, in order of their numbers, the latest first if so asked.
    pub jobs: Vec<JobLine>,
    /// Ask with `after` set to this for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// What everyone may know about a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobLine {
    /// Its number.
    pub id: u64,
    /// What the engine calls it, such as the number that Slurm gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub user: String,
    /// Where it stands.
    pub state: JobState,
    /// Why it is there.
    pub reason: Option<String>,
    /// The part of a submission of several that it is.
    pub task: Option<ArrayTask>,
    /// GPUs; below one is a part of one.
    pub gpus: f64,
    /// Its class.
    pub class: String,
    /// Devices of its present or last placement.
    pub devices: Vec<u32>,
    /// Others on its devices.
    pub beside: Vec<u64>,
    /// Speed relative to running alone; absent if it does not run.
    pub rate: Option<f64>,
    /// That speed was measured; otherwise it is predicted.
    pub rate_measured: bool,
    /// Submission.
    pub submit_time: String,
    /// First start.
    pub start_time: Option<String>,
    /// End.
    pub end_time: Option<String>,
    /// Time on its devices, pauses not counted.
    pub run_s: f64,
    /// The part of it during which it shared a device.
    pub shared_s: f64,
    /// Exit code, 128 + signal for a signal, 253 if it ran out of memory.
    pub exit_code: Option<i32>,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAnswer {
    /// Version of this JSON.
    pub schema: u32,
    /// The job.
    pub job: JobInfo,
}

/// All about a job. Command, environment, directory and files are there for its owner and root only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// What everyone may know.
    #[serde(flatten)]
    pub line: JobLine,
    /// What only the owner and root may; absent for a job of a cluster, which has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<JobPrivate>,
    /// The user's number.
    pub uid: u32,
    /// Its process, if it runs on this machine.
    pub pid: Option<u32>,
    /// Runs so far.
    pub runs: u32,
    /// Tries after failures so far.
    pub retried: u32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The most of each device that it may use.
    pub share: f64,
    /// What a share means: none, advisory, cgroup, mps or mig.
    pub enforcement: String,
    /// Parts in which it computes its batches.
    pub sub_batches: u32,
    /// What it is willing to do: report, accum, stop.
    pub caps: Vec<String>,
    /// Predicted slow-down in its present company.
    pub slowdown_predicted: Option<f64>,
    /// Measured slow-down in its present company.
    pub slowdown_measured: Option<f64>,
    /// What all jobs on its first device do together, relative to one alone; absent if it does not run.
    pub normalised_throughput: Option<f64>,
    /// Work done, in seconds of running alone.
    pub done_s: f64,
    /// Expected time alone.
    pub estimate_s: Option<f64>,
    /// The most memory it was seen to take on a device.
    pub memory_peak_bytes: u64,
    /// Memory it was said to take.
    pub gpu_memory_bytes: Option<u64>,
    /// Nobody beside it.
    pub exclusive: bool,
    /// The most slow-down it puts up with.
    pub max_slowdown: Option<f64>,
    /// The most time on its devices.
    pub time_limit_s: Option<f64>,
    /// How urgent it is.
    pub priority: i8,
    /// Processor time of its runs that are over.
    pub cpu_s: f64,
    /// On what it waits, as it was given.
    pub dependency: Option<String>,
    /// Whoever asks may change it.
    #[serde(default)]
    pub may_change: bool,
    /// Steps per second at the last look.
    #[serde(default)]
    pub steps_per_s: Option<f64>,
    /// Steps per second alone, in as many parts of a batch as at present.
    #[serde(default)]
    pub steps_per_s_alone: Option<f64>,
}

/// What only the owner and root may know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobPrivate {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Working directory.
    pub dir: String,
    /// File of its standard output.
    pub stdout: String,
    /// File of its standard error.
    pub stderr: String,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

/// That something was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// Version of this JSON.
    pub schema: u32,
}

/// In how many parts a job is to compute its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccumBody {
    /// The parts; the policy decides if absent.
    pub accum: Option<u32>,
}

/// Why a job waits and when it will start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Version of this JSON.
    pub schema: u32,
    /// The job; absent for one that was not submitted.
    pub id: Option<u64>,
    /// Where it stands.
    pub state: JobState,
    /// The policy that was asked.
    pub policy: String,
    /// Why it waits, in a sentence; absent if it does not.
    pub waits: Option<String>,
    /// Each device and what keeps the job from it.
    pub devices: Vec<DeviceReason>,
    /// Jobs before it that will probably start earlier.
    pub ahead: Vec<u64>,
    /// Jobs that have to end, or to be stopped, before it can start.
    pub after: Vec<u64>,
    /// When it will start, seconds from now: earliest, median and latest of several draws of the
    /// unknown durations; absent if it never does in what can be foreseen.
    pub start_in_s: Option<[f64; 3]>,
    /// When it will be over, likewise.
    pub end_in_s: Option<[f64; 3]>,
    /// With whom it will probably share.
    pub beside: Vec<u64>,
    /// How much slower than alone it will probably be, from start to end.
    pub slowdown: Option<f64>,
    /// Draws in which it started.
    pub draws_started: u32,
    /// All draws.
    pub draws: u32,
    /// How the mean completion time of the others changes, in seconds, for a job that was not submitted.
    pub effect_on_others_s: Option<f64>,
}

/// What keeps a job from a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceReason {
    /// The device.
    pub device: u32,
    /// What keeps it from there, in a sentence.
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
    /// What the system calls it.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// The node that has it; empty if there is only this machine.
    #[serde(default)]
    pub node: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Memory in use, by whomever.
    pub memory_used_bytes: Option<u64>,
    /// Share of time in which it was busy.
    pub utilization: Option<f64>,
    /// `up`, `drained`, `foreign` or `closed`.
    pub state: String,
    /// Memory of processes that are not ours.
    pub foreign_bytes: Option<u64>,
    /// Jobs there.
    pub jobs: Vec<u64>,
    /// Sum of their speeds relative to running alone: above one, sharing pays.
    pub normalised_throughput: Option<f64>,
    /// All of those speeds were measured.
    pub measured: bool,
}

/// What is known about classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Classes {
    /// Version of this JSON.
    pub schema: u32,
    /// By name.
    pub classes: Vec<ClassInfo>,
}

/// What is known about a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassInfo {
    /// Its name.
    pub name: String,
    /// What it takes on a device.
    pub memory_bytes: Option<u64>,
    /// Steps per second alone, by the number of parts of a batch.
    pub steps_per_s: BTreeMap<u32, f64>,
    /// Jobs that have finished, as far as they are remembered.
    pub finished: u64,
    /// Believed rate beside other classes, with the number of measurements.
    pub beside: BTreeMap<String, PairInfo>,
}

/// What is believed about a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PairInfo {
    /// Speed relative to running alone.
    pub rate: f64,
    /// Measurements behind it, as far as they are remembered.
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
    /// Most first.
    pub users: Vec<UserUsage>,
}

/// GPU time of one user.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserUsage {
    /// The user.
    pub user: String,
    /// Jobs.
    pub jobs: u64,
    /// Hours on GPUs × GPUs.
    pub gpu_hours: f64,
    /// The part of them in which a GPU was shared.
    pub shared_gpu_hours: f64,
}

/// What the daemon is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    /// Version of this JSON.
    pub schema: u32,
    /// Its version.
    pub version: String,
    /// The policy.
    pub policy: String,
    /// `cpu`, `nvidia` or `fake`.
    pub provider: String,
    /// Devices.
    pub devices: u32,
    /// Where it can make control groups for jobs, or why it cannot.
    #[serde(default)]
    pub cgroups: String,
    /// Seconds since it was started.
    pub up_s: f64,
    /// The user whose daemon it is.
    pub uid: u32,
    /// Its process.
    pub pid: u32,
    /// Jobs by state, those that are not over.
    pub jobs: BTreeMap<String, u64>,
    /// Plans that were refused.
    pub plans_rejected: u64,
}

/// A change of a job, as it is streamed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobChange {
    /// Counted through the life of the store.
    pub seq: u64,
    /// When.
    pub time: String,
    /// The job.
    pub id: u64,
    /// Where it stands now.
    pub state: JobState,
    /// Why.
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
}

/// Why something was not done.
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
