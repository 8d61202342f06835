//! `tandem cancel`, `hold`, `release`, `pause`, `resume`, `requeue` and `accum`.

use super::{connect, select};
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{AccumArgs, JobsArgs};
use crate::output::clean;
use serde_json::json;
use tandem_daemon::api::types::{BulkFailure, JobAction};
use tandem_daemon::client::ClientError;

/// Number of failures that are reported in full.
const TOLD: usize = 5;

fn done_word(action: JobAction) -> &'static str {
    match action {
        JobAction::Cancel => "cancelled",
        JobAction::Hold => "held",
        JobAction::Release => "released",
        JobAction::Pause => "paused",
        JobAction::Resume => "resumed",
        JobAction::Requeue => "requeued",
    }
}

/// Changes all jobs that are named, in one request.
pub(super) fn jobs(action: JobAction, args: &JobsArgs) -> Result<(), Failure> {
    select::check(&args.jobs)?;
    let mut client = connect(&args.common)?;
    let answer = client.change(action, &args.jobs)?.value;
    if answer.done.is_empty() && answer.failed.is_empty() {
        remark("you have no jobs that have not ended", args.common.json);
    }
    let failed = answer.failed.into_iter().map(|BulkFailure { id, code, error }| {
        (id, ClientError::Refused { status: 0, code, message: error })
    });
    report("job", &answer.done, failed.collect(), done_word(action), args.common.json)
}

pub(super) fn accum(args: &AccumArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let ids = select::jobs(&mut client, std::slice::from_ref(&args.job), false)?;
    several("job", &ids, "told", args.common.json, |id| {
        client.set_accum(id, args.parts.0).map(|_| ())
    })
}

/// Applies a command to each object, also after a failure.
pub(super) fn several(
    what: &str,
    ids: &[u64],
    done_word: &str,
    json: bool,
    mut make: impl FnMut(u64) -> Result<(), ClientError>,
) -> Result<(), Failure> {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for &id in ids {
        match make(id) {
            Ok(()) => done.push(id),
            // The others would fail, too.
            Err(error @ ClientError::Unreachable { .. }) => return Err(error.into()),
            Err(error) => failed.push((id, error)),
        }
    }
    report(what, &done, failed, done_word, json)
}

/// Says what was done and what was not; the exit code is that of the first failure.
fn report(
    what: &str,
    done: &[u64],
    mut failed: Vec<(u64, ClientError)>,
    done_word: &str,
    json: bool,
) -> Result<(), Failure> {
    let count = done.len() + failed.len();
    if json {
        let failures =
            failed.iter().map(|(id, error)| json!({ "id": id, "error": error.to_string() }));
        let failures: Vec<_> = failures.collect();
        print(&json!({ "schema": 1, "done": done, "failed": failures }).to_string())?;
    } else if let &[id] = done {
        remark(&format!("{what} {id} {done_word}"), false);
    } else if !done.is_empty() {
        remark(&format!("{} {what}s {done_word}", done.len()), false);
    }
    match failed.len() {
        0 => Ok(()),
        1 if count == 1 => Err(failed.remove(0).1.into()),
        failures => {
            let told = failed.iter().take(TOLD).map(|(id, error)| {
                let (object, error) = (format!("{what} {id}"), clean(&error.to_string()));
                let names_it = error.starts_with(&format!("{object} "));
                if names_it { error } else { format!("{object}: {error}") }
            });
            let mut message =
                format!("{failures} of {count} failed: {}", told.collect::<Vec<_>>().join("; "));
            if failures > TOLD {
                message += "; ...";
            }
            Err(Failure::from(failed.remove(0).1).saying(message))
        }
    }
}
