//! NVIDIA GPUs. The management library (NVML), loaded at run time, lists and samples them. The multi-process
//! service (MPS), if enabled, enforces the shares of the tenants of a GPU.
//!
//! **An allocation of one GPU** uses the MPS server of that GPU, with a control daemon and folders of its own:
//! a fault stops every client of a server and must not reach other GPUs. **An allocation of several GPUs** does
//! not use MPS, because a process can talk to one control daemon only; its share is not enforced. The same
//! holds for GPUs before Volta, whose MPS has no limits. Tenants of different users cannot share a GPU through
//! MPS: a server serves one user at a time.

mod mps;
mod nvml;
mod processes;

pub use mps::MpsControl;

use super::{Device, DeviceSample, Enforcement, ProcessSetup, Provider, ProviderError};
use crate::op::DeviceAllocation;
use mps::Mps;
use nvml::NvmlLibrary;
use std::path::PathBuf;

/// The options of the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvidiaOptions {
    /// The management library; the system's `libnvidia-ml.so.1` if absent.
    pub lib_path: Option<PathBuf>,
    /// Enforce shares through MPS.
    pub mps: Option<MpsOptions>,
    /// Allow SIGSTOP for processes on a GPU. Kernels in flight run to their end, and the process keeps its
    /// memory. NVIDIA does not document the effect on other tenants under MPS.
    pub pause: bool,
}

/// How MPS is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsOptions {
    /// The program `nvidia-cuda-mps-control`.
    pub control: PathBuf,
    /// The folder of the control daemons, with one folder per GPU. It contains sockets, so its path must not
    /// exceed 70 characters.
    pub dir: PathBuf,
}

/// The compute capability of Volta, the first generation whose MPS has limits.
const VOLTA: i32 = 7;

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Nvidia {
    library: NvmlLibrary,
    devices: Vec<Device>,
    /// Whether MPS has limits on the device, by index.
    has_limits: Vec<bool>,
    mps: Option<Mps>,
    pause: bool,
    notes: Vec<String>,
}

impl Nvidia {
    /// Loads the library and finds the GPUs. [`ProviderError::Absent`] if there are none, or no library or
    /// driver.
    pub fn open(options: NvidiaOptions) -> Result<Nvidia, ProviderError> {
        let library = NvmlLibrary::open(options.lib_path.as_deref())?;
        let (found, mut notes) = library.gpus()?;
        let has_limits: Vec<bool> =
            found.iter().map(|gpu| gpu.capability.is_none_or(|major| major >= VOLTA)).collect();
        let devices: Vec<Device> = found.into_iter().map(|gpu| gpu.device).collect();
        let mps = match options.mps {
            Some(mps) => {
                for (device, _) in devices.iter().zip(&has_limits).filter(|(_, has)| !**has) {
                    notes.push(format!(
                        "GPU {} ({}) is older than Volta, and MPS has no limits before Volta: MPS is not used on it",
                        device.index, device.name
                    ));
                }
                let uuids: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
                Some(Mps::new(&mps, &uuids)?)
            }
            None => None,
        };
        Ok(Nvidia { library, devices, has_limits, mps, pause: options.pause, notes })
    }

    /// Remarks for the user, one line each: GPUs that are left out and why, and GPUs whose shares are not
    /// enforced.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The version of the driver, if known.
    pub fn driver(&self) -> Option<String> {
        self.library.driver()
    }

    /// The control daemon of a device; `None` without MPS, or if its MPS has no limits.
    pub fn control(&self, device: u32) -> Option<&MpsControl> {
        let index = device as usize;
        if !*self.has_limits.get(index)? {
            return None;
        }
        self.mps.as_ref()?.control(index)
    }

    /// Ends the MPS control daemons that this process, or an earlier one with the same folder, has started,
    /// unless they have clients. Returns one line for each that stays.
    pub fn shutdown(&mut self) -> Vec<String> {
        self.mps.as_mut().map_or_else(Vec::new, Mps::shutdown)
    }

    fn device(&self, index: u32) -> Result<&Device, ProviderError> {
        self.devices.get(index as usize).ok_or_else(|| {
            ProviderError::Failed(format!(
                "there is no GPU {index}: {} are known",
                self.devices.len()
            ))
        })
    }

    /// The control daemon that serves an allocation.
    fn allocation_control(&self, allocation: &DeviceAllocation) -> Option<&MpsControl> {
        match allocation.devices[..] {
            [device] => self.control(device),
            _ => None,
        }
    }
}

impl Provider for Nvidia {
    fn name(&self) -> &'static str {
        "nvidia"
    }

    fn list(&mut self) -> Result<Vec<Device>, ProviderError> {
        Ok(self.devices.clone())
    }

    /// Leaves out the processes of our own MPS servers. Their memory is part of the device's.
    fn sample(&mut self) -> Result<Vec<DeviceSample>, ProviderError> {
        let mut samples = Vec::with_capacity(self.devices.len());
        for (index, device) in self.devices.iter().enumerate() {
            let mut sample = self.library.sample(device)?;
            if let Some(mps) = &mut self.mps {
                mps.leave_out_servers(index, &mut sample.processes);
            }
            samples.push(sample);
        }
        Ok(samples)
    }

    fn prepare(
        &mut self,
        allocation: &DeviceAllocation,
        uid: u32,
    ) -> Result<ProcessSetup, ProviderError> {
        let mut visible = Vec::with_capacity(allocation.devices.len());
        for index in &allocation.devices {
            visible.push(self.device(*index)?.name.as_str());
        }
        let mut setup = ProcessSetup::default();
        setup.env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
        setup.env.insert("CUDA_VISIBLE_DEVICES".to_owned(), visible.join(","));
        if let Some(control) = self.allocation_control(allocation) {
            control.admit(uid)?;
            setup.env.extend(control.tenant(allocation));
            setup.enforcement = Enforcement::Mps;
        }
        Ok(setup)
    }

    fn pause_forbidden(&self) -> Option<String> {
        if !self.pause {
            return Some(match self.mps {
                Some(_) => "a process under MPS is not paused: NVIDIA does not document the effect on other tenants".to_owned(),
                None => "pausing processes on a GPU is not enabled: they keep their memory".to_owned(),
            });
        }
        if self.mps.is_some()
            && let Some(device) =
                self.devices.iter().find(|device| !self.has_limits[device.index as usize])
        {
            return Some(format!(
                "GPU {} is older than Volta: its processes are not paused while MPS is used",
                device.index
            ));
        }
        None
    }

    fn pause_frees_device(&self) -> bool {
        false
    }

    fn counts_resident(&self) -> bool {
        false
    }

    /// Terminates these clients of MPS and waits until it is done: a signal to an MPS client is undefined
    /// behaviour and may stop other tenants. An error if it is not done in time.
    fn detach(&mut self, allocation: &DeviceAllocation, pids: &[u32]) -> Result<(), ProviderError> {
        match self.allocation_control(allocation) {
            Some(control) => control.detach(pids),
            None => Ok(()),
        }
    }
}
