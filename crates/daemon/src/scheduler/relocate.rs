//! Relocates jobs of a cluster that are about to start on a lost node. The cluster may be unable to give them
//! other GPUs than those with the same indices on another node, which no policy knows about. So such GPUs
//! are reserved until the job can start there.

use super::Scheduler;
use super::active::Phase;
use super::launch::start_op;
use std::collections::BTreeSet;
use tandem_backends::{Device, DeviceAllocation};
use tandem_core::{Event, GpuId, Placement, Span, Work};

/// When relocation is tried again after something happened.
const RETRY_AFTER: Span = Span(1_000_000);

/// The devices of a node that a job could be relocated to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    is_busy: bool,
    is_new: bool,
    others: usize,
    devices: Vec<u32>,
}

impl Scheduler {
    /// Notes a job that has to be relocated.
    pub(super) fn relocate_if_closed(&mut self, id: u64) {
        if self.setup.keeps_queue && self.must_relocate(id) {
            self.devices.add_relocating(id);
        }
    }

    /// Whether a job is about to start on a device that is unavailable.
    fn must_relocate(&self, id: u64) -> bool {
        self.jobs.get(id).is_some_and(|active| {
            let is_starting = active.phase == Phase::Starting && active.job.ending.is_none();
            let is_closed = |device: &u32| self.devices.closed(*device).is_some();
            is_starting && active.devices_in_use().iter().any(is_closed)
        })
    }

    /// Starts jobs elsewhere as soon as there are free devices.
    pub(super) fn relocate_jobs(&mut self) {
        let jobs: Vec<u64> = self.devices.relocating().collect();
        for id in jobs {
            if !self.must_relocate(id) {
                self.reserve(id, None);
                continue;
            }
            match self.target_devices(id) {
                Some((devices, true)) => {
                    self.reserve(id, None);
                    self.start_at(id, devices);
                }
                Some((devices, false)) => self.reserve(id, Some(&devices)),
                None => self.reserve(id, Some(&[])),
            }
        }
    }

    /// Devices that become free in a step are noticed in the next. If nothing happened there is none: a job
    /// that fits nowhere may wait for days.
    pub(super) fn schedule_relocation(&mut self, is_news: bool) {
        let now = self.now.time();
        if self.devices.relocating().next().is_none() {
            self.relocate_at = None;
        } else if self.relocate_at.is_none_or(|at| at <= now) {
            let happened = is_news || self.planner.has_actions();
            self.relocate_at = happened.then(|| now + RETRY_AFTER);
        }
    }

    fn reserve(&mut self, id: u64, devices: Option<&[u32]>) {
        for event in self.devices.reserve(id, devices) {
            self.planner.tell(event);
        }
    }

    /// GPUs with the same indices on other nodes, and whether they are free. Free ones come first, then those
    /// that are reserved for the job already, then those with the fewest other jobs.
    fn target_devices(&self, id: u64) -> Option<(Vec<u32>, bool)> {
        let wanted = &self.jobs.get(id)?.allocation.as_ref()?.devices;
        let nodes: Vec<&[Device]> =
            self.setup.devices.chunk_by(|one, other| one.node == other.node).collect();
        let holds = |node: &[Device], device: u32| node.iter().any(|here| here.index == device);
        let first = nodes.iter().find(|node| holds(node, wanted[0]))?;
        let of_first = wanted.iter().filter(|&&device| holds(first, device));
        let indices: Vec<usize> =
            of_first.map(|&device| (device - first[0].index) as usize).collect();
        let count = wanted.len() / indices.len().max(1);
        let candidates = nodes.iter().filter_map(|node| self.candidate(id, node, &indices));
        let mut candidates: Vec<Candidate> = candidates.collect();
        candidates.sort();
        candidates.truncate(count);
        let is_free = candidates.iter().all(|candidate| !candidate.is_busy);
        let is_enough = candidates.len() == count;
        let mut devices: Vec<u32> =
            candidates.into_iter().flat_map(|candidate| candidate.devices).collect();
        devices.sort_unstable();
        is_enough.then_some((devices, is_free))
    }

    /// The devices with these indices on a node, if the job could start there.
    fn candidate(&self, id: u64, node: &[Device], indices: &[usize]) -> Option<Candidate> {
        let device = |&index: &usize| node.get(index).map(|device| device.index);
        let devices: Vec<u32> = indices.iter().map(device).collect::<Option<_>>()?;
        if devices.iter().any(|&device| self.devices.is_shut_for(id, device)) {
            return None;
        }
        let others = devices.iter().map(|&device| self.others_on(id, device)).sum();
        let reserved = self.devices.reserved(id);
        let is_new = !devices.iter().all(|device| reserved.contains(device));
        Some(Candidate { is_busy: others > 0, is_new, others, devices })
    }

    /// Other jobs on a device, by the plan or in fact: a job that has just been relocated there is in no plan
    /// yet, and one that is about to start has no process. A job on several nodes may keep some of them.
    fn others_on(&self, id: u64, device: u32) -> usize {
        let jobs = self.planner.tenants(device).chain(self.devices.present(device));
        jobs.filter(|&other| other != id).collect::<BTreeSet<u64>>().len()
    }

    /// Starts a job on devices that no policy chose.
    fn start_at(&mut self, id: u64, devices: Vec<u32>) {
        let entry = self.planner.enter(id);
        let active = self.jobs.get_mut(id).expect("it is about to start");
        if let Some(before) = active.entry.replace(entry) {
            self.planner.tell(Event::Cancelled { job: before });
        }
        active.job.runs += 1;
        active.job.devices.clone_from(&devices);
        let before = active.allocation.clone().expect("a job that starts has an allocation");
        let allocation = DeviceAllocation { devices, ..before };
        let op = start_op(active, allocation.clone(), &self.setup);
        let spec = self.spec(id, entry);
        let placement = Placement::on(allocation.devices.iter().map(|&device| GpuId(device)));
        let placement = Some(Placement { sub_batches: allocation.sub_batches, ..placement });
        self.planner.tell(Event::Adopted { spec, placement, done: Work::default() });
        self.set_phase(id, Phase::Starting, Some(allocation));
        self.jobs.set_reason(id, Some("its node was lost; starts on another one".to_owned()));
        self.processes.request(op);
    }
}
