//! Processes as `/proc` shows them. A process is identified by its id, its start time and the boot id,
//! because ids are reused.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// The error of reading a file of a process that ended after the file was opened.
const NO_SUCH_PROCESS: i32 = rustix::io::Errno::SRCH.raw_os_error();

/// Identifies a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    /// Its id.
    pub(super) pid: u32,
    /// When it started, in clock ticks since boot.
    pub(super) start: u64,
    /// The boot id.
    pub(super) boot: String,
}

impl ProcessIdentity {
    /// The identity of a process that exists.
    pub(super) fn of(pid: u32, boot: &str) -> Option<Self> {
        let stat = ProcStat::read(pid)?;
        Some(ProcessIdentity { pid, start: stat.start, boot: boot.to_owned() })
    }

    /// What `/proc` shows of it, if it is still the same process.
    pub(super) fn stat(&self, boot: &str) -> Option<ProcStat> {
        if self.boot != boot {
            return None;
        }
        ProcStat::read(self.pid).filter(|stat| stat.start == self.start)
    }

    /// Whether it exists and has not ended; `false` if that is unknown.
    pub(super) fn lives(&self, boot: &str) -> bool {
        self.exists(boot).unwrap_or(false)
    }

    /// Whether it exists and has not ended; an error if that cannot be read.
    pub(super) fn exists(&self, boot: &str) -> io::Result<bool> {
        if self.boot != boot {
            return Ok(false);
        }
        let stat = ProcStat::find(self.pid)?;
        Ok(stat.is_some_and(|stat| stat.start == self.start && !stat.ended()))
    }

    /// A descriptor of it. Never that of another process with the same id: the start time is read after the
    /// descriptor was opened.
    pub(super) fn open(&self, boot: &str) -> Option<OwnedFd> {
        let fd = pidfd_open(self.raw()?, PidfdFlags::empty()).ok()?;
        self.stat(boot).map(|_| fd)
    }

    /// Its id for system calls.
    pub(super) fn raw(&self) -> Option<Pid> {
        raw(self.pid)
    }

    /// Sends it a signal, if it is still the same process.
    pub(super) fn signal(&self, boot: &str, signal: Signal) -> bool {
        self.open(boot).is_some_and(|fd| pidfd_send_signal(fd, signal).is_ok())
    }
}

/// An id for system calls.
pub(super) fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// Whether a process has a handler for a signal.
pub(super) fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

/// Whether a process is a shell, by the name of its program.
pub(super) fn is_shell(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A script that is executed by its `#!` line has its own name; its shell is the executable.
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    [name.trim(), &program].iter().any(|name| {
        matches!(*name, "sh" | "bash" | "dash" | "zsh" | "ksh" | "mksh" | "fish" | "busybox")
    })
}

/// Seconds in which the threads of a process ran, and in which they were ready to run and waited for a core,
/// by the scheduler's statistics; 0 where the kernel keeps none.
pub(super) fn ran_and_waited(pid: u32) -> (f64, f64) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return (0.0, 0.0) };
    let of_thread = |thread: fs::DirEntry| -> Option<(u64, u64)> {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let mut nanos = text.split_ascii_whitespace().map(|field| field.parse().ok());
        Some((nanos.next()??, nanos.next()??))
    };
    let sum = |(ran, waited), of: (u64, u64)| (ran + of.0, waited + of.1);
    let (ran, waited) = threads.flatten().filter_map(of_thread).fold((0, 0), sum);
    (ran as f64 / 1e9, waited as f64 / 1e9)
}

/// The boot id.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// One line of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcStat {
    /// The process or thread.
    pub(super) pid: u32,
    /// `R`, `S`, `T`, `Z` and others.
    pub(super) state: u8,
    /// Its process group.
    pub(super) group: u32,
    /// Its session.
    pub(super) session: u32,
    /// CPU time in clock ticks, including children that were waited for.
    pub(super) ticks: u64,
    /// When it started, in clock ticks since boot.
    pub(super) start: u64,
    /// Resident memory in pages.
    pub(super) pages: u64,
}

impl ProcStat {
    /// Reads that of a process; `None` also if it cannot be read.
    pub(super) fn read(pid: u32) -> Option<Self> {
        Self::find(pid).unwrap_or(None)
    }

    /// Reads that of a process; `None` if there is no such process.
    fn find(pid: u32) -> io::Result<Option<Self>> {
        match fs::read(format!("/proc/{pid}/stat")) {
            Ok(line) => Self::parse(&line).map(Some).ok_or(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(NO_SUCH_PROCESS) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads one line. The name of the program may contain anything: it ends at the last parenthesis.
    fn parse(line: &[u8]) -> Option<Self> {
        let open = line.iter().position(|&byte| byte == b'(')?;
        let close = line.iter().rposition(|&byte| byte == b')')?;
        let pid = std::str::from_utf8(&line[..open]).ok()?.trim().parse().ok()?;
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // The third field of the manual is the first here.
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |at: usize| field(at).and_then(|text| text.parse::<i64>().ok());
        let count = |at: usize| number(at).map(|value| u64::try_from(value).unwrap_or(0));
        let id = |at: usize| number(at).map(|value| u32::try_from(value).unwrap_or(0));
        Some(ProcStat {
            pid,
            state: *field(3)?.as_bytes().first()?,
            group: id(5)?,
            session: id(6)?,
            ticks: count(14)? + count(15)? + count(16)? + count(17)?,
            start: field(22)?.parse().ok()?,
            pages: count(24)?,
        })
    }

    /// It has ended, whether or not it was reaped.
    pub(super) fn ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// The threads of a process.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Whether a process is stopped, from the most to the least stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopState {
    /// Every thread has ended.
    Ended,
    /// Every thread that has not ended is stopped.
    Stopped,
    /// The same, except for threads in uninterruptible sleep. A thread in `vfork` sleeps until its child
    /// continues, which may be stopped itself.
    Uninterruptible,
    /// A thread runs or may run.
    Running,
}

/// Whether a process is stopped.
pub(super) fn stop_state(pid: u32) -> StopState {
    let state = |thread| {
        let line = fs::read(format!("/proc/{pid}/task/{thread}/stat")).ok();
        match line.as_deref().and_then(ProcStat::parse) {
            Some(stat) if stat.ended() => StopState::Ended,
            Some(stat) if matches!(stat.state, b'T' | b't') => StopState::Stopped,
            Some(stat) if stat.state == b'D' => StopState::Uninterruptible,
            Some(_) => StopState::Running,
            None => StopState::Ended,
        }
    };
    threads(pid).into_iter().map(state).max().unwrap_or(StopState::Ended)
}

/// The descendants of a process that have not ended, in no particular order. `None` if the kernel does not
/// list children.
pub(super) fn descendants(pid: u32) -> Option<Vec<ProcStat>> {
    let mut found: Vec<ProcStat> = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        for thread in threads(parent) {
            let path = format!("/proc/{parent}/task/{thread}/children");
            let children = match fs::read_to_string(path) {
                Ok(children) => children,
                Err(error) if error.kind() == io::ErrorKind::NotFound && parent == pid => {
                    // Either the process has ended or the kernel was built without this file.
                    if ProcStat::read(pid).is_some() && threads(pid).contains(&thread) {
                        return None;
                    }
                    continue;
                }
                Err(_) => continue,
            };
            for child in children.split_ascii_whitespace().filter_map(|text| text.parse().ok()) {
                if let Some(stat) = ProcStat::read(child)
                    && !found.iter().any(|known| known.pid == child)
                {
                    next.push(child);
                    found.push(stat);
                }
            }
        }
    }
    found.retain(|stat| !stat.ended());
    Some(found)
}

/// All processes of the machine that have not ended.
pub(super) fn all() -> impl Iterator<Item = ProcStat> {
    numbers("/proc").into_iter().filter_map(ProcStat::read).filter(|stat| !stat.ended())
}

/// The entries of a directory whose names are numbers.
fn numbers(path: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let line = b"17 (a) Z (b) R 1) S 4 17 9 0 -1 4194304 1 0 0 0 3 4 5 6 20 0 1 0 777 1000 42 18446744073709551615";
        let stat = ProcStat::parse(line).unwrap();
        assert_eq!(stat.pid, 17);
        assert_eq!((stat.state, stat.group, stat.session), (b'S', 17, 9));
        assert_eq!((stat.ticks, stat.start, stat.pages), (18, 777, 42));
    }

    #[test]
    fn another_process_with_the_same_id_is_not_signalled() {
        let boot = boot_id().unwrap();
        let me = ProcessIdentity::of(std::process::id(), &boot).unwrap();
        assert!(me.lives(&boot));
        assert!(me.open(&boot).is_some());
        let other = ProcessIdentity { start: me.start + 1, ..me.clone() };
        assert!(!other.lives(&boot) && other.open(&boot).is_none());
        assert!(!other.signal(&boot, Signal::KILL));
        assert!(!me.lives("another boot"));
    }
}
