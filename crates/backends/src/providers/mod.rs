//! Devices and what can be done with them. A provider knows one kind of device: it lists them, says
//! how they do, and what a process needs in order to stay within its allocation.

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
    /// What the system calls it: a UUID, `cpu0`.
    pub name: String,
    /// Its kind, such as `Tesla V100`.
    pub kind: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// The machine it is in, where there are several.
    #[serde(default)]
    pub node: String,
}

/// How one device does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Memory in use, by whomever.
    pub memory_used_bytes: u64,
    /// Share of time in which it was busy.
    pub utilisation: Option<f64>,
    /// Processes that use it, with their memory where it is known; in what a back end reports, those that
    /// are not its own.
    pub processes: Vec<(u32, u64)>,
}

/// What strangers' processes on a device mean: those that the daemon did not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Foreign {
    /// Give the device to nobody while they are there.
    #[default]
    Avoid,
    /// Count their memory.
    Count,
}

/// What a share means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Nothing.
    #[default]
    None,
    /// A priority or a wish.
    Advisory,
    /// Limits of a control group.
    Cgroup,
    /// Limits of NVIDIA's multi-process service.
    Mps,
    /// A part of a GPU with walls.
    Mig,
}

/// What a process needs in order to stay within its allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSetup {
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
    /// Cores that it may use; all if empty.
    pub cores: Vec<u32>,
    /// Whether a process that exists can be brought into this allocation.
    pub movable: bool,
    /// How strictly all of this is kept.
    pub enforcement: Enforcement,
}

/// What a provider cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProviderError {
    /// There is no such device here, or no driver for it.
    #[error("{0}")]
    Absent(String),
    /// The device or its driver refused.
    #[error("{0}")]
    Failed(String),
}

/// One kind of device.
pub trait Provider: Send {
    /// `cpu`, `nvidia` or `fake`.
    fn name(&self) -> &'static str;

    /// The devices, by index.
    fn list(&mut self) -> Result<Vec<Device>, ProviderError>;

    /// How the devices do, by index.
    fn sample(&mut self) -> Result<Vec<DeviceSample>, ProviderError>;

    /// Makes an allocation ready, and says what a process needs in it. `uid` is the user of the process.
    fn prepare(
        &mut self,
        allocation: &DeviceAllocation,
        uid: u32,
    ) -> Result<ProcessSetup, ProviderError>;

    /// Why a process on such a device must not be paused; `None` if it may be.
    fn pause_forbidden(&self) -> Option<String>;

    /// Whether a paused process leaves its device to others but for its memory.
    fn pause_frees_device(&self) -> bool;

    /// Whether the memory of its devices is that of the machine, so that what a process has resident is
    /// what counts.
    fn counts_resident(&self) -> bool {
        false
    }

    /// Whether its devices are what control groups limit: cores and memory of the machine.
    fn limited_by_groups(&self) -> bool {
        false
    }

    /// Detaches the processes from their devices before they are killed. Called from a thread that may
    /// wait, after the grace of a polite request is over.
    fn detach(&mut self, _seat: &DeviceAllocation, _pids: &[u32]) -> Result<(), ProviderError> {
        Ok(())
    }
}
