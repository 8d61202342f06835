//! Sub-batches are tried where sharing fails for want of memory. Policies run a job in sub-batches only once
//! the speed and the memory of that were measured; so a running job of the same class, alone on its devices,
//! computes in twice as many for a while, until a pending one would fit beside others or nothing more is saved.

use super::{LearnedClass, Phase, Scheduler, ToJob};
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{JobId, Memory, Span, SubBatch, Time, Tolerance};

/// The most sub-batches that are tried.
const PARTS_MAX: u32 = 16;
/// More are tried while the last ones saved at least this part of the memory,
const SAVED_MIN: f64 = 0.05;
/// and took no more than this times as long as whole batches.
const SLOWDOWN_MAX: f64 = 2.5;
/// A trial that has shown nothing by then is given up.
const TRIAL_MAX: Span = Span::from_secs(120);
/// Pending jobs that are looked at, the first.
const PENDING_MAX: usize = 64;
/// Where less than this part of a job's memory is free, sub-batches are not expected to help.
const ROOM_MIN: f64 = 0.125;

/// A job that computes in more sub-batches to show what that takes.
struct Trial {
    parts: u32,
    until: Time,
}

/// Trials of sub-batches.
#[derive(Default)]
pub(super) struct SubBatchTrials {
    /// The policy uses sub-batches.
    are_used: bool,
    running: BTreeMap<u64, Trial>,
    /// Classes and numbers of sub-batches of which a trial showed nothing.
    given_up: BTreeSet<(String, u32)>,
}

impl SubBatchTrials {
    pub(super) fn new(are_used: bool) -> Self {
        Self { are_used, ..Self::default() }
    }

    pub(super) fn are_running(&self) -> bool {
        !self.running.is_empty()
    }
}

impl Scheduler {
    /// Ends trials that have shown what they were for, and begins those that are wanted.
    pub(super) fn try_sub_batches(&mut self) {
        if !(self.trials.are_used && self.setup.learn && self.setup.share) {
            return;
        }
        let running: Vec<u64> = self.trials.running.keys().copied().collect();
        running.into_iter().for_each(|id| self.end_trial_if_over(id));
        for class in self.classes_without_room() {
            if let Some((id, parts)) = self.next_trial(&class) {
                self.begin_trial(id, parts);
            }
        }
    }

    fn begin_trial(&mut self, id: u64, parts: u32) {
        let until = self.now.time() + TRIAL_MAX;
        self.trials.running.insert(id, Trial { parts, until });
        self.jobs.add_timer(until, id);
        if let Some(active) = self.jobs.get_mut(id) {
            active.job.trial = Some(parts);
        }
        self.set_parts(id, parts);
    }

    fn end_trial_if_over(&mut self, id: u64) {
        let Some(&Trial { parts, until }) = self.trials.running.get(&id) else { return };
        let Some(active) = self.jobs.get(id) else {
            self.trials.running.remove(&id);
            return;
        };
        let class = self.learning.get(&active.job.class);
        let is_measured = class.is_some_and(|class| is_measured(class, parts));
        let is_alone = active.phase == Phase::Running && self.co_located(id).is_empty();
        let is_late = until <= self.now.time();
        if is_alone && active.job.accum.is_none() && !is_measured && !is_late {
            return;
        }
        if is_late && !is_measured {
            self.trials.given_up.insert((active.job.class.clone(), parts));
        }
        self.trials.running.remove(&id);
        let active = self.jobs.get_mut(id).expect("it was found above");
        active.job.trial = None;
        let parts = active.job.accum.unwrap_or(active.job.sub_batches);
        self.set_parts(id, parts);
    }

    fn set_parts(&mut self, id: u64, parts: u32) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        if let Some(allocation) = &mut active.allocation {
            allocation.sub_batches = parts;
        }
        if active.phase.is_present() && active.job.caps.accum {
            self.processes.send(id, ToJob::Accum(parts));
        }
        self.jobs.mark_changed(id);
    }

    /// Classes of pending jobs that may share and fit beside no job that runs alone on its devices.
    fn classes_without_room(&self) -> BTreeSet<String> {
        let rooms = self.rooms();
        if rooms.is_empty() {
            return BTreeSet::new();
        }
        let is_pending = |active: &&super::Active| {
            active.phase == Phase::Absent && active.entry.is_some() && active.job.ending.is_none()
        };
        let pending = self.jobs.iter().filter(is_pending).take(PENDING_MAX);
        let lacks_room = |active: &&super::Active| {
            let Some(known) = self.planner.find(active.entry) else { return false };
            let whole = known.spec.profile.memory;
            let least = known.spec.sub_batches.as_slice().last().map_or(whole, smallest);
            let enough = Memory((whole.0 as f64 * ROOM_MIN) as u64);
            known.spec.tolerance != Tolerance::Alone
                && rooms.iter().all(|&room| room < least)
                && rooms.iter().any(|&room| room >= enough && room > Memory::default())
        };
        pending.filter(lacks_room).map(|active| active.job.class.clone()).collect()
    }

    /// The free memory beside each job that is alone on its devices and may share them.
    fn rooms(&self) -> Vec<Memory> {
        let state = self.planner.engine().state();
        let room = |device: u32| {
            let gpu = tandem_core::GpuId(device);
            let [entry] = *state.occupancy().tenants(gpu) else { return None };
            let host = state.find(entry)?;
            let may_share =
                host.spec.tolerance != Tolerance::Alone && !self.devices.is_shut(device);
            may_share.then(|| self.free_memory(entry, gpu))
        };
        let count = u32::try_from(self.setup.devices.len()).unwrap_or(u32::MAX);
        (0..count).filter_map(room).collect()
    }

    fn free_memory(&self, tenant: JobId, gpu: tandem_core::GpuId) -> Memory {
        let state = self.planner.engine().state();
        let parts = state.job(tenant).placement().map_or(1, |placement| placement.sub_batches);
        let used = state.memory_on_gpu(tenant, parts);
        Memory(state.cluster().gpu(gpu).memory.0.saturating_sub(used.0))
    }

    /// A running job of a class on which more sub-batches can be tried, and how many.
    fn next_trial(&self, class: &str) -> Option<(u64, u32)> {
        let parts = next_parts(self.learning.get(class)?)?;
        if self.trials.given_up.contains(&(class.to_owned(), parts)) {
            return None;
        }
        let of_class = |id: &u64| self.jobs.get(*id).is_some_and(|one| one.job.class == class);
        if self.trials.running.keys().any(of_class) {
            return None;
        }
        let count = u32::try_from(self.setup.devices.len()).unwrap_or(u32::MAX);
        let present = (0..count).flat_map(|device| self.devices.present(device));
        let is_fit = |id: &u64| {
            self.jobs.get(*id).is_some_and(|active| {
                active.phase == Phase::Running
                    && active.job.class == class
                    && active.job.caps.accum
                    && active.job.accum.is_none()
                    && active.job.sub_batches == 1
                    && active.job.ending.is_none()
                    && !active.job.user_paused
                    && self.co_located(*id).is_empty()
            })
        };
        present.into_iter().find(is_fit).map(|id| (id, parts))
    }
}

fn smallest(option: &SubBatch) -> Memory {
    option.memory
}

/// Whether speed and memory with so many sub-batches are known.
fn is_measured(class: &LearnedClass, parts: u32) -> bool {
    class.solo.contains_key(&parts) && class.memory.contains_key(&parts)
}

/// The number of sub-batches to try next; `None` if more are not expected to help.
fn next_parts(class: &LearnedClass) -> Option<u32> {
    let measured: Vec<u32> =
        class.solo.keys().copied().filter(|&parts| is_measured(class, parts)).collect();
    let (&last, before) = measured.split_last()?;
    if measured.first() != Some(&1) {
        return None;
    }
    if let Some(before) = before.last() {
        let memory = |parts: &u32| Some(class.memory.get(parts)?.peak()?.mib());
        let saved = 1.0 - memory(&last)? / memory(before)?.max(1.0);
        let slowdown = class.solo[&1] / class.solo[&last].max(f64::MIN_POSITIVE);
        if saved < SAVED_MIN || slowdown > SLOWDOWN_MAX {
            return None;
        }
    }
    last.checked_mul(2).filter(|&next| next <= PARTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_models::memory::ObservedMemory;

    fn class(measured: &[(u32, u64, f64)]) -> LearnedClass {
        let mut class = LearnedClass::default();
        for &(parts, mib, steps_per_s) in measured {
            let mut memory = ObservedMemory::default();
            memory.observe(Memory::from_mib(mib));
            class.memory.insert(parts, memory);
            class.solo.insert(parts, steps_per_s);
        }
        class
    }

    #[test]
    fn more_sub_batches_are_tried_while_they_save_memory_and_are_not_too_slow() {
        assert_eq!(next_parts(&class(&[])), None);
        assert_eq!(next_parts(&class(&[(1, 1000, 10.0)])), Some(2));
        assert_eq!(next_parts(&class(&[(1, 1000, 10.0), (2, 600, 9.0)])), Some(4));
        assert_eq!(next_parts(&class(&[(1, 1000, 10.0), (2, 980, 9.0)])), None, "saves nothing");
        assert_eq!(next_parts(&class(&[(1, 1000, 10.0), (2, 600, 3.0)])), None, "too slow");
        assert_eq!(next_parts(&class(&[(1, 1000, 10.0), (16, 600, 9.0)])), None, "enough");
        let mut unknown = class(&[(1, 1000, 10.0)]);
        unknown.solo.insert(2, 9.0);
        assert_eq!(next_parts(&unknown), Some(2), "its memory is not known");
    }
}
