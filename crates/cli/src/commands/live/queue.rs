//! `tandem queue`.

use super::{connect, own_name};
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::QueueArgs;
use crate::output::{self, OutputFormat, TableCell, clean, name};
use crate::units;
use comfy_table::Color;
use serde_json::{Value, json};
use tandem_daemon::api::types::{JobLine, SCHEMA};
use tandem_daemon::client::{Client, ClientError, JobQuery};
use tandem_daemon::job::JobState;

/// Jobs per answer.
const PAGE: u32 = 1000;
/// The fields of CSV.
const COLUMNS: [&str; 21] = [
    "id",
    "name",
    "user",
    "state",
    "reason",
    "array",
    "task",
    "gpus",
    "class",
    "devices",
    "beside",
    "rate",
    "rate_measured",
    "rate_from",
    "submit_time",
    "start_time",
    "end_time",
    "run_s",
    "shared_s",
    "exit_code",
    "schema",
];

pub(super) fn run(args: &QueueArgs) -> Result<(), Failure> {
    let format = args.list.output.format(args.list.common.json)?;
    let mut client = connect(&args.list.common)?;
    let query = JobQuery {
        states: match (args.all, args.state.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => JobState::ALL.into_iter().filter(|state| !state.is_over()).collect(),
            (false, false) => args.state.clone(),
        },
        user: if args.mine { Some(own_name()) } else { args.user.clone() },
        latest_first: true,
        ..JobQuery::default()
    };
    let found = running_first(&mut client, &query, args.limit)?;
    let has_more = found.next_after.is_some();
    let FoundJobs { jobs, mut raw, next_after } = found;
    match format {
        OutputFormat::Json => {
            let mut answer = json!({ "schema": SCHEMA, "jobs": raw });
            if let Some(next) = next_after {
                answer["next_after"] = json!(next);
            }
            print(&answer.to_string())
        }
        OutputFormat::Jsonl => output::json_lines(&raw),
        OutputFormat::Csv => {
            for row in &mut raw {
                let task = row["task"].take();
                row["array"] = task["first"].clone();
                row["task"] = task["number"].clone();
                row["schema"] = json!(SCHEMA);
            }
            output::csv(&COLUMNS, &raw)
        }
        OutputFormat::Table => {
            print(&table(&jobs, args.list.common.color.is_on()))?;
            if has_more {
                remark(&format!("these are the latest {}; --limit shows more", jobs.len()), false);
            }
            Ok(())
        }
    }
}

/// Jobs, in the order in which they are shown.
pub(super) struct FoundJobs {
    pub(super) jobs: Vec<JobLine>,
    /// The JSON of the daemon.
    pub(super) raw: Vec<Value>,
    /// Where the next page starts, if there are earlier jobs.
    pub(super) next_after: Option<u64>,
}

/// The jobs of a query that have devices, whatever the length of the queue, and then the latest of the others.
pub(super) fn running_first(
    client: &mut Client,
    query: &JobQuery,
    limit: u32,
) -> Result<FoundJobs, ClientError> {
    let has_devices = |state: &JobState| {
        matches!(state, JobState::Running | JobState::Paused | JobState::Completing)
    };
    let all = || JobState::ALL.to_vec();
    let wanted = if query.states.is_empty() { all() } else { query.states.clone() };
    let (first, rest): (Vec<_>, Vec<_>) = wanted.into_iter().partition(has_devices);
    let of = |states: Vec<JobState>| JobQuery { states, ..query.clone() };
    if first.is_empty() || rest.is_empty() {
        return latest(client, query, limit);
    }
    // A job that starts in between is among the first: those are asked for last.
    let mut waiting = latest(client, &of(rest), limit)?;
    let mut found = latest(client, &of(first), limit)?;
    let room = limit as usize - found.jobs.len().min(limit as usize);
    let is_twice = |id: u64| found.jobs.iter().any(|job| job.id == id);
    let keep: Vec<bool> = waiting.jobs.iter().map(|job| !is_twice(job.id)).collect();
    let surplus = keep.iter().filter(|kept| **kept).count().saturating_sub(room);
    let kept = |index: usize| keep[index];
    let shown: Vec<usize> = (0..keep.len()).filter(|&index| kept(index)).skip(surplus).collect();
    let next = match (surplus, shown.first()) {
        (0, _) => waiting.next_after,
        (_, Some(&index)) => Some(waiting.jobs[index].id),
        (_, None) => waiting.jobs.last().map(|job| job.id + 1),
    };
    found.next_after = next;
    for index in shown {
        found.jobs.push(waiting.jobs[index].clone());
        found.raw.push(waiting.raw[index].take());
    }
    Ok(found)
}

/// The latest jobs of a query, in order of their numbers.
pub(super) fn latest(
    client: &mut Client,
    query: &JobQuery,
    limit: u32,
) -> Result<FoundJobs, ClientError> {
    let mut found = FoundJobs { jobs: Vec::new(), raw: Vec::new(), next_after: None };
    loop {
        let left = limit - u32::try_from(found.jobs.len()).unwrap_or(limit).min(limit);
        if left == 0 {
            break;
        }
        let page =
            JobQuery { after: found.next_after, limit: Some(left.min(PAGE)), ..query.clone() };
        let answer = client.jobs(&page)?;
        let mut raw: Value = serde_json::from_str(&answer.raw)
            .map_err(|error| ClientError::Protocol(format!("/v1/jobs: {error}")))?;
        if let Value::Array(rows) = raw["jobs"].take() {
            found.raw.extend(rows);
        }
        let page = answer.value;
        found.next_after = page.next_after.filter(|_| !page.jobs.is_empty());
        found.jobs.extend(page.jobs);
        if found.next_after.is_none() {
            break;
        }
    }
    found.jobs.reverse();
    found.raw.reverse();
    Ok(found)
}

/// Jobs as a table.
pub(super) fn table(jobs: &[JobLine], colors: bool) -> String {
    let header =
        [">job", "name", "user", "st", ">time", ">gpus", "on", "beside", ">rate", "reason"];
    let rows = jobs.iter().map(|job| row(job).into_iter().collect()).collect();
    output::table(&header, rows, colors)
}

fn row(job: &JobLine) -> [TableCell; 10] {
    let devices = list(&job.devices);
    // The previous devices of a pending job are irrelevant.
    let sits = matches!(job.state, JobState::Running | JobState::Paused | JobState::Completing);
    [
        number(job).into(),
        name(&job.name).into(),
        name(&job.user).into(),
        TableCell::colored(job.state.letters(), color(job.state)),
        units::clock(job.run_s).into(),
        job.gpus.to_string().into(),
        if sits { devices } else { String::new() }.into(),
        list(&job.beside).into(),
        rate(job).into(),
        job.reason.as_deref().map(clean).or_else(|| latency(job)).unwrap_or_default().into(),
    ]
}

/// The latency of a service against its promise.
fn latency(job: &JobLine) -> Option<String> {
    let latency = job.latency.as_ref().filter(|_| job.state == JobState::Running)?;
    let Some(p99) = latency.p99_ms else { return Some("latency not reported".to_owned()) };
    let promise = latency.slo.as_deref().map(|slo| format!(", promised {}", clean(slo)));
    let kept = latency.kept.map(|kept| format!(", kept {:.1} %", kept * 100.0));
    Some(format!("p99 {p99:.1} ms{}{}", promise.unwrap_or_default(), kept.unwrap_or_default()))
}

/// The number of a job, with its task if it has one.
pub(super) fn number(job: &JobLine) -> String {
    if let Some(external) = &job.external {
        return format!("{} (slurm {})", job.id, clean(external));
    }
    match job.task {
        Some(task) => format!("{} ({}_{})", job.id, task.first, task.number),
        None => job.id.to_string(),
    }
}

/// Speed relative to running alone; a prediction is marked, and `?` is not known.
pub(super) fn rate(job: &JobLine) -> String {
    let mark = if job.rate_measured { "" } else { "~" };
    let runs = job.state == JobState::Running;
    let unknown = || if runs && !job.beside.is_empty() { "?" } else { "" }.to_owned();
    job.rate.map_or_else(unknown, |rate| format!("{mark}{rate:.2}"))
}

pub(super) fn color(state: JobState) -> Option<Color> {
    match state {
        JobState::Running | JobState::Completing => Some(Color::Green),
        JobState::Pending | JobState::Paused | JobState::Held => Some(Color::Yellow),
        JobState::Failed | JobState::Timeout | JobState::Oom | JobState::Unknown => {
            Some(Color::Red)
        }
        JobState::Completed | JobState::Cancelled => None,
    }
}

/// Numbers separated by commas.
pub(super) fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
