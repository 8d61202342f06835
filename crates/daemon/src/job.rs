//! A job as the daemon stores it: request, state and measurements.

use crate::request::{Dependency, JobRequest};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// The state of a job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for GPUs, for another job or for its time.
    #[default]
    Pending,
    /// Its process runs.
    Running,
    /// Its process is stopped.
    Paused,
    /// Held until it is released.
    Held,
    /// Its process is being ended.
    Completing,
    /// Ended with exit code 0.
    Completed,
    /// Ended with another exit code, or could not be started.
    Failed,
    /// Cancelled.
    Cancelled,
    /// Ended at its time limit.
    Timeout,
    /// Ended because it ran out of memory.
    Oom,
    /// Ended in an unknown way.
    Unknown,
}

impl JobState {
    /// All states, in the order in which they are listed.
    pub const ALL: [JobState; 11] = [
        JobState::Pending,
        JobState::Running,
        JobState::Paused,
        JobState::Held,
        JobState::Completing,
        JobState::Completed,
        JobState::Failed,
        JobState::Cancelled,
        JobState::Timeout,
        JobState::Oom,
        JobState::Unknown,
    ];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Running => "running",
            JobState::Paused => "paused",
            JobState::Held => "held",
            JobState::Completing => "completing",
            JobState::Completed => "completed",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::Timeout => "timeout",
            JobState::Oom => "oom",
            JobState::Unknown => "unknown",
        }
    }

    /// Its letters in tables.
    pub fn letters(self) -> &'static str {
        match self {
            JobState::Pending => "PD",
            JobState::Running => "R",
            JobState::Paused => "S",
            JobState::Held => "H",
            JobState::Completing => "CG",
            JobState::Completed => "CD",
            JobState::Failed => "F",
            JobState::Cancelled => "CA",
            JobState::Timeout => "TO",
            JobState::Oom => "OOM",
            JobState::Unknown => "UN",
        }
    }

    /// Parses a name or the letters of a state.
    pub fn parse(text: &str) -> Option<Self> {
        let is_it = |state: &Self| state.name() == text || state.letters() == text;
        Self::ALL.into_iter().find(is_it)
    }

    /// Whether the job has ended.
    pub fn is_over(self) -> bool {
        self >= JobState::Completed
    }
}

/// A stored job. Fields with their default value are left out of its record: in a long queue most jobs have
/// little else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredJob {
    /// Its id.
    pub id: u64,
    /// The id of the job in its cluster, if it comes from a cluster. Never reused.
    #[serde(skip_serializing_if = "is_default")]
    pub external: Option<String>,
    /// The user id of its owner.
    #[serde(skip_serializing_if = "is_default")]
    pub uid: u32,
    /// The primary group of its owner.
    #[serde(skip_serializing_if = "is_default")]
    pub gid: u32,
    /// The name of its owner.
    #[serde(skip_serializing_if = "is_default")]
    pub user: String,
    /// The request, shared by all tasks of a submission and stored once.
    #[serde(skip)]
    pub request: Arc<JobRequest>,
    /// The array that it belongs to.
    #[serde(skip_serializing_if = "is_default")]
    pub task: Option<ArrayTask>,
    /// Dependencies that have not ended.
    #[serde(skip_serializing_if = "is_default")]
    pub dependencies: Vec<Dependency>,
    /// Its class.
    #[serde(skip_serializing_if = "is_default")]
    pub class: String,
    /// Its state.
    #[serde(skip_serializing_if = "is_default")]
    pub state: JobState,
    /// Why it is in this state.
    #[serde(skip_serializing_if = "is_default")]
    pub reason: Option<String>,
    /// Submission, in microseconds since 1970; so are start and end.
    #[serde(skip_serializing_if = "is_default")]
    pub submit_us: u64,
    /// First start.
    #[serde(skip_serializing_if = "is_default")]
    pub start_us: Option<u64>,
    /// End.
    #[serde(skip_serializing_if = "is_default")]
    pub end_us: Option<u64>,
    /// Total work that the job itself reported, in microseconds of running alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_us: Option<u64>,
    /// Number of runs.
    #[serde(skip_serializing_if = "is_default")]
    pub runs: u32,
    /// Retries after failures.
    #[serde(skip_serializing_if = "is_default")]
    pub retried: u32,
    /// It ran out of memory once and was started again alone.
    #[serde(skip_serializing_if = "is_default")]
    pub oom_retried: bool,
    /// Exit code, 128 + signal for a signal.
    #[serde(skip_serializing_if = "is_default")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "is_default")]
    pub signal: Option<i32>,
    /// Devices of its present or latest placement.
    #[serde(skip_serializing_if = "is_default")]
    pub devices: Vec<u32>,
    /// Time on its devices without pauses, over all runs.
    #[serde(skip_serializing_if = "is_default")]
    pub ran_us: u64,
    /// The part of this time in which it shared a device.
    #[serde(skip_serializing_if = "is_default")]
    pub shared_us: u64,
    /// Work done over all runs, in microseconds of running alone.
    #[serde(skip_serializing_if = "is_default")]
    pub done_us: u64,
    /// The user paused it.
    #[serde(skip_serializing_if = "is_default")]
    pub user_paused: bool,
    /// Peak memory on a device, in bytes.
    #[serde(skip_serializing_if = "is_default")]
    pub memory_peak_bytes: u64,
    /// CPU time of its ended runs.
    #[serde(skip_serializing_if = "is_default")]
    pub cpu_s: f64,
    /// Sub-batches per batch as a user set them; the policy decides if absent.
    #[serde(skip_serializing_if = "is_default")]
    pub accum: Option<u32>,
    /// Number of sub-batches that is being tried, to measure speed and memory.
    #[serde(skip_serializing_if = "is_default")]
    pub trial: Option<u32>,
    /// When it became eligible, on the scheduler's clock; fairness counts from then.
    #[serde(skip_serializing_if = "is_default")]
    pub entered_us: Option<u64>,
    /// The present plan gives it its devices.
    #[serde(skip_serializing_if = "is_default")]
    pub placed: bool,
    /// Sub-batches per batch under the present plan.
    #[serde(skip_serializing_if = "is_default")]
    pub sub_batches: u32,
    /// What the process of its present run supports, as it reported.
    #[serde(skip_serializing_if = "is_default")]
    pub caps: Caps,
    /// Why it is being ended, if so.
    #[serde(skip_serializing_if = "is_default")]
    pub ending: Option<Ending>,
    /// The present run was asked to save a checkpoint and exit.
    #[serde(skip_serializing_if = "is_default")]
    pub asked: bool,
    /// Its progress when the record was written, if it ran.
    #[serde(skip_serializing_if = "is_default")]
    pub going: Option<Going>,
    /// Requests and latencies, if it is a service.
    #[serde(skip_serializing_if = "is_default")]
    pub latency: LatencyRecord,
    /// The budget that the latency feedback sets, in parts per million; that of the plan if absent.
    #[serde(skip_serializing_if = "is_default")]
    pub budget_ppm: Option<u32>,
}

/// Requests and latencies of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyRecord {
    /// Requests so far.
    pub requests: u64,
    /// Time for which latencies are known.
    pub observed_us: u64,
    /// The part of this time in which the promise was kept.
    pub kept_us: u64,
    /// Requests of the last window.
    pub window_requests: u64,
    /// Its length.
    pub window_us: u64,
    /// Its median latency.
    pub p50_us: u64,
    /// Its 99th percentile.
    pub p99_us: u64,
}

impl LatencyRecord {
    /// Adds a window.
    pub fn add(&mut self, window: RequestWindow, is_kept: bool) {
        let RequestWindow { requests, window_us, p50_us, p99_us } = window;
        self.requests = self.requests.saturating_add(requests);
        self.observed_us = self.observed_us.saturating_add(window_us);
        self.kept_us = self.kept_us.saturating_add(if is_kept { window_us } else { 0 });
        (self.window_requests, self.window_us) = (requests, window_us);
        (self.p50_us, self.p99_us) = (p50_us, p99_us);
    }

    /// Requests per second in the last window.
    pub fn rate_per_s(&self) -> Option<f64> {
        (self.window_us > 0).then(|| self.window_requests as f64 * 1e6 / self.window_us as f64)
    }

    /// The fraction of the time in which the promise was kept.
    pub fn kept(&self) -> Option<f64> {
        (self.observed_us > 0).then(|| self.kept_us as f64 / self.observed_us as f64)
    }
}

/// Requests that a service answered in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestWindow {
    /// Number of requests.
    pub requests: u64,
    /// Length of the window.
    pub window_us: u64,
    /// Median latency.
    pub p50_us: u64,
    /// 99th percentile of the latency.
    pub p99_us: u64,
}

/// What the process of a job supports, as it reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[bool; 3]", into = "[bool; 3]")]
pub struct Caps {
    /// It speaks the job protocol.
    pub reports: bool,
    /// It computes each batch in the requested number of sub-batches.
    pub accum: bool,
    /// It saves a checkpoint and exits when it is asked to.
    pub stop: bool,
}

impl From<[bool; 3]> for Caps {
    fn from([reports, accum, stop]: [bool; 3]) -> Self {
        Self { reports, accum, stop }
    }
}

impl From<Caps> for [bool; 3] {
    fn from(caps: Caps) -> Self {
        [caps.reports, caps.accum, caps.stop]
    }
}

/// Why a job is being ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A user cancelled it.
    Cancelled {
        /// The user's name.
        by: String,
    },
    /// Its time limit was reached.
    TimeUp,
    /// It is to be requeued, from a checkpoint if it can save one.
    Requeue {
        /// The user's name.
        by: String,
    },
}

impl Ending {
    /// The final state and reason; `None` if the job is queued again.
    pub fn end(&self) -> Option<(JobState, String)> {
        match self {
            Ending::Cancelled { by } => Some((JobState::Cancelled, format!("cancelled by {by}"))),
            Ending::TimeUp => Some((JobState::Timeout, "time limit".to_owned())),
            Ending::Requeue { .. } => None,
        }
    }

    /// The reason to show until then.
    pub fn under_way(&self) -> String {
        match self {
            Ending::Cancelled { by } => format!("is being cancelled by {by}"),
            Ending::TimeUp => "time limit reached, is ending".to_owned(),
            Ending::Requeue { by } => format!("is being requeued by {by}"),
        }
    }
}

/// The progress of a running job at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Going {
    /// The instant, on the scheduler's clock.
    pub at_us: u64,
    /// It shares a device.
    pub shared: bool,
    /// Speed relative to running alone, in parts per million.
    pub rate_ppm: u32,
}

/// A reason without details that only the owner may see.
pub fn public_reason(reason: &str) -> String {
    let private = ["exec", "refused"];
    let head = reason.split_once(": ").map(|(head, _)| head);
    head.filter(|head| private.contains(head)).unwrap_or(reason).to_owned()
}

/// A task of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArrayTask {
    /// The first job of the submission.
    pub first: u64,
    /// Its number.
    pub number: u32,
    /// How many may run at a time.
    pub at_a_time: Option<u32>,
}

impl StoredJob {
    /// Adds run time and work up to `at_us` at the present rate.
    pub fn account(&mut self, at_us: u64) {
        if let Some(going) = self.going.take() {
            let span = at_us.saturating_sub(going.at_us);
            self.ran_us += span;
            self.shared_us += if going.shared { span } else { 0 };
            let done = u128::from(span) * u128::from(going.rate_ppm) / 1_000_000;
            self.done_us += u64::try_from(done).unwrap_or(u64::MAX);
        }
    }

    /// The id of its request: that of the first job of the submission.
    pub fn request_id(&self) -> u64 {
        self.task.map_or(self.id, |task| task.first)
    }

    /// Its name as shown, with the task number.
    pub fn name(&self) -> String {
        self.request.display_name()
    }

    /// Its value of each parameter.
    pub fn params(&self) -> Vec<(&str, &str)> {
        let index = self.id.saturating_sub(self.request_id());
        self.request.chosen(usize::try_from(index).unwrap_or(0))
    }

    /// The command with parameters substituted.
    pub fn command(&self) -> Vec<String> {
        let params = self.params();
        self.request.command.iter().map(|argument| put_in(argument, &params)).collect()
    }

    /// The first arguments of the command with parameters substituted, which say what it is. For each of many
    /// tasks, so that the work does not grow with the length of the command.
    pub(crate) fn command_start(&self) -> Vec<String> {
        let params = self.params();
        let longest = params.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
        let mut left = crate::class::START_BYTES;
        let fits = |argument: &&String| {
            let inserted = argument.matches('{').count() * longest;
            let room = left.checked_sub(argument.len() + inserted + 1);
            left = room.unwrap_or(0);
            room.is_some()
        };
        let start = self.request.command.iter().take_while(fits);
        start.map(|argument| put_in(argument, &params)).collect()
    }

    /// Its reason without details that only the owner may see, such as file names.
    pub fn public_reason(&self) -> Option<String> {
        self.reason.as_deref().map(public_reason)
    }

    /// Substitutes `%j`, `%A`, `%a`, `%x` and `%%` in a file name. Relative names are in the job's directory.
    pub fn file(&self, pattern: &std::path::Path) -> std::path::PathBuf {
        let pattern = pattern.to_string_lossy();
        let mut name = String::with_capacity(pattern.len());
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                name.push(character);
                continue;
            }
            match characters.next() {
                Some('j') => name.push_str(&self.id.to_string()),
                Some('a') => name.push_str(&self.task.map_or(0, |task| task.number).to_string()),
                Some('A') => {
                    name.push_str(&self.task.map_or(self.id, |task| task.first).to_string());
                }
                Some('x') => name.push_str(&self.name().replace('/', "_")),
                Some('%') | None => name.push('%'),
                Some(other) => name.extend(['%', other]),
            }
        }
        self.request.dir.join(name)
    }

    /// The file of its standard output.
    pub fn stdout(&self) -> std::path::PathBuf {
        let default = || std::path::Path::new("tandem-%j.out");
        self.file(self.request.stdout.as_deref().unwrap_or_else(default))
    }

    /// The file of its standard error, if it is a separate one.
    pub fn stderr(&self) -> Option<std::path::PathBuf> {
        self.request.stderr.as_deref().map(|pattern| self.file(pattern))
    }
}

/// Whether a field has its default value and can be left out of the record.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Replaces `{name}` by the value of that parameter. Inserted values are not expanded again.
fn put_in(argument: &str, params: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(argument.len());
    let mut rest = argument;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        // Limit the search to the longest name, so that each argument is scanned once whatever it contains.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let end = rest.bytes().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
        let is_closed = rest[end..].starts_with('}');
        match params.iter().find(|(name, _)| is_closed && *name == &rest[..end]) {
            Some((_, value)) => {
                text.push_str(value);
                rest = &rest[end + 1..];
            }
            None => text.push('{'),
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Param;

    #[test]
    fn parameters_are_put_in_once() {
        let param = |name: &str, value: &str| Param {
            name: name.to_owned(),
            values: vec!["other".to_owned(), value.to_owned()],
        };
        let params = vec![param("a", "{b}"), param("b", "2")];
        let command = ["{a}", "x{b}{b}y", "{c}", "{", "{{a}}", "é{b", ""];
        let command = command.map(str::to_owned).to_vec();
        let request = Arc::new(JobRequest { command, params, ..JobRequest::default() });
        // The last of four tasks.
        let task = Some(ArrayTask { first: 5, number: 3, at_a_time: None });
        let job = StoredJob { id: 8, task, request, ..StoredJob::default() };
        assert_eq!(job.command(), ["{b}", "x22y", "{c}", "{", "{{b}}", "é{b", ""]);
    }

    #[test]
    fn reasons_that_name_files_are_the_owners() {
        assert_eq!(public_reason("exec: cannot enter directory /home/ann/secret: no"), "exec");
        assert_eq!(public_reason("refused: cannot write /x"), "refused");
        assert_eq!(public_reason("exit code 3"), "exit code 3");
    }
}
