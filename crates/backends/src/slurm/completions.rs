//! Slurm's job completion log (`jobcomp/filetxt`), for jobs that slurmctld no longer lists. Job names and
//! folders are untrusted text and may forge fields. They cannot forge what follows them on the line, so only
//! that is read.

use super::SlurmOptions;
use super::reconcile::MissingRun;
use crate::event::{Exit, ExitCause, ExitStatus};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// How much of the end of the log is read.
const TAIL_BYTES: u64 = 64 << 20;

/// How a run ended, if the log has it.
pub(super) fn look_up(options: &SlurmOptions, run: &MissingRun) -> Option<Exit> {
    let text = tail(options.completions.as_deref()?).ok()?;
    find(&text, run)
}

fn tail(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

pub(super) fn find(text: &str, run: &MissingRun) -> Option<Exit> {
    let begin = format!("JobId={} UserId=", run.id);
    let line = text.lines().rev().find(|line| line.starts_with(&begin))?;
    let (code, signal) = last(line, "ExitCode=")?.split_once(':')?;
    let (code, signal): (i32, i32) = (code.parse().ok()?, signal.parse().ok()?);
    let status = if signal > 0 { ExitStatus::Signal(signal) } else { ExitStatus::Code(code) };
    // A cancelled job is logged with exit code 0.
    let cause = match only(line, "JobState=") {
        Some("CANCELLED" | "PREEMPTED") => Some(ExitCause::Cancelled),
        Some("TIMEOUT" | "DEADLINE") => Some(ExitCause::TimedOut),
        Some("OUT_OF_MEMORY") => Some(ExitCause::OutOfMemory),
        Some("NODE_FAIL" | "BOOT_FAIL") => return None,
        _ => None,
    };
    let (at_unix_us, oom) = (0, cause == Some(ExitCause::OutOfMemory));
    Some(Exit { status, cpu_s: 0.0, rss_max_bytes: 0, oom, at_unix_us, cause })
}

/// The field of that name. `None` if there are several: some of them are forged.
fn only<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    let name = format!(" {field}");
    let mut found = line.match_indices(&name);
    let (at, _) = found.next()?;
    found.next().is_none().then(|| line[at + name.len()..].split(' ').next())?
}

/// The last field of that name.
fn last<'a>(line: &'a str, field: &str) -> Option<&'a str> {
    let at = line.rfind(&format!(" {field}"))?;
    line[at + 1 + field.len()..].split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::RunId;

    #[test]
    fn job_names_cannot_forge_fields() {
        let run = |id| MissingRun { run: RunId { job: 1, run: 1 }, id };
        let text = "JobId=25 UserId=ben(1002) GroupId=ben(1002) Name=x ExitCode=0:0 JobState=COMPLETED \
                    JobState=FAILED Partition=tandem WorkDir=/tmp Tres=cpu=1 DerivedExitCode=0:0 ExitCode=42:0 \n";
        assert_eq!(find(text, &run(25)).unwrap().status, ExitStatus::Code(42));
        assert_eq!(find(text, &run(2)), None);
        assert_eq!(
            find("JobId=2 UserId=x ExitCode=0:9 ", &run(2)).unwrap().status,
            ExitStatus::Signal(9)
        );
        assert_eq!(find("JobId=2 UserId=x ExitCode=z ", &run(2)), None);
        // There are two states: only the exit code counts.
        assert_eq!(find(text, &run(25)).unwrap().cause, None);
    }

    #[test]
    fn a_cancelled_job_is_not_successful() {
        let run = MissingRun { run: RunId { job: 1, run: 1 }, id: 6 };
        let of = |state: &str| {
            // A line of Slurm 22.05.8, shortened.
            let line = format!(
                "JobId=6 UserId=ann(1003) GroupId=ann(1003) Name=cancelled JobState={state} \
                 Partition=tandem WorkDir=/ QOS= DerivedExitCode=0:0 ExitCode=0:0 "
            );
            find(&line, &run).map(|exit| exit.cause)
        };
        assert_eq!(of("COMPLETED"), Some(None));
        assert_eq!(of("CANCELLED"), Some(Some(ExitCause::Cancelled)));
        assert_eq!(of("TIMEOUT"), Some(Some(ExitCause::TimedOut)));
        assert_eq!(of("OUT_OF_MEMORY"), Some(Some(ExitCause::OutOfMemory)));
        assert_eq!(of("NODE_FAIL"), None);
    }
}
