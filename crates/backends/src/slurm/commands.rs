//! Slurm's own programs: what we ask of Slurm goes through them, with a limit on the time they take.

use crate::program::{ProgramOutput, run_program};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;
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

/// Runs a program with these arguments and this input.
pub(super) fn call<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
    input: &str,
) -> Result<ProgramOutput, CallError> {
    let mut command = Command::new(program);
    // Formats, cluster and user must be what we ask for, not what somebody's shell prefers.
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SLURM_CONF");
    command.args(arguments).env_clear().envs(kept).env("LC_ALL", "C").env("TZ", "UTC");
    // Lists of array tasks are cut short otherwise.
    command.env("SLURM_BITSTR_LEN", "0");
    let program = || program.to_owned();
    match run_program(&mut command, input, CALL) {
        Ok(Some(output)) => Ok(output),
        Ok(None) => Err(CallError::Late { program: program(), seconds: CALL.as_secs() }),
        Err(error) => Err(CallError::Missing { program: program(), cause: error.to_string() }),
    }
}

/// The standard output of a call that succeeds.
pub(super) fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, CallError> {
    let answer = call(program, arguments, "")?;
    if answer.succeeded {
        return Ok(answer.stdout);
    }
    let said = answer.error_lines().pop();
    let said = said.unwrap_or_else(|| "it failed without a message".to_owned());
    Err(CallError::Failed { program: program.to_owned(), said })
}

/// One thing to ask of Slurm. Every word of it is ours: ids, nodes and resources, never a user's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlurmRequest {
    /// A line of `scontrol`.
    Control(String),
    /// A job to end.
    Cancel(String),
}

/// Asks for all of it, in order: one `scontrol` for all its lines, one `scancel`. What Slurm said no to
/// shows in the next list; what it says is returned for the log.
pub(super) fn ask(requests: &[SlurmRequest]) -> Result<Vec<String>, CallError> {
    let mut lines = String::new();
    let mut ended: Vec<&str> = Vec::new();
    for request in requests {
        match request {
            SlurmRequest::Control(line) => {
                lines.push_str(line);
                lines.push('\n');
            }
            SlurmRequest::Cancel(job) => ended.push(job),
        }
    }
    let mut said = Vec::new();
    if !lines.is_empty() {
        said.extend(call("scontrol", [] as [&str; 0], &lines)?.error_lines());
    }
    if !ended.is_empty() {
        said.extend(call("scancel", &ended, "")?.error_lines());
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
