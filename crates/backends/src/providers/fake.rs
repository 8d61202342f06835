//! Devices that do not exist, for demonstrations and tests. Processes on them are real and find their devices
//! in `CUDA_VISIBLE_DEVICES`.

use super::{Device, DeviceSample, Enforcement, ProcessSetup, Provider, ProviderError};
use crate::op::DeviceAllocation;
use std::collections::BTreeMap;

/// Equal devices with a declared memory size.
#[derive(Clone, Debug)]
pub struct Fake {
    devices: Vec<Device>,
}

impl Fake {
    /// `count` devices of one model and memory size.
    pub fn new(count: u32, kind: &str, memory_bytes: u64) -> Self {
        let device = |index| Device {
            node: String::new(),
            index,
            name: format!("fake{index}"),
            kind: kind.to_owned(),
            memory_bytes,
        };
        Fake { devices: (0..count).map(device).collect() }
    }
}

impl Provider for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn list(&mut self) -> Result<Vec<Device>, ProviderError> {
        if self.devices.is_empty() {
            return Err(ProviderError::Absent("no devices were asked for".to_owned()));
        }
        Ok(self.devices.clone())
    }

    fn sample(&mut self) -> Result<Vec<DeviceSample>, ProviderError> {
        Ok(vec![DeviceSample::default(); self.devices.len()])
    }

    fn prepare(
        &mut self,
        allocation: &DeviceAllocation,
        _uid: u32,
    ) -> Result<ProcessSetup, ProviderError> {
        if let Some(device) =
            allocation.devices.iter().find(|&&device| device as usize >= self.devices.len())
        {
            return Err(ProviderError::Absent(format!("there is no device {device}")));
        }
        let visible: Vec<String> = allocation.devices.iter().map(u32::to_string).collect();
        Ok(ProcessSetup {
            env: BTreeMap::from([("CUDA_VISIBLE_DEVICES".to_owned(), visible.join(","))]),
            cores: Vec::new(),
            movable: true,
            enforcement: Enforcement::None,
        })
    }
}
