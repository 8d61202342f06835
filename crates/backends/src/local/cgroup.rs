//! The control group of one run: a directory of its own for each controller, limits, and whether the
//! system ended a process in it for want of memory.
//!
//! The daemon decides where the group is to be and records that; the supervisor, which has the run to
//! itself, makes it, puts the process in before its program begins, and removes it. Whoever finds the
//! records of a run knows its group. Nothing here can fail a run: what cannot be had is left out, and
//! the caller learns what holds.

use super::cgroups::{CgroupParent, CgroupVersion};
use crate::op::{DeviceAllocation, Launch};
use crate::providers::Enforcement;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Over what time a quota is counted, in microseconds.
const PERIOD_US: u64 = 100_000;
/// The least quota that the system takes.
const QUOTA_MIN_US: u64 = 1_000;
/// What a group counts and a process does not have resident: tables of pages, stacks in the kernel,
/// files on their way to the disk. A part that grows with the limit, and one that does not.
const HEADROOM_PART: u64 = 32;
const HEADROOM_BYTES: u64 = 16 << 20;
/// Between attempts to remove a group: processes that were killed take a moment to be gone.
const PATIENCE_MS: [u64; 4] = [0, 1, 5, 20];

/// How much processor time a run has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CpuLimit {
    /// Weight against other runs on the same cores; 1 is one whole core.
    weight: f64,
    /// The most that it may use, in parts per million of one core; all of its cores if absent.
    most_ppm: Option<u64>,
}

impl CpuLimit {
    /// That of an allocation on cores. On a core of its own a run stays within its share too: a share is the
    /// most that it may use, on cores as on GPUs.
    pub(super) fn of(allocation: &DeviceAllocation) -> Self {
        let cores = allocation.devices.len().max(1) as u64;
        let share_ppm = u64::from(allocation.share_ppm.min(1_000_000));
        CpuLimit {
            weight: cores as f64 * share_ppm as f64 / 1e6,
            most_ppm: (share_ppm < 1_000_000).then_some(cores * share_ppm),
        }
    }

    /// Writes them into a group.
    fn write(&self, dir: &Path, version: CgroupVersion) -> io::Result<()> {
        let quota_us = self.most_ppm.map(|most| (most * PERIOD_US / 1_000_000).max(QUOTA_MIN_US));
        let scaled = |usual: f64, least: f64, most: f64| {
            (self.weight * usual).round().clamp(least, most).to_string()
        };
        match version {
            CgroupVersion::V2 => {
                put(dir, "cpu.weight", &scaled(100.0, 1.0, 10_000.0))?;
                let quota = quota_us.map_or("max".to_owned(), |quota| quota.to_string());
                unless_absent(quota_us, put(dir, "cpu.max", &format!("{quota} {PERIOD_US}")))
            }
            CgroupVersion::V1 => {
                put(dir, "cpu.shares", &scaled(1024.0, 2.0, 262_144.0))?;
                let period = put(dir, "cpu.cfs_period_us", &PERIOD_US.to_string());
                let quota = quota_us.map_or("-1".to_owned(), |quota| quota.to_string());
                let quota = period.and_then(|()| put(dir, "cpu.cfs_quota_us", &quota));
                unless_absent(quota_us, quota)
            }
        }
    }
}

/// Some kernels know no quotas, which is only in the way of one that was asked for.
fn unless_absent(quota_us: Option<u64>, written: io::Result<()>) -> io::Result<()> {
    if quota_us.is_some() { written } else { Ok(()) }
}

/// A group of one controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ControllerCgroup {
    dir: PathBuf,
    version: CgroupVersion,
}

/// Where the group of a run is, and what it is to limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RunCgroup {
    /// That of the processor's controller.
    cpu: Option<ControllerCgroup>,
    /// That of the memory's controller; the same directory in version 2.
    memory: Option<ControllerCgroup>,
    processor: CpuLimit,
    memory_limit_bytes: Option<u64>,
}

impl RunCgroup {
    /// The group of a run, which need not exist; `None` if there is no place for one.
    pub(super) fn new(
        cpu: Option<&CgroupParent>,
        memory: Option<&CgroupParent>,
        name: &str,
        launch: &Launch,
    ) -> Option<Self> {
        let part = |place: &CgroupParent| ControllerCgroup {
            dir: place.dir.join(name),
            version: place.version,
        };
        (cpu.is_some() || memory.is_some()).then(|| RunCgroup {
            cpu: cpu.map(part),
            memory: memory.map(part),
            processor: CpuLimit::of(&launch.allocation),
            memory_limit_bytes: launch
                .memory_limit_bytes
                .map(|limit| limit.saturating_add(limit / HEADROOM_PART + HEADROOM_BYTES)),
        })
    }

    /// Makes the group, and puts a process in, which must have one thread and no children yet. Returns as
    /// much of the group as is the run's then, and how strictly its share is kept; `otherwise` if not
    /// everything holds.
    pub(super) fn admit(&self, pid: u32, otherwise: Enforcement) -> (RunCgroup, Enforcement) {
        // What is made anew has counted nothing yet, and nobody else is in it.
        let entered = |dir: &Path| {
            make(dir).is_ok_and(|()| put(dir, "cgroup.procs", &pid.to_string()).is_ok())
        };
        let ours: Vec<PathBuf> =
            self.dirs().into_iter().filter(|dir| entered(dir)).map(Path::to_owned).collect();
        let of_ours =
            |part: &Option<ControllerCgroup>| part.clone().filter(|part| ours.contains(&part.dir));
        let group =
            RunCgroup { cpu: of_ours(&self.cpu), memory: of_ours(&self.memory), ..self.clone() };
        let weighed = group
            .cpu
            .as_ref()
            .is_some_and(|part| self.processor.write(&part.dir, part.version).is_ok());
        let limited = self.memory_limit_bytes.is_none_or(|limit| {
            let limit =
                |part: &ControllerCgroup| limit_memory(&part.dir, part.version, limit).is_ok();
            group.memory.as_ref().is_some_and(limit)
        });
        (group, if weighed && limited { Enforcement::Cgroup } else { otherwise })
    }

    /// Gives the run the processor time of another allocation.
    pub(super) fn reseat(&self, allocation: &DeviceAllocation) -> io::Result<()> {
        self.cpu
            .as_ref()
            .map_or(Ok(()), |part| CpuLimit::of(allocation).write(&part.dir, part.version))
    }

    /// Whether the system ended a process of the run for want of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let killed = |part: &ControllerCgroup| {
            let file = match part.version {
                CgroupVersion::V2 => "memory.events",
                CgroupVersion::V1 => "memory.oom_control",
            };
            let text = fs::read_to_string(part.dir.join(file)).ok()?;
            let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            count.trim().parse::<u64>().ok()
        };
        self.memory.as_ref().and_then(killed).is_some_and(|count| count > 0)
    }

    /// Removes the group, if no process is in it. One that stays is found by a later daemon.
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

/// Limits the memory of a group. Beyond it a process is ended and does not go to the disk instead: that
/// would be slower for everybody, and a device has no more than it has.
fn limit_memory(dir: &Path, version: CgroupVersion, limit_bytes: u64) -> io::Result<()> {
    let limit = limit_bytes.to_string();
    let (file, with_swap, swap) = match version {
        CgroupVersion::V2 => ("memory.max", "memory.swap.max", "0"),
        CgroupVersion::V1 => {
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit.as_str())
        }
    };
    put(dir, file, &limit)?;
    // Where swap is not counted there may be none.
    let _ = put(dir, with_swap, swap);
    Ok(())
}

/// Makes a directory that was not there. One that is was left by an attempt whose supervisor died; while
/// processes are in it, it is not ours to use.
fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(dir)?;
            fs::create_dir(dir)
        }
        other => other,
    }
}

/// Removes the directory of a group; fine if there is none.
fn remove(dir: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for pause in PATIENCE_MS {
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
        DeviceAllocation { devices, share_ppm, memory_bytes: 0, sub_batches: 1 }
    }

    fn launch(allocation: DeviceAllocation, memory_limit_bytes: Option<u64>) -> Launch {
        Launch {
            external: None,
            exclusive: false,
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
        }
    }

    fn group(dir: &Path, version: CgroupVersion, launch: &Launch) -> RunCgroup {
        let place = CgroupParent { dir: dir.to_owned(), version };
        RunCgroup::new(Some(&place), Some(&place), "run", launch).unwrap()
    }

    /// A folder in which files may be made is not a control group, but takes the same writes.
    #[test]
    fn version_2_is_written_as_the_kernel_reads_it() {
        let own = tempfile::tempdir().unwrap();
        let run = launch(allocation(1, 250_000), Some(320 << 20));
        let group = group(own.path(), CgroupVersion::V2, &run);
        assert_eq!(group.admit(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let read = |file: &str| fs::read_to_string(own.path().join("run").join(file)).unwrap();
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("25".into(), "25000 100000".into()));
        assert_eq!(read("memory.max"), ((320u64 + 10 + 16) << 20).to_string());
        assert_eq!((read("memory.swap.max"), read("cgroup.procs")), ("0".into(), "17".into()));
        group.reseat(&allocation(2, 1_000_000)).unwrap();
        assert_eq!((read("cpu.weight"), read("cpu.max")), ("200".into(), "max 100000".into()));
        assert!(!group.ran_out_of_memory());
        let events = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 0\n";
        fs::write(own.path().join("run/memory.events"), events).unwrap();
        assert!(!group.ran_out_of_memory());
        let events = events.replace("oom_kill 0", "oom_kill 1");
        fs::write(own.path().join("run/memory.events"), events).unwrap();
        assert!(group.ran_out_of_memory());
    }

    #[test]
    fn version_1_is_written_as_the_kernel_reads_it() {
        let own = tempfile::tempdir().unwrap();
        let run = launch(allocation(2, 500_000), Some(0));
        let group = group(own.path(), CgroupVersion::V1, &run);
        assert_eq!(group.admit(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let read = |file: &str| fs::read_to_string(own.path().join("run").join(file)).unwrap();
        assert_eq!(read("cpu.shares"), "1024");
        assert_eq!(
            (read("cpu.cfs_period_us"), read("cpu.cfs_quota_us")),
            ("100000".into(), "100000".into())
        );
        assert_eq!(read("memory.limit_in_bytes"), (16u64 << 20).to_string());
        assert_eq!(read("memory.memsw.limit_in_bytes"), (16u64 << 20).to_string());
        fs::write(
            own.path().join("run/memory.oom_control"),
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        )
        .unwrap();
        assert!(group.ran_out_of_memory());
        group.reseat(&allocation(1, 1_000_000)).unwrap();
        assert_eq!((read("cpu.shares"), read("cpu.cfs_quota_us")), ("1024".into(), "-1".into()));
    }

    #[test]
    fn what_does_not_hold_is_not_claimed() {
        let own = tempfile::tempdir().unwrap();
        // No group can be made.
        let run = launch(allocation(1, 1_000_000), None);
        let absent = group(&own.path().join("absent"), CgroupVersion::V2, &run);
        assert_eq!(absent.admit(17, Enforcement::Advisory).1, Enforcement::Advisory);
        absent.remove();
        // One that others are in is not used.
        let taken = group(own.path(), CgroupVersion::V2, &run);
        fs::create_dir_all(own.path().join("run/child")).unwrap();
        let (ours, enforcement) = taken.admit(17, Enforcement::Advisory);
        assert_eq!((ours.dirs().len(), enforcement), (0, Enforcement::Advisory));
        fs::write(own.path().join("run/memory.events"), "oom_kill 1\n").unwrap();
        assert!(taken.ran_out_of_memory() && !ours.ran_out_of_memory());
        fs::remove_file(own.path().join("run/memory.events")).unwrap();
        assert!(!own.path().join("run/cgroup.procs").exists());
        fs::remove_dir(own.path().join("run/child")).unwrap();
        // Shares without memory are enough unless memory is to be limited.
        let place = CgroupParent { dir: own.path().to_owned(), version: CgroupVersion::V2 };
        let cpu = RunCgroup::new(Some(&place), None, "run", &run).unwrap();
        assert_eq!(cpu.admit(17, Enforcement::Advisory).1, Enforcement::Cgroup);
        let limited = launch(allocation(1, 1_000_000), Some(1 << 30));
        let cpu = RunCgroup::new(Some(&place), None, "more", &limited).unwrap();
        assert_eq!(cpu.admit(17, Enforcement::Advisory).1, Enforcement::Advisory);
        let memory = RunCgroup::new(None, Some(&place), "less", &limited).unwrap();
        assert_eq!(memory.admit(17, Enforcement::None).1, Enforcement::None);
        assert!(own.path().join("less/memory.max").exists());
        assert_eq!(RunCgroup::new(None, None, "none", &limited), None);
    }
}
