//! Identifies this machine, and network file systems. Two machines that share a home folder must not share the
//! state of a daemon: each would run the same jobs.

use std::path::Path;

/// The id of this machine, or its name where it has none; empty if neither is known.
pub fn id() -> String {
    let read = |file: &str| std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    let known = |id: &String| !id.is_empty() && id != "uninitialized";
    read("/etc/machine-id")
        .filter(known)
        .or_else(|| read("/proc/sys/kernel/hostname").filter(known))
        .unwrap_or_default()
}

/// The id in the form in which it is part of a path.
pub fn short_id() -> String {
    id().chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

/// The name of a network file system, where locks and fsync may not mean what the store needs; `None` for any
/// other.
pub fn network_file_system(folder: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(folder).ok()?.f_type;
    network_name(u64::try_from(kind).ok()? & 0xffff_ffff)
}

fn network_name(kind: u64) -> Option<&'static str> {
    Some(match kind {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0102_1997 => "9P",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x00c3_6400 => "CephFS",
        0x1983_0326 => "BeeGFS",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xef53), None, "ext4");
        assert_eq!(network_file_system(Path::new("/proc")), None);
        assert!(short_id().len() <= 12);
    }
}
