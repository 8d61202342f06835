//! Processes that use GPUs, as `/proc` shows them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The user of a process.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|found| found.uid())
}

/// Whether it is a program of MPS itself. The kernel keeps fifteen characters of a name.
pub(super) fn is_mps(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| name.starts_with("nvidia-cuda-mps"))
}

/// Processes whose environment names the MPS pipe of this folder, whether they have connected yet or not, with
/// their users. Includes only processes whose environment is readable: all for root, their own for other users.
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
