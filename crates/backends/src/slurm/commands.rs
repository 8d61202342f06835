//! Slurm's own programs: what we ask of Slurm goes through them, with a limit on the time they take.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A call that takes longer is given up.
const CALL: Duration = Duration::from_secs(30);

/// Why an answer is missing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The program is not there or cannot be run.
    #[error("{program} cannot be run: {cause}; install Slurm's client programs")]
    Missing {
        /// The program.
        program: String,
        /// Why.
        cause: String,
    },
    /// No answer in time.
    #[error("{program} gave no answer within {seconds} s")]
    Late {
        /// The program.
        program: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It said no.
    #[error("{program}: {said}")]
    Failed {
        /// The program.
        program: String,
        /// The last line that it said.
        said: String,
    },
}

/// What a program printed.
pub(super) struct Answer {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
}

/// Runs a program with these arguments and this input. Input and output are files in memory, so that
/// nothing waits for a pipe.
pub(super) fn call<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &str,
) -> Result<Answer, CallError> {
    let missing = |cause: &io::Error| CallError::Missing {
        program: program.to_owned(),
        cause: cause.to_string(),
    };
    let run = || -> io::Result<Option<Answer>> {
        let mut stdin = memory_file()?;
        stdin.write_all(input.as_bytes())?;
        stdin.rewind()?;
        let (mut stdout, mut stderr) = (memory_file()?, memory_file()?);
        let mut child = Command::new(program)
            .args(arguments)
            // Formats, cluster and user must be what we ask for, not what somebody's shell prefers.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SLURM_CONF"))
            .env("LC_ALL", "C")
            // Otherwise the tasks that wait of an array are cut short at 64 letters, and cannot be read.
            .env("SLURM_BITSTR_LEN", "0")
            .env("TZ", "UTC")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::from(stdout.try_clone()?))
            .stderr(Stdio::from(stderr.try_clone()?))
            .spawn()?;
        let begin = Instant::now();
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begin.elapsed() >= CALL {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        };
        let mut answer = Answer { status, stdout: Vec::new(), stderr: String::new() };
        stdout.rewind()?;
        stdout.read_to_end(&mut answer.stdout)?;
        let mut said = Vec::new();
        stderr.rewind()?;
        stderr.read_to_end(&mut said)?;
        answer.stderr = String::from_utf8_lossy(&said).into_owned();
        Ok(Some(answer))
    };
    let late = || CallError::Late { program: program.to_owned(), seconds: CALL.as_secs() };
    run().map_err(|error| missing(&error))?.ok_or_else(late)
}

/// The standard output of a call that succeeds.
pub(super) fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, CallError> {
    let answer = call(program, arguments, "")?;
    if answer.status.success() {
        return Ok(answer.stdout);
    }
    let said = answer.stderr.lines().map(str::trim).rfind(|line| !line.is_empty());
    let said = said.unwrap_or("it failed and says nothing").to_owned();
    Err(CallError::Failed { program: program.to_owned(), said })
}

fn memory_file() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("tandem-slurm", rustix::fs::MemfdFlags::CLOEXEC)?))
}

/// One thing to ask of Slurm. Every word of it is ours: ids, nodes and resources, never a user's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A line of `scontrol`.
    Control(String),
    /// A job to end.
    Cancel(String),
}

/// Asks for all of it, in order: one `scontrol` for all its lines, one `scancel`. What Slurm said no to
/// shows in the next list; what it says is returned for the log.
pub(super) fn ask(requests: &[Request]) -> Result<Vec<String>, CallError> {
    let mut lines = String::new();
    let mut ended: Vec<&str> = Vec::new();
    for request in requests {
        match request {
            Request::Control(line) => {
                lines.push_str(line);
                lines.push('\n');
            }
            Request::Cancel(job) => ended.push(job),
        }
    }
    let mut said = Vec::new();
    let mut listen = |answer: &Answer| {
        let lines = answer.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        said.extend(lines.map(str::to_owned));
    };
    if !lines.is_empty() {
        listen(&call("scontrol", [] as [&str; 0], &lines)?);
    }
    if !ended.is_empty() {
        listen(&call("scancel", &ended, "")?);
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_our_settings_only() {
        let seen = String::from_utf8(output("env", &[]).unwrap()).unwrap();
        for line in ["LC_ALL=C", "TZ=UTC", "SLURM_BITSTR_LEN=0"] {
            assert!(seen.lines().any(|seen| seen == line), "{line}");
        }
        assert!(!seen.contains("CARGO"));
    }

    #[test]
    fn what_fails_says_why() {
        let told = output("sh", &["-c", "echo one >&2; echo two >&2; exit 3"]);
        let (program, said) = ("sh".to_owned(), "two".to_owned());
        assert_eq!(told, Err(CallError::Failed { program, said }));
        assert!(matches!(output("/nowhere/x", &[]), Err(CallError::Missing { .. })));
    }
}
