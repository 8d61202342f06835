//! How a command fails: one line on standard error and an exit code.

use crate::output::clean;
use clap::error::{ContextKind, ContextValue};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use tandem_daemon::client::ClientError;
use tandem_daemon::config::ConfigError;
use tandem_daemon::daemon::DaemonError;
use tandem_models::device::DeviceError;
use tandem_models::interference::FitError;
use tandem_policies::SpecError;
use tandem_sim::RunError;
use tandem_sim::clusters::ClusterError;
use tandem_sim::interference::{BeliefsError, ModelFileError, TableError};
use tandem_sim::trace::TraceError;

/// Exit code of a failure while the command runs.
const FAILED: u8 = 1;
/// Exit code of wrong usage or bad input.
const BAD_INPUT: u8 = 2;
/// Exit code of an unreachable daemon.
const UNREACHABLE: u8 = 3;
/// Exit code of a job or device that does not exist.
const NOT_FOUND: u8 = 4;
/// Exit code of a valid request that can never run.
const NEVER: u8 = 5;

#[derive(Debug)]
pub(crate) enum Failure {
    /// A message and an exit code.
    Said { message: String, code: u8 },
    /// An exit code without a message, such as that of a job.
    Exit(u8),
    /// The reader of our output has closed it; not an error.
    BrokenPipe,
}

impl Failure {
    pub(crate) fn bad_input(message: impl Display) -> Self {
        Self::Said { message: message.to_string(), code: BAD_INPUT }
    }

    /// A failure while the command runs.
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::Said { message: message.to_string(), code: FAILED }
    }

    /// The object does not exist.
    pub(crate) fn not_found(message: impl Display) -> Self {
        Self::Said { message: message.to_string(), code: NOT_FOUND }
    }

    /// The same exit code with another message.
    pub(crate) fn saying(self, message: String) -> Self {
        match self {
            Self::Said { code, .. } => Self::Said { message, code },
            other => other,
        }
    }

    /// The same failure with the names of options where the message names fields of the HTTP API.
    pub(crate) fn naming(self, options: &[(&str, &str)]) -> Self {
        let Self::Said { message, code } = self else { return self };
        let (field, rest) = message.split_once(": ").unwrap_or(("", &message));
        let option = |word: &str| {
            options.iter().find(|(field, _)| *field == word).map(|(_, option)| *option)
        };
        let Some(first) = option(field) else { return Self::Said { message, code } };
        let is_field = |word: &str| word.contains('_');
        let named = |word| option(word).filter(|_| is_field(word)).unwrap_or(word);
        let rest: Vec<&str> = rest.split(' ').map(named).collect();
        Self::Said { message: format!("{first}: {}", rest.join(" ")), code }
    }

    /// The message; an exit code alone has none.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Said { message, .. } => message.clone(),
            Self::Exit(code) => format!("exit code {code}"),
            Self::BrokenPipe => "the output was closed".to_owned(),
        }
    }

    /// Whether the daemon is unreachable.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Said { code: UNREACHABLE, .. })
    }

    /// A valid request that can never run.
    pub(crate) fn never(message: impl Display) -> Self {
        Self::Said { message: message.to_string(), code: NEVER }
    }

    /// Wrong usage, in one line, with the nearest name that exists.
    pub(crate) fn usage(error: &clap::Error) -> Self {
        let text = error.to_string();
        let sentence = text.split("\n\n").next().unwrap_or(&text);
        let words = sentence.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = words.strip_prefix("error: ").unwrap_or(&words);
        let meant = suggested(error).map(|name| format!(" (did you mean '{name}'?)"));
        Self::bad_input(format!("{message}{}; see --help", meant.unwrap_or_default()))
    }

    pub(crate) fn report(self, json: bool) -> ExitCode {
        let (message, code) = match self {
            Failure::BrokenPipe => return ExitCode::SUCCESS,
            Failure::Exit(code) => return ExitCode::from(code),
            Failure::Said { message, code } => (message, code),
        };
        let line = if json {
            serde_json::json!({ "error": message }).to_string()
        } else {
            format!("tandem: {}", clean(&message.replace(['\n', '\r'], " ")))
        };
        // A closed standard error leaves nothing to report to.
        let _ = writeln!(io::stderr(), "{line}");
        ExitCode::from(code)
    }
}

/// The nearest command, option or value that exists.
fn suggested(error: &clap::Error) -> Option<&str> {
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(name) => Some(name.as_str()),
        // The last one is the likeliest.
        ContextValue::Strings(names) => names.last().map(String::as_str),
        _ => None,
    })
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Said { message: format!("cannot write: {cause}"), code: FAILED },
        }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let code = match error {
            RunError::EndOfTime { .. } => BAD_INPUT,
            RunError::Stalled { .. }
            | RunError::NoProgress { .. }
            | RunError::NeverStarts { .. } => FAILED,
        };
        Self::Said { message: error.to_string(), code }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Unreachable { .. } => UNREACHABLE,
            ClientError::Refused { code, .. } => match code.as_str() {
                "bad_request" | "unauthorized" | "forbidden" | "conflict" | "too_large" => {
                    BAD_INPUT
                }
                "unavailable" | "limit" => UNREACHABLE,
                "not_found" => NOT_FOUND,
                "infeasible" => NEVER,
                _ => FAILED,
            },
            ClientError::Protocol(_) => FAILED,
        };
        let advice = match error.code() {
            Some("unauthorized") => " (--token-file FILE)",
            _ => "",
        };
        Self::Said { message: format!("{error}{advice}"), code }
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::MemoryOver { .. } => Self::never(error),
            _ => Self::bad_input(error),
        }
    }
}

macro_rules! bad_input {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::bad_input(error)
            }
        })*
    };
}
bad_input!(
    TraceError,
    ClusterError,
    TableError,
    SpecError,
    FitError,
    ModelFileError,
    BeliefsError,
    ConfigError
);

impl From<DaemonError> for Failure {
    fn from(error: DaemonError) -> Self {
        Self::failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_option_and_not_the_field() {
        let options = [("end_unix_s", "--end"), ("start_unix_s", "--start"), ("users", "--users")];
        let named = |text: &str| Failure::bad_input(text).naming(&options).message();
        assert_eq!(
            named("end_unix_s: is not later than start_unix_s"),
            "--end: is not later than --start"
        );
        assert_eq!(named("users: there is no user 'x'"), "--users: there is no user 'x'");
        assert_eq!(named("class: users: is not one"), "class: users: is not one");
        assert_eq!(named("only operators do that"), "only operators do that");
    }
}
