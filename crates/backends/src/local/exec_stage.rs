//! The second stage of a run: a process that waits for its order, changes to the job's user, and executes the
//! program. Without a complete order it does nothing: if its supervisor dies first, the run has not started.
//!
//! Signals that were ignored when the daemon was started stay ignored, as in a shell. The signal mask is
//! cleared.

use super::run_as::groups;
use super::start_error::StartError;
use super::supervisor::{DISK_FULL, READY};
use crate::op::{Launch, Owner, ProcessLimits};
use nix::unistd::close;
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Reads an order from standard input and executes its program; reports an error to standard output. This is
/// the hidden subcommand `enter`, which needs a process of its own.
pub fn exec_stage() -> ExitCode {
    let mut order = Vec::new();
    if std::io::stdin().read_to_end(&mut order).is_err() {
        return ExitCode::FAILURE;
    }
    // A supervisor that died leaves an incomplete order.
    let Ok(launch) = serde_json::from_slice::<Launch>(&order) else {
        return ExitCode::FAILURE;
    };
    let Ok(report) = fcntl_dupfd_cloexec(std::io::stdout(), 3) else {
        return ExitCode::FAILURE;
    };
    let mut report = File::from(report);
    let Err(StartError { reason, transient }) = execute(&launch, &mut report);
    let _ = report.write_all(reason.replace('\n', " ").as_bytes());
    if transient { ExitCode::from(DISK_FULL) } else { ExitCode::FAILURE }
}

/// Returns only if it failed.
fn execute(launch: &Launch, report: &mut File) -> Result<std::convert::Infallible, StartError> {
    let (program, arguments) = launch.command.split_first().ok_or("the command is empty")?;
    close_all_but(report.as_raw_fd());
    reset_oom_score();
    limit(&launch.process)?;
    if let Some(owner) = launch.owner {
        become_user(owner)?;
    }
    std::env::set_current_dir(&launch.dir)
        .map_err(|error| format!("cannot enter directory {}: {error}", launch.dir.display()))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("cannot open /dev/null: {error}"))?;
    let out = output(&launch.stdout, launch.append)?;
    let err = launch.stderr.as_deref().map(|path| output(path, launch.append)).transpose()?;
    rustix::stdio::dup2_stdin(&null)
        .and_then(|()| rustix::stdio::dup2_stdout(&out))
        .and_then(|()| rustix::stdio::dup2_stderr(err.as_ref().unwrap_or(&out)))
        .map_err(|error| format!("cannot redirect its output: {error}"))?;
    let _ = report.write_all(READY);
    let error = Command::new(program).args(arguments).env_clear().envs(&launch.env).exec();
    Err(format!("cannot run {program}: {error}").into())
}

/// Opens an output file, with access for the owner only if it is new. A FIFO without a reader is an error,
/// because the open would block.
fn output(path: &Path, append: bool) -> Result<OwnedFd, StartError> {
    let explain = |error: rustix::io::Errno| {
        let what = format!("cannot open output file {}", path.display());
        StartError::new(what, &std::io::Error::from(error))
    };
    let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    flags |= OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if !append {
        flags |= OFlags::TRUNC;
    }
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(explain)?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND).map_err(explain)?;
    Ok(file)
}

/// Sets the mask and the limits, as root where the limits are above those of the daemon.
fn limit(process: &ProcessLimits) -> Result<(), String> {
    rustix::process::umask(Mode::from_raw_mode(process.umask));
    let limits = [
        (Resource::Nofile, process.open_files),
        (Resource::Nproc, process.processes),
        (Resource::Memlock, process.locked_bytes),
        (Resource::Core, process.core_bytes),
    ];
    for (resource, most) in limits {
        let Some(most) = most else { continue };
        let both = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, both)
            .map_err(|error| format!("cannot set the limit of {resource:?} to {most}: {error}"))?;
    }
    Ok(())
}

/// Changes to a user, with the groups that the system has for the user.
fn become_user(owner: Owner) -> Result<(), String> {
    let Owner { uid, gid } = owner;
    let explain = |error: rustix::io::Errno| {
        let error = std::io::Error::from(error);
        format!("cannot become user {uid}, group {gid}: {error}")
    };
    if rustix::process::geteuid().is_root() {
        rustix::thread::set_thread_groups(&groups(owner)).map_err(explain)?;
    } else if rustix::process::geteuid().as_raw() == owner.uid
        && rustix::process::getegid().as_raw() == owner.gid
    {
        return Ok(());
    }
    // These calls change one thread, and this process has one.
    let gid = rustix::process::Gid::from_raw(owner.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(explain)?;
    let uid = rustix::process::Uid::from_raw(owner.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(explain)
}

/// Closes descriptors that the daemon had inherited without close-on-exec. To be called before any other
/// descriptor is opened, except for one.
pub(super) fn close_all_but(kept: i32) {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|&fd| fd > 2 && fd != kept) {
        // The descriptor of the listing is closed already.
        let _ = close(fd);
    }
}

/// The daemon may be protected from the OOM killer; its jobs are not.
fn reset_oom_score() {
    const PATH: &str = "/proc/self/oom_score_adj";
    let score = fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score < 0) {
        let _ = fs::write(PATH, "0");
    }
}
