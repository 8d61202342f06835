//! `tandem submit` and `tandem run`.

use super::logs::{Log, follow};
use super::{connect, explain, request, wait};
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{RunArgs, SubmitArgs};
use crate::output::clean;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tandem_daemon::api::types::JobLine;
use tandem_daemon::client::{Address, Client, Stream};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code after an interruption.
const INTERRUPTED: i32 = 130;

pub(super) fn submit(args: &SubmitArgs) -> Result<(), Failure> {
    let request = request::build(&args.job, &args.command, args.common.json)?;
    let mut client = connect(&args.common)?;
    if args.dry_run {
        let answer = client.dry_run(&request, args.policy.as_deref()).map_err(request::refused)?;
        return if args.common.json {
            print(answer.raw.trim_end())
        } else {
            print(&explain::text(&answer))
        };
    }
    let answer = client.submit(&request).map_err(request::refused)?;
    if args.common.json {
        print(answer.raw.trim_end())?;
    } else if args.parsable {
        let ids: Vec<String> = answer.ids.iter().map(u64::to_string).collect();
        print(&ids.join("\n"))?;
    } else {
        let outlook = answer.outlook.as_ref().map(|outlook| format!(": {}", clean(&outlook.text)));
        print(&format!("submitted {}{}", numbers(&answer.ids), outlook.unwrap_or_default()))?;
    }
    if args.wait {
        let over = wait::until_over(&mut client, &answer.ids, None)?;
        tell_failures(&over, args.common.json);
        return exit(over.values().map(wait::exit_code).max().unwrap_or(0));
    }
    Ok(())
}

pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let request = request::build(&args.job, &args.command, args.common.json)?;
    let mut client = connect(&args.common)?;
    // Signals are handled from before the submission, so that none is missed.
    let ids = Arc::new(Mutex::new(Vec::new()));
    let token = super::configuration(&args.common)?.0.client_token()?;
    cancel_when_interrupted(client.address().clone(), token, Arc::clone(&ids));
    let submitted = {
        let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = client.submit(&request).map_err(request::refused)?;
        ids.extend_from_slice(&answer.ids);
        answer.value
    };
    let outlook = submitted.outlook.map(|outlook| format!(": {}", clean(&outlook.text)));
    let submitted = submitted.ids;
    let told = format!("tandem: submitted {}{}", numbers(&submitted), outlook.unwrap_or_default());
    remark(&told, args.common.json);
    let streamed = match (&submitted[..], args.common.json) {
        (&[id], false) => stream(&mut client, id),
        _ => Ok(()),
    };
    // The end of a job whose output cannot be read is told all the same.
    if let Err(failure @ Failure::BrokenPipe) = streamed {
        return Err(failure);
    }
    let over = wait::until_over(&mut client, &submitted, None)?;
    if args.common.json {
        let jobs: Vec<_> = over.values().collect();
        print(&serde_json::json!({ "schema": 1, "jobs": jobs }).to_string())?;
    }
    tell_failures(&over, args.common.json);
    match (over.values().map(wait::exit_code).max().unwrap_or(0), streamed) {
        (0, streamed) => streamed,
        (code, streamed) => {
            if let Err(failure) = streamed {
                remark(&format!("tandem: {}", failure.message()), args.common.json);
            }
            exit(code)
        }
    }
}

/// Says of each job that did not complete how it ended.
fn tell_failures(over: &BTreeMap<u64, JobLine>, json: bool) {
    for job in over.values().filter(|job| wait::exit_code(job) != 0) {
        remark(&format!("tandem: {}", wait::outcome(job)), json);
    }
}

fn exit(code: u8) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Exit(code)) }
}

/// Shows the output of a job until it has ended.
fn stream(client: &mut Client, id: u64) -> Result<(), Failure> {
    let job = client.job(id)?;
    let has_own_stderr = job.job.private.as_ref().is_some_and(|files| files.stdout != files.stderr);
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut logs: Vec<(Log, &mut dyn Write)> = vec![(Log::new(id, Stream::Stdout), &mut out)];
    if has_own_stderr {
        logs.push((Log::new(id, Stream::Stderr), &mut err));
    }
    follow(client, id, &mut logs)
}

/// Cancels the jobs on the first Ctrl-C or SIGTERM; exits on the second.
fn cancel_when_interrupted(address: Address, token: Option<String>, ids: Arc<Mutex<Vec<u64>>>) {
    let watch = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let mut is_second = false;
        loop {
            runtime.block_on(async {
                let mut interrupt = signal(SignalKind::interrupt()).ok()?;
                let mut terminate = signal(SignalKind::terminate()).ok()?;
                tokio::select! {
                    caught = interrupt.recv() => caught,
                    caught = terminate.recv() => caught,
                }
            })?;
            if is_second {
                std::process::exit(INTERRUPTED);
            }
            is_second = true;
            let ids = ids.lock().unwrap_or_else(PoisonError::into_inner).clone();
            remark(
                &format!("tandem: cancelling {}; once more leaves at once", numbers(&ids)),
                false,
            );
            let mut client = Client::new(address.clone(), token.clone()).ok()?;
            for id in ids {
                if let Err(error) = client.cancel(id) {
                    remark(&format!("tandem: job {id}: {error}"), false);
                }
            }
        }
    };
    std::thread::spawn(move || -> Option<()> { watch() });
}

/// `job 17`, `jobs 17-26`, `jobs 17, 19`.
pub(super) fn numbers(ids: &[u64]) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &id in ids {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    let range =
        |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    let text = ranges.into_iter().map(range).collect::<Vec<_>>().join(", ");
    if ids.len() == 1 { format!("job {text}") } else { format!("jobs {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_gathered() {
        assert_eq!(numbers(&[17]), "job 17");
        assert_eq!(numbers(&[17, 18, 19, 21]), "jobs 17-19, 21");
    }
}
