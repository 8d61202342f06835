//! `tandem cancel`, `hold`, `release`, `pause`, `resume` and `accum`.

use super::{connect, select};
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{AccumArgs, JobsArgs};
use crate::output::clean;
use serde_json::json;
use tandem_daemon::client::{Client, ClientError};

/// Number of failures that are reported in full.
const TOLD: usize = 5;

#[derive(Clone, Copy, Debug)]
pub(super) enum JobCommand {
    Cancel,
    Hold,
    Release,
    Pause,
    Resume,
}

impl JobCommand {
    fn make(self, client: &mut Client, id: u64) -> Result<(), ClientError> {
        match self {
            JobCommand::Cancel => client.cancel(id),
            JobCommand::Hold => client.hold(id),
            JobCommand::Release => client.release(id),
            JobCommand::Pause => client.pause(id),
            JobCommand::Resume => client.resume(id),
        }
        .map(|_| ())
    }

    fn done(self) -> &'static str {
        match self {
            JobCommand::Cancel => "cancelled",
            JobCommand::Hold => "held",
            JobCommand::Release => "released",
            JobCommand::Pause => "paused",
            JobCommand::Resume => "resumed",
        }
    }
}

pub(super) fn jobs(change: JobCommand, args: &JobsArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let ids = select::jobs(&mut client, &args.jobs)?;
    if ids.is_empty() {
        remark("you have no jobs that have not ended", args.common.json);
    }
    several("job", &ids, change.done(), args.common.json, |id| change.make(&mut client, id))
}

pub(super) fn accum(args: &AccumArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let ids = select::jobs(&mut client, std::slice::from_ref(&args.job))?;
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
    if json {
        let failures =
            failed.iter().map(|(id, error)| json!({ "id": id, "error": error.to_string() }));
        let failures: Vec<_> = failures.collect();
        print(&json!({ "schema": 1, "done": done, "failed": failures }).to_string())?;
    } else if let [id] = done[..] {
        remark(&format!("{what} {id} {done_word}"), false);
    } else if !done.is_empty() {
        remark(&format!("{} {what}s {done_word}", done.len()), false);
    }
    match failed.len() {
        0 => Ok(()),
        1 if ids.len() == 1 => Err(failed.remove(0).1.into()),
        count => {
            let told = failed
                .iter()
                .take(TOLD)
                .map(|(id, error)| format!("{what} {id}: {}", clean(&error.to_string())));
            let mut message =
                format!("{count} of {} failed: {}", ids.len(), told.collect::<Vec<_>>().join("; "));
            if count > TOLD {
                message += "; ...";
            }
            Err(Failure::from(failed.remove(0).1).saying(message))
        }
    }
}
