//! Builds the request of a job from the command line.

use super::script;
use crate::commands::remark;
use crate::failure::Failure;
use crate::job_options::JobOptions;
use crate::output::clean;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tandem_daemon::request::{JobRequest, ServiceRequest};

/// Variables that are always passed, so that programs are found.
const LEAST: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TERM"];
/// Variables of a job that it does not pass on to jobs that it submits.
const OWN: [&str; 6] = [
    "TANDEM_JOB_ID",
    "TANDEM_ARRAY_TASK_ID",
    "TANDEM_SOCK",
    "TANDEM_ACCUM",
    "TANDEM_GPU_SHARE",
    "TANDEM_GPU_MEMORY_LIMIT",
];

/// The options of the fields of a request.
const OPTIONS: [(&str, &str); 27] = [
    ("name", "--job-name"),
    ("env", "--export"),
    ("dir", "--chdir"),
    ("gpus", "--gpus"),
    ("time_limit_s", "--time"),
    ("array", "--array"),
    ("params", "--param"),
    ("dependency", "--dependency"),
    ("begin_unix_s", "--begin"),
    ("stdout", "--output"),
    ("stderr", "--error"),
    ("partition", "--partition"),
    ("gpu_memory", "--gpu-memory"),
    ("gpu_memory_bytes", "--gpu-memory"),
    ("max_slowdown", "--max-slowdown"),
    ("retries", "--retries"),
    ("class", "--class"),
    ("estimate_s", "--estimate"),
    ("priority", "--priority"),
    ("progress_regex", "--progress-regex"),
    ("webhook", "--webhook"),
    ("kill_grace_s", "--kill-grace"),
    ("stop_signal", "--stop-signal"),
    ("mail", "--mail-user"),
    ("account", "--account"),
    ("qos", "--qos"),
    ("reservation", "--reservation"),
];

/// The refusal of a request, with the names of options.
pub(super) fn refused(refusal: impl Into<Failure>) -> Failure {
    refusal.into().naming(&OPTIONS)
}

/// The request from the options and the words after them.
pub(super) fn build(
    options: &JobOptions,
    words: &[String],
    json: bool,
) -> Result<JobRequest, Failure> {
    let all: Vec<OsString> = std::env::args_os().collect();
    if follows_dashes(&all, words) {
        let request = assemble(options.clone(), words.to_vec()).map_err(refused)?;
        for unused in unused_params(&request) {
            remark(&format!("tandem: {unused}"), json);
        }
        return Ok(request);
    }
    let Some((path, arguments)) = words.split_first() else {
        return Err(Failure::bad_input("a script or -- and a command is missing"));
    };
    let script = script::read(path)?;
    let absolute = std::path::absolute(path)
        .map_err(|cause| Failure::bad_input(format!("{}: {cause}", clean(path))))?;
    let absolute = text(absolute, "the script")?;
    let mut options = options.clone().over(script.options);
    let file_name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    options.name = options.name.or(file_name.map(|name| clean(&name)));
    let mut command = script.interpreter;
    command.push(absolute);
    command.extend_from_slice(arguments);
    let mut request = assemble(options, command).map_err(refused)?;
    if script.is_slurm {
        for_slurm(&mut request);
        let cpus = script.cpus_per_task.map(|cpus| ("SLURM_CPUS_PER_TASK".to_owned(), cpus));
        request.env.extend(cpus);
    }
    Ok(request)
}

/// Lets the daemon set the variables of Slurm, and sets those that only this side knows.
fn for_slurm(request: &mut JobRequest) {
    request.slurm_env = true;
    if let Some(here) =
        std::env::current_dir().ok().and_then(|dir| dir.into_os_string().into_string().ok())
    {
        request.env.insert("SLURM_SUBMIT_DIR".to_owned(), here);
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for name in ["SLURM_SUBMIT_HOST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME"] {
        request.env.insert(name.to_owned(), host.clone());
    }
}

/// The request of a command that is given as a list, such as by another program.
pub(super) fn of_command(options: JobOptions, command: Vec<String>) -> Result<JobRequest, Failure> {
    assemble(options, command)
}

/// The words are the last ones of the command line; is `--` before them?
fn follows_dashes(all: &[OsString], words: &[String]) -> bool {
    let before = all.len().checked_sub(words.len() + 1);
    before.and_then(|index| all.get(index)).is_some_and(|word| word == "--")
}

fn assemble(options: JobOptions, command: Vec<String>) -> Result<JobRequest, Failure> {
    let here = std::env::current_dir().map_err(|cause| {
        Failure::bad_input(format!("the present folder is gone: {cause}; give -D"))
    });
    let service = service(&options)?;
    let dir = match options.chdir {
        Some(dir) if dir.is_absolute() => dir,
        Some(dir) => here?.join(dir),
        None => here?,
    };
    text(dir.clone(), "the working directory")?;
    let default = JobRequest::default();
    let request = JobRequest {
        command,
        name: options.name,
        env: environment(options.export.as_deref().unwrap_or("ALL"), std::env::vars_os())?,
        dir,
        gpus: options.gpus.unwrap_or(default.gpus),
        time_limit_s: options.time.filter(|seconds| seconds.is_finite()),
        array: options.array,
        params: options.params,
        dependency: options.dependency,
        begin_unix_s: options.begin,
        stdout: options.output,
        stderr: options.error,
        partition: options.partition,
        gpu_memory_bytes: options.gpu_memory,
        exclusive: options.exclusive,
        max_slowdown: options.max_slowdown,
        retries: options.retries.unwrap_or(default.retries),
        requeue: options.requeue,
        class: options.class,
        estimate_s: options.estimate,
        priority: options.priority.unwrap_or(default.priority),
        hold: options.hold,
        progress_regex: options.progress_regex,
        webhook: options.webhook,
        kill_grace_s: options.kill_grace,
        stop_signal: options.stop_signal,
        slurm_env: default.slurm_env,
        mail: options.mail_user,
        account: options.account,
        qos: options.qos,
        reservation: options.reservation,
        service,
        share: options.share,
        stored_bytes: 0,
    };
    // Checked here, without the daemon.
    request.check().map_err(Failure::bad_input)?;
    Ok(request)
}

/// Parameters that the command does not contain: a script may read their variables, but often a name is misspelt.
fn unused_params(request: &JobRequest) -> Vec<String> {
    let has = |wanted: &str| request.command.iter().any(|word| word.contains(wanted));
    let unused = request.params.iter().filter(|param| !has(&format!("{{{}}}", param.name)));
    let told = |name: &str| {
        let variable = format!("TANDEM_PARAM_{}", name.to_ascii_uppercase());
        format!("the command has no {{{name}}}; its tasks differ only in {variable}")
    };
    unused.map(|param| told(&clean(&param.name))).collect()
}

/// What makes a job a service.
fn service(options: &JobOptions) -> Result<Option<ServiceRequest>, Failure> {
    let JobOptions { slo, rate, latency_regex, .. } = options;
    let given = [
        ("--slo", slo.is_some()),
        ("--rate", rate.is_some()),
        ("--latency-regex", latency_regex.is_some()),
    ];
    if let (false, Some((name, _))) = (options.service, given.iter().find(|(_, is)| *is)) {
        return Err(Failure::bad_input(format!("{name} is for a service; add --service")));
    }
    Ok(options.service.then(|| ServiceRequest {
        slo: slo.clone(),
        rate_per_s: *rate,
        latency_regex: latency_regex.clone(),
    }))
}

fn text(path: PathBuf, what: &str) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|path| {
        Failure::bad_input(format!(
            "{what} {} has a name that is no UTF-8",
            clean(&path.to_string_lossy())
        ))
    })
}

/// The variables of an `--export` list.
fn environment(
    list: &str,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut unreadable = 0_usize;
    let mut all = BTreeMap::new();
    for (name, value) in variables {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => drop(all.insert(name, value)),
            _ => unreadable += 1,
        }
    }
    if unreadable > 0 {
        remark(
            &format!("tandem: {unreadable} variables that are no UTF-8 are not passed on"),
            false,
        );
    }
    let mut env = BTreeMap::new();
    for part in list.split(',') {
        match part.split_once('=') {
            Some(("", _)) => {
                return Err(Failure::bad_input(format!("--export: '{}' has no name", clean(part))));
            }
            Some((name, value)) => drop(env.insert(name.to_owned(), value.to_owned())),
            None if part == "ALL" => {
                let is_own = |name: &str| OWN.contains(&name) || name.starts_with("TANDEM_PARAM_");
                let passed = all.iter().filter(|(name, _)| !is_own(name));
                let passed: Vec<_> =
                    passed.map(|(name, value)| (name.clone(), value.clone())).collect();
                for (name, value) in passed {
                    // A value in the list takes precedence.
                    env.entry(name).or_insert(value);
                }
            }
            None if part == "NONE" => {}
            None => {
                if let Some(value) = all.get(part) {
                    env.insert(part.to_owned(), value.clone());
                }
            }
        }
    }
    if !list.split(',').any(|part| part == "ALL") {
        for name in LEAST {
            if let (Some(value), false) = (all.get(name), env.contains_key(name)) {
                env.insert(name.to_owned(), value.clone());
            }
        }
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(list: &str) -> Vec<String> {
        let variables = [
            ("PATH", "/bin"),
            ("A", "1"),
            ("B", "2"),
            ("TANDEM_JOB_ID", "7"),
            ("TANDEM_PARAM_LR", "3"),
        ];
        let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
        let env = environment(list, variables).unwrap();
        env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn environments() {
        assert_eq!(exported("ALL"), ["A=1", "B=2", "PATH=/bin"]);
        assert_eq!(exported("NONE"), ["PATH=/bin"]);
        assert_eq!(exported("A,B=5,C"), ["A=1", "B=5", "PATH=/bin"]);
        assert_eq!(exported("ALL,B=5"), ["A=1", "B=5", "PATH=/bin"]);
        assert_eq!(exported("B=5,ALL"), ["A=1", "B=5", "PATH=/bin"]);
        assert!(environment("=1", std::iter::empty()).is_err());
    }

    #[test]
    fn a_parameter_that_the_command_does_not_contain_is_told() {
        let unused = |command: &[&str]| {
            let values = vec!["1".to_owned(), "2".to_owned()];
            let param = tandem_daemon::request::Param { name: "lr".to_owned(), values };
            let command = command.iter().map(|&word| word.to_owned()).collect();
            unused_params(&JobRequest { command, params: vec![param], ..JobRequest::default() })
        };
        assert!(unused(&["train", "--lr={lr}"]).is_empty());
        let told = ["the command has no {lr}; its tasks differ only in TANDEM_PARAM_LR"];
        assert_eq!(unused(&["echo", "{LR}"]), told);
        assert_eq!(unused(&["echo", "lr"]), told);
    }

    #[test]
    fn dashes_tell_a_command_from_a_script() {
        let is_command = |line: &str, words: usize| {
            let all: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let words: Vec<String> =
                line.split(' ').skip(all.len() - words).map(str::to_owned).collect();
            follows_dashes(&all, &words)
        };
        assert!(is_command("tandem submit -- a b", 2));
        assert!(is_command("tandem submit -- a -- b", 3));
        assert!(!is_command("tandem submit job.sh -- b", 3));
        assert!(!is_command("tandem submit job.sh", 1));
    }
}
