//! Brings processes in line with what the engine wants, one operation at a time.

use super::active::Phase;
use super::launch::start_op;
use super::services::goes_first;
use super::{Scheduler, ToJob};
use crate::request::KILL_GRACE_MAX_S;
use tandem_backends::{DeviceAllocation, Op};
use tandem_core::{Placement, Span};

/// What the engine wants of a process.
enum Target {
    Placed(Placement),
    Waiting,
    Ended,
}

impl Scheduler {
    /// Requests the next operation of every job that was marked.
    pub(super) fn reconcile_processes(&mut self) {
        while let Some(id) = self.processes.next_marked() {
            self.reconcile(id);
        }
    }

    fn target(&self, id: u64) -> Option<Target> {
        let active = self.jobs.get(id)?;
        if active.job.ending.is_some() {
            return Some(Target::Ended);
        }
        let placement = self.planner.placement(active.entry).cloned();
        Some(placement.map_or(Target::Waiting, Target::Placed))
    }

    fn reconcile(&mut self, id: u64) {
        let Some(target) = self.target(id) else { return };
        self.set_placed(id, &target);
        let active = self.jobs.expect(id);
        match (active.phase, target) {
            (Phase::Absent, Target::Placed(placement)) => self.start(id, &placement),
            (Phase::Running, Target::Ended) => self.end_running(id),
            (Phase::Stopped, Target::Ended) => self.end_stopped(id),
            // The cluster may keep it pending for hours, and ends whatever it has.
            (Phase::Starting | Phase::Pausing | Phase::Resuming, Target::Ended)
                if self.setup.keeps_queue =>
            {
                self.end_process(id);
            }
            (Phase::Running, Target::Waiting) => self.preempt(id),
            (Phase::Running, Target::Placed(placement)) => self.adjust(id, &placement),
            (Phase::Stopped, Target::Placed(placement)) if !active.job.user_paused => {
                self.resume(id, &placement);
            }
            // It waits, or an operation is under way.
            _ => {}
        }
    }

    /// Records whether the engine has placed a job.
    fn set_placed(&mut self, id: u64, target: &Target) {
        let placed = match target {
            Target::Placed(_) => true,
            Target::Waiting => false,
            Target::Ended => return,
        };
        if let Some(active) = self.jobs.get_mut(id).filter(|active| active.job.placed != placed) {
            active.job.placed = placed;
            self.jobs.mark_changed(id);
        }
    }

    /// Whether every job that has to leave these devices has left.
    fn is_clear(&self, id: u64, placement: &Placement) -> bool {
        placement.gpus.iter().all(|&gpu| {
            self.devices.others(id, gpu.0).all(|other| {
                let entry = self.jobs.get(other).and_then(|active| active.entry);
                self.planner.is_tenant(entry, gpu)
            })
        })
    }

    fn allocation(&self, id: u64, placement: &Placement) -> DeviceAllocation {
        let job = &self.jobs.expect(id).job;
        let devices: Vec<u32> = placement.gpus.iter().map(|gpu| gpu.0).collect();
        let fed_back = self.fed_back_budget(id, &devices);
        DeviceAllocation {
            devices,
            share_ppm: fed_back.unwrap_or(placement.budget.0).min(job.request.share_ppm()),
            memory_bytes: job.request.gpu_memory_bytes.unwrap_or(0),
            sub_batches: job.accum.or(job.trial).unwrap_or(placement.sub_batches),
            goes_first: goes_first(&job.request, &self.setup),
        }
    }

    fn start(&mut self, id: u64, placement: &Placement) {
        if !self.is_clear(id, placement) {
            return;
        }
        let allocation = self.allocation(id, placement);
        let active = self.jobs.get_mut(id).expect("only a job that has not ended is reconciled");
        active.job.runs += 1;
        active.job.sub_batches = placement.sub_batches;
        active.job.devices.clone_from(&allocation.devices);
        active.job.placed = true;
        active.job.start_us.get_or_insert(self.now.unix_us);
        active.bye = None;
        active.job.asked = false;
        let op = start_op(active, allocation.clone(), &self.setup);
        self.set_phase(id, Phase::Starting, Some(allocation));
        self.processes.request(op);
    }

    fn adjust(&mut self, id: u64, placement: &Placement) {
        let allocation = self.allocation(id, placement);
        let active = self.jobs.get_mut(id).expect("only a job that has not ended is reconciled");
        if active.job.user_paused {
            let run = active.run();
            self.set_phase(id, Phase::Pausing, None);
            self.processes.request(Op::Pause { run });
            return;
        }
        let Some(present) = &mut active.allocation else { return };
        if present.devices != allocation.devices || present.share_ppm != allocation.share_ppm {
            if self.setup.pause_frees_device {
                self.resume_at(id, allocation);
            } else {
                self.preempt(id);
            }
            return;
        }
        active.job.sub_batches = placement.sub_batches;
        if present.sub_batches != allocation.sub_batches {
            present.sub_batches = allocation.sub_batches;
            self.processes.send(id, ToJob::Accum(allocation.sub_batches));
            self.jobs.mark_changed(id);
        }
    }

    fn resume(&mut self, id: u64, placement: &Placement) {
        if self.is_clear(id, placement) {
            let allocation = self.allocation(id, placement);
            self.resume_at(id, allocation);
        }
    }

    /// A process that can be moved continues on other devices without a pause.
    fn resume_at(&mut self, id: u64, allocation: DeviceAllocation) {
        let active = self.jobs.get_mut(id).expect("only a job that has not ended is reconciled");
        active.job.devices.clone_from(&allocation.devices);
        let parts = allocation.sub_batches;
        let had = active.allocation.as_ref().map(|before| before.sub_batches);
        let is_told = active.job.caps.accum && had.is_some_and(|had| had != parts);
        let run = active.run();
        if is_told {
            self.processes.send(id, ToJob::Accum(parts));
        }
        self.set_phase(id, Phase::Resuming, Some(allocation.clone()));
        self.processes.request(Op::Resume { run, allocation });
    }

    /// Preempts a process in the way that loses least: a pause where that frees its devices, else a
    /// checkpoint. A job that could not continue elsewhere stays.
    fn preempt(&mut self, id: u64) {
        let active = self.jobs.get_mut(id).expect("only a job that has not ended is reconciled");
        let run = active.run();
        if self.setup.pause_frees_device {
            self.set_phase(id, Phase::Pausing, None);
            self.processes.request(Op::Pause { run });
        } else if self.setup.moves {
            self.ask_to_stop(id);
        }
    }

    /// Asks a job to save a checkpoint and exit, by the job protocol or by its signal. `false` if it cannot.
    fn ask_to_stop(&mut self, id: u64) -> bool {
        let active = self.jobs.get_mut(id).expect("only a job that has not ended is reconciled");
        if !active.can_stop() {
            return false;
        }
        let by = self.now.time() + Span(self.setup.stop_grace_ms * 1000);
        active.leave_by = Some(by);
        // A run that got its signal from an earlier daemon might take a second one for an order to quit.
        let is_signalled = std::mem::replace(&mut active.job.asked, true);
        let (run, speaks) = (active.run(), active.job.caps.stop);
        let signal = active.job.request.stop_signal().filter(|_| !speaks && !is_signalled);
        self.jobs.add_timer(by, id);
        self.set_phase(id, Phase::Asked, None);
        if speaks {
            self.processes.send(id, ToJob::Stop);
        } else if let Some(signal) = signal {
            self.processes.request(Op::Signal { run, signal });
        }
        true
    }

    /// Ends a process that runs. One that can save a checkpoint is asked to first; a cluster ends its jobs in
    /// its own way.
    fn end_running(&mut self, id: u64) {
        if self.setup.keeps_queue || !self.ask_to_stop(id) {
            self.end_process(id);
        }
    }

    /// Ends a paused process. One that can save a checkpoint has to run to do so.
    fn end_stopped(&mut self, id: u64) {
        let active = self.jobs.expect(id);
        match active.allocation.clone() {
            Some(allocation) if active.can_stop() => self.resume_at(id, allocation),
            _ => self.end_process(id),
        }
    }

    pub(super) fn end_process(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        // A job of an earlier version may have asked for more.
        let grace = active.job.request.kill_grace_s.map(|asked| asked.min(KILL_GRACE_MAX_S));
        let grace = grace.map(|seconds| (seconds * 1e3) as u64);
        let run = active.run();
        let grace_ms = grace.unwrap_or(self.setup.kill_grace_ms);
        self.set_phase(id, Phase::Ending, None);
        self.processes.request(Op::End { run, grace_ms });
    }

    /// An operation has completed; the next one follows if the engine wants something else by now.
    pub(super) fn reached(&mut self, id: u64, from: Phase, to: Phase) {
        if self.jobs.expect(id).phase == from {
            self.set_phase(id, to, None);
            self.processes.mark(id);
        }
    }

    /// Records the phase of a process, and its allocation if that changes. Jobs that wait for its devices may
    /// start now.
    pub(super) fn set_phase(
        &mut self,
        id: u64,
        phase: Phase,
        allocation: Option<DeviceAllocation>,
    ) {
        let now = self.now.time();
        let active = self.jobs.get_mut(id).expect("only a job that has not ended has a phase");
        let before = active.devices_in_use().to_vec();
        let was_running = active.since;
        active.stop_clock(now);
        let (uid, had_process) = (active.job.uid, active.phase != Phase::Absent);
        active.phase = phase;
        if matches!(phase, Phase::Asked | Phase::Ending) {
            // It has its devices until it is gone.
            active.since = was_running.map(|(_, shared)| (now, shared));
        }
        if allocation.is_some() {
            active.allocation = allocation;
        }
        let after = active.devices_in_use().to_vec();
        let has_process = phase != Phase::Absent;
        let check_at = active.check_at.take_if(|_| phase != Phase::Running);
        if has_process != had_process {
            self.jobs.count_process(id, uid, has_process);
        }
        // The estimate is checked again when the job runs again.
        if let Some(check) = check_at {
            self.jobs.remove_timer(check, id);
        }
        let active = self.jobs.get_mut(id).expect("it was found above");
        if phase == Phase::Running {
            active.since = Some((now, false));
            let limit = active.job.request.time_limit_s.filter(|_| !self.setup.keeps_queue);
            let left = limit.map(|limit| ((limit * 1e6) as u64).saturating_sub(active.job.ran_us));
            if let Some(left) = left {
                self.jobs.add_timer(now + Span(left), id);
            }
        }
        self.devices.move_process(id, &before, &after);
        for &device in before.iter().chain(&after) {
            for tenant in self.planner.tenants(device) {
                self.processes.mark(tenant);
            }
        }
        if !phase.is_present() {
            self.processes.mark_left(id);
        }
        self.jobs.mark_changed(id);
    }

    /// Other jobs whose processes may use a device of this job.
    pub fn co_located(&self, id: u64) -> Vec<u64> {
        let allocation = self.jobs.get(id).and_then(|active| active.allocation.as_ref());
        allocation
            .map_or_else(Vec::new, |allocation| self.devices.co_located(id, &allocation.devices))
    }
}
