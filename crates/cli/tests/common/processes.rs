//! The processes of a test's folder: supervisors and jobs outlive their daemon, and must not outlive the test.

// Every test file is a crate of its own and uses only part of this.
#![allow(dead_code)]

use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

pub(crate) fn pid(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

/// Whether a process is there and has not ended.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(crate) fn all_pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc can be read");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Processes that name a folder in their command or their environment, but for one.
pub(crate) fn processes_of(dir: &Path, but: Option<u32>) -> Vec<u32> {
    let name = dir.to_str().expect("a plain path").as_bytes().to_vec();
    let names = |pid: &u32, file: &str| {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.windows(name.len()).any(|window| window == name)
    };
    let others = all_pids().filter(|&pid| Some(pid) != but && pid != std::process::id());
    others.filter(|pid| lives(*pid) && (names(pid, "cmdline") || names(pid, "environ"))).collect()
}

/// Kills all of them. Repeats, because a process may just have started another.
pub(crate) fn end_processes_of(dir: &Path) {
    for _ in 0..100 {
        let left = processes_of(dir, None);
        if left.is_empty() {
            break;
        }
        for left in left {
            let _ = kill_process(pid(left), Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
