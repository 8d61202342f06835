//! Providers of devices. A provider knows one kind of device: it lists and samples them, and says what a
//! process needs to use its allocation.

pub mod cpu;
pub mod fake;
pub mod nvidia;

use crate::op::DeviceAllocation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Counted from zero.
    pub index: u32,
    /// The system's name of it: a UUID, `cpu0`.
    pub name: String,
    /// Its model, such as `Tesla V100`.
    pub kind: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its node in a cluster; empty on one machine.
    #[serde(default)]
    pub node: String,
}

/// The resource usage of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Memory in use by any process.
    pub memory_used_bytes: u64,
    /// Fraction of time in which it was busy.
    pub utilisation: Option<f64>,
    /// Processes that use it, with their memory if known. A back end reports only foreign processes.
    pub processes: Vec<(u32, u64)>,
}

impl DeviceSample {
    /// Foreign processes with their memory: those that are not in `ours`, which must contain every process of
    /// our runs.
    pub fn foreign(&self, ours: &[u32]) -> Vec<(u32, u64)> {
        self.processes.iter().copied().filter(|(pid, _)| !ours.contains(pid)).collect()
    }
}

/// What to do with a device that foreign processes use: those that the daemon did not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foreign {
    /// Place no job on it.
    #[default]
    Avoid,
    /// Place jobs on it, and count the memory of foreign processes.
    Count,
}

/// How a share is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Not at all.
    #[default]
    None,
    /// By CPU affinity only.
    Advisory,
    /// By limits of a control group.
    Cgroup,
    /// By limits of NVIDIA's multi-process service.
    Mps,
    /// By a partition of the GPU.
    Mig,
}

/// What a process needs to use its allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSetup {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Cores that it may use; all if empty.
    pub cores: Vec<u32>,
    /// An existing process can be moved to this allocation.
    pub movable: bool,
    /// How the share is enforced.
    pub enforcement: Enforcement,
}

/// The error of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProviderError {
    /// There is no such device, or no driver for it.
    #[error("{0}")]
    Absent(String),
    /// The device or its driver reported an error.
    #[error("{0}")]
    Failed(String),
}

/// One kind of device. The defaults are those of CPU cores.
pub trait Provider: Send {
    /// `cpu`, `nvidia` or `fake`.
    fn name(&self) -> &'static str;

    /// The devices, by index.
    fn list(&mut self) -> Result<Vec<Device>, ProviderError>;

    /// Samples the devices, by index.
    fn sample(&mut self) -> Result<Vec<DeviceSample>, ProviderError>;

    /// Prepares an allocation, and says what a process of user `uid` needs to use it.
    fn prepare(
        &mut self,
        allocation: &DeviceAllocation,
        uid: u32,
    ) -> Result<ProcessSetup, ProviderError>;

    /// Why a process on such a device must not be paused; `None` if it may be.
    fn pause_forbidden(&self) -> Option<String> {
        None
    }

    /// Whether a paused process frees its device, except for its memory.
    fn pause_frees_device(&self) -> bool {
        true
    }

    /// Whether the memory of its devices is that of the machine, so that resident memory counts.
    fn counts_resident(&self) -> bool {
        true
    }

    /// Whether control groups limit its devices: cores and memory of the machine.
    fn limited_by_cgroups(&self) -> bool {
        false
    }

    /// Detaches processes from their devices before they are killed, after the grace period. Called from a
    /// thread that may block.
    fn detach(&mut self, _seat: &DeviceAllocation, _pids: &[u32]) -> Result<(), ProviderError> {
        Ok(())
    }
}
