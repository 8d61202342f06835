//! NVIDIA's GPUs. The management library (NVML) is loaded at run time and says which GPUs there are and
//! how they do; the multi-process service (MPS), where it is wanted, keeps the tenants of a GPU within
//! their shares.
//!
//! **An allocation on one GPU** uses the MPS server of that GPU, which has a control daemon and folders of its
//! own: a fault stops every client of a server, and must not reach other GPUs. **An allocation on several GPUs**
//! does not use MPS, because a process can talk to one control daemon only; its share is then a wish that
//! nobody enforces. So are shares on GPUs before Volta, whose MPS knows no limits. Tenants of different
//! users cannot share a GPU through MPS: a server serves one user at a time.

mod mps;
mod nvml;
mod processes;

pub use mps::MpsControl;
pub use processes::{family, foreign};

use super::{Device, DeviceSample, Enforcement, ProcessSetup, Provider, ProviderError};
use crate::op::DeviceAllocation;
use mps::Mps;
use nvml::NvmlLibrary;
use std::path::PathBuf;

/// What to load and what is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvidiaOptions {
    /// The management library; the system's `libnvidia-ml.so.1` if absent.
    pub lib_path: Option<PathBuf>,
    /// Keep tenants within their shares through MPS.
    pub mps: Option<MpsOptions>,
    /// Allow SIGSTOP for processes on a GPU. Their kernels in flight run to their end, and they keep
    /// their memory. Under MPS nothing describes what that does to the neighbours.
    pub pause: bool,
}

/// How MPS is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsOptions {
    /// The program `nvidia-cuda-mps-control`.
    pub control: PathBuf,
    /// Where the folders of the control daemons go, one for each GPU. Sockets lie in them, so that the
    /// path must be short: 70 characters.
    pub dir: PathBuf,
}

/// The first generation whose MPS knows limits, Volta, by its compute capability.
const VOLTA: i32 = 7;

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Nvidia {
    library: NvmlLibrary,
    devices: Vec<Device>,
    /// Whether limits can be kept on the device, by index.
    limits: Vec<bool>,
    mps: Option<Mps>,
    pause: bool,
    notes: Vec<String>,
}

impl Nvidia {
    /// Loads the library and looks for GPUs. That there are none, no library or no driver is
    /// [`ProviderError::Absent`].
    pub fn open(options: NvidiaOptions) -> Result<Nvidia, ProviderError> {
        let library = NvmlLibrary::open(options.lib_path.as_deref())?;
        let (found, mut notes) = library.gpus()?;
        let limits: Vec<bool> =
            found.iter().map(|gpu| gpu.capability.is_none_or(|major| major >= VOLTA)).collect();
        let devices: Vec<Device> = found.into_iter().map(|gpu| gpu.device).collect();
        let mps = match options.mps {
            Some(mps) => {
                for (device, _) in devices.iter().zip(&limits).filter(|(_, limits)| !**limits) {
                    notes.push(format!(
                        "GPU {} ({}) is older than Volta, whose MPS knows no limits: MPS is not used on it",
                        device.index, device.name
                    ));
                }
                let uuids: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
                Some(Mps::new(&mps, &uuids)?)
            }
            None => None,
        };
        Ok(Nvidia { library, devices, limits, mps, pause: options.pause, notes })
    }

    /// What a user should know about these GPUs, one line each: those left out and why, and where
    /// shares are not kept.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The version of the driver, if it says.
    pub fn driver(&self) -> Option<String> {
        self.library.driver()
    }

    /// The control daemon of a device; `None` without MPS, or on a GPU whose MPS knows no limits.
    pub fn control(&self, device: u32) -> Option<&MpsControl> {
        let index = device as usize;
        if !*self.limits.get(index)? {
            return None;
        }
        self.mps.as_ref()?.control(index)
    }

    /// Ends the MPS control daemons that were started from here, by this process or an earlier one with
    /// the same folder, unless somebody still uses them. Returns one line for each that stays.
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

    /// The processes of our own MPS servers are left out; their memory is in that of the device.
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
        let mut setting = ProcessSetup::default();
        setting.env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
        setting.env.insert("CUDA_VISIBLE_DEVICES".to_owned(), visible.join(","));
        if let Some(control) = self.allocation_control(allocation) {
            control.admit(uid)?;
            setting.env.extend(control.tenant(allocation));
            setting.enforcement = Enforcement::Mps;
        }
        Ok(setting)
    }

    fn pause_forbidden(&self) -> Option<String> {
        if !self.pause {
            return Some(match self.mps {
                Some(_) => "a process under MPS is not paused: what that does to its neighbours is not described".to_owned(),
                None => "a process on a GPU is not paused unless that is allowed: it keeps its memory".to_owned(),
            });
        }
        if self.mps.is_some()
            && let Some(device) =
                self.devices.iter().find(|device| !self.limits[device.index as usize])
        {
            return Some(format!(
                "GPU {} is older than Volta: nothing on it is paused beside MPS",
                device.index
            ));
        }
        None
    }

    fn pause_frees_device(&self) -> bool {
        false
    }

    /// Asks MPS to end the work of these clients and waits until it has: a signal to a process that is
    /// still a client is undefined behaviour, which may stop its neighbours. An error means that it did
    /// not happen in time.
    fn detach(&mut self, allocation: &DeviceAllocation, pids: &[u32]) -> Result<(), ProviderError> {
        match self.allocation_control(allocation) {
            Some(control) => control.detach(pids),
            None => Ok(()),
        }
    }
}
