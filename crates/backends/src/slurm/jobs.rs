//! The jobs that Slurm knows, from `squeue --json`. Shapes differ by version: a number may be an object,
//! a state a list. What is absent is taken as not set.

use super::note::Note;
use super::text;
use serde_json::Value;

/// What a job is about to do, or how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Running,
    Suspended,
    Over(Over),
    /// In between, or not known to us: left alone.
    Other,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    OutOfMemory,
    /// Its node was lost, or would not begin.
    NodeFailed,
}

/// One record of the list. That of an array may stand for many tasks.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) array: Option<u64>,
    pub(super) task: Option<u32>,
    /// Tasks that wait under this record.
    pub(super) waiting: Vec<u32>,
    pub(super) at_a_time: Option<u32>,
    pub(super) state: State,
    pub(super) reason: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) user: String,
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) partition: String,
    pub(super) note: Option<Note>,
    pub(super) is_held: bool,
    /// Handed in as a script; otherwise somebody sits and waits for it.
    pub(super) is_batch: bool,
    pub(super) asked: String,
    pub(super) required_nodes: String,
    pub(super) nodes: Vec<String>,
    pub(super) allocated: Vec<String>,
    pub(super) dependency: String,
    pub(super) eligible_s: u64,
    pub(super) submit_s: u64,
    pub(super) start_s: u64,
    pub(super) end_s: u64,
    pub(super) limit_min: Option<u64>,
    pub(super) restarts: u64,
    /// Exit code and signal.
    pub(super) exit: (i32, i32),
}

/// The list, and the version of Slurm that made it.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    pub(super) version: Option<(u32, u32, u32)>,
    pub(super) records: Vec<Record>,
}

/// Reads the output of `squeue --json`.
pub(super) fn read(json: &[u8]) -> Result<Listing, String> {
    let document: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let jobs = document.get("jobs").and_then(Value::as_array).ok_or("there is no list of jobs")?;
    Ok(Listing { version: version(&document), records: jobs.iter().filter_map(record).collect() })
}

/// The version that a document of Slurm names.
pub(super) fn version(document: &Value) -> Option<(u32, u32, u32)> {
    let meta = document.get("meta")?;
    let slurm = meta.get("Slurm").or_else(|| meta.get("slurm"))?;
    let part = |name: &str| -> Option<u32> {
        let part = slurm.get("version")?.get(name)?;
        part.as_str().map_or_else(|| part.as_u64()?.try_into().ok(), |text| text.parse().ok())
    };
    // `micro` and `minor` of 22.05.8 are 8 and 5.
    Some((part("major")?, part("minor")?, part("micro")?))
}

/// A number, as such or as an object that says whether it is set.
fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(number) => number.as_u64(),
        Value::Object(object) => {
            let is_set = object.get("set").and_then(Value::as_bool).unwrap_or(true);
            let is_infinite = object.get("infinite").and_then(Value::as_bool).unwrap_or(false);
            (is_set && !is_infinite).then(|| object.get("number")?.as_u64()).flatten()
        }
        _ => None,
    }
}

fn record(job: &Value) -> Option<Record> {
    let text_of = |name: &str| job.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number_of = |name: &str| number(job.get(name));
    let id = number_of("job_id")?;
    let array = number_of("array_job_id").filter(|&array| array > 0);
    let waiting = text_of("array_task_string");
    let priority = number_of("priority");
    let uid = |name: &str| number_of(name).and_then(|uid| u32::try_from(uid).ok());
    Some(Record {
        id,
        array,
        task: array.and_then(|_| number_of("array_task_id")).and_then(|task| task.try_into().ok()),
        waiting: text::tasks(&waiting).unwrap_or_default(),
        at_a_time: number_of("array_max_tasks")
            .filter(|&most| most > 0)
            .and_then(|most| most.try_into().ok()),
        state: state(job),
        reason: text_of("state_reason"),
        uid: uid("user_id")?,
        gid: uid("group_id")?,
        user: text_of("user_name"),
        name: text_of("name"),
        comment: comment(job),
        partition: text_of("partition"),
        note: Note::parse(&admin_comment(job)),
        is_held: priority == Some(0),
        is_batch: job.get("batch_flag").and_then(Value::as_bool).unwrap_or(true),
        asked: text_of("tres_per_node"),
        required_nodes: text_of("required_nodes"),
        nodes: text::nodes(&text_of("nodes")).unwrap_or_default(),
        allocated: texts(job.get("gres_detail")),
        dependency: text_of("dependency"),
        eligible_s: number_of("eligible_time").unwrap_or(0),
        submit_s: number_of("submit_time").unwrap_or(0),
        start_s: number_of("start_time").unwrap_or(0),
        end_s: number_of("end_time").unwrap_or(0),
        limit_min: number_of("time_limit"),
        restarts: number_of("restart_cnt").unwrap_or(0),
        exit: exit(job.get("exit_code")),
    })
}

/// Newer versions keep comments together.
fn comment(job: &Value) -> String {
    commented(job, "comment", "job")
}

fn admin_comment(job: &Value) -> String {
    commented(job, "admin_comment", "administrator")
}

fn commented(job: &Value, name: &str, within: &str) -> String {
    let alone = job.get(name).and_then(Value::as_str);
    let together = || job.get("comment")?.get(within)?.as_str();
    alone.or_else(together).unwrap_or_default().to_owned()
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match value {
        Some(Value::Array(texts)) => texts.iter().filter_map(text).collect(),
        Some(value) => text(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn state(job: &Value) -> State {
    let names = texts(job.get("job_state"));
    let is = |name: &str| names.iter().any(|have| have == name);
    if is("COMPLETING") || is("CONFIGURING") || is("STAGE_OUT") || is("SIGNALING") || is("STOPPED")
    {
        return State::Other;
    }
    let of = |name: &String| {
        Some(match name.as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => State::Pending,
            "RUNNING" => State::Running,
            "SUSPENDED" => State::Suspended,
            "COMPLETED" => State::Over(Over::Completed),
            "FAILED" => State::Over(Over::Failed),
            "CANCELLED" | "PREEMPTED" | "REVOKED" => State::Over(Over::Cancelled),
            "TIMEOUT" | "DEADLINE" => State::Over(Over::TimedOut),
            "OUT_OF_MEMORY" => State::Over(Over::OutOfMemory),
            "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" => State::Over(Over::NodeFailed),
            _ => return None,
        })
    };
    names.iter().find_map(of).unwrap_or(State::Other)
}

/// A wait status, or an object of code and signal.
fn exit(value: Option<&Value>) -> (i32, i32) {
    let small = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    match value {
        Some(Value::Object(object)) if object.contains_key("return_code") => {
            let code = number(object.get("return_code")).map_or(0, small);
            let signal = object
                .get("signal")
                .and_then(|signal| number(signal.get("id").or_else(|| signal.get("signal_id"))));
            (code, signal.map_or(0, small))
        }
        value => {
            let status = number(value).map_or(0, small);
            (status >> 8 & 0xff, status & 0x7f)
        }
    }
}
