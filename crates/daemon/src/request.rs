//! A request for a job, as it is submitted and as it is stored.

mod bounded;
mod check;
mod dependency;
mod selector;
mod service;
mod signal;
mod tasks;
#[cfg(test)]
mod tests;

pub use check::{CheckedRequest, progress_pattern};
pub use dependency::DependencyName;
pub use selector::Selector;
pub use service::{LatencyPromise, Percentile, ServiceRequest};
pub use tasks::{ListError, TASKS_MAX, Tasks, parse_numbers};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tandem_core::{PPM_ONE, Tolerance};
use thiserror::Error;
use utoipa::ToSchema;

/// The longest name of a job or class, in bytes.
pub(crate) const NAME_MAX: usize = 255;

/// What a text takes in memory beyond its bytes: itself and the least that is allocated for it.
const TEXT_BYTES: usize = size_of::<String>() + 32;

/// The longest time between the request to end and the end by force, in seconds: it outlasts the time limit
/// and the command to cancel.
pub const KILL_GRACE_MAX_S: f64 = 3600.0;

/// A job as it is submitted.
///
/// A new option of `submit` touches four places: its flag (`crates/cli/src/job_options.rs`), the translation
/// of the flag (`crates/cli/src/commands/live/request.rs`), the field here with its default and its
/// check, and the code that acts on it. It is stored, journalled and served over HTTP without further
/// changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(description = "A job as it is submitted.")]
pub struct JobRequest {
    /// Program and arguments; empty for a job of a cluster, which has them.
    #[serde(deserialize_with = "bounded::arguments")]
    #[schema(min_items = 1, max_items = 65_536)]
    pub command: Vec<String>,
    /// A name for people; the program's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub name: Option<String>,
    /// The whole environment of the process.
    #[serde(deserialize_with = "bounded::variables")]
    pub env: BTreeMap<String, String>,
    /// Working directory.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// GPUs; below one is a part of one.
    #[schema(minimum = 0.1, maximum = 1_000_000)]
    pub gpus: f64,
    /// The most time on its GPUs, pauses not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1e10)]
    pub time_limit_s: Option<f64>,
    /// Task numbers, `0-9:2,14%3`; %3 lets three of them run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// Values to try: every combination becomes a task, `{name}` in the command is replaced and
    /// `TANDEM_PARAM_NAME` set.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "bounded::params")]
    #[schema(max_items = 64)]
    pub params: Vec<Param>,
    /// `afterok:1:2,afterany:3_4,afternotok:5_*,after:6`; all have to hold, `after` once the job has started.
    /// The first job of an array stands for all of its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Not before this, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1e10)]
    pub begin_unix_s: Option<f64>,
    /// File for standard output; %j is the job, %A the first one of its array, %a the task, %x the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stdout: Option<PathBuf>,
    /// File for standard error; that of standard output if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stderr: Option<PathBuf>,
    /// Partition; there is one on a single machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Memory that it takes on each GPU; measured if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 1_125_899_906_842_624_i64)]
    pub gpu_memory_bytes: Option<u64>,
    /// Nobody beside it.
    pub exclusive: bool,
    /// The most slow-down it puts up with beside others: 1.2 is a fifth longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub max_slowdown: Option<f64>,
    /// How often it is tried again after it has failed.
    #[schema(maximum = 1000)]
    pub retries: u32,
    /// Try it again after the machine was started anew.
    pub requeue: bool,
    /// Jobs of one class behave alike; from program, script and the arguments that matter if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub class: Option<String>,
    /// How long it takes alone, as far as is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.001, maximum = 1e10)]
    pub estimate_s: Option<f64>,
    /// From -20 to 20; two steps double its weight.
    #[schema(minimum = -20, maximum = 20)]
    pub priority: i8,
    /// Wait until it is released.
    pub hold: bool,
    /// How its output shows progress, with one group for the number of steps: `step (\d+)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_regex: Option<String>,
    /// Asked with a POST when the job is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Time between the request to end and the end by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 3600)]
    pub kill_grace_s: Option<f64>,
    /// The signal on which it saves a checkpoint and exits: `USR1`, `SIGTERM` or a number. Such a job can be
    /// stopped, moved and requeued although it does not speak the job protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Set the variables that Slurm sets: SLURM_JOB_ID, SLURM_ARRAY_TASK_ID and the like.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub slurm_env: bool,
    /// The account that it is charged to; that of the user if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 255)]
    pub qos: Option<String>,
    /// Address that gets a mail when the job is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mail: Option<String>,
    /// The reservation in which it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<u32>,
    /// What it is promised as a service; absent for a job that ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRequest>,
    /// The part of each GPU that it is sure of beside others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.1, maximum = 1)]
    pub share: Option<f64>,
    /// Bytes that it takes in the store with its environment; known once it was read or stored.
    #[serde(skip)]
    #[schema(ignore)]
    pub stored_bytes: u64,
}

/// One parameter of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What to try.
    #[serde(deserialize_with = "bounded::values")]
    #[schema(max_items = 100_000)]
    pub values: Vec<String>,
}

impl Default for JobRequest {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            name: None,
            env: BTreeMap::new(),
            dir: PathBuf::from("/"),
            gpus: 1.0,
            time_limit_s: None,
            array: None,
            params: Vec::new(),
            dependency: None,
            begin_unix_s: None,
            stdout: None,
            stderr: None,
            partition: None,
            gpu_memory_bytes: None,
            exclusive: false,
            max_slowdown: None,
            retries: 0,
            requeue: false,
            class: None,
            estimate_s: None,
            priority: 0,
            hold: false,
            progress_regex: None,
            webhook: None,
            kill_grace_s: None,
            stop_signal: None,
            slurm_env: false,
            account: None,
            qos: None,
            mail: None,
            reservation: None,
            service: None,
            share: None,
            stored_bytes: 0,
        }
    }
}

/// What is wrong with a request, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct BadRequest {
    /// The field.
    pub field: &'static str,
    /// What is wrong and what to do.
    pub problem: String,
}

fn bad(field: &'static str, problem: impl Into<String>) -> BadRequest {
    BadRequest { field, problem: problem.into() }
}

impl JobRequest {
    /// A name for people.
    pub fn display_name(&self) -> String {
        let program = || {
            let program = self.command.first().map_or("", String::as_str);
            program.rsplit('/').next().unwrap_or(program).to_owned()
        };
        self.name.clone().unwrap_or_else(|| program().chars().take(NAME_MAX / 4).collect())
    }

    /// What its lists of texts take in memory beyond the texts.
    pub(crate) fn list_bytes(&self) -> usize {
        let values = self.params.iter().map(|param| param.values.len());
        (self.command.len() + values.sum::<usize>()) * TEXT_BYTES
    }

    /// Whole GPUs of its gang.
    pub fn gang(&self) -> u32 {
        // `as` is exact: the check bounds it.
        self.gpus.ceil().max(1.0) as u32
    }

    /// The most of each GPU that it may use, in parts per million.
    pub fn share_ppm(&self) -> u32 {
        let share = if self.gpus < 1.0 { self.gpus } else { 1.0 };
        (share * f64::from(PPM_ONE)).round() as u32
    }

    /// What it puts up with beside others.
    pub fn tolerance(&self) -> Tolerance {
        match self.max_slowdown {
            _ if self.exclusive => Tolerance::Alone,
            Some(most) => Tolerance::Slowdown((most * f64::from(PPM_ONE)).round() as u32),
            None => Tolerance::Any,
        }
    }

    /// The number of the signal on which it saves a checkpoint, if there is one.
    pub fn stop_signal(&self) -> Option<i32> {
        self.stop_signal.as_deref().and_then(signal::number)
    }

    /// What has to be over before it may start, as it was written.
    pub fn dependencies(&self) -> Result<Vec<DependencyName>, BadRequest> {
        self.dependency.as_deref().map_or_else(|| Ok(Vec::new()), dependency::parse)
    }
}

/// One job that has to be over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// How.
    pub after: After,
    /// Which.
    pub job: u64,
    /// All tasks of the array that begins with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub array: bool,
    /// A task of the array has ended and did not complete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

impl Dependency {
    /// On one job.
    pub fn on(after: After, job: u64) -> Self {
        Self { after, job, array: false, failed: false }
    }
}

/// How a job has to be over, or that it has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// Completed.
    Ok,
    /// Over.
    Any,
    /// Over, and not completed.
    NotOk,
    /// Started, or over without that.
    Started,
}
