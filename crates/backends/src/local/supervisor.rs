//! The supervisor of a run: its parent process, which records how it ended. It outlives the daemon. It claims
//! the run: a second supervisor of the same directory exits at once.
//!
//! It is the subreaper of the run. Processes that the run leaves behind, also outside its process group,
//! become its children and are killed when the run ends.

use super::THIS;
use super::cgroup::RunCgroup;
use super::exec_stage::close_all_but;
use super::oom::ErrorOutput;
use super::process::{ProcessIdentity, boot_id, descendants, raw};
use super::record::{
    self, CLAIM, Claim, EXIT, RUNNING, RunEnd, RunSpec, SPEC, STARTED, StartRecord,
};
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

/// What the second stage reports just before it executes the program.
pub(super) const READY: &[u8] = b"ready\n";
/// Exit code of the second stage if a disk is full.
pub(super) const DISK_FULL: u8 = 75;
/// The longest pause between two attempts to record the end of a run.
const RECORD_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How long the supervisor tries to kill the processes that a run left behind.
const LEFTOVERS: Duration = Duration::from_secs(10);

/// Executes the run of a directory, unless another supervisor does, and records how it ended. This is the
/// hidden subcommand `supervise DIR`, which needs a process of its own.
pub fn supervise(dir: &Path) -> ExitCode {
    close_all_but(-1);
    let _ = rustix::process::setsid();
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let _ = rustix::process::setpriority_process(None, 0);
    let Ok(boot) = boot_id() else {
        return ExitCode::FAILURE;
    };
    let Some(me) = ProcessIdentity::of(std::process::id(), &boot) else {
        return ExitCode::FAILURE;
    };
    let claim = Claim::Supervisor(me);
    match record::claim(dir, &claim) {
        Ok(true) => {}
        Ok(false) => return ExitCode::SUCCESS,
        Err(_) => return ExitCode::FAILURE,
    }
    let spec = read_spec(dir);
    let end = spec.as_ref().map_err(|reason| reason.clone().into());
    let end = end.and_then(|spec| run(dir, &boot, spec));
    let end = end.unwrap_or_else(|StartError { reason, transient }| RunEnd::NotStarted {
        reason,
        transient,
    });
    let code = record_end(dir, &claim, &end);
    // The daemon waits for the end of this process, so the group is gone when it reports the run.
    if let Ok(RunSpec { cgroup: Some(cgroup), .. }) = &spec {
        cgroup.remove();
    }
    code
}

/// Reads what to run.
fn read_spec(dir: &Path) -> Result<RunSpec, String> {
    record::read(dir, SPEC)
        .map_err(|error| format!("cannot read {}: {error}", dir.join(SPEC).display()))?
        .ok_or_else(|| format!("{} does not exist", dir.join(SPEC).display()))
}

/// Records how the run ended. A full disk has room later, and until then this process stays: while it does, the
/// daemon takes the run for one that has not ended, and its success is not lost. If the directory is gone, or is
/// that of another run with the same number, nobody waits for this one.
fn record_end(dir: &Path, claim: &Claim, end: &RunEnd) -> ExitCode {
    let mut pause = Duration::from_millis(100);
    loop {
        match record::read::<Claim>(dir, CLAIM) {
            Ok(owner) if owner.as_ref() != Some(claim) => return ExitCode::FAILURE,
            _ => {}
        }
        match record::write(dir, EXIT, end, true) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(_) => sleep(pause),
        }
        pause = (pause * 2).min(RECORD_AGAIN_MAX);
    }
}

/// Starts the program and waits for its end.
fn run(dir: &Path, boot: &str, spec: &RunSpec) -> Result<RunEnd, StartError> {
    let error_output = ErrorOutput::of(&spec.launch);
    let mut child =
        second_stage(spec).map_err(|error| format!("cannot start a process: {error}"))?;
    let cgroup = match release(dir, boot, spec, &mut child) {
        Ok(cgroup) => cgroup,
        Err(error) => {
            // The second stage exits without a complete order. It is killed in case it does not.
            drop(child.stdin.take());
            let _ = child.kill();
            kill_leftovers(child.id());
            let _ = child.wait();
            return Err(error);
        }
    };
    let mut report = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_end(&mut report);
    }
    let is_running = report == READY;
    if is_running {
        let _ = File::create(dir.join(RUNNING));
    }
    let status =
        wait_for(child.id()).map_err(|error| format!("cannot wait for the process: {error}"))?;
    if !is_running {
        let text = report.strip_prefix(READY).unwrap_or(&report);
        let text = String::from_utf8_lossy(text).trim().replace('\n', " ");
        let reason = if text.is_empty() {
            format!("the process exited with {} before its program started", status.code())
        } else {
            text
        };
        return Err(StartError { reason, transient: status == ExitStatus::Code(DISK_FULL.into()) });
    }
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
    let failed = status != ExitStatus::Code(0);
    let was_killed = cgroup.is_some_and(|cgroup| cgroup.had_oom_kill());
    Ok(RunEnd::Exited(Exit {
        cause: None,
        status,
        cpu_s: usage.as_ref().map_or(0.0, cpu_seconds),
        rss_max_bytes: usage
            .as_ref()
            .map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0) << 10),
        oom: failed && (was_killed || error_output.shows_oom()),
        at_unix_us: unix_us(),
    }))
}

/// Starts the second stage, which waits for its order.
fn second_stage(spec: &RunSpec) -> io::Result<Child> {
    let mut command = Command::new(THIS);
    command.arg0("tandem").args(&spec.arguments).arg("enter");
    command.env_clear().current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn()
}

/// Sets cores and control group of the second stage, records the process, and only then sends the order.
/// Returns the control group.
fn release(
    dir: &Path,
    boot: &str,
    spec: &RunSpec,
    child: &mut Child,
) -> Result<Option<RunCgroup>, StartError> {
    let process = ProcessIdentity::of(child.id(), boot).ok_or("the process has ended")?;
    if !spec.cores.is_empty() {
        sched_setaffinity(process.raw(), &cpu_set(&spec.cores))
            .map_err(|error| format!("cannot run on cores {:?}: {error}", spec.cores))?;
    }
    // It has one thread and waits for its order: the program never runs outside of the group.
    let created = spec.cgroup.as_ref().map(|cgroup| cgroup.create(process.pid, spec.enforcement));
    let (cgroup, enforcement) = match created {
        Some((cgroup, enforcement)) => (Some(cgroup), enforcement),
        None => (None, spec.enforcement),
    };
    let started = StartRecord { process, enforcement, cgroup };
    record::write(dir, STARTED, &started, false).map_err(|error| {
        StartError::new(format!("cannot write {}", dir.join(STARTED).display()), &error)
    })?;
    let order = serde_json::to_vec(&spec.launch).map_err(|error| error.to_string())?;
    let mut pipe = child.stdin.take().ok_or("the process has no pipe")?;
    pipe.write_all(&order)
        .map_err(|error| format!("cannot send the order to the process: {error}"))?;
    Ok(started.cgroup)
}

/// A set of cores for system calls.
pub(super) fn cpu_set(cores: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    for &core in cores {
        if (core as usize) < CpuSet::MAX_CPU {
            set.set(core as usize);
        }
    }
    set
}

/// Waits for the end of a child, and reaps others that end meanwhile. All other processes of the run are
/// killed before the id of the child can be reused.
fn wait_for(leader: u32) -> Result<ExitStatus, Errno> {
    loop {
        let ended = match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let Some(pid) = ended.pid() else { continue };
        if pid.as_raw().cast_unsigned() == leader {
            kill_leftovers(leader);
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

/// Kills every process that a run left behind. Its first process has ended and is not reaped yet.
fn kill_leftovers(leader: u32) {
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

/// Reaps children that have ended, except one.
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

/// CPU time in seconds.
fn cpu_seconds(usage: &Usage) -> f64 {
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Microseconds since 1970.
fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_was_forgotten_is_left_alone() {
        let own = tempfile::tempdir().unwrap();
        let boot = boot_id().unwrap();
        let me = ProcessIdentity::of(std::process::id(), &boot).unwrap();
        let another =
            Claim::Supervisor(ProcessIdentity { start: me.start.wrapping_add(1), ..me.clone() });
        let (me, end) =
            (Claim::Supervisor(me), RunEnd::NotStarted { reason: String::new(), transient: false });
        assert_eq!(record_end(&own.path().join("gone"), &me, &end), ExitCode::FAILURE);
        assert!(record::claim(own.path(), &another).unwrap());
        // Its number was given to another run.
        assert_eq!(record_end(own.path(), &me, &end), ExitCode::FAILURE);
        assert!(!own.path().join(EXIT).exists());
        assert_eq!(record_end(own.path(), &another, &end), ExitCode::SUCCESS);
        assert!(own.path().join(EXIT).exists());
    }
}
