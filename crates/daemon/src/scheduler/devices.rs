//! The devices: which jobs' processes use them, and which accept new jobs.

use super::Scheduler;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{Event, GpuId};

/// The devices.
pub(super) struct DeviceTable {
    /// Jobs whose processes may use a device, by device.
    present: Vec<BTreeSet<u64>>,
    /// Drained by an operator, with the reason if there is one.
    drained: BTreeMap<u32, Option<String>>,
    /// Unavailable by the back end, with the reason.
    closed: BTreeMap<u32, String>,
    /// Memory of processes that are not ours.
    foreign: BTreeMap<u32, u64>,
    /// A device with such processes accepts no new jobs.
    avoids_foreign: bool,
    /// Jobs that have to be relocated, with the devices that are kept free for them.
    reserved: BTreeMap<u64, Vec<u32>>,
    /// Devices whose co-located jobs changed in this step.
    touched: BTreeSet<u32>,
}

impl DeviceTable {
    pub(super) fn new(count: usize, avoids_foreign: bool) -> Self {
        Self {
            present: vec![BTreeSet::new(); count],
            drained: BTreeMap::new(),
            closed: BTreeMap::new(),
            foreign: BTreeMap::new(),
            avoids_foreign,
            reserved: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    pub(super) fn contains(&self, device: u32) -> bool {
        (device as usize) < self.present.len()
    }

    /// Jobs whose processes may use a device.
    pub(super) fn present(&self, device: u32) -> impl Iterator<Item = u64> + '_ {
        self.present[device as usize].iter().copied()
    }

    /// The same without one of them.
    pub(super) fn others(&self, job: u64, device: u32) -> impl Iterator<Item = u64> + '_ {
        self.present(device).filter(move |&other| other != job)
    }

    /// All jobs whose processes may use one of these devices, without one of them.
    pub(super) fn co_located(&self, job: u64, devices: &[u32]) -> Vec<u64> {
        let all: BTreeSet<u64> =
            devices.iter().flat_map(|&device| self.others(job, device)).collect();
        all.into_iter().collect()
    }

    /// The process of a job leaves devices and enters others.
    pub(super) fn move_process(&mut self, job: u64, before: &[u32], after: &[u32]) {
        for &device in before {
            self.present[device as usize].remove(&job);
        }
        for &device in after {
            self.present[device as usize].insert(job);
        }
        self.touched.extend(before.iter().chain(after));
    }

    pub(super) fn touch(&mut self, device: u32) {
        self.touched.insert(device);
    }

    /// Jobs on devices whose co-located jobs changed.
    pub(super) fn take_touched(&mut self) -> Vec<u64> {
        let touched = std::mem::take(&mut self.touched);
        touched.into_iter().flat_map(|device| self.present(device).collect::<Vec<_>>()).collect()
    }

    pub(super) fn is_drained(&self, device: u32) -> bool {
        self.drained.contains_key(&device)
    }

    /// Drained devices, with the reasons that were given.
    pub(super) fn drained(&self) -> impl Iterator<Item = (u32, Option<&str>)> + '_ {
        self.drained.iter().map(|(&device, reason)| (device, reason.as_deref()))
    }

    pub(super) fn closed(&self, device: u32) -> Option<&str> {
        self.closed.get(&device).map(String::as_str)
    }

    pub(super) fn foreign(&self, device: u32) -> Option<u64> {
        self.foreign.get(&device).copied()
    }

    /// Whether a device accepts no new jobs, for whatever reason.
    pub(super) fn is_shut(&self, device: u32) -> bool {
        self.is_drained(device)
            || self.closed.contains_key(&device)
            || (self.avoids_foreign && self.foreign.contains_key(&device))
            || self.reserved.values().any(|reserved| reserved.contains(&device))
    }

    /// Whether a device cannot be given to a job that has to be relocated.
    pub(super) fn is_shut_for(&self, job: u64, device: u32) -> bool {
        self.is_drained(device)
            || self.closed.contains_key(&device)
            || self.foreign.contains_key(&device)
            || self.reserved.iter().any(|(other, kept)| *other != job && kept.contains(&device))
    }

    pub(super) fn drain(&mut self, device: u32, reason: Option<String>) -> Option<Event> {
        self.change(device, |devices| drop(devices.drained.insert(device, reason)))
    }

    pub(super) fn undrain(&mut self, device: u32) -> Option<Event> {
        self.change(device, |devices| drop(devices.drained.remove(&device)))
    }

    pub(super) fn close(&mut self, device: u32, reason: Option<&str>) -> Option<Event> {
        self.change(device, |devices| match reason {
            Some(reason) => drop(devices.closed.insert(device, reason.to_owned())),
            None => drop(devices.closed.remove(&device)),
        })
    }

    /// Processes that are not ours use so much memory; `None` if there are none.
    pub(super) fn set_foreign(&mut self, device: u32, bytes: Option<u64>) -> Option<Event> {
        self.change(device, |devices| match bytes {
            Some(bytes) => drop(devices.foreign.insert(device, bytes)),
            None => drop(devices.foreign.remove(&device)),
        })
    }

    /// Jobs that have to be relocated.
    pub(super) fn relocating(&self) -> impl Iterator<Item = u64> + '_ {
        self.reserved.keys().copied()
    }

    /// The devices that are kept free for a job.
    pub(super) fn reserved(&self, job: u64) -> &[u32] {
        self.reserved.get(&job).map_or(&[], Vec::as_slice)
    }

    /// A job has to be relocated.
    pub(super) fn add_relocating(&mut self, job: u64) {
        self.reserved.entry(job).or_default();
    }

    /// Keeps other devices free for a job; `None` if it need not be relocated any more.
    pub(super) fn reserve(&mut self, job: u64, devices: Option<&[u32]>) -> Vec<Event> {
        let before = self.reserved(job).to_vec();
        if devices == Some(&before) {
            return Vec::new();
        }
        let mut events = Vec::new();
        for device in before {
            events.extend(self.change(device, |devices| {
                if let Some(kept) = devices.reserved.get_mut(&job) {
                    kept.retain(|&other| other != device);
                }
            }));
        }
        let Some(devices) = devices else {
            self.reserved.remove(&job);
            return events;
        };
        for &device in devices {
            let reserve =
                |devices: &mut Self| devices.reserved.entry(job).or_default().push(device);
            events.extend(self.change(device, reserve));
        }
        events
    }

    /// Changes a reason for which a device may accept no jobs; gives the event if it makes a difference.
    fn change(&mut self, device: u32, change: impl FnOnce(&mut Self)) -> Option<Event> {
        let before = self.is_shut(device);
        change(self);
        let (after, gpu) = (self.is_shut(device), GpuId(device));
        (before != after).then_some(if after {
            Event::GpuDrained { gpu }
        } else {
            Event::GpuUp { gpu }
        })
    }
}

impl Scheduler {
    pub(super) fn drain(&mut self, device: u32, reason: Option<String>) {
        let event = self.devices.drain(device, reason);
        event.into_iter().for_each(|event| self.planner.tell(event));
    }

    pub(super) fn undrain(&mut self, device: u32) {
        let event = self.devices.undrain(device);
        event.into_iter().for_each(|event| self.planner.tell(event));
        self.end_drains(device);
    }

    /// The back end makes a device unavailable, or available again. Jobs that run there stay; jobs that were
    /// about to start there have to be relocated.
    pub(super) fn close(&mut self, device: u32, reason: Option<&str>) {
        if !self.devices.contains(device) {
            return;
        }
        let event = self.devices.close(device, reason);
        event.into_iter().for_each(|event| self.planner.tell(event));
        let jobs: Vec<u64> = self.devices.present(device).collect();
        for job in jobs {
            self.relocate_if_closed(job);
        }
    }
}
