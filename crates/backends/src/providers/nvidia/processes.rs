//! Processes of this machine, as `/proc` shows them.

use super::super::DeviceSample;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Processes on a device that are none of `ours`, with their memory. `ours` holds every process, not
/// only the first of each run: see [`family`].
pub fn foreign(sample: &DeviceSample, ours: &[u32]) -> Vec<(u32, u64)> {
    let ours: BTreeSet<u32> = ours.iter().copied().collect();
    sample.processes.iter().copied().filter(|(pid, _)| !ours.contains(pid)).collect()
}

/// These processes and all that came of them: their descendants, and whoever is in a process group or a
/// session that one of them leads.
pub fn family(roots: &[u32]) -> Vec<u32> {
    let mut family: BTreeSet<u32> = roots.iter().copied().collect();
    let all: Vec<(u32, [u32; 3])> = procfs::process::all_processes()
        .into_iter()
        .flatten()
        .filter_map(|process| process.ok()?.stat().ok())
        .filter_map(|stat| {
            Some((
                number(stat.pid)?,
                [number(stat.ppid)?, number(stat.pgrp)?, number(stat.session)?],
            ))
        })
        .collect();
    // A child may be listed before its parent.
    loop {
        let before = family.len();
        for (pid, tied) in &all {
            if tied.iter().any(|other| *other != 0 && family.contains(other)) {
                family.insert(*pid);
            }
        }
        if family.len() == before {
            return family.into_iter().collect();
        }
    }
}

fn number(id: i32) -> Option<u32> {
    u32::try_from(id).ok()
}

/// The user of a process.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Whether it is a program of MPS itself. The system keeps fifteen characters of a name.
pub(super) fn is_mps(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| name.starts_with("nvidia-cuda-mps"))
}

/// Processes that were told to use the MPS of this folder, whether they have called on it yet or not,
/// with their users. Only those whose environment may be read: all for root, one's own for others.
pub(super) fn tenants(pipe: &Path) -> Vec<(u32, u32)> {
    let mut wanted = b"CUDA_MPS_PIPE_DIRECTORY=".to_vec();
    wanted.extend_from_slice(pipe.as_os_str().as_encoded_bytes());
    let told = |pid: u32| {
        std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted)
        })
    };
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own && told(*pid) && !is_mps(*pid))
        .filter_map(|pid| Some((pid, owner(pid)?)))
        .collect()
}
