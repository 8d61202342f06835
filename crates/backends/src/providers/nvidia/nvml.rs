//! NVIDIA's management library, NVML.

use super::super::{Device, DeviceSample, ProviderError};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use std::collections::BTreeMap;
use std::path::Path;

/// The file name of the system's library.
const SYSTEM: &str = "libnvidia-ml.so.1";

/// The loaded library.
#[derive(Debug)]
pub(super) struct NvmlLibrary {
    nvml: Nvml,
}

/// A GPU that can be used.
pub(super) struct NvidiaGpu {
    pub(super) device: Device,
    /// The major number of its compute capability.
    pub(super) capability: Option<i32>,
}

impl NvmlLibrary {
    pub(super) fn open(path: Option<&Path>) -> Result<NvmlLibrary, ProviderError> {
        let path = path.unwrap_or(Path::new(SYSTEM));
        let shown = path.display();
        let nvml = Nvml::builder().lib_path(path.as_os_str()).init().map_err(|error| match error {
            NvmlError::LibloadingError(cause) => {
                ProviderError::Absent(format!("no NVIDIA driver: {shown} cannot be loaded ({})", one_line(&cause)))
            }
            NvmlError::DriverNotLoaded => ProviderError::Absent("the NVIDIA driver is not loaded".to_owned()),
            NvmlError::FailedToLoadSymbol(_) => {
                ProviderError::Failed(format!("{shown} is not NVIDIA's management library, or an old one"))
            }
            NvmlError::LibRmVersionMismatch => ProviderError::Failed(
                "the loaded NVIDIA driver and its library differ in version: reboot the machine".to_owned(),
            ),
            error => ProviderError::Failed(format!("the NVIDIA driver does not answer: {}", one_line(&error))),
        })?;
        Ok(NvmlLibrary { nvml })
    }

    pub(super) fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok().filter(|version| !version.is_empty())
    }

    /// The GPUs that can be used, in PCI bus order, and a line for each that cannot.
    pub(super) fn gpus(&self) -> Result<(Vec<NvidiaGpu>, Vec<String>), ProviderError> {
        let count = self.nvml.device_count().map_err(|error| failed("the driver", &error))?;
        let (mut gpus, mut notes, mut first) = (Vec::new(), Vec::new(), None);
        for number in 0..count {
            match self.gpu(number, gpus.len()) {
                Ok(Ok(gpu)) => gpus.push(gpu),
                Ok(Err(note)) => notes.push(note),
                Err(error) => {
                    let error = failed(&format!("GPU {number}"), &error);
                    notes.push(format!("{error}; it is left out"));
                    first.get_or_insert(error);
                }
            }
        }
        match (gpus.is_empty(), first, notes.first()) {
            (true, Some(error), _) => Err(error),
            (true, None, Some(note)) => Err(ProviderError::Absent(note.clone())),
            (true, None, None) => {
                Err(ProviderError::Absent("the NVIDIA driver sees no GPU".to_owned()))
            }
            (false, _, _) => Ok((gpus, notes)),
        }
    }

    /// The GPU with this number in PCI bus order, or why it is left out.
    fn gpu(&self, number: u32, index: usize) -> Result<Result<NvidiaGpu, String>, NvmlError> {
        let found = self.nvml.device_by_index(number)?;
        let (name, kind) = (found.uuid()?, found.name()?);
        // GPUs without MIG report an error.
        if found.mig_mode().is_ok_and(|mode| mode.current != 0) {
            return Ok(Err(format!(
                "GPU {number} ({name}) is in MIG mode, which is not supported: it is left out; `nvidia-smi -i {number} -mig 0` disables it"
            )));
        }
        let memory = match found.memory_info() {
            Ok(memory) => memory.total,
            Err(NvmlError::NotSupported) => {
                return Ok(Err(format!(
                    "GPU {number} ({name}) does not report its memory size: it is left out"
                )));
            }
            Err(error) => return Err(error),
        };
        let capability = found.cuda_compute_capability().ok().map(|version| version.major);
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Ok(Ok(NvidiaGpu {
            device: Device { index, name, kind, memory_bytes: memory, node: String::new() },
            capability,
        }))
    }

    pub(super) fn sample(&self, device: &Device) -> Result<DeviceSample, ProviderError> {
        self.try_sample(device)
            .map_err(|error| failed(&format!("GPU {} ({})", device.index, device.name), &error))
    }

    fn try_sample(&self, device: &Device) -> Result<DeviceSample, NvmlError> {
        let found = self.nvml.device_by_uuid(device.name.as_str())?;
        let utilisation = match found.utilization_rates() {
            Ok(rates) => Some(f64::from(rates.gpu) / 100.0),
            Err(NvmlError::NotSupported | NvmlError::NoData) => None,
            Err(error) => return Err(error),
        };
        // A process may be in several lists, with the same memory in each.
        let mut processes = BTreeMap::new();
        let mut add = |list: Vec<ProcessInfo>| {
            for process in list {
                let bytes = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => bytes,
                    UsedGpuMemory::Unavailable => 0,
                };
                let most: &mut u64 = processes.entry(process.pid).or_default();
                *most = bytes.max(*most);
            }
        };
        add(supported(found.running_compute_processes())?.unwrap_or_default());
        add(supported(found.running_graphics_processes())?.unwrap_or_default());
        // Not every driver has this list. MPS clients are also among the compute processes.
        add(found.mps_running_compute_processes().unwrap_or_default());
        Ok(DeviceSample {
            memory_used_bytes: found.memory_info()?.used,
            utilisation,
            processes: processes.into_iter().collect(),
        })
    }
}

/// `None` if the device does not support the call.
fn supported<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported) => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(what: &str, error: &NvmlError) -> ProviderError {
    ProviderError::Failed(match error {
        NvmlError::FailedToLoadSymbol(symbol) => {
            format!(
                "{what} cannot be read: the NVIDIA driver is too old, version 510 is needed ({})",
                one_line(symbol)
            )
        }
        NvmlError::GpuLost => format!("{what} has fallen off the bus or cannot be reached"),
        error => format!("{what} cannot be read: {}", one_line(error)),
    })
}

fn one_line(text: &dyn std::fmt::Display) -> String {
    text.to_string()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
