//! `tandem wait`, and the waiting of `run` and `submit -W`.

use super::{connect, select};
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::WaitArgs;
use crate::output::name;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::JobLine;
use tandem_daemon::client::{Client, ClientError, Events};
use tandem_daemon::job::JobState;

/// The exit code of a job that ran out of memory.
const OUT_OF_MEMORY: u8 = 253;
/// Interval at which all jobs are polled besides the stream of changes.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Jobs outlive their daemon: how long it may be unreachable.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(500);

pub(super) fn run(args: &WaitArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let ids = select::jobs(&mut client, &args.jobs, true)?;
    let until = args.timeout.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let over = until_over(&mut client, &ids, until)?;
    if args.common.json {
        let jobs: Vec<&JobLine> = over.values().collect();
        print(&json!({ "schema": 1, "jobs": jobs }).to_string())?;
    } else {
        for job in over.values() {
            print(&outcome(job))?;
        }
    }
    if over.len() < ids.len() {
        let left = ids.len() - over.len();
        let verb = if left == 1 { "job is" } else { "jobs are" };
        return Err(Failure::failed(format!("{left} {verb} not over; see tandem queue")));
    }
    let code = over.values().map(exit_code).max().unwrap_or(0);
    match code {
        0 => Ok(()),
        code if args.exit_code => Err(Failure::Exit(code)),
        _ => Err(Failure::Exit(1)),
    }
}

/// One line about the end of a job.
pub(super) fn outcome(job: &JobLine) -> String {
    let mut text = format!("job {} ({}) {}", job.id, name(&job.name), job.state.name());
    if let Some(code) = job.exit_code.filter(|&code| code != 0) {
        text += &format!(", exit code {code}");
    }
    // The reason `exit code` repeats what the line says.
    let reason = job.reason.as_ref().filter(|reason| !reason.starts_with("exit code"));
    if let Some(reason) = reason.filter(|_| job.state != JobState::Completed) {
        text += &format!(": {}", crate::output::clean(reason));
    }
    text
}

/// The exit code for the final state of a job.
pub(super) fn exit_code(job: &JobLine) -> u8 {
    let own = job.exit_code.filter(|&code| code != 0);
    match (job.state, own) {
        (JobState::Completed, _) => 0,
        (JobState::Oom, _) => OUT_OF_MEMORY,
        (_, Some(code)) => u8::try_from(code & 0xff).unwrap_or(1).max(1),
        (_, None) => 1,
    }
}

/// Waits until jobs have ended or the timeout. Returns those that have ended.
pub(super) fn until_over(
    client: &mut Client,
    ids: &[u64],
    until: Option<Instant>,
) -> Result<BTreeMap<u64, JobLine>, Failure> {
    let mut waiting: BTreeSet<u64> = ids.iter().copied().collect();
    let mut over = BTreeMap::new();
    // A daemon that was never reachable is not waited for.
    client.info()?;
    while !waiting.is_empty() && !is_past(until) {
        match watch(client, &mut waiting, &mut over, until) {
            Err(ClientError::Unreachable { .. }) => until_back(client)?,
            watched => watched?,
        }
    }
    Ok(over)
}

/// Waits for a daemon that is restarting; jobs outlive it.
pub(super) fn until_back(client: &mut Client) -> Result<(), Failure> {
    let gone = Instant::now();
    let mut is_told = false;
    loop {
        match client.info() {
            Ok(_) => return Ok(()),
            Err(error @ ClientError::Unreachable { .. }) if gone.elapsed() < PATIENCE => {
                if !is_told {
                    remark(&format!("tandem: {error}; waiting for it"), false);
                }
                is_told = true;
                std::thread::sleep(TRY_AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// Polls all jobs, then follows the stream of changes for a while.
fn watch(
    client: &mut Client,
    waiting: &mut BTreeSet<u64>,
    over: &mut BTreeMap<u64, JobLine>,
    until: Option<Instant>,
) -> Result<(), ClientError> {
    // The stream is opened first, so that no change is missed between it and the poll.
    let mut events = client.events(None)?;
    for id in waiting.clone() {
        look(client, id, waiting, over)?;
    }
    let look_again = Instant::now() + LOOK_EVERY;
    while !waiting.is_empty() && !is_past(until) && Instant::now() < look_again {
        let next = until.map_or(look_again, |until| until.min(look_again));
        if let Some(id) = ended(&mut events, next.saturating_duration_since(Instant::now()))?
            && waiting.contains(&id)
        {
            look(client, id, waiting, over)?;
        }
    }
    Ok(())
}

/// A job that has ended according to the stream.
fn ended(events: &mut Events, most: Duration) -> Result<Option<u64>, ClientError> {
    let change = events.next_within(most)?;
    Ok(change.filter(|change| change.state.is_over()).map(|change| change.id))
}

fn look(
    client: &mut Client,
    id: u64,
    waiting: &mut BTreeSet<u64>,
    over: &mut BTreeMap<u64, JobLine>,
) -> Result<(), ClientError> {
    let job = client.job(id)?.value.job.line;
    if job.state.is_over() {
        waiting.remove(&id);
        over.insert(id, job);
    }
    Ok(())
}
