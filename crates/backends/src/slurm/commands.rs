//! Calls Slurm's own programs, with a time limit.

use crate::program::{ProgramOutput, run_program};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;
use thiserror::Error;

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The program does not exist or cannot be executed.
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
        /// The time limit.
        seconds: u64,
    },
    /// It reported an error.
    #[error("{program}: {message}")]
    Failed {
        /// The program.
        program: String,
        /// The last line of its standard error.
        message: String,
    },
}

/// Runs a program with these arguments and this input.
pub(super) fn call<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &str,
) -> Result<ProgramOutput, CallError> {
    let mut command = Command::new(program);
    // Settings of the caller's shell must not change formats, cluster or user.
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SLURM_CONF");
    command.args(arguments).env_clear().envs(kept).env("LC_ALL", "C").env("TZ", "UTC");
    // Otherwise Slurm truncates lists of array tasks.
    command.env("SLURM_BITSTR_LEN", "0");
    let program = || program.to_owned();
    match run_program(&mut command, input, TIMEOUT) {
        Ok(Some(output)) => Ok(output),
        Ok(None) => Err(CallError::Late { program: program(), seconds: TIMEOUT.as_secs() }),
        Err(error) => Err(CallError::Missing { program: program(), cause: error.to_string() }),
    }
}

/// The standard output of a call that must succeed.
pub(super) fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, CallError> {
    let output = call(program, arguments, "")?;
    if output.succeeded {
        return Ok(output.stdout);
    }
    let message = output.error_lines().pop();
    let message = message.unwrap_or_else(|| "it failed without a message".to_owned());
    Err(CallError::Failed { program: program.to_owned(), message })
}

/// A request to Slurm. It consists of ids, node names and resources, never of a user's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlurmRequest {
    /// A line of `scontrol`.
    Control(String),
    /// A job to cancel.
    Cancel(String),
}

/// Sends requests in order, with one `scontrol` for all its lines and one `scancel`. Returns Slurm's messages
/// for the log; whether a request had an effect shows in the next list.
pub(super) fn send(requests: &[SlurmRequest]) -> Result<Vec<String>, CallError> {
    let mut lines = String::new();
    let mut cancelled: Vec<&str> = Vec::new();
    for request in requests {
        match request {
            SlurmRequest::Control(line) => {
                lines.push_str(line);
                lines.push('\n');
            }
            SlurmRequest::Cancel(job) => cancelled.push(job),
        }
    }
    let mut messages = Vec::new();
    if !lines.is_empty() {
        messages.extend(call("scontrol", [] as [&str; 0], &lines)?.error_lines());
    }
    if !cancelled.is_empty() {
        messages.extend(call("scancel", &cancelled, "")?.error_lines());
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_do_not_inherit_the_environment() {
        let seen = String::from_utf8(output("env", &[]).unwrap()).unwrap();
        for line in ["LC_ALL=C", "TZ=UTC", "SLURM_BITSTR_LEN=0"] {
            assert!(seen.lines().any(|seen| seen == line), "{line}");
        }
        assert!(!seen.contains("CARGO"));
    }

    #[test]
    fn errors_have_the_last_line_of_stderr() {
        let result = output("sh", &["-c", "echo one >&2; echo two >&2; exit 3"]);
        let (program, message) = ("sh".to_owned(), "two".to_owned());
        assert_eq!(result, Err(CallError::Failed { program, message }));
        assert!(matches!(output("/nowhere/x", &[]), Err(CallError::Missing { .. })));
    }
}
