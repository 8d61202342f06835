//! Brings processes in line with what the engine wants, one step at a time.

use super::active::{Active, Phase};
use super::{Scheduler, Setup, ToJob};
use std::collections::BTreeMap;
use tandem_backends::{DeviceAllocation, Launch, Op, OpId, Owner, RunId};
use tandem_core::{GpuId, Placement, Span, Time};

/// What is to become of a process.
enum Want {
    Sit(Placement),
    Wait,
    End,
}

impl Scheduler {
    /// Asks for the next step of every job that was touched.
    pub(super) fn settle(&mut self) {
        while let Some(id) = self.dirty.pop_first() {
            self.settle_job(id);
        }
    }

    fn want(&self, active: &Active) -> Want {
        if active.job.ending.is_some() {
            return Want::End;
        }
        let placement = active
            .entry
            .and_then(|entry| self.engine.state().find(entry))
            .and_then(tandem_core::Job::placement);
        placement.map_or(Want::Wait, |placement| Want::Sit(placement.clone()))
    }

    fn settle_job(&mut self, id: u64) {
        let Some(active) = self.jobs.get(&id) else { return };
        let want = self.want(active);
        let placed = matches!(want, Want::Sit(_));
        if active.job.placed != placed && !matches!(want, Want::End) {
            self.jobs.get_mut(&id).expect("looked at above").job.placed = placed;
            self.changed.insert(id);
        }
        let active = &self.jobs[&id];
        match (active.phase, want) {
            (Phase::Absent, Want::Sit(placement)) => self.start(id, &placement),
            (Phase::Running | Phase::Stopped, Want::End) => self.end_process(id),
            // The engine may keep it waiting for hours, and ends whatever it has.
            (Phase::Starting | Phase::Pausing | Phase::Resuming, Want::End)
                if self.setup.keeps_queue =>
            {
                self.end_process(id);
            }
            (Phase::Running, Want::Wait) => self.leave(id),
            (Phase::Running, Want::Sit(placement)) => self.adjust(id, &placement),
            (Phase::Stopped, Want::Sit(placement)) if !active.job.user_paused => {
                self.resume(id, &placement);
            }
            // It waits, or something is under way.
            _ => {}
        }
    }

    /// Whether everybody who is to leave these devices has left.
    fn is_clear(&self, id: u64, placement: &Placement) -> bool {
        let belongs = |&other: &u64, gpu: GpuId| {
            let entry = self.jobs.get(&other).and_then(|active| active.entry);
            other == id
                || entry.is_some_and(|entry| {
                    self.engine.state().occupancy().tenants(gpu).contains(&entry)
                })
        };
        placement
            .gpus
            .iter()
            .all(|&gpu| self.present[gpu.index()].iter().all(|other| belongs(other, gpu)))
    }

    fn seat(&self, id: u64, placement: &Placement) -> DeviceAllocation {
        let job = &self.jobs[&id].job;
        let share = placement.budget.0.min(job.request.share_ppm());
        let declared = job.request.gpu_memory_bytes;
        DeviceAllocation {
            devices: placement.gpus.iter().map(|gpu| gpu.0).collect(),
            share_ppm: share,
            memory_bytes: declared.unwrap_or(0),
            sub_batches: job.accum.unwrap_or(placement.sub_batches),
        }
    }

    fn start(&mut self, id: u64, placement: &Placement) {
        if !self.is_clear(id, placement) {
            return;
        }
        let seat = self.seat(id, placement);
        let active = self.jobs.get_mut(&id).expect("settled only while it is there");
        active.job.runs += 1;
        active.job.sub_batches = placement.sub_batches;
        active.job.devices.clone_from(&seat.devices);
        active.job.placed = true;
        active.job.start_us.get_or_insert(self.now.unix_us);
        active.bye = None;
        active.job.asked = false;
        let op = start_op(active, seat.clone(), &self.setup);
        self.set_phase(id, Phase::Starting, Some(seat));
        self.ask(op);
    }

    fn adjust(&mut self, id: u64, placement: &Placement) {
        let seat = self.seat(id, placement);
        let active = self.jobs.get_mut(&id).expect("settled only while it is there");
        if active.job.user_paused {
            let run = run_of(active);
            self.set_phase(id, Phase::Pausing, None);
            self.ask(Op::Pause { run });
            return;
        }
        let Some(present) = &mut active.seat else { return };
        if present.devices != seat.devices || present.share_ppm != seat.share_ppm {
            if self.setup.pause_frees_device {
                self.resume_at(id, seat);
            } else {
                self.leave(id);
            }
            return;
        }
        active.job.sub_batches = placement.sub_batches;
        if present.sub_batches != seat.sub_batches {
            present.sub_batches = seat.sub_batches;
            self.outcome.messages.push((id, ToJob::Accum(seat.sub_batches)));
            self.changed.insert(id);
        }
    }

    fn resume(&mut self, id: u64, placement: &Placement) {
        if self.is_clear(id, placement) {
            let seat = self.seat(id, placement);
            self.resume_at(id, seat);
        }
    }

    /// A process that can be moved goes on at another place without standing still: a core is a core.
    fn resume_at(&mut self, id: u64, seat: DeviceAllocation) {
        let active = self.jobs.get_mut(&id).expect("settled only while it is there");
        active.job.devices.clone_from(&seat.devices);
        let parts = seat.sub_batches;
        if active.caps.accum && active.seat.as_ref().is_some_and(|was| was.sub_batches != parts) {
            self.outcome.messages.push((id, ToJob::Accum(parts)));
        }
        let run = run_of(active);
        self.set_phase(id, Phase::Resuming, Some(seat.clone()));
        self.ask(Op::Resume { run, allocation: seat });
    }

    /// Makes a process leave its devices in the way that loses least: standing still where that frees
    /// them, else by saving its state. One that could not begin again elsewhere stays.
    fn leave(&mut self, id: u64) {
        let active = self.jobs.get_mut(&id).expect("settled only while it is there");
        let run = run_of(active);
        if self.setup.pause_frees_device {
            self.set_phase(id, Phase::Pausing, None);
            self.ask(Op::Pause { run });
        } else if active.caps.stop && self.setup.moves {
            let by = self.now.time() + Span(self.setup.stop_grace_ms * 1000);
            active.leave_by = Some(by);
            active.job.asked = true;
            self.timers.insert((by, id));
            self.set_phase(id, Phase::Asked, None);
            self.outcome.messages.push((id, ToJob::Stop));
        }
    }

    pub(super) fn end_process(&mut self, id: u64) {
        let Some(active) = self.jobs.get_mut(&id) else { return };
        let grace = active.job.request.kill_grace_s.map(|seconds| (seconds * 1e3) as u64);
        let run = run_of(active);
        let grace_ms = grace.unwrap_or(self.setup.kill_grace_ms);
        self.set_phase(id, Phase::Ending, None);
        self.ask(Op::End { run, grace_ms });
    }

    pub(super) fn ask(&mut self, op: Op) {
        let id = OpId(self.next_op);
        self.next_op += 1;
        self.outcome.ops.push((id, op));
    }

    /// An operation is over; whatever was wanted meanwhile comes next.
    pub(super) fn reached(&mut self, id: u64, from: Phase, to: Phase) {
        if self.jobs[&id].phase == from {
            self.set_phase(id, to, None);
            self.dirty.insert(id);
        }
    }

    /// Notes where a process stands, and in which seat if it changes; whoever waits for its devices may
    /// have them now.
    pub(super) fn set_phase(&mut self, id: u64, phase: Phase, seat: Option<DeviceAllocation>) {
        let now = self.now.time();
        let active = self.jobs.get_mut(&id).expect("a phase of a job that is there");
        let devices = |active: &Active| -> Vec<u32> {
            let seat = active.seat.as_ref().filter(|_| active.phase.is_present());
            seat.map_or_else(Vec::new, |seat| seat.devices.clone())
        };
        let before = devices(active);
        account(active, now);
        active.phase = phase;
        if let Some(seat) = seat {
            active.seat = Some(seat);
        }
        if phase == Phase::Running {
            active.since = Some((now, false));
            if let Some(limit) = active.job.request.time_limit_s
                && !self.setup.keeps_queue
            {
                let left = (limit * 1e6) as u64;
                let at = now + Span(left.saturating_sub(active.job.ran_us));
                self.timers.insert((at, id));
            }
        }
        let active = &self.jobs[&id];
        let after = devices(active);
        for &device in &before {
            self.present[device as usize].remove(&id);
        }
        for &device in &after {
            self.present[device as usize].insert(id);
        }
        let occupancy = self.engine.state().occupancy();
        for &device in before.iter().chain(&after) {
            self.touched.insert(device);
            let tenants = occupancy.tenants(GpuId(device));
            self.dirty.extend(tenants.iter().map(|tenant| self.entries[tenant.index()]));
        }
        if !phase.is_present() {
            self.left.push(id);
        }
        self.changed.insert(id);
    }

    /// Others whose processes may use a device of this job.
    pub fn neighbours(&self, id: u64) -> Vec<u64> {
        let Some(seat) = self.jobs.get(&id).and_then(|active| active.seat.as_ref()) else {
            return Vec::new();
        };
        let mut others: Vec<u64> = seat
            .devices
            .iter()
            .flat_map(|&device| self.present[device as usize].iter().copied())
            .filter(|&other| other != id)
            .collect();
        others.sort_unstable();
        others.dedup();
        others
    }
}

/// Adds up the time since the last account.
pub(super) fn account(active: &mut Active, now: Time) {
    if let Some((since, shared)) = active.since.take() {
        let span = now.since(since).0;
        active.job.ran_us += span;
        if shared {
            active.job.shared_us += span;
        }
    }
}

fn run_of(active: &Active) -> RunId {
    RunId { job: active.job.id, run: active.job.runs }
}

/// Starts the process of a job, or the job in its cluster.
pub(super) fn start_op(active: &Active, seat: DeviceAllocation, setup: &Setup) -> Op {
    match active.job.external.clone() {
        Some(external) => {
            let exclusive = active.job.request.exclusive;
            Op::Place { run: run_of(active), external, devices: seat.devices, exclusive }
        }
        None => Op::Start(Box::new(launch(active, seat, setup))),
    }
}

/// What the back end needs; the environment that the user captured is added where it is kept.
fn launch(active: &Active, seat: DeviceAllocation, setup: &Setup) -> Launch {
    let job = &active.job;
    let share = f64::from(seat.share_ppm) / 1e6;
    let mut env = BTreeMap::from([
        ("TANDEM_JOB_ID".to_owned(), job.id.to_string()),
        ("TANDEM_RUN".to_owned(), job.runs.to_string()),
        ("TANDEM_ACCUM".to_owned(), seat.sub_batches.to_string()),
        ("TANDEM_GPU_SHARE".to_owned(), share.to_string()),
        ("TANDEM_SOCK".to_owned(), socket(&setup.sockets, job.id).to_string_lossy().into_owned()),
    ]);
    if seat.memory_bytes > 0 {
        env.insert("TANDEM_GPU_MEMORY_LIMIT".to_owned(), seat.memory_bytes.to_string());
    }
    if let Some(task) = job.task {
        env.insert("TANDEM_ARRAY_JOB_ID".to_owned(), task.first.to_string());
        env.insert("TANDEM_ARRAY_TASK_ID".to_owned(), task.number.to_string());
    }
    for (name, value) in &job.params {
        env.insert(format!("TANDEM_PARAM_{}", name.to_uppercase()), value.clone());
    }
    Launch {
        run: run_of(active),
        command: job.command(),
        env,
        dir: job.request.dir.clone(),
        stdout: job.stdout(),
        stderr: job.stderr(),
        append: job.runs > 1,
        owner: Some(Owner { uid: job.uid, gid: job.gid }),
        memory_limit_bytes: memory_limit(active, &seat, setup),
        allocation: seat,
    }
}

/// What a job declares is the most that it may have: others were put beside it in that belief. What was
/// only learnt about its kind is no promise of the job's. One that ran out and is tried again alone has
/// its devices to itself, and so all of their memory.
fn memory_limit(active: &Active, seat: &DeviceAllocation, setup: &Setup) -> Option<u64> {
    let declared = active.job.request.gpu_memory_bytes.filter(|&bytes| bytes > 0)?;
    let of = |&device: &u32| setup.devices.get(device as usize).map_or(0, |one| one.memory_bytes);
    let each =
        |device: &u32| if active.job.oom_retried { declared.max(of(device)) } else { declared };
    Some(seat.devices.iter().map(each).fold(0, u64::saturating_add))
}

/// The socket of a job.
pub(crate) fn socket(sockets: &std::path::Path, job: u64) -> std::path::PathBuf {
    sockets.join(format!("{job}.sock"))
}
