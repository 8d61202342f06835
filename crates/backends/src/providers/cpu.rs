//! CPU cores as devices: one core is one device, with its part of the machine's memory. The default where
//! there is no GPU. Processes and their interference are real.

use super::{Device, DeviceSample, Enforcement, ProcessSetup, Provider, ProviderError};
use crate::op::DeviceAllocation;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeMap;
use std::fs;

/// Busy and total time of a core in clock ticks.
type CpuTimes = (u64, u64);

/// The cores of this machine that the daemon may use.
#[derive(Debug)]
pub struct Cpu {
    cores: Vec<u32>,
    memory_bytes: u64,
    before: BTreeMap<u32, CpuTimes>,
}

impl Cpu {
    /// The first cores, or all of them.
    pub fn new(devices: Option<usize>) -> Result<Self, ProviderError> {
        let mut cores = allowed_cores();
        let memory = memory_bytes().ok_or_else(|| {
            ProviderError::Absent("the memory size of the machine is unknown".to_owned())
        })?;
        let all = cores.len();
        match devices {
            Some(0) => return Err(ProviderError::Absent("no devices were asked for".to_owned())),
            Some(count) if count > all => {
                return Err(ProviderError::Absent(format!(
                    "{count} devices were asked for, there are {all} cores"
                )));
            }
            Some(count) => cores.truncate(count),
            None if all == 0 => {
                return Err(ProviderError::Absent("no core may be used".to_owned()));
            }
            None => {}
        }
        Ok(Cpu { cores, memory_bytes: memory / all as u64, before: times() })
    }
}

impl Provider for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn list(&mut self) -> Result<Vec<Device>, ProviderError> {
        let device = |(index, core): (usize, &u32)| Device {
            node: String::new(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            name: format!("cpu{core}"),
            kind: "cpu".to_owned(),
            memory_bytes: self.memory_bytes,
        };
        Ok(self.cores.iter().enumerate().map(device).collect())
    }

    fn sample(&mut self) -> Result<Vec<DeviceSample>, ProviderError> {
        let now = times();
        let used = used_bytes().unwrap_or(0) / allowed_cores().len().max(1) as u64;
        let sample = |core: &u32| DeviceSample {
            memory_used_bytes: used,
            utilisation: busy(self.before.get(core), now.get(core)),
            processes: Vec::new(),
        };
        let samples = self.cores.iter().map(sample).collect();
        self.before = now;
        Ok(samples)
    }

    fn prepare(
        &mut self,
        allocation: &DeviceAllocation,
        _uid: u32,
    ) -> Result<ProcessSetup, ProviderError> {
        let core = |&device: &u32| {
            let core = self.cores.get(device as usize).copied();
            core.ok_or_else(|| ProviderError::Absent(format!("there is no device {device}")))
        };
        Ok(ProcessSetup {
            env: BTreeMap::new(),
            cores: allocation.devices.iter().map(core).collect::<Result<_, _>>()?,
            movable: true,
            enforcement: Enforcement::Advisory,
        })
    }

    fn limited_by_cgroups(&self) -> bool {
        true
    }
}

/// The cores on which this thread may run.
pub(crate) fn allowed_cores() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|&core| set.is_set(core)).filter_map(|core| u32::try_from(core).ok()).collect()
}

/// Fraction of time in which a core was busy between two samples.
fn busy(before: Option<&CpuTimes>, now: Option<&CpuTimes>) -> Option<f64> {
    let (before, now) = (before?, now?);
    let total = now.1.checked_sub(before.1).filter(|&total| total > 0)?;
    let busy = now.0.saturating_sub(before.0);
    Some((busy as f64 / total as f64).min(1.0))
}

/// CpuTimes of all cores since boot.
fn times() -> BTreeMap<u32, CpuTimes> {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = words.next()?.parse().ok()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
        let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let total: u64 = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some((core, (total - idle, total)))
    };
    text.lines().filter(|text| !text.starts_with("cpu ")).filter_map(line).collect()
}

/// The memory of the machine, or the limit of this process's control group if that is less.
fn memory_bytes() -> Option<u64> {
    let total = meminfo("MemTotal:")?;
    Some(cgroup_limit().map_or(total, |limit| limit.min(total)))
}

/// Memory in use.
fn used_bytes() -> Option<u64> {
    Some(meminfo("MemTotal:")?.saturating_sub(meminfo("MemAvailable:")?))
}

/// One line of `/proc/meminfo`.
fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The lowest memory limit of this process's control group and its ancestors, in either version.
fn cgroup_limit() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut lowest: Option<u64> = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for above in std::path::Path::new(path).ancestors() {
            let file = format!("{root}/{}/{file}", above.display());
            let limit =
                fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
            lowest = limit
                .map_or(lowest, |limit| Some(lowest.map_or(limit, |lowest| lowest.min(limit))));
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(devices: Vec<u32>) -> DeviceAllocation {
        DeviceAllocation {
            devices,
            share_ppm: 1_000_000,
            memory_bytes: 0,
            sub_batches: 1,
            goes_first: false,
        }
    }

    #[test]
    fn every_allowed_core_is_a_device() {
        let mut cpu = Cpu::new(None).unwrap();
        let devices = cpu.list().unwrap();
        assert_eq!(devices.len(), allowed_cores().len());
        assert!(devices.iter().all(|device| device.memory_bytes > 1 << 20));
        assert_eq!(cpu.sample().unwrap().len(), devices.len());
        let setup = cpu.prepare(&allocation(vec![0]), 0).unwrap();
        assert_eq!(setup.cores, [allowed_cores()[0]]);
    }

    #[test]
    fn more_devices_than_cores_are_rejected() {
        assert!(Cpu::new(Some(0)).is_err());
        assert!(Cpu::new(Some(CpuSet::MAX_CPU + 1)).is_err());
        let mut cpu = Cpu::new(Some(1)).unwrap();
        assert_eq!(cpu.list().unwrap().len(), 1);
        assert!(cpu.prepare(&allocation(vec![1]), 0).is_err());
    }
}
