//! What is wrong with a request, as far as it can be told without knowing the machine.

use super::bounded::ARGUMENTS_MAX;
use super::{BadRequest, DependencyName, JobRequest, KILL_GRACE_MAX_S, NAME_MAX, Param, bad};
use tandem_core::{BUDGET_MIN, PPM_ONE, PRIORITY_MAX};

const ARGUMENTS_MAX_BYTES: usize = 1 << 20;
const ENVIRONMENT_MAX_BYTES: usize = 1 << 20;
const PATH_MAX_BYTES: usize = 4096;
/// The most dependencies, over all tasks of a submission.
const DEPENDENCIES_MAX: usize = 100_000;
/// The longest span and the latest moment: 317 years, and the year 2286.
const SECONDS_MAX: f64 = 1e10;
/// A pattern that takes more than this when it is compiled could take minutes for a page of output.
const PATTERN_MAX_BYTES: usize = 128 << 10;

/// A request that was checked, with all that the scheduling loop needs to know of it: it never does work that
/// a user can size.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedRequest {
    request: JobRequest,
    dependencies: Vec<DependencyName>,
    tasks: u64,
}

impl CheckedRequest {
    /// Checks all that can be told without knowing the machine.
    pub fn new(mut request: JobRequest) -> Result<Self, BadRequest> {
        request.check()?;
        let dependencies = request.dependencies()?;
        let tasks = request.tasks()?.count() as u64;
        let text: usize = request.command.iter().map(String::len).sum();
        let env: usize = request.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        let param = |param: &Param| param.values.iter().map(String::len).sum::<usize>();
        let params: usize = request.params.iter().map(param).sum();
        request.stored_bytes = crate::store::stored_bytes(&request, text + env + params + 500);
        Ok(Self { request, dependencies, tasks })
    }

    /// The request.
    pub fn request(&self) -> &JobRequest {
        &self.request
    }

    /// The request, of which only what decides nothing about its size may be changed.
    pub(crate) fn request_mut(&mut self) -> &mut JobRequest {
        &mut self.request
    }

    /// The request.
    pub fn into_request(self) -> JobRequest {
        self.request
    }

    /// The jobs that it waits for.
    pub fn dependencies(&self) -> &[DependencyName] {
        &self.dependencies
    }

    /// How many jobs it becomes.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }
}

impl JobRequest {
    /// Checks all that can be told without knowing the machine.
    pub fn check(&self) -> Result<(), BadRequest> {
        self.check_command()?;
        self.check_options()
    }

    fn check_command(&self) -> Result<(), BadRequest> {
        if self.command.first().is_none_or(|program| program.is_empty()) {
            return Err(bad("command", "is empty; give a program after --"));
        }
        let nul = |text: &str| text.contains('\0');
        if self.command.iter().any(|argument| nul(argument)) {
            return Err(bad("command", "holds a NUL byte, which no program can be given"));
        }
        if self.command.len() > ARGUMENTS_MAX {
            let problem = format!("has more than {ARGUMENTS_MAX} arguments; put them into a file");
            return Err(bad("command", problem));
        }
        // As the kernel counts: even an empty argument takes something.
        let size: usize = self.command.iter().map(|argument| argument.len() + 1).sum();
        if size > ARGUMENTS_MAX_BYTES {
            return Err(bad("command", "is longer than a mebibyte; put it into a script"));
        }
        if self.params.iter().flat_map(|param| &param.values).any(|value| nul(value)) {
            return Err(bad("params", "hold a NUL byte, which no program can be given"));
        }
        // Before anything is counted for each of them.
        self.tasks()?;
        if self.command_bytes_max() > ARGUMENTS_MAX_BYTES {
            return Err(bad("params", "make the command longer than a mebibyte"));
        }
        let longest = |param: &Param| param.values.iter().map(String::len).max().unwrap_or(0);
        if self.params.iter().map(longest).sum::<usize>() > ENVIRONMENT_MAX_BYTES {
            return Err(bad("params", "of a task take more than a mebibyte; put them into a file"));
        }
        Ok(())
    }

    /// Checks all but the command, which a job of a cluster does not have here.
    pub(crate) fn check_options(&self) -> Result<(), BadRequest> {
        let nul = |text: &str| text.contains('\0');
        if let Some(name) = &self.name
            && (name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control))
        {
            return Err(bad("name", "is empty, longer than 255 bytes or holds control characters"));
        }
        let size: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > ENVIRONMENT_MAX_BYTES {
            return Err(bad("env", "is larger than a mebibyte; pass less with --export"));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains('=') || nul(name) || nul(value) {
                return Err(bad("env", format!("'{}' is no variable", name.escape_debug())));
            }
        }
        if !self.dir.is_absolute() {
            return Err(bad("dir", "is not an absolute path"));
        }
        let dir = Some(self.dir.clone());
        for (field, path) in [("dir", &dir), ("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let text = path.as_ref().map(|path| path.as_os_str().as_encoded_bytes());
            let is_wrong =
                |text: &[u8]| text.is_empty() || text.len() > PATH_MAX_BYTES || text.contains(&0);
            if text.is_some_and(is_wrong) {
                return Err(bad(field, "is empty, longer than 4096 bytes or holds a NUL byte"));
            }
        }
        self.check_numbers()?;
        self.check_service()?;
        self.check_texts()
    }

    fn check_numbers(&self) -> Result<(), BadRequest> {
        let least = f64::from(BUDGET_MIN.0) / f64::from(PPM_ONE);
        let whole = self.gpus.fract() == 0.0;
        if !(least..=1_000_000.0).contains(&self.gpus) || (self.gpus > 1.0 && !whole) {
            return Err(bad(
                "gpus",
                format!("is {:?}; give {least} to 1, or a whole number", self.gpus),
            ));
        }
        let span = |field, value: Option<f64>, least: f64| match value {
            Some(value) if value > SECONDS_MAX => {
                Err(bad(field, format!("is {value:?} seconds; give at most {SECONDS_MAX:e}")))
            }
            Some(value) if !(least..=SECONDS_MAX).contains(&value) => {
                Err(bad(field, format!("is {value:?} seconds; give {least} or more")))
            }
            _ => Ok(()),
        };
        span("time_limit_s", self.time_limit_s, 0.001)?;
        span("estimate_s", self.estimate_s, 0.001)?;
        if self.begin_unix_s.is_some_and(|begin| begin > SECONDS_MAX) {
            let problem = "is later than the year 2286; give an earlier moment";
            return Err(bad("begin_unix_s", problem));
        }
        span("begin_unix_s", self.begin_unix_s, 0.0)?;
        if self.kill_grace_s.is_some_and(|grace| !(0.0..=KILL_GRACE_MAX_S).contains(&grace)) {
            let problem = format!("is not between 0 and {KILL_GRACE_MAX_S} seconds");
            return Err(bad("kill_grace_s", problem));
        }
        if self.max_slowdown.is_some_and(|most| !(1.0..=1000.0).contains(&most)) {
            return Err(bad("max_slowdown", "is below 1 or above 1000"));
        }
        if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&self.priority) {
            return Err(bad("priority", "is below -20 or above 20"));
        }
        if self.retries > 1000 {
            return Err(bad("retries", "is above 1000"));
        }
        if self.gpu_memory_bytes.is_some_and(|bytes| bytes > 1 << 50) {
            return Err(bad("gpu_memory_bytes", "is above a pebibyte"));
        }
        Ok(())
    }

    fn check_texts(&self) -> Result<(), BadRequest> {
        if let Some(class) = &self.class
            && (class.is_empty() || class.len() > NAME_MAX || class.chars().any(char::is_control))
        {
            return Err(bad(
                "class",
                "is empty, longer than 255 bytes or holds control characters",
            ));
        }
        for (field, name) in [("account", &self.account), ("qos", &self.qos)] {
            let is_wrong = |name: &String| name.is_empty() || name.len() > NAME_MAX;
            if name.as_ref().is_some_and(is_wrong) {
                return Err(bad(field, "is empty or longer than 255 bytes"));
            }
        }
        if self.mail.as_ref().is_some_and(|mail| !crate::mail::is_address(mail)) {
            return Err(bad("mail", "is not an address; give ann or ann@example.org"));
        }
        if let Some(pattern) = &self.progress_regex {
            let regex = checked_pattern("progress_regex", pattern)?;
            if regex.captures_len() < 2 {
                return Err(bad(
                    "progress_regex",
                    r"has no group for the number; try 'step (\d+)'",
                ));
            }
        }
        if let Some(name) = &self.stop_signal
            && self.stop_signal().is_none()
        {
            let shown: String = name.escape_debug().take(40).collect();
            let known = super::signal::names();
            return Err(bad(
                "stop_signal",
                format!("'{shown}' is not a signal; give one of {known}"),
            ));
        }
        if let Some(url) = &self.webhook {
            let uri: Option<hyper::Uri> = url.parse().ok().filter(|_| url.len() <= PATH_MAX_BYTES);
            let has_host = |uri: &hyper::Uri| uri.host().is_some_and(|host| !host.is_empty());
            let is_http = |uri: &hyper::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
            if !uri.is_some_and(|uri| is_http(&uri) && has_host(&uri)) {
                return Err(bad("webhook", "is not an http:// or https:// address"));
            }
        }
        let waits: usize = self.dependencies()?.iter().map(|name| name.jobs.len()).sum();
        let tasks = self.tasks()?.count();
        if tasks.saturating_mul(waits) > DEPENDENCIES_MAX {
            let problem =
                format!("{tasks} tasks times {waits} jobs are more than {DEPENDENCIES_MAX}");
            return Err(bad("dependency", problem));
        }
        Ok(())
    }

    /// No task's command is longer than this once parameters are put in.
    fn command_bytes_max(&self) -> usize {
        let longest = |param: &Param| {
            let longest = param.values.iter().map(String::len).max().unwrap_or(0);
            (format!("{{{}}}", param.name), longest)
        };
        // Once for each parameter: there may be many arguments.
        let params: Vec<(String, usize)> = self.params.iter().map(longest).collect();
        let argument = |argument: &String| {
            if !argument.contains('{') {
                return argument.len();
            }
            let more = params.iter().map(|(name, longest)| {
                argument.matches(name.as_str()).count().saturating_mul(*longest)
            });
            more.fold(argument.len(), usize::saturating_add)
        };
        self.command.iter().map(argument).fold(0, usize::saturating_add)
    }
}

/// A pattern that finds progress in what a job prints.
pub fn progress_pattern(pattern: &str) -> Result<regex::Regex, regex::Error> {
    let mut builder = regex::RegexBuilder::new(pattern);
    builder.size_limit(PATTERN_MAX_BYTES).dfa_size_limit(1 << 20).build()
}

fn checked_pattern(field: &'static str, pattern: &str) -> Result<regex::Regex, BadRequest> {
    progress_pattern(pattern).map_err(|error| {
        let text = error.to_string();
        bad(field, text.lines().last().unwrap_or("is not a pattern").to_owned())
    })
}

/// A pattern that finds latencies in what a service prints.
pub(super) fn latency_pattern(pattern: &str) -> Result<regex::Regex, BadRequest> {
    checked_pattern("latency_regex", pattern)
}
