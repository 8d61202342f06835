//! The control group of one run: limits of CPU time and memory, and whether the OOM killer killed a process
//! of it.
//!
//! The daemon chooses the path of the group and records it. The supervisor creates the group, adds the
//! process before its program starts, and removes the group. Nothing here can fail a run: a limit that cannot
//! be set is left out, and the caller learns which limits are enforced.

use super::cgroups::{CgroupParent, CgroupVersion};
use crate::op::{DeviceAllocation, Launch};
use crate::providers::Enforcement;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// The period of a CPU quota, in microseconds: short, because a job beside a service may use all of its quota
/// at once, and a request waits for that.
const PERIOD_US: u64 = 20_000;
/// How much more a run that goes first weighs: the largest factor that version 2 can express.
const FIRST: f64 = 100.0;
/// The smallest quota that the kernel accepts.
const QUOTA_MIN_US: u64 = 1_000;
/// Memory that a group counts beyond the resident memory of its processes: page tables, kernel stacks, dirty
/// pages. A fraction of the limit, and a constant.
const HEADROOM_FRACTION: u64 = 32;
const HEADROOM_BYTES: u64 = 16 << 20;
/// Delays between attempts to remove a group: killed processes take a moment to disappear.
const REMOVE_DELAYS_MS: [u64; 4] = [0, 1, 5, 20];

/// The CPU time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CpuLimit {
    /// Weight against other runs on the same cores; 1 is one whole core, [`FIRST`] one core before all others.
    weight: f64,
    /// The most CPU time that it may use, in parts per million of one core; unlimited if absent.
    #[serde(rename = "most_ppm")]
    quota_ppm: Option<u64>,
}

impl CpuLimit {
    /// The limit for an allocation of cores. It holds also on a core without other runs: a share is an upper
    /// limit, on cores as on GPUs.
    pub(super) fn of(allocation: &DeviceAllocation) -> Self {
        let cores = allocation.devices.len().max(1) as u64;
        let share_ppm = u64::from(allocation.share_ppm.min(1_000_000));
        let factor = if allocation.goes_first { FIRST } else { 1.0 };
        CpuLimit {
            weight: factor * cores as f64 * share_ppm as f64 / 1e6,
            quota_ppm: (share_ppm < 1_000_000).then_some(cores * share_ppm),
        }
    }

    /// Sets the limit of a group.
    fn write(&self, dir: &Path, version: CgroupVersion) -> io::Result<()> {
        let quota_us =
            self.quota_ppm.map(|quota| (quota * PERIOD_US / 1_000_000).max(QUOTA_MIN_US));
        let scaled = |default: f64, min: f64, max: f64| {
            (self.weight * default).round().clamp(min, max).to_string()
        };
        match version {
            CgroupVersion::V2 => {
                put(dir, "cpu.weight", &scaled(100.0, 1.0, 10_000.0))?;
                let quota = quota_us.map_or("max".to_owned(), |quota| quota.to_string());
                ignore_without_quota(quota_us, put(dir, "cpu.max", &format!("{quota} {PERIOD_US}")))
            }
            CgroupVersion::V1 => {
                put(dir, "cpu.shares", &scaled(1024.0, 2.0, 262_144.0))?;
                let period = put(dir, "cpu.cfs_period_us", &PERIOD_US.to_string());
                let quota = quota_us.map_or("-1".to_owned(), |quota| quota.to_string());
                let quota = period.and_then(|()| put(dir, "cpu.cfs_quota_us", &quota));
                ignore_without_quota(quota_us, quota)
            }
        }
    }
}

/// Some kernels have no quotas, which is an error only if one is set.
fn ignore_without_quota(quota_us: Option<u64>, written: io::Result<()>) -> io::Result<()> {
    if quota_us.is_some() { written } else { Ok(()) }
}

/// The group of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ControllerCgroup {
    dir: PathBuf,
    version: CgroupVersion,
}

/// The group of a run and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunCgroup {
    /// The group of the CPU controller.
    cpu: Option<ControllerCgroup>,
    /// The group of the memory controller; the same directory in version 2.
    memory: Option<ControllerCgroup>,
    #[serde(rename = "processor")]
    cpu_limit: CpuLimit,
    memory_limit_bytes: Option<u64>,
}

impl RunCgroup {
    /// The group of a run, which need not exist yet; `None` if none can be created.
    pub(super) fn new(
        cpu: Option<&CgroupParent>,
        memory: Option<&CgroupParent>,
        name: &str,
        launch: &Launch,
    ) -> Option<Self> {
        let child = |parent: &CgroupParent| ControllerCgroup {
            dir: parent.dir.join(name),
            version: parent.version,
        };
        (cpu.is_some() || memory.is_some()).then(|| RunCgroup {
            cpu: cpu.map(child),
            memory: memory.map(child),
            cpu_limit: CpuLimit::of(&launch.allocation),
            memory_limit_bytes: launch
                .memory_limit_bytes
                .map(|limit| limit.saturating_add(limit / HEADROOM_FRACTION + HEADROOM_BYTES)),
        })
    }

    /// Creates the group and adds a process, which must have one thread and no children yet. Returns the group
    /// with the controllers that it got, and how the share is enforced: `otherwise` if a limit is missing.
    pub(super) fn create(&self, pid: u32, otherwise: Enforcement) -> (RunCgroup, Enforcement) {
        let added = |dir: &Path| {
            make(dir).is_ok_and(|()| put(dir, "cgroup.procs", &pid.to_string()).is_ok())
        };
        let created: Vec<PathBuf> =
            self.dirs().into_iter().filter(|dir| added(dir)).map(Path::to_owned).collect();
        let if_created = |part: &Option<ControllerCgroup>| {
            part.clone().filter(|part| created.contains(&part.dir))
        };
        let group = RunCgroup {
            cpu: if_created(&self.cpu),
            memory: if_created(&self.memory),
            ..self.clone()
        };
        let has_cpu_limit = group
            .cpu
            .as_ref()
            .is_some_and(|part| self.cpu_limit.write(&part.dir, part.version).is_ok());
        let has_memory_limit = self.memory_limit_bytes.is_none_or(|limit| {
            let limit =
                |part: &ControllerCgroup| limit_memory(&part.dir, part.version, limit).is_ok();
            group.memory.as_ref().is_some_and(limit)
        });
        (group, if has_cpu_limit && has_memory_limit { Enforcement::Cgroup } else { otherwise })
    }

    /// Sets the CPU limit for another allocation.
    pub(super) fn update(&self, allocation: &DeviceAllocation) -> io::Result<()> {
        self.cpu
            .as_ref()
            .map_or(Ok(()), |part| CpuLimit::of(allocation).write(&part.dir, part.version))
    }

    /// Whether the OOM killer killed a process of the group.
    pub(super) fn had_oom_kill(&self) -> bool {
        let kills = |part: &ControllerCgroup| {
            let file = match part.version {
                CgroupVersion::V2 => "memory.events",
                CgroupVersion::V1 => "memory.oom_control",
            };
            let text = fs::read_to_string(part.dir.join(file)).ok()?;
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            count.trim().parse::<u64>().ok()
        };
        self.memory.as_ref().and_then(kills).is_some_and(|count| count > 0)
    }

    /// Removes the group, if it has no processes. A later daemon removes one that stays.
    pub(super) fn remove(&self) {
        for dir in self.dirs() {
            let _ = remove(dir);
        }
    }

    fn dirs(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = [&self.cpu, &self.memory]
            .into_iter()
            .flatten()
            .map(|part| part.dir.as_path())
            .collect();
        dirs.dedup();
        dirs
    }
}

/// Limits the memory of a group, without swap: a run that exceeds its memory is killed, as on a GPU, instead
/// of slowing everything down.
fn limit_memory(dir: &Path, version: CgroupVersion, limit_bytes: u64) -> io::Result<()> {
    let limit = limit_bytes.to_string();
    let (file, with_swap, swap) = match version {
        CgroupVersion::V2 => ("memory.max", "memory.swap.max", "0"),
        CgroupVersion::V1 => {
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit.as_str())
        }
    };
    put(dir, file, &limit)?;
    // The file is missing where the kernel does not count swap.
    let _ = put(dir, with_swap, swap);
    Ok(())
}

/// Creates a new directory, whose counters start at zero. An existing one was left by an attempt whose
/// supervisor died; it cannot be used while it has processes.
fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(dir)?;
            fs::create_dir(dir)
        }
        other => other,
    }
}

/// Removes the directory of a group, if there is one.
fn remove(dir: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for pause in REMOVE_DELAYS_MS {
        sleep(Duration::from_millis(pause));
        result = match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Writes a value into a file of a group.
pub(super) fn put(dir: &Path, file: &str, value: &str) -> io::Result<()> {
    fs::write(dir.join(file), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::RunId;
    use std::collections::BTreeMap;

    fn allocation(devices: u32, share_ppm: u32) -> DeviceAllocation {
        let devices = (0..devices).collect();
        DeviceAllocation { devices, share_ppm, memory_bytes: 0, sub_batches: 1, goes_first: false }
    }

    fn launch(allocation: DeviceAllocation, memory_limit_bytes: Option<u64>) -> Launch {
        Launch {
            run: RunId { job: 1, run: 1 },
            command: Vec::new(),
            env: BTreeMap::new(),
            dir: PathBuf::new(),
            stdout: PathBuf::new(),
            stderr: None,
            append: false,
            owner: None,
            allocation,
            memory_limit_bytes,
            process: Default::default(),
        }
    }

    fn group(dir: &Path, version: CgroupVersion, launch: &Launch) -> RunCgroup {
        let parent = CgroupParent { dir: dir.to_owned(), version };
        RunCgroup::new(Some(&parent), Some(&parent), "run", launch).unwrap()
    }

    /// A plain folder accepts the same writes as a control group.
    #[test]
    fn writes_the_files_of_version_2() {
        let own = tempfile::tempdir().unwrap();
        let run = launch(allocation(1, 250_000), Some(320 << 20));
        let group = group(own.path(), CgroupVersion::V2, &run);
        assert_eq!(group.create(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let read = |file: &str| fs::read_to_string(own.path().join("run").join(file)).unwrap();
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("25".into(), "5000 20000".into()));
        assert_eq!(read("memory.max"), ((320u64 + 10 + 16) << 20).to_string());
        assert_eq!((read("memory.swap.max"), read("cgroup.procs")), ("0".into(), "17".into()));
        group.update(&allocation(2, 1_000_000)).unwrap();
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("200".into(), "max 20000".into()));
        assert!(!group.had_oom_kill());
        let events = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 0\n";
        fs::write(own.path().join("run/memory.events"), events).unwrap();
        assert!(!group.had_oom_kill());
        let events = events.replace("oom_kill 0", "oom_kill 1");
        fs::write(own.path().join("run/memory.events"), events).unwrap();
        assert!(group.had_oom_kill());
    }

    #[test]
    fn writes_the_files_of_version_1() {
        let own = tempfile::tempdir().unwrap();
        let run = launch(allocation(2, 500_000), Some(0));
        let group = group(own.path(), CgroupVersion::V1, &run);
        assert_eq!(group.create(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let read = |file: &str| fs::read_to_string(own.path().join("run").join(file)).unwrap();
        assert_eq!(read("cpu.shares"), "1024");
        assert_eq!(
            (read("cpu.cfs_period_us"), read("cpu.cfs_quota_us")),
            ("20000".into(), "20000".into())
        );
        assert_eq!(read("memory.limit_in_bytes"), (16u64 << 20).to_string());
        assert_eq!(read("memory.memsw.limit_in_bytes"), (16u64 << 20).to_string());
        fs::write(
            own.path().join("run/memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        )
        .unwrap();
        assert!(group.had_oom_kill());
        group.update(&allocation(1, 1_000_000)).unwrap();
        assert_eq!((read("cpu.shares"), read("cpu.cfs_quota_us")), ("1024".into(), "-1".into()));
    }

    #[test]
    fn enforcement_is_not_claimed_if_a_limit_is_missing() {
        let own = tempfile::tempdir().unwrap();
        // The group cannot be created.
        let run = launch(allocation(1, 1_000_000), None);
        let absent = group(&own.path().join("absent"), CgroupVersion::V2, &run);
        assert_eq!(absent.create(17, Enforcement::Advisory).1, Enforcement::Advisory);
        absent.remove();
        // A group with other processes is not used.
        let taken = group(own.path(), CgroupVersion::V2, &run);
        fs::create_dir_all(own.path().join("run/child")).unwrap();
        let (ours, enforcement) = taken.create(17, Enforcement::Advisory);
        assert_eq!((ours.dirs().len(), enforcement), (0, Enforcement::Advisory));
        fs::write(own.path().join("run/memory.events"), "oom_kill 1\n").unwrap();
        assert!(taken.had_oom_kill() && !ours.had_oom_kill());
        fs::remove_file(own.path().join("run/memory.events")).unwrap();
        assert!(!own.path().join("run/cgroup.procs").exists());
        fs::remove_dir(own.path().join("run/child")).unwrap();
        // The memory controller is needed only for a memory limit.
        let parent = CgroupParent { dir: own.path().to_owned(), version: CgroupVersion::V2 };
        let cpu = RunCgroup::new(Some(&parent), None, "run", &run).unwrap();
        assert_eq!(cpu.create(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let limited = launch(allocation(1, 1_000_000), Some(1 << 30));
        let cpu = RunCgroup::new(Some(&parent), None, "more", &limited).unwrap();
        assert_eq!(cpu.create(17, Enforcement::Advisory).1, Enforcement::Advisory);
        let memory = RunCgroup::new(None, Some(&parent), "less", &limited).unwrap();
        assert_eq!(memory.create(17, Enforcement::None).1, Enforcement::None);
        assert!(own.path().join("less/memory.max").exists());
        assert_eq!(RunCgroup::new(None, None, "none", &limited), None);
    }
}
