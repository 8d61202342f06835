//! Whether this system lets us make control groups, and where. Mounts say nothing about permissions: a
//! place is one in which a group was made and took a limit.
//!
//! For each controller version 2 is tried first, then version 1, in the group of this process: what
//! limits us limits our runs. In version 2 a group with processes of its own cannot hand on controllers.
//! So a daemon whose group is called [`LEAF`] makes the groups of its runs beside its own, in the group
//! that was handed over to it; systemd's `DelegateSubgroup` arranges it like that.

use super::cgroup::put;
use super::record;
use crate::op::RunId;
use procfs::process::{MountInfo, MountInfos};
use procfs::{FromBufRead, ProcessCGroups};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The group of a daemon that may make others beside it.
pub const LEAF: &str = "tandem-daemon";
/// How the names of groups begin.
const PREFIX: &str = "tandem";

/// Which of its two interfaces the kernel offers.
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

/// A group in which others can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupParent {
    pub(super) dir: PathBuf,
    pub(super) version: CgroupVersion,
}

/// Where groups can be made for shares of the processor and for memory, or why they cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroups {
    pub(super) cpu: Result<CgroupParent, String>,
    pub(super) memory: Result<CgroupParent, String>,
}

impl Cgroups {
    /// Tries what this process may do. A group is made and removed for each controller.
    pub fn find() -> Self {
        let read = |file| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
        let found = read("/proc/self/cgroup").and_then(|own| {
            let mounts = read("/proc/self/mountinfo")?;
            Ok(CgroupHierarchies::new(&own, &mounts))
        });
        match found {
            Ok(found) => Cgroups { cpu: found.place("cpu"), memory: found.place("memory") },
            Err(reason) => Cgroups::none(&reason),
        }
    }

    /// None, for a reason.
    pub fn none(reason: &str) -> Self {
        Cgroups { cpu: Err(reason.to_owned()), memory: Err(reason.to_owned()) }
    }

    /// Whether shares of the processor and memory can be limited.
    pub fn are_complete(&self) -> bool {
        self.cpu.is_ok() && self.memory.is_ok()
    }

    /// Removes groups without processes whose runs have no records. They are found by their name, in the
    /// places of this daemon.
    pub(super) fn sweep(&self, state: &Path, owner: &str) {
        for place in [&self.cpu, &self.memory].into_iter().flatten() {
            let entries = fs::read_dir(&place.dir).into_iter().flatten().flatten();
            for entry in entries {
                let name = entry.file_name();
                let run =
                    name.to_str().and_then(|name| name.strip_prefix(owner)?.strip_prefix('-'));
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
                let show = |name, place: &Result<CgroupParent, String>| match place {
                    Ok(place) => format!("{}: {name} in {}", place.version, place.dir.display()),
                    Err(reason) => format!("no {name}: {reason}"),
                };
                write!(f, "{}, {}", show("cpu", cpu), show("memory", memory))
            }
        }
    }
}

/// Names the groups of a daemon. Its state folder is what it has to itself.
pub(super) fn owner(state: &Path) -> io::Result<String> {
    let data = fs::metadata(state)?;
    let (device, inode) =
        (std::os::unix::fs::MetadataExt::dev(&data), std::os::unix::fs::MetadataExt::ino(&data));
    Ok(format!("{PREFIX}-{device:x}-{inode:x}"))
}

/// Names the group of a run.
pub(super) fn name(owner: &str, run: RunId) -> String {
    format!("{owner}-{run}")
}

/// The group of this process in every hierarchy, as far as it is mounted.
struct CgroupHierarchies {
    /// That of version 2.
    unified: Option<PathBuf>,
    /// Those of version 1, by controller.
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
                // Only a part of the hierarchy may be mounted, and we may be outside of it.
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

    /// Where groups with a controller can be made, or why they cannot.
    fn place(&self, controller: &str) -> Result<CgroupParent, String> {
        let unified = match &self.unified {
            Some(own) => in_version_2(own, controller),
            None => Err("control groups v2 are not mounted".to_owned()),
        };
        let legacy = self.legacy.iter().find(|(name, _)| name == controller);
        match (unified, legacy) {
            (Ok(place), _) => Ok(place),
            (Err(reason), None) => Err(reason),
            (Err(reason), Some((_, dir))) => {
                let place = CgroupParent { dir: dir.clone(), version: CgroupVersion::V1 };
                let tried = try_out(&place, controller);
                tried.map(|()| place).map_err(|error| format!("{reason}; {error}"))
            }
        }
    }
}

/// A place in the unified hierarchy, with the controller handed on to the groups in it.
fn in_version_2(own: &Path, controller: &str) -> Result<CgroupParent, String> {
    let dir = match own.parent() {
        Some(above) if own.file_name().is_some_and(|name| name == LEAF) => above,
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
                format!("{shown} has processes of its own and cannot hand on {controller}")
            } else {
                format!("{shown} does not hand on {controller}: {error}")
            }
        })?;
    }
    let place = CgroupParent { dir: dir.to_owned(), version: CgroupVersion::V2 };
    try_out(&place, controller).map(|()| place)
}

/// Makes a group, sets a limit that is none, and removes it.
fn try_out(place: &CgroupParent, controller: &str) -> Result<(), String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = place.dir.join(format!("{PREFIX}-probe-{}-{count}", std::process::id()));
    fs::create_dir(&dir)
        .map_err(|error| format!("no group can be made in {}: {error}", place.dir.display()))?;
    let (file, value) = match (place.version, controller) {
        (CgroupVersion::V2, "cpu") => ("cpu.weight", "100"),
        (CgroupVersion::V2, _) => ("memory.max", "max"),
        (CgroupVersion::V1, "cpu") => ("cpu.shares", "1024"),
        (CgroupVersion::V1, _) => ("memory.limit_in_bytes", "-1"),
    };
    let written = put(&dir, file, value);
    // A group without processes can be removed.
    let _ = fs::remove_dir(&dir);
    written.map_err(|error| format!("a group in {} takes no {file}: {error}", place.dir.display()))
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
    fn where_we_are_in_a_hybrid() {
        let found = CgroupHierarchies::new(HYBRID_OWN, HYBRID_MOUNTS);
        assert_eq!(found.unified, Some("/sys/fs/cgroup/unified".into()));
        let legacy = |name: &str| found.legacy.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(legacy("cpu").1, Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(legacy("memory").1, Path::new("/sys/fs/cgroup/memory/session/a"));
    }

    #[test]
    fn where_we_are_elsewhere() {
        // One mount for two controllers, of which a part is mounted.
        let mounts =
            "32 31 0:29 /docker/x /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
        let found = CgroupHierarchies::new("3:cpu,cpuacct:/docker/x/job\n", mounts);
        assert_eq!(found.legacy[0].1, Path::new("/sys/fs/cgroup/cpu,cpuacct/job"));
        assert_eq!(found.place("memory").unwrap_err(), "control groups v2 are not mounted");
        // Outside of what is mounted, or of the namespace.
        assert!(CgroupHierarchies::new("3:cpu,cpuacct:/docker/y\n", mounts).legacy.is_empty());
        let mounts = "41 31 0:38 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(CgroupHierarchies::new("0::/../other\n", mounts).unified, None);
        let slice = "0::/system.slice/tandem.service\n";
        let own = Path::new("/sys/fs/cgroup/system.slice/tandem.service");
        assert_eq!(CgroupHierarchies::new(slice, mounts).unified.as_deref(), Some(own));
        assert!(CgroupHierarchies::new("", "").place("cpu").is_err());
        assert!(CgroupHierarchies::new("nonsense", "nonsense").legacy.is_empty());
    }

    /// A folder in the shape of version 2; the kernel would make and remove the files of its groups.
    fn unified(dir: &Path, controllers: &str, handed_on: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("cgroup.controllers"), controllers).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), handed_on).unwrap();
    }

    #[test]
    fn version_2_hands_controllers_on() {
        let own = tempfile::tempdir().unwrap();
        unified(own.path(), "cpuset cpu io memory pids\n", "cpu\n");
        let place = CgroupParent { dir: own.path().to_owned(), version: CgroupVersion::V2 };
        assert_eq!(in_version_2(own.path(), "cpu"), Ok(place.clone()));
        let control = || fs::read_to_string(own.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(control(), "cpu\n");
        assert_eq!(in_version_2(own.path(), "memory"), Ok(place.clone()));
        assert_eq!(control(), "+memory");
        // A daemon in a leaf makes groups beside it.
        assert_eq!(in_version_2(&own.path().join(LEAF), "memory"), Ok(place));
        let reason = in_version_2(own.path(), "rdma").unwrap_err();
        assert!(reason.ends_with("has no controller rdma"), "{reason}");
    }

    #[test]
    fn version_2_without_controllers_gives_way() {
        let own = tempfile::tempdir().unwrap();
        let (two, one) = (own.path().join("unified"), own.path().join("cpu"));
        unified(&two, "hugetlb\n", "");
        fs::create_dir(&one).unwrap();
        let mut found =
            CgroupHierarchies { unified: Some(two), legacy: vec![("cpu".to_owned(), one.clone())] };
        assert_eq!(
            found.place("cpu"),
            Ok(CgroupParent { dir: one.clone(), version: CgroupVersion::V1 })
        );
        let reason = found.place("memory").unwrap_err();
        assert!(reason.ends_with("unified has no controller memory"), "{reason}");
        found.legacy[0].1 = one.join("absent");
        let reason = found.place("cpu").unwrap_err();
        assert!(reason.contains("no controller cpu; no group can be made in "), "{reason}");
        let groups = Cgroups { cpu: found.place("cpu"), memory: found.place("memory") };
        assert!(!groups.are_complete());
        assert!(groups.to_string().starts_with("none: cpu: "), "{groups}");
    }

    #[test]
    fn leftovers_are_swept_and_only_those() {
        let own = tempfile::tempdir().unwrap();
        let (state, base) = (own.path().join("state"), own.path().join("groups"));
        fs::create_dir_all(state.join("runs/2.1")).unwrap();
        let mine = owner(&state).unwrap();
        let run = |job| name(&mine, RunId { job, run: 1 });
        let strange = format!("{mine}0-1.1");
        for group in [run(1), run(2), run(3), strange.clone(), format!("{mine}-other")] {
            fs::create_dir_all(base.join(group)).unwrap();
        }
        // With processes it cannot be removed.
        fs::write(base.join(run(3)).join("process"), "").unwrap();
        let place = CgroupParent { dir: base.clone(), version: CgroupVersion::V1 };
        Cgroups { cpu: Ok(place.clone()), memory: Ok(place) }.sweep(&state, &mine);
        let entries = fs::read_dir(&base).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
        let mut left: Vec<String> = entries.map(|entry| name(entry).unwrap()).collect();
        left.sort();
        let mut expected = vec![run(2), run(3), strange, format!("{mine}-other")];
        expected.sort();
        assert_eq!(left, expected);
    }
}
