//! Jobs that the engine keeps and that cannot begin where they were to: their node is lost. The engine may
//! be unable to give them other GPUs than those of the same places on another node, which no policy knows
//! about. So such GPUs are kept free until the job can begin there.

use super::Scheduler;
use super::active::Phase;
use std::collections::BTreeSet;
use tandem_backends::DeviceAllocation;
use tandem_core::{Event, GpuId, JobId, Placement, Work};

impl Scheduler {
    /// Notes that a job may have to begin elsewhere.
    pub(super) fn strand(&mut self, id: u64) {
        if self.setup.keeps_queue && self.is_stranded(id) {
            self.stranded.entry(id).or_default();
        }
    }

    /// Whether a job is about to begin on a device that is closed.
    fn is_stranded(&self, id: u64) -> bool {
        self.jobs.get(&id).is_some_and(|active| {
            let seat = active.seat.as_ref().filter(|_| active.phase == Phase::Starting);
            let is_closed = |device| self.closed.contains_key(device);
            active.job.ending.is_none()
                && seat.is_some_and(|seat| seat.devices.iter().any(is_closed))
        })
    }

    /// Lets stranded jobs begin elsewhere as soon as there is room.
    pub(super) fn relocate(&mut self) {
        let stranded: Vec<u64> = self.stranded.keys().copied().collect();
        for id in stranded {
            if !self.is_stranded(id) {
                self.keep_free(id, None);
                continue;
            }
            match self.elsewhere(id) {
                Some((target, true)) => {
                    self.keep_free(id, None);
                    self.begin_at(id, target);
                }
                Some((target, false)) => self.keep_free(id, Some(target)),
                None => self.keep_free(id, Some(Vec::new())),
            }
        }
    }

    /// Keeps devices free for a job, or those that were free for it for all; `None` if it needs none.
    fn keep_free(&mut self, id: u64, devices: Option<Vec<u32>>) {
        let before = self.stranded.get(&id).cloned().unwrap_or_default();
        if devices.as_ref() == Some(&before) {
            return;
        }
        for device in before {
            self.reopen(device, |scheduler| {
                if let Some(kept) = scheduler.stranded.get_mut(&id) {
                    kept.retain(|&other| other != device);
                }
            });
        }
        let Some(devices) = devices else {
            self.stranded.remove(&id);
            return;
        };
        for device in devices {
            self.reopen(device, |scheduler| scheduler.stranded.entry(id).or_default().push(device));
        }
    }

    /// The same places on other nodes, and whether nobody else is there. Those that are free come first,
    /// then those that are kept for it already, then those with the fewest others.
    fn elsewhere(&self, id: u64) -> Option<(Vec<u32>, bool)> {
        let seat = self.jobs.get(&id)?.seat.as_ref()?;
        let nodes: Vec<&[tandem_backends::Device]> =
            self.setup.devices.chunk_by(|one, other| one.node == other.node).collect();
        let holds = |node: &&&[tandem_backends::Device], device: u32| {
            node.iter().any(|here| here.index == device)
        };
        let first = nodes.iter().find(|node| holds(node, seat.devices[0]))?;
        let of_first = seat.devices.iter().filter(|&&device| holds(&first, device));
        let places: Vec<usize> =
            of_first.map(|&device| (device - first[0].index) as usize).collect();
        let count = seat.devices.len() / places.len().max(1);
        let kept = &self.stranded[&id];
        let mut choices: Vec<(bool, bool, usize, Vec<u32>)> = Vec::new();
        for node in nodes {
            let devices: Option<Vec<u32>> =
                places.iter().map(|&place| node.get(place).map(|device| device.index)).collect();
            let Some(devices) = devices else { continue };
            let shut = |device: &u32| {
                self.closed.contains_key(device)
                    || self.drained.contains(device)
                    || self.foreign.contains_key(device)
                    || self
                        .stranded
                        .iter()
                        .any(|(other, kept)| *other != id && kept.contains(device))
            };
            if devices.iter().any(shut) {
                continue;
            }
            let others = devices.iter().map(|&device| self.others(id, device)).sum();
            let is_new = !devices.iter().all(|device| kept.contains(device));
            choices.push((others > 0, is_new, others, devices));
        }
        choices.sort();
        choices.truncate(count);
        let is_free = choices.iter().all(|(is_busy, ..)| !is_busy);
        let enough = choices.len() == count;
        let mut target: Vec<u32> = choices.into_iter().flat_map(|(.., devices)| devices).collect();
        target.sort_unstable();
        enough.then_some((target, is_free))
    }

    /// Others on a device, by the plan or in fact: one that has just begun there is in no plan yet, and
    /// one that is about to begin has no process. A job on several nodes may keep some of them.
    fn others(&self, id: u64, device: u32) -> usize {
        let tenants = self.engine.state().occupancy().tenants(GpuId(device));
        let planned = tenants.iter().map(|tenant| self.entries[tenant.index()]);
        let present = self.present[device as usize].iter().copied();
        let others: BTreeSet<u64> = planned.chain(present).filter(|&other| other != id).collect();
        others.len()
    }

    /// Begins a job on devices that no policy chose.
    fn begin_at(&mut self, id: u64, devices: Vec<u32>) {
        let entry = JobId(u32::try_from(self.entries.len()).expect("entries are counted in u32"));
        let active = self.jobs.get_mut(&id).expect("it is stranded");
        if let Some(before) = active.entry.replace(entry) {
            self.events.push(Event::Cancelled { job: before });
        }
        self.entries.push(id);
        let active = self.jobs.get_mut(&id).expect("it is stranded");
        active.job.runs += 1;
        active.job.devices.clone_from(&devices);
        let seat = active.seat.clone().expect("a stranded job has a seat");
        let seat = DeviceAllocation { devices, ..seat };
        let op = super::settle::start_op(active, seat.clone(), &self.setup);
        let spec = self.spec(id, entry);
        let placement = Placement::on(seat.devices.iter().map(|&device| GpuId(device)));
        let placement = Some(Placement { sub_batches: seat.sub_batches, ..placement });
        self.events.push(Event::Adopted { spec, placement, done: Work::default() });
        self.set_phase(id, Phase::Starting, Some(seat));
        self.set_reason(id, Some("its node was lost; begins elsewhere".to_owned()));
        self.ask(op);
    }
}
