//! What a user asks for, as it arrives and as it is kept, and what is wrong with it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tandem_core::{BUDGET_MIN, PPM_ONE, PRIORITY_MAX, Tolerance};
use thiserror::Error;
use utoipa::ToSchema;

/// The most tasks that one submission may have.
pub const TASKS_MAX: usize = 100_000;
pub(crate) const NAME_MAX: usize = 255;
const ARGUMENTS_MAX_BYTES: usize = 1 << 20;
const ENVIRONMENT_MAX_BYTES: usize = 1 << 20;
const PATH_MAX_BYTES: usize = 4096;
/// What the parameters of all tasks of a submission may take together.
const PARAMS_MAX_BYTES: usize = 64 << 20;
/// Jobs waited for, over all tasks of a submission.
const WAITS_MAX: usize = 1_000_000;
/// A pattern that takes more than this when it is compiled could take minutes for a page of output.
const PATTERN_MAX_BYTES: usize = 128 << 10;

/// A job as it is submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobRequest {
    /// Program and arguments; empty for a job of a cluster, which has them.
    pub command: Vec<String>,
    /// A name for people; the program's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The whole environment of the process.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// GPUs; below one is a part of one.
    pub gpus: f64,
    /// The most time on its GPUs, pauses not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<f64>,
    /// Task numbers, `0-9:2,14%3`; %3 lets three of them run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// Values to try: every combination becomes a task, `{name}` in the command is replaced and
    /// `TANDEM_PARAM_NAME` set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub params: Vec<Param>,
    /// `afterok:1:2,afterany:3,afternotok:4`; all have to hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependency: Option<String>,
    /// Not before this, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin_unix_s: Option<f64>,
    /// File for standard output; %j is the job, %A the first one of its array, %a the task, %x the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stdout: Option<PathBuf>,
    /// File for standard error; that of standard output if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub stderr: Option<PathBuf>,
    /// Partition; there is one on a single machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// Memory that it takes on each GPU; measured if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// Nobody beside it.
    pub exclusive: bool,
    /// The most slow-down it puts up with beside others: 1.2 is a fifth longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<f64>,
    /// How often it is tried again after it has failed.
    pub retries: u32,
    /// Try it again after the machine was started anew.
    pub requeue: bool,
    /// Jobs of one class behave alike; a hash of program, script and batch size if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// How long it takes alone, as far as is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate_s: Option<f64>,
    /// From -20 to 20; two steps double its weight.
    pub priority: i8,
    /// Wait until it is released.
    pub hold: bool,
    /// How its output shows progress, with one group for the number of steps: `step (\d+)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_regex: Option<String>,
    /// Asked with a POST when the job is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// Time between the request to end and the end by force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_grace_s: Option<f64>,
}

/// One parameter of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What to try.
    pub values: Vec<String>,
}

impl Default for JobRequest {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            name: None,
            env: BTreeMap::new(),
            dir: PathBuf::from("/"),
            gpus: 1.0,
            time_limit_s: None,
            array: None,
            params: Vec::new(),
            dependency: None,
            begin_unix_s: None,
            stdout: None,
            stderr: None,
            partition: None,
            gpu_memory_bytes: None,
            exclusive: false,
            max_slowdown: None,
            retries: 0,
            requeue: false,
            class: None,
            estimate_s: None,
            priority: 0,
            hold: false,
            progress_regex: None,
            webhook: None,
            kill_grace_s: None,
        }
    }
}

/// What is wrong with a request, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct BadRequest {
    /// The field.
    pub field: &'static str,
    /// What is wrong and what to do.
    pub problem: String,
}

fn bad(field: &'static str, problem: impl Into<String>) -> BadRequest {
    BadRequest { field, problem: problem.into() }
}

impl JobRequest {
    /// A name for people.
    pub fn display_name(&self) -> String {
        let program = || {
            let program = self.command.first().map_or("", String::as_str);
            program.rsplit('/').next().unwrap_or(program).to_owned()
        };
        self.name.clone().unwrap_or_else(|| program().chars().take(NAME_MAX / 4).collect())
    }

    /// Whole GPUs of its gang.
    pub fn gang(&self) -> u32 {
        // `as` is exact: the check bounds it.
        self.gpus.ceil().max(1.0) as u32
    }

    /// The most of each GPU that it may use, in parts per million.
    pub fn share_ppm(&self) -> u32 {
        let share = if self.gpus < 1.0 { self.gpus } else { 1.0 };
        (share * f64::from(PPM_ONE)).round() as u32
    }

    /// What it puts up with beside others.
    pub fn tolerance(&self) -> Tolerance {
        match self.max_slowdown {
            _ if self.exclusive => Tolerance::Alone,
            Some(most) => Tolerance::Slowdown((most * f64::from(PPM_ONE)).round() as u32),
            None => Tolerance::Any,
        }
    }

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
        let size: usize = self.command.iter().map(String::len).sum();
        if size > ARGUMENTS_MAX_BYTES {
            return Err(bad("command", "is longer than a mebibyte; put it into a script"));
        }
        if self.command_bytes_max() > ARGUMENTS_MAX_BYTES {
            return Err(bad("params", "make the command longer than a mebibyte"));
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
        self.check_texts()
    }

    fn check_numbers(&self) -> Result<(), BadRequest> {
        let least = f64::from(BUDGET_MIN.0) / f64::from(PPM_ONE);
        let whole = self.gpus.fract() == 0.0;
        if !(least..=1_000_000.0).contains(&self.gpus) || (self.gpus > 1.0 && !whole) {
            return Err(bad(
                "gpus",
                format!("is {}; give {least} to 1, or a whole number", self.gpus),
            ));
        }
        let span = |field, value: Option<f64>, least: f64| match value {
            Some(value) if !(least..=1e10).contains(&value) => {
                Err(bad(field, format!("is {value}; give a number of seconds")))
            }
            _ => Ok(()),
        };
        span("time_limit_s", self.time_limit_s, 0.001)?;
        span("estimate_s", self.estimate_s, 0.001)?;
        span("begin_unix_s", self.begin_unix_s, 0.0)?;
        span("kill_grace_s", self.kill_grace_s, 0.0)?;
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
        if let Some(pattern) = &self.progress_regex {
            let regex = progress_pattern(pattern).map_err(|error| {
                let text = error.to_string();
                bad("progress_regex", text.lines().last().unwrap_or("is no pattern").to_owned())
            })?;
            if regex.captures_len() < 2 {
                return Err(bad(
                    "progress_regex",
                    r"has no group for the number; try 'step (\d+)'",
                ));
            }
        }
        if let Some(url) = &self.webhook {
            let uri: Option<hyper::Uri> = url.parse().ok().filter(|_| url.len() <= PATH_MAX_BYTES);
            let has_host = |uri: &hyper::Uri| uri.host().is_some_and(|host| !host.is_empty());
            if !uri.is_some_and(|uri| uri.scheme_str() == Some("http") && has_host(&uri)) {
                return Err(bad("webhook", "is not an http:// address"));
            }
        }
        let (tasks, waits) = (self.tasks()?.tasks.len(), self.dependencies()?.len());
        if tasks.saturating_mul(waits) > WAITS_MAX {
            let problem = format!("{tasks} tasks times {waits} jobs are more than {WAITS_MAX}");
            return Err(bad("dependency", problem));
        }
        Ok(())
    }

    /// No task's command is longer than this once parameters are put in.
    fn command_bytes_max(&self) -> usize {
        let longer = |argument: &String, param: &Param| {
            let longest = param.values.iter().map(String::len).max().unwrap_or(0);
            argument.matches(&format!("{{{}}}", param.name)).count().saturating_mul(longest)
        };
        let argument = |argument: &String| {
            let more = self.params.iter().map(|param| longer(argument, param));
            more.fold(argument.len(), usize::saturating_add)
        };
        self.command.iter().map(argument).fold(0, usize::saturating_add)
    }

    /// Bytes that the parameters of `tasks` tasks take, each task with a copy of its own.
    fn params_bytes(&self, tasks: usize) -> usize {
        let of_param = |param: &Param| {
            let values: usize = param.values.iter().map(String::len).sum();
            let each = param.name.len() + values / param.values.len().max(1) + 1;
            each.saturating_mul(tasks)
        };
        self.params.iter().map(of_param).fold(0, usize::saturating_add)
    }

    /// The tasks that it becomes: one without a number for a plain job.
    pub fn tasks(&self) -> Result<Tasks, BadRequest> {
        let numbers = self.array.as_deref().map(parse_array).transpose()?;
        let mut count = numbers.as_ref().map_or(1, |(numbers, _)| numbers.len());
        for param in &self.params {
            count = count.saturating_mul(param.values.len());
        }
        if count > TASKS_MAX {
            let field = if self.params.is_empty() { "array" } else { "params" };
            return Err(bad(field, format!("makes more than {TASKS_MAX} tasks")));
        }
        if self.params_bytes(count) > PARAMS_MAX_BYTES {
            return Err(bad("params", "take more than 64 MiB in all tasks; put them into a file"));
        }
        let mut combinations: Vec<Vec<(String, String)>> = vec![Vec::new()];
        for param in &self.params {
            let plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
            if param.name.is_empty() || !param.name.chars().all(plain) {
                return Err(bad("params", "a name is letters, digits and underscores"));
            }
            if param.values.is_empty() {
                return Err(bad("params", format!("{} has no values", param.name)));
            }
            let more = |chosen: Vec<(String, String)>| {
                param.values.iter().map(move |value| {
                    let mut chosen = chosen.clone();
                    chosen.push((param.name.clone(), value.clone()));
                    chosen
                })
            };
            combinations = combinations.into_iter().flat_map(more).collect();
        }
        let Some((numbers, at_a_time)) = numbers else {
            let is_plain = self.params.is_empty();
            let tasks = combinations.into_iter().enumerate();
            let tasks = tasks.map(|(number, params)| Task {
                number: (!is_plain).then(|| u32::try_from(number).unwrap_or(u32::MAX)),
                params,
            });
            return Ok(Tasks { tasks: tasks.collect(), at_a_time: None });
        };
        let tasks = numbers.iter().flat_map(|&number| {
            combinations
                .iter()
                .map(move |params| Task { number: Some(number), params: params.clone() })
        });
        Ok(Tasks { tasks: tasks.collect(), at_a_time })
    }

    /// What has to be over before it may start.
    pub fn dependencies(&self) -> Result<Vec<Dependency>, BadRequest> {
        let Some(text) = self.dependency.as_deref() else { return Ok(Vec::new()) };
        let wrong = |part: &str| {
            let part: String = part.escape_debug().take(100).collect();
            bad(
                "dependency",
                format!("'{part}' is not of the form afterok|afterany|afternotok:ID[:ID...]"),
            )
        };
        let mut all = Vec::new();
        for part in text.split(',') {
            let (kind, ids) = part.split_once(':').ok_or_else(|| wrong(part))?;
            let after = match kind {
                "afterok" => After::Ok,
                "afterany" | "after" => After::Any,
                "afternotok" => After::NotOk,
                _ => return Err(wrong(part)),
            };
            for id in ids.split(':') {
                let job = id.parse().map_err(|_| wrong(part))?;
                all.push(Dependency { after, job });
            }
        }
        if all.len() > 10_000 {
            return Err(bad("dependency", "names more than 10,000 jobs"));
        }
        Ok(all)
    }
}

/// The tasks of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Each becomes a job.
    pub tasks: Vec<Task>,
    /// How many of them may run at a time.
    pub at_a_time: Option<u32>,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its number; none for a plain job.
    pub number: Option<u32>,
    /// What was chosen for each parameter.
    pub params: Vec<(String, String)>,
}

/// One job that has to be over first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// How.
    pub after: After,
    /// Which.
    pub job: u64,
}

/// How a job has to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum After {
    /// Completed.
    Ok,
    /// Over.
    Any,
    /// Over, and not completed.
    NotOk,
}

/// A pattern that finds progress in what a job prints.
pub fn progress_pattern(pattern: &str) -> Result<regex::Regex, regex::Error> {
    let mut builder = regex::RegexBuilder::new(pattern);
    builder.size_limit(PATTERN_MAX_BYTES).dfa_size_limit(1 << 20).build()
}

/// `0-9:2,14%3` as numbers and how many may run at a time.
fn parse_array(text: &str) -> Result<(Vec<u32>, Option<u32>), BadRequest> {
    let shown: String = text.escape_debug().take(100).collect();
    let wrong = || bad("array", format!("'{shown}' is not of the form 0-9:2,14%3"));
    let (list, at_a_time) = match text.split_once('%') {
        Some((list, limit)) => {
            let limit: u32 = limit.parse().ok().filter(|&limit| limit > 0).ok_or_else(wrong)?;
            (list, Some(limit))
        }
        None => (text, None),
    };
    let numbers = parse_numbers(list).ok_or_else(wrong)?;
    Ok((
        numbers.into_iter().map(|number| u32::try_from(number).unwrap_or(u32::MAX)).collect(),
        at_a_time,
    ))
}

/// Numbers such as `1-10:2,14`, in order, each once; `None` if it is no such list or far too long.
pub fn parse_numbers(list: &str) -> Option<Vec<u64>> {
    let mut numbers = std::collections::BTreeSet::new();
    // Counted as written: the same numbers a thousand times are as much work.
    let mut left = TASKS_MAX as u64;
    for part in list.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, step.parse::<u64>().ok().filter(|&step| step > 0)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let number: u64 = range.parse().ok()?;
                (number, number)
            }
        };
        if first > last || last > u64::from(u32::MAX) {
            return None;
        }
        left = left.checked_sub((last - first) / step + 1)?;
        numbers.extend((first..=last).step_by(usize::try_from(step).ok()?));
    }
    Some(numbers.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JobRequest {
        JobRequest { command: vec!["true".to_owned()], ..JobRequest::default() }
    }

    #[test]
    fn arrays_and_parameters_become_tasks() {
        let array = |text: &str| {
            let request = JobRequest { array: Some(text.to_owned()), ..request() };
            request.tasks().map(|tasks| {
                let numbers: Vec<u32> = tasks.tasks.iter().filter_map(|task| task.number).collect();
                (numbers, tasks.at_a_time)
            })
        };
        assert_eq!(array("0-6:2,14%3").unwrap(), (vec![0, 2, 4, 6, 14], Some(3)));
        assert_eq!(array("7").unwrap(), (vec![7], None));
        for wrong in ["", "a", "5-1", "1-", "1%0", "1-9:0", "0-4294967295", "1,,2"] {
            assert!(array(wrong).is_err(), "{wrong}");
        }
        let param = |name: &str, values: &[&str]| Param {
            name: name.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        };
        let sweep = JobRequest {
            params: vec![param("lr", &["1", "2"]), param("wd", &["a", "b", "c"])],
            ..request()
        };
        assert_eq!(sweep.tasks().unwrap().tasks.len(), 6);
        assert_eq!(request().tasks().unwrap().tasks[0].number, None);
    }

    #[test]
    fn bad_requests_name_the_field() {
        let field = |change: fn(&mut JobRequest)| {
            let mut request = request();
            change(&mut request);
            request.check().unwrap_err().field
        };
        assert_eq!(field(|request| request.command.clear()), "command");
        assert_eq!(field(|request| request.command.push("a\0b".to_owned())), "command");
        assert_eq!(field(|request| request.gpus = 1.5), "gpus");
        assert_eq!(field(|request| request.gpus = f64::NAN), "gpus");
        assert_eq!(field(|request| request.time_limit_s = Some(-1.0)), "time_limit_s");
        assert_eq!(field(|request| request.name = Some("a\nb".to_owned())), "name");
        assert_eq!(
            field(|request| request.progress_regex = Some("step".to_owned())),
            "progress_regex"
        );
        assert_eq!(field(|request| request.dependency = Some("afterok".to_owned())), "dependency");
        assert_eq!(field(|request| request.max_slowdown = Some(0.5)), "max_slowdown");
        assert_eq!(
            field(|request| drop(request.env.insert("A=B".to_owned(), String::new()))),
            "env"
        );
        assert_eq!(request().check(), Ok(()));
    }

    #[test]
    fn small_requests_do_not_become_large_work() {
        let param = |name: &str, value: &str, count: usize| Param {
            name: name.to_owned(),
            values: vec![value.to_owned(); count],
        };
        let field = |request: JobRequest| request.check().unwrap_err().field;
        // 100,000 copies of a mebibyte.
        let long = "x".repeat(1 << 20);
        let params = vec![param("a", &long, 1), param("b", "1", 100_000)];
        assert_eq!(field(JobRequest { params, ..request() }), "params");
        // A mebibyte for each of 100,000 places.
        let command = vec!["true".to_owned(), "{a}".repeat(100_000)];
        let params = vec![param("a", &long, 1)];
        assert_eq!(field(JobRequest { command, params, ..request() }), "params");
        let array = Some("0-99999,".repeat(50_000) + "1");
        assert_eq!(field(JobRequest { array, ..request() }), "array");
        let (array, dependency) =
            (Some("0-99999".to_owned()), Some("afterok:1".to_owned() + &":1".repeat(9_999)));
        assert_eq!(
            field(JobRequest { dependency: dependency.clone(), ..request() }.with_array(array)),
            "dependency"
        );
        assert_eq!(JobRequest { dependency, ..request() }.check(), Ok(()));
        let progress_regex = Some("((a{50}){50}){50}".to_owned());
        assert_eq!(field(JobRequest { progress_regex, ..request() }), "progress_regex");
        let stdout = Some("%x".repeat(5_000).into());
        assert_eq!(field(JobRequest { stdout, ..request() }), "stdout");
        assert_eq!(field(JobRequest { dir: "/a\0b".into(), ..request() }), "dir");
        let command = vec![format!("/bin/{long}")];
        assert!(JobRequest { command, ..request() }.display_name().len() < 256);
    }

    impl JobRequest {
        fn with_array(self, array: Option<String>) -> Self {
            Self { array, ..self }
        }
    }
}
