//! Finds out where this process can create control groups. Mounts do not show permissions, so a group is
//! created and limited on trial.
//!
//! For each controller version 2 is tried first, then version 1. Groups are created in the group of this
//! process, so that the limits of the daemon hold for its runs too. In version 2 a group with processes cannot
//! enable controllers for child groups. A daemon whose group is called [`DAEMON_CGROUP`] therefore creates the
//! groups of its runs beside its own, in the group that was delegated to it. systemd's `DelegateSubgroup` sets
//! this up.

use super::cgroup::put;
use super::record;
use crate::op::RunId;
use procfs_core::process::{MountInfo, MountInfos};
use procfs_core::{FromBufRead, ProcessCGroups};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the daemon's own group, beside which it creates the groups of its runs.
const DAEMON_CGROUP: &str = "tandem-daemon";
/// The prefix of the names of groups.
const PREFIX: &str = "tandem";

/// The version of the kernel's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CgroupVersion {
    V1,
    V2,
}

impl fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        })
    }
}

/// A group in which others can be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupParent {
    pub(super) dir: PathBuf,
    pub(super) version: CgroupVersion,
}

/// Where groups with CPU and memory limits can be created, or why they cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    pub(super) cpu: Result<CgroupParent, String>,
    pub(super) memory: Result<CgroupParent, String>,
}

impl Cgroups {
    /// Finds out what this process may do. A group is created and removed for each controller.
    pub fn find() -> Self {
        let read = |file| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
        let found = read("/proc/self/cgroup").and_then(|own| {
            let mounts = read("/proc/self/mountinfo")?;
            Ok(CgroupHierarchies::new(&own, &mounts))
        });
        match found {
            Ok(found) => Cgroups { cpu: found.parent("cpu"), memory: found.parent("memory") },
            Err(reason) => Cgroups::none(&reason),
        }
    }

    /// None, for a reason.
    pub fn none(reason: &str) -> Self {
        Cgroups { cpu: Err(reason.to_owned()), memory: Err(reason.to_owned()) }
    }

    /// Whether both CPU time and memory can be limited.
    pub fn are_complete(&self) -> bool {
        self.cpu.is_ok() && self.memory.is_ok()
    }

    /// Whether the CPU time of a group can be bounded, beyond a weight: some kernels have no quotas.
    pub fn have_quotas(&self) -> bool {
        let Ok(parent) = &self.cpu else { return false };
        let dir = parent.dir.join(format!("{PREFIX}-quota-{}", std::process::id()));
        if fs::create_dir(&dir).is_err() {
            return false;
        }
        let file = match parent.version {
            CgroupVersion::V2 => "cpu.max",
            CgroupVersion::V1 => "cpu.cfs_quota_us",
        };
        let exists = dir.join(file).exists();
        let _ = fs::remove_dir(&dir);
        exists
    }

    /// Removes groups of this daemon that have no processes and whose runs have no records.
    pub(super) fn remove_leftovers(&self, state: &Path, prefix: &str) {
        for parent in [&self.cpu, &self.memory].into_iter().flatten() {
            let entries = fs::read_dir(&parent.dir).into_iter().flatten().flatten();
            for entry in entries {
                let name = entry.file_name();
                let run =
                    name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_prefix('-'));
                let Some(run) = run.and_then(record::run_of) else { continue };
                if !record::directory(state, run, 0).exists() {
                    let _ = fs::remove_dir(entry.path());
                }
            }
        }
    }
}

impl fmt::Display for Cgroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cpu, &self.memory) {
            (Ok(cpu), Ok(memory)) if cpu == memory => {
                write!(f, "{}: cpu and memory in {}", cpu.version, cpu.dir.display())
            }
            (Err(cpu), Err(memory)) if cpu == memory => write!(f, "none: {cpu}"),
            (Err(cpu), Err(memory)) => write!(f, "none: cpu: {cpu}; memory: {memory}"),
            (cpu, memory) => {
                let show = |name, parent: &Result<CgroupParent, String>| match parent {
                    Ok(parent) => format!("{}: {name} in {}", parent.version, parent.dir.display()),
                    Err(reason) => format!("no {name}: {reason}"),
                };
                write!(f, "{}, {}", show("cpu", cpu), show("memory", memory))
            }
        }
    }
}

/// The prefix of the names of a daemon's groups. Its state folder is unique to it.
pub(super) fn prefix(state: &Path) -> io::Result<String> {
    let data = fs::metadata(state)?;
    let (device, inode) =
        (std::os::unix::fs::MetadataExt::dev(&data), std::os::unix::fs::MetadataExt::ino(&data));
    Ok(format!("{PREFIX}-{device:x}-{inode:x}"))
}

/// The name of the group of a run.
pub(super) fn name(prefix: &str, run: RunId) -> String {
    format!("{prefix}-{run}")
}

/// The group of this process in every mounted hierarchy.
struct CgroupHierarchies {
    /// In version 2.
    unified: Option<PathBuf>,
    /// In version 1, by controller.
    legacy: Vec<(String, PathBuf)>,
}

impl CgroupHierarchies {
    /// From the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn new(own: &str, mounts: &str) -> Self {
        let own = ProcessCGroups::from_buf_read(own.as_bytes()).map_or(Vec::new(), |own| own.0);
        let mounts =
            MountInfos::from_buf_read(mounts.as_bytes()).map_or(Vec::new(), |mounts| mounts.0);
        let below = |path: &str, fits: &dyn Fn(&MountInfo) -> bool| {
            mounts.iter().filter(|mount| fits(mount)).find_map(|mount| {
                // Only a part of the hierarchy may be mounted, and this process may be outside of it.
                let inside = Path::new(path).strip_prefix(&mount.root).ok()?;
                let above = inside.components().any(|part| part.as_os_str() == "..");
                let dir = mount.mount_point.components().chain(inside.components());
                (!above).then(|| dir.collect::<PathBuf>())
            })
        };
        let mut found = CgroupHierarchies { unified: None, legacy: Vec::new() };
        for group in &own {
            if group.controllers.is_empty() {
                let dir = below(&group.pathname, &|mount| mount.fs_type == "cgroup2");
                found.unified = found.unified.take().or(dir);
            }
            for controller in &group.controllers {
                let dir = below(&group.pathname, &|mount| {
                    mount.fs_type == "cgroup" && mount.super_options.contains_key(controller)
                });
                found.legacy.extend(dir.map(|dir| (controller.clone(), dir)));
            }
        }
        found
    }

    /// Where groups with a controller can be created, or why they cannot.
    fn parent(&self, controller: &str) -> Result<CgroupParent, String> {
        let unified = match &self.unified {
            Some(own) => in_version_2(own, controller),
            None => Err("control groups v2 are not mounted".to_owned()),
        };
        let legacy = self.legacy.iter().find(|(name, _)| name == controller);
        match (unified, legacy) {
            (Ok(parent), _) => Ok(parent),
            (Err(reason), None) => Err(reason),
            (Err(reason), Some((_, dir))) => {
                let parent = CgroupParent { dir: dir.clone(), version: CgroupVersion::V1 };
                let tried = try_controller(&parent, controller);
                tried.map(|()| parent).map_err(|error| format!("{reason}; {error}"))
            }
        }
    }
}

/// The parent for groups in the unified hierarchy, with the controller enabled for its children.
fn in_version_2(own: &Path, controller: &str) -> Result<CgroupParent, String> {
    let dir = match own.parent() {
        Some(above) if own.file_name().is_some_and(|name| name == DAEMON_CGROUP) => above,
        _ => own,
    };
    let shown = dir.display();
    let has = |file: &str| {
        let text = fs::read_to_string(dir.join(file));
        let text = text.map_err(|error| format!("{shown}/{file}: {error}"))?;
        Ok::<_, String>(text.split_ascii_whitespace().any(|word| word == controller))
    };
    if !has("cgroup.controllers")? {
        return Err(format!("{shown} has no controller {controller}"));
    }
    if !has("cgroup.subtree_control")? {
        put(dir, "cgroup.subtree_control", &format!("+{controller}")).map_err(|error| {
            if error.kind() == io::ErrorKind::ResourceBusy {
                format!("{shown} has processes of its own and cannot enable {controller} for child groups")
            } else {
                format!("{shown} cannot enable {controller} for child groups: {error}")
            }
        })?;
    }
    let parent = CgroupParent { dir: dir.to_owned(), version: CgroupVersion::V2 };
    try_controller(&parent, controller).map(|()| parent)
}

/// Creates a group, sets a limit that limits nothing, and removes it.
fn try_controller(parent: &CgroupParent, controller: &str) -> Result<(), String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = parent.dir.join(format!("{PREFIX}-probe-{}-{count}", std::process::id()));
    fs::create_dir(&dir)
        .map_err(|error| format!("cannot create a group in {}: {error}", parent.dir.display()))?;
    let (file, value) = match (parent.version, controller) {
        (CgroupVersion::V2, "cpu") => ("cpu.weight", "100"),
        (CgroupVersion::V2, _) => ("memory.max", "max"),
        (CgroupVersion::V1, "cpu") => ("cpu.shares", "1024"),
        (CgroupVersion::V1, _) => ("memory.limit_in_bytes", "-1"),
    };
    let written = put(&dir, file, value);
    let _ = fs::remove_dir(&dir);
    written.map_err(|error| {
        format!("cannot write {file} of a group in {}: {error}", parent.dir.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID_OWN: &str = "4:memory:/session/a\n2:cpuacct:/\n1:cpu:/\n0::/\n";
    const HYBRID_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_its_groups_in_a_hybrid_hierarchy() {
        let found = CgroupHierarchies::new(HYBRID_OWN, HYBRID_MOUNTS);
        assert_eq!(found.unified, Some("/sys/fs/cgroup/unified".into()));
        let legacy = |name: &str| found.legacy.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(legacy("cpu").1, Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(legacy("memory").1, Path::new("/sys/fs/cgroup/memory/session/a"));
    }

    #[test]
    fn finds_its_groups_in_a_container() {
        // A partial mount with two controllers.
        let mounts =
            "32 31 0:29 /docker/x /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let found = CgroupHierarchies::new("3:cpu,cpuacct:/docker/x/job\n", mounts);
        assert_eq!(found.legacy[0].1, Path::new("/sys/fs/cgroup/cpu,cpuacct/job"));
        assert_eq!(found.parent("memory").unwrap_err(), "control groups v2 are not mounted");
        // Outside of the mount, or of the namespace.
        assert!(CgroupHierarchies::new("3:cpu,cpuacct:/docker/y\n", mounts).legacy.is_empty());
        let mounts = "41 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(CgroupHierarchies::new("0::/../other\n", mounts).unified, None);
        let slice = "0::/system.slice/tandem.service\n";
        let own = Path::new("/sys/fs/cgroup/system.slice/tandem.service");
        assert_eq!(CgroupHierarchies::new(slice, mounts).unified.as_deref(), Some(own));
        assert!(CgroupHierarchies::new("", "").parent("cpu").is_err());
        assert!(CgroupHierarchies::new("nonsense", "nonsense").legacy.is_empty());
    }

    /// A folder with the files of version 2, which the kernel would create.
    fn unified(dir: &Path, controllers: &str, enabled: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("cgroup.controllers"), controllers).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), enabled).unwrap();
    }

    #[test]
    fn version_2_enables_controllers_for_child_groups() {
        let own = tempfile::tempdir().unwrap();
        unified(own.path(), "cpuset cpu io memory pids\n", "cpu\n");
        let parent = CgroupParent { dir: own.path().to_owned(), version: CgroupVersion::V2 };
        assert_eq!(in_version_2(own.path(), "cpu"), Ok(parent.clone()));
        let control = || fs::read_to_string(own.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(control(), "cpu\n");
        assert_eq!(in_version_2(own.path(), "memory"), Ok(parent.clone()));
        assert_eq!(control(), "+memory");
        // A daemon in its own group creates groups beside it.
        assert_eq!(in_version_2(&own.path().join(DAEMON_CGROUP), "memory"), Ok(parent));
        let reason = in_version_2(own.path(), "rdma").unwrap_err();
        assert!(reason.ends_with("has no controller rdma"), "{reason}");
    }

    #[test]
    fn version_1_is_used_where_version_2_has_no_controllers() {
        let own = tempfile::tempdir().unwrap();
        let (two, one) = (own.path().join("unified"), own.path().join("cpu"));
        unified(&two, "hugetlb\n", "");
        fs::create_dir(&one).unwrap();
        let mut found =
            CgroupHierarchies { unified: Some(two), legacy: vec![("cpu".to_owned(), one.clone())] };
        assert_eq!(
            found.parent("cpu"),
            Ok(CgroupParent { dir: one.clone(), version: CgroupVersion::V1 })
        );
        let reason = found.parent("memory").unwrap_err();
        assert!(reason.ends_with("unified has no controller memory"), "{reason}");
        found.legacy[0].1 = one.join("absent");
        let reason = found.parent("cpu").unwrap_err();
        assert!(reason.contains("no controller cpu; cannot create a group in "), "{reason}");
        let groups = Cgroups { cpu: found.parent("cpu"), memory: found.parent("memory") };
        assert!(!groups.are_complete());
        assert!(groups.to_string().starts_with("none: cpu: "), "{groups}");
    }

    #[test]
    fn only_leftovers_are_removed() {
        let own = tempfile::tempdir().unwrap();
        let (state, base) = (own.path().join("state"), own.path().join("groups"));
        fs::create_dir_all(state.join("runs/2.1")).unwrap();
        let mine = prefix(&state).unwrap();
        let run = |job| name(&mine, RunId { job, run: 1 });
        let other = format!("{mine}0-1.1");
        for group in [run(1), run(2), run(3), other.clone(), format!("{mine}-other")] {
            fs::create_dir_all(base.join(group)).unwrap();
        }
        // With processes it cannot be removed.
        fs::write(base.join(run(3)).join("process"), "").unwrap();
        let parent = CgroupParent { dir: base.clone(), version: CgroupVersion::V1 };
        Cgroups { cpu: Ok(parent.clone()), memory: Ok(parent) }.remove_leftovers(&state, &mine);
        let entries = fs::read_dir(&base).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let mut left: Vec<String> = entries.map(|entry| name(entry).unwrap()).collect();
        left.sort();
        let mut expected = vec![run(2), run(3), other, format!("{mine}-other")];
        expected.sort();
        assert_eq!(left, expected);
    }
}
