//! `tandem daemon start`, `stop`, `status`, `restart` and `unit`.

use super::live;
use super::{print, remark};
use crate::daemon_args::{DaemonControl, DaemonFlags};
use crate::failure::Failure;
use crate::live_args::ClientArgs;
use crate::output::clean;
use crate::units;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::DaemonInfo;
use tandem_daemon::client::{Address, Client};
use tandem_daemon::config::Config;

/// How long a daemon may take to answer after its start, and to end after a signal.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How long `stop` waits for jobs that were cancelled, so that `cancel all` right before it leaves nothing.
const ENDING: Duration = Duration::from_secs(5);

pub(super) fn run(control: &DaemonControl) -> Result<(), Failure> {
    match control {
        DaemonControl::Start(flags) => start(flags),
        DaemonControl::Stop(args) => stop(args),
        DaemonControl::Status(args) => status(args),
        DaemonControl::Restart(args) => restart(args),
        DaemonControl::Unit(flags) => unit(flags),
    }
}

fn start(flags: &DaemonFlags) -> Result<(), Failure> {
    let (config, _) = Config::load(&flags.flags())?;
    if let Ok(info) = client_of(&config.daemon.socket)?.info() {
        remark(&format!("the daemon runs already: process {}", info.pid), false);
        let ignored = ignored(&flags.flags(), info.pid);
        if !ignored.is_empty() {
            let message = format!(
                "these options have no effect: {}; write them to the configuration and run \
                 tandem daemon restart, or run tandem daemon stop first",
                ignored.join(" ")
            );
            remark(&message, false);
        }
        return Ok(());
    }
    let mut arguments = vec!["daemon".to_owned(), "--detached".to_owned()];
    for (key, value) in flags.flags() {
        arguments.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    launch(&arguments, None, &config)
}

/// The options that a running daemon was not started with.
fn ignored(flags: &[(&str, String)], pid: u32) -> Vec<String> {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = words.split(|&byte| byte == 0).collect();
    let settings = flags.iter().map(|(key, value)| format!("{key}={value}"));
    settings
        .filter(|setting| !setting.starts_with("daemon.socket="))
        .filter(|setting| !words.contains(&setting.as_bytes()))
        .map(|setting| clean(&setting))
        .collect()
}

/// Starts a daemon in the background and waits until it answers.
fn launch(arguments: &[String], dir: Option<PathBuf>, config: &Config) -> Result<(), Failure> {
    let state = &config.daemon.state;
    let log = state.join("daemon.log");
    let cannot = |what: &Path, cause: std::io::Error| {
        Failure::failed(format!("cannot write {}: {cause}", what.display()))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(|e| cannot(state, e))?;
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let file = file.map_err(|cause| cannot(&log, cause))?;
    let before = file.metadata().map_or(0, |metadata| metadata.len());
    let mut command = Command::new(program()?);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    if let Some(dir) = dir {
        command.current_dir(dir);
    }
    let mut child = command.spawn().map_err(|cause| Failure::failed(cause.to_string()))?;
    let info = await_answer(&mut child, &config.daemon.socket, &log, before)?;
    remark(
        &format!(
            "tandem: started, process {}, at {}; its log is {}",
            info.pid,
            config.daemon.socket.display(),
            log.display()
        ),
        false,
    );
    Ok(())
}

fn await_answer(
    child: &mut Child,
    socket: &Path,
    log: &Path,
    before: u64,
) -> Result<DaemonInfo, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(info) = client_of(socket)?.info() {
            return Ok(info.value);
        }
        if let Ok(Some(_)) = child.try_wait() {
            let text = std::fs::read(log).unwrap_or_default();
            let new = text.get(usize::try_from(before).unwrap_or(0)..).unwrap_or_default();
            let text = String::from_utf8_lossy(new);
            let error = clean(last_error(&text));
            let log = log.display();
            return Err(Failure::failed(format!("the daemon ended: {error}; its log is {log}")));
        }
        if Instant::now() > deadline {
            let message = format!("the daemon does not answer; see {}", log.display());
            return Err(Failure::failed(message));
        }
        std::thread::sleep(POLL);
    }
}

/// The last error of a log: how the daemon ended, or else the last line.
fn last_error(log: &str) -> &str {
    let said = log.lines().rev().find_map(|line| line.strip_prefix("tandem: "));
    said.or_else(|| log.lines().last()).unwrap_or("it said nothing")
}

fn client_of(socket: &Path) -> Result<Client, Failure> {
    Ok(Client::new(Address::Unix(socket.to_owned()), None)?)
}

/// This program, also if it was replaced while it runs.
fn program() -> Result<PathBuf, Failure> {
    let path = std::env::current_exe().map_err(|cause| Failure::failed(cause.to_string()))?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

/// The daemon that answers, which has to be one of this machine.
fn running(args: &ClientArgs) -> Result<(DaemonInfo, Pid), Failure> {
    let mut client = live::connect(args)?;
    if !matches!(client.address(), Address::Unix(_)) {
        let message = "only a daemon of this machine can be stopped; give --socket";
        return Err(Failure::bad_input(message));
    }
    let info = client.info()?.value;
    let pid = i32::try_from(info.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::failed("the daemon has no process id"))?;
    Ok((info, pid))
}

/// The service of systemd that runs a process.
fn service_of(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let units = groups.lines().flat_map(|line| line.split('/'));
    units
        .filter(|unit| unit.starts_with("tandem") && unit.ends_with(".service"))
        .map(clean)
        .next_back()
}

fn end(info: &DaemonInfo, pid: Pid) -> Result<(), Failure> {
    kill_process(pid, Signal::TERM).map_err(|error| {
        let cause = std::io::Error::from(error);
        Failure::failed(format!("process {} cannot be stopped: {cause}", info.pid))
    })?;
    let deadline = Instant::now() + PATIENCE;
    while is_alive(info.pid) {
        if Instant::now() > deadline {
            let message = format!("process {} does not end; see its log", info.pid);
            return Err(Failure::failed(message));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn stop(args: &ClientArgs) -> Result<(), Failure> {
    let (mut info, pid) = running(args)?;
    let count = |info: &DaemonInfo, state: &str| info.jobs.get(state).copied().unwrap_or(0);
    let deadline = Instant::now() + ENDING;
    while count(&info, "completing") > 0 && Instant::now() < deadline {
        std::thread::sleep(POLL);
        info = running(args)?.0;
    }
    end(&info, pid)?;
    let ending = count(&info, "completing");
    let going_on = count(&info, "running") + count(&info, "paused");
    let mut text = format!("tandem: stopped process {}", info.pid);
    for (jobs, one, several) in [
        (going_on, "goes on without it", "go on without it"),
        (ending, "has not ended yet", "have not ended yet"),
    ] {
        if jobs > 0 {
            let verb = if jobs == 1 { one } else { several };
            text += &format!("; {} {verb}", units::counted(jobs, "job"));
        }
    }
    remark(&text, args.json);
    if args.json {
        let jobs = going_on + ending;
        print(&serde_json::json!({ "schema": 1, "pid": info.pid, "jobs": jobs }).to_string())?;
    }
    Ok(())
}

/// Starts a daemon with the arguments of the one that runs.
fn restart(args: &ClientArgs) -> Result<(), Failure> {
    let (config, _) = live::configuration(args)?;
    let (info, pid) = running(args)?;
    if let Some(service) = service_of(info.pid) {
        let message = format!(
            "process {} is run by systemd; use systemctl {}restart {service}",
            info.pid,
            if info.uid == 0 { "" } else { "--user " }
        );
        return Err(Failure::bad_input(message));
    }
    let words = std::fs::read(format!("/proc/{}/cmdline", info.pid)).unwrap_or_default();
    let words = words.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words = words.skip(1).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut arguments: Vec<String> = words.collect();
    if arguments.first().is_none_or(|first| first != "daemon") {
        let message = format!("the arguments of process {} cannot be read", info.pid);
        return Err(Failure::failed(message));
    }
    if !arguments.iter().any(|argument| argument == "--detached") {
        arguments.push("--detached".to_owned());
    }
    let dir = std::fs::read_link(format!("/proc/{}/cwd", info.pid)).ok();
    end(&info, pid)?;
    launch(&arguments, dir, &config)
}

fn status(args: &ClientArgs) -> Result<(), Failure> {
    let mut client = live::connect(args)?;
    let answer = client.info()?;
    if args.json {
        return print(answer.raw.trim_end());
    }
    let jobs: Vec<String> =
        answer.jobs.iter().map(|(state, count)| format!("{count} {}", clean(state))).collect();
    let jobs =
        if jobs.is_empty() { "no jobs".to_owned() } else { format!("jobs: {}", jobs.join(", ")) };
    let service = service_of(answer.pid).map(|unit| format!(", {unit}")).unwrap_or_default();
    print(&format!(
        "tandem {} runs at {}: process {}{service}, up {}, policy {}, {} {} devices, {jobs}",
        clean(&answer.version),
        client.address(),
        answer.pid,
        units::words(answer.up_s),
        clean(&answer.policy),
        answer.devices,
        clean(&answer.provider),
    ))?;
    for check in live::failed_checks(&mut client) {
        print(&format!("  {}: {}", clean(&check.name), clean(&check.text)))?;
    }
    Ok(())
}

/// Prints a unit for a user's systemd.
fn unit(flags: &DaemonFlags) -> Result<(), Failure> {
    Config::load(&flags.flags())?;
    let mut words = vec![program()?.to_string_lossy().into_owned(), "daemon".to_owned()];
    for (key, value) in flags.flags() {
        words.extend(["--set".to_owned(), format!("{key}={value}")]);
    }
    let words: Vec<String> = words.iter().map(|word| unit_word(word)).collect();
    let text = format!(
        "# ~/.config/systemd/user/tandem.service, then: systemctl --user enable --now tandem\n\
         # loginctl enable-linger lets jobs go on after logging out.\n\
         [Unit]\nDescription=Tandem, shares GPUs between deep-learning jobs\n\n\
         [Service]\nExecStart={}\n# Jobs go on while the daemon is restarted.\nKillMode=process\n\
         Restart=on-failure\n# Control groups for jobs (systemd 254 or later).\nDelegate=yes\n\
         DelegateSubgroup=tandem-daemon\n\n[Install]\nWantedBy=default.target",
        words.join(" ")
    );
    print(&text)
}

/// A word of a command in a unit: quoted, with `%` and `$` as they are.
fn unit_word(word: &str) -> String {
    let escaped =
        word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%$".contains(c);
    if escaped.chars().all(plain) && !escaped.is_empty() {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_start_shows_its_last_error() {
        let log = "2026-01-01 INFO a: begins\ntandem: state.db: is empty\n2026-01-01 INFO a: x\n";
        assert_eq!(last_error(log), "state.db: is empty");
        assert_eq!(last_error("one\nKilled\n"), "Killed");
        assert_eq!(last_error(""), "it said nothing");
    }

    #[test]
    fn words_of_a_unit_are_quoted() {
        assert_eq!(unit_word("/usr/bin/tandem"), "/usr/bin/tandem");
        assert_eq!(unit_word("a b\"50%$x"), "\"a b\\\"50%%$$x\"");
        assert_eq!(unit_word(""), "\"\"");
    }
}
