//! The process above a run. It outlives the daemon, so that how the run ended is known whoever asks,
//! and it has the run to itself: of two supervisors of one directory the second leaves at once.
//!
//! Processes that the run leaves behind become its children, also those that left the process group,
//! and end with the run.

use super::THIS;
use super::cgroup::RunCgroup;
use super::exec_stage::close_all_but;
use super::oom::ErrorOutput;
use super::process::{ProcessId, boot_id, descendants, raw};
use super::record::{self, Claim, EXIT, RUNNING, RunEnd, RunSpec, SPEC, STARTED, StartRecord};
use super::start_error::StartError;
use crate::event::{Exit, ExitStatus};
use nix::errno::Errno;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::process::{Signal, kill_process, kill_process_group};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What the second stage reports when its next step is to become the program.
pub(super) const READY: &[u8] = b"ready\n";
/// How the second stage ends if a disk had no room for the files of the program.
pub(super) const NO_ROOM: u8 = 75;
/// How long the supervisor tries to end what a run left behind.
const LEFTOVERS: Duration = Duration::from_secs(10);

/// Runs what the directory of a run describes, unless somebody else does, and records how it ended.
/// This is the hidden subcommand `supervise DIR`; it wants a process of its own.
pub fn supervise(dir: &Path) -> ExitCode {
    close_all_but(-1);
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let _ = rustix::process::setpriority_process(None, 0);
    let Ok(boot) = boot_id() else {
        return ExitCode::FAILURE;
    };
    let Some(me) = ProcessId::of(std::process::id(), &boot) else {
        return ExitCode::FAILURE;
    };
    match record::claim(dir, &Claim::Supervisor(me)) {
        Ok(true) => {}
        Ok(false) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    }
    let spec = spec(dir);
    let outcome = spec.as_ref().map_err(|reason| reason.clone().into());
    let outcome = outcome.and_then(|spec| attend(dir, &boot, spec));
    let outcome = outcome.unwrap_or_else(|StartError { reason, transient }| RunEnd::NotStarted {
        reason,
        transient,
    });
    let code = leave(dir, &outcome);
    // Last, so that whoever finds the run over finds no group: it is our end that is waited for.
    if let Ok(RunSpec { group: Some(group), .. }) = &spec {
        group.remove();
    }
    code
}

/// What to run.
fn spec(dir: &Path) -> Result<RunSpec, String> {
    record::read(dir, SPEC)
        .map_err(|error| format!("cannot read {}: {error}", dir.join(SPEC).display()))?
        .ok_or_else(|| format!("{} does not exist", dir.join(SPEC).display()))
}

/// Records how it ended.
fn leave(dir: &Path, outcome: &RunEnd) -> ExitCode {
    // A full disk may have room again.
    for pause in [0, 100, 1000, 10_000] {
        sleep(Duration::from_millis(pause));
        match record::write(dir, EXIT, outcome, true) {
            Ok(()) => return ExitCode::SUCCESS,
            // Nobody wants to know.
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(_) => {}
        }
    }
    ExitCode::FAILURE
}

/// Everything between the claim and the record of the end.
fn attend(dir: &Path, boot: &str, spec: &RunSpec) -> Result<RunEnd, StartError> {
    let messages = ErrorOutput::of(&spec.launch);
    let mut child =
        second_stage(spec).map_err(|error| format!("cannot start a process: {error}"))?;
    let group = match admit(dir, boot, spec, &mut child) {
        Ok(group) => group,
        Err(error) => {
            // Without a complete order the second stage ends by itself; this is for good measure.
            drop(child.stdin.take());
            let _ = child.kill();
            end_leftovers(child.id());
            let _ = child.wait();
            return Err(error);
        }
    };
    let mut report = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_end(&mut report);
    }
    let runs = report == READY;
    if runs {
        let _ = File::create(dir.join(RUNNING));
    }
    let status =
        wait_for(child.id()).map_err(|error| format!("cannot wait for the process: {error}"))?;
    if !runs {
        let text = report.strip_prefix(READY).unwrap_or(&report);
        let text = String::from_utf8_lossy(text).trim().replace('\n', " ");
        let reason = if text.is_empty() {
            format!("the process ended with {} before its program began", status.code())
        } else {
            text
        };
        return Err(StartError { reason, transient: status == ExitStatus::Code(NO_ROOM.into()) });
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let failed = status != ExitStatus::Code(0);
    let was_killed = group.is_some_and(|group| group.ran_out_of_memory());
    Ok(RunEnd::Exited(Exit {
        cause: None,
        status,
        cpu_s: usage.as_ref().map_or(0.0, processor_seconds),
        rss_max_bytes: usage
            .as_ref()
            .map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0) << 10),
        oom: failed && (was_killed || messages.want_memory()),
        at_unix_us: unix_us(),
    }))
}

/// Starts the second stage, which waits for its order.
fn second_stage(spec: &RunSpec) -> io::Result<Child> {
    // The same file that runs here, even if another one has its name by now.
    let mut command = Command::new(THIS);
    command.arg0("tandem").args(&spec.arguments).arg("enter");
    command.env_clear().current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn()
}

/// Gives the process its place, records it, and only then lets it go on. Returns its control group.
fn admit(
    dir: &Path,
    boot: &str,
    spec: &RunSpec,
    child: &mut Child,
) -> Result<Option<RunCgroup>, StartError> {
    let process = ProcessId::of(child.id(), boot).ok_or("the process is gone")?;
    if !spec.cores.is_empty() {
        sched_setaffinity(process.raw(), &cpu_set(&spec.cores))
            .map_err(|error| format!("cannot run on cores {:?}: {error}", spec.cores))?;
    }
    // It has one thread and waits for its order: nothing of the program is ever outside.
    let admitted = spec.group.as_ref().map(|group| group.admit(process.pid, spec.enforcement));
    let (group, enforcement) = match admitted {
        Some((group, enforcement)) => (Some(group), enforcement),
        None => (None, spec.enforcement),
    };
    let started = StartRecord { process, enforcement, group };
    record::write(dir, STARTED, &started, false).map_err(|error| {
        StartError::new(format!("cannot write {}", dir.join(STARTED).display()), &error)
    })?;
    let order = serde_json::to_vec(&spec.launch).map_err(|error| error.to_string())?;
    let mut pipe = child.stdin.take().ok_or("the process has no pipe")?;
    pipe.write_all(&order).map_err(|error| format!("the process went away: {error}"))?;
    Ok(started.group)
}

/// A set of cores as the system wants it.
pub(super) fn cpu_set(cores: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    for &core in cores {
        if (core as usize) < CpuSet::MAX_CPU {
            set.set(core as usize);
        }
    }
    set
}

/// Waits until a child has ended, and waits for all others that end meanwhile. What is left of the
/// run is ended before the child's id is free for others.
fn wait_for(leader: u32) -> Result<ExitStatus, Errno> {
    loop {
        let ended = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let Some(pid) = ended.pid() else { continue };
        if pid.as_raw().cast_unsigned() == leader {
            end_leftovers(leader);
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED);
            return Ok(match ended {
                WaitStatus::Signaled(_, signal, _) => ExitStatus::Signal(signal as i32),
                WaitStatus::Exited(_, code) => ExitStatus::Code(code),
                _ => ExitStatus::Code(-1),
            });
        }
        let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED);
    }
}

/// Ends every process that a run left behind, but for its first one, which has ended and is kept.
fn end_leftovers(leader: u32) {
    let deadline = Instant::now() + LEFTOVERS;
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(group) = raw(leader) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let left = descendants(std::process::id()).unwrap_or_default();
        for pid in left.iter().filter_map(|stat| raw(stat.pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        reap_all_but(leader);
        if left.is_empty() || Instant::now() > deadline {
            return;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Waits for children that have ended, except one.
fn reap_all_but(leader: u32) {
    let mut children = Vec::new();
    for thread in super::process::threads(std::process::id()) {
        let path = format!("/proc/self/task/{thread}/children");
        if let Ok(text) = std::fs::read_to_string(path) {
            children
                .extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<i32>().ok()));
        }
    }
    for child in children.into_iter().filter(|&child| child.cast_unsigned() != leader) {
        let child = Id::Pid(nix::unistd::Pid::from_raw(child));
        let _ = waitid(child, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    }
}

/// CpuLimit time in seconds.
fn processor_seconds(usage: &Usage) -> f64 {
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// The time of day.
fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
