//! How a scheduler begins: from nothing, or from what was kept and what is found on the machine.

use super::active::{Active, Caps, Phase};
use super::classes::{Class, Classes};
use super::{BackendEvent, Input, Now, Outcome, RunId, Scheduler, Setup};
use crate::job::{Job, JobState};
use crate::request::JobRequest;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tandem_backends::DeviceAllocation;
use tandem_core::{
    ClusterBuilder, Engine, Event, GpuId, JobId, Learner, Memory, OnIllegal, Placement,
    PlacementRule, Ratio, Rules,
};
use tandem_policies::PolicySpec;

pub use tandem_backends::RecoveredRun;

/// The version of the journal that this program writes: since 2 the engine learns from observations, and
/// the rate of a gang is that of its slowest GPU.
pub const JOURNAL_VERSION: u32 = 2;

/// Everything that a scheduler begins with: the first record of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// The version of the journal; the first one did not say.
    #[serde(default = "first_version")]
    pub version: u32,
    /// When.
    pub now: Now,
    /// With what.
    pub setup: Setup,
    /// Jobs that are not over, in order.
    pub jobs: Vec<Kept>,
    /// What is known about classes.
    pub classes: BTreeMap<String, Class>,
    /// The number of the next job.
    pub next_job: u64,
    /// The number of the first operation.
    pub next_op: u64,
    /// Devices that take no new jobs.
    pub drained: Vec<u32>,
    /// Devices that the back end has closed, and why.
    #[serde(default)]
    pub closed: Vec<(u32, String)>,
    /// How jobs ended that others here depend on.
    #[serde(default)]
    pub over: BTreeMap<u64, JobState>,
}

fn first_version() -> u32 {
    1
}

/// A job that is not over, and what became of its process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// As it was kept.
    pub job: Job,
    /// What was asked for, without the environment, which decides nothing.
    pub request: Arc<JobRequest>,
    /// What was found, if it had a process.
    pub found: Option<RecoveredRun>,
}

impl Scheduler {
    /// Begins; the first step follows from it at once. The engine plans with `learner` and corrects it
    /// by what was observed, in this life and before.
    pub fn begin(start: Start, policy: &PolicySpec, learner: Box<dyn Learner>) -> (Self, Outcome) {
        let cluster = Arc::new(cluster(&start.setup));
        let rules = rules(policy, start.setup.share);
        let engine = Engine::new(cluster, rules, learner, OnIllegal::Refuse, || policy.build());
        let devices = start.setup.devices.len();
        let mut scheduler = Self {
            engine,
            now: start.now,
            jobs: BTreeMap::new(),
            entries: Vec::new(),
            users: BTreeMap::new(),
            classes: Classes::new(start.classes),
            present: vec![BTreeSet::new(); devices],
            drained: BTreeSet::new(),
            closed: BTreeMap::new(),
            stranded: BTreeMap::new(),
            relocate_at: None,
            externals: BTreeMap::new(),
            foreign: BTreeMap::new(),
            dependents: BTreeMap::new(),
            arrays: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_job: start.next_job,
            next_op: start.next_op,
            events: Vec::new(),
            dirty: BTreeSet::new(),
            changed: BTreeSet::new(),
            outcome: Outcome::default(),
            engine_wake: None,
            touched: BTreeSet::new(),
            left: Vec::new(),
            setup: start.setup,
        };
        let observations = scheduler.classes.observations();
        scheduler.events.extend(observations.into_iter().map(Event::Observed));
        let mut inputs = Vec::new();
        let mut adopted = Vec::new();
        let mut ended = Vec::new();
        let ids: Vec<u64> = start.jobs.iter().map(|kept| kept.job.id).collect();
        for kept in start.jobs {
            adopted.extend(scheduler.adopt(kept, &mut inputs, &mut ended));
        }
        // Everybody who depends on them is there now.
        for (id, state, reason) in ended {
            scheduler.end_job(id, state, reason);
        }
        for &id in &ids {
            scheduler.recall(id, &start.over);
        }
        for id in ids {
            scheduler.try_enter(id);
            scheduler.withdraw_again(id);
        }
        for device in start.drained {
            scheduler.drain(device, true);
        }
        for (device, reason) in start.closed {
            scheduler.close(device, Some(&reason));
        }
        // The policy decides once it has heard of everybody.
        scheduler.plan();
        for (id, phase, seat) in adopted {
            scheduler.set_phase(id, phase, Some(seat));
            scheduler.dirty.insert(id);
            scheduler.strand(id);
        }
        let outcome = scheduler.step(start.now, &inputs);
        (scheduler, outcome)
    }

    /// Takes in a job that is not over; gives the phase and the seat of its process, if it has one. What
    /// happened while nobody watched is added to `inputs`.
    fn adopt(
        &mut self,
        kept: Kept,
        inputs: &mut Vec<Input>,
        ended: &mut Vec<(u64, JobState, Option<String>)>,
    ) -> Option<(u64, Phase, DeviceAllocation)> {
        let Kept { mut job, request, found } = kept;
        job.request = request;
        let id = job.id;
        let run = RunId { job: id, run: job.runs };
        let Some(found) = found else {
            job.placed = false;
            job.going = None;
            self.admit(Active::new(job));
            return None;
        };
        // It went on while nobody watched.
        match &found {
            RecoveredRun::Running { paused: false, .. } => job.account(self.now.at_us),
            RecoveredRun::Exited(exit) => {
                let ago = self.now.unix_us.saturating_sub(exit.at_unix_us);
                job.account(self.now.at_us.saturating_sub(ago));
            }
            RecoveredRun::Starting if self.setup.keeps_queue => {
                // If it ran, the engine has put it back into its queue: its work is lost.
                job.going = None;
                job.done_us = 0;
                job.caps = [false; 3];
            }
            _ => job.going = None,
        }
        let known = job.devices.iter().all(|&device| (device as usize) < self.present.len());
        let (phase, handle) = match &found {
            RecoveredRun::NeverStarted => {
                // The number of a run that never was is given again.
                job.runs = job.runs.saturating_sub(1);
                job.placed = false;
                if let Some(ending) = &job.ending {
                    let (state, reason) = ending.end();
                    ended.push((id, state, Some(reason)));
                }
                self.admit(Active::new(job));
                return None;
            }
            RecoveredRun::Running { handle, paused: true, .. } => (Phase::Stopped, Some(*handle)),
            RecoveredRun::Running { handle, paused: false, .. } => (Phase::Running, Some(*handle)),
            RecoveredRun::Starting => (Phase::Starting, None),
            RecoveredRun::Exited(exit) => {
                inputs.push(Input::Backend(BackendEvent::Exited { run, exit: exit.clone() }));
                (Phase::Running, None)
            }
            RecoveredRun::NotStarted { reason, transient } => {
                let (op, reason, transient) =
                    (tandem_backends::OpId(0), reason.clone(), *transient);
                inputs.push(Input::Backend(BackendEvent::NotStarted {
                    op,
                    run,
                    reason,
                    transient,
                }));
                (Phase::Starting, None)
            }
            RecoveredRun::Lost { reason } => {
                inputs.push(Input::Backend(BackendEvent::Lost { run, reason: reason.clone() }));
                (Phase::Running, None)
            }
            RecoveredRun::Rebooted => {
                self.outcome.forget.push(run);
                ended.extend(self.rebooted(job));
                return None;
            }
        };
        let placed = job.placed && known;
        let devices = if known { job.devices.clone() } else { Vec::new() };
        let seat = DeviceAllocation {
            devices,
            share_ppm: job.request.share_ppm(),
            memory_bytes: job.request.gpu_memory_bytes.unwrap_or(0),
            sub_batches: job.accum.unwrap_or(job.sub_batches),
        };
        let caps = Caps { speaks: job.caps[0], accum: job.caps[1], stop: job.caps[2] };
        let sub_batches = job.sub_batches;
        self.admit(Active::new(job));
        self.takes_turn(id);
        let entry = JobId(u32::try_from(self.entries.len()).expect("entries are counted in u32"));
        self.entries.push(id);
        let active = self.jobs.get_mut(&id).expect("admitted above");
        active.unmet.clear();
        active.caps = caps;
        active.handle = handle;
        if let RecoveredRun::Running { enforcement, .. } = found {
            active.enforcement = enforcement;
        }
        active.entry = Some(entry);
        let spec = self.spec(id, entry);
        let gpus = seat.devices.iter().map(|&device| GpuId(device));
        let placement = placed.then(|| Placement { sub_batches, ..Placement::on(gpus) });
        let done = self.work_done(id);
        self.events.push(Event::Adopted { spec, placement, done });
        Some((id, phase, seat))
    }

    /// The machine was started anew: nothing of the process is left. Says how the job ended, if it did.
    fn rebooted(&mut self, mut job: Job) -> Option<(u64, JobState, Option<String>)> {
        let id = job.id;
        job.placed = false;
        let ended = match &job.ending {
            Some(ending) => Some(ending.end()),
            None if job.request.requeue => None,
            None => Some((JobState::Failed, "reboot".to_owned())),
        };
        if ended.is_none() {
            job.reason = Some("reboot; queued again".to_owned());
            job.done_us = 0;
            job.entered_us = None;
        }
        self.admit(Active::new(job));
        ended.map(|(state, reason)| (id, state, Some(reason)))
    }

    /// Whether the engine was asked to end a job that waits, only the engine knows.
    fn withdraw_again(&mut self, id: u64) {
        let is_ending = |active: &Active| active.entry.is_none() && active.job.ending.is_some();
        if self.jobs.get(&id).is_some_and(is_ending) {
            self.withdraw(id);
        }
    }

    /// Meets the dependencies of a job that were over when this life began.
    fn recall(&mut self, id: u64, over: &BTreeMap<u64, JobState>) {
        let Some(active) = self.jobs.get(&id) else { return };
        let others: Vec<u64> = active.unmet.iter().map(|unmet| unmet.job).collect();
        for other in others {
            if !self.jobs.contains_key(&other) {
                // One that is not even remembered is not known to have done well.
                let state = over.get(&other).copied().unwrap_or(JobState::Unknown);
                self.depend(id, other, state);
            }
        }
    }
}

/// What every plan has to respect.
fn rules(policy: &PolicySpec, share: bool) -> Rules {
    Rules {
        placement: PlacementRule::Strict,
        tenants_max: if share { policy.entry.tenants_max } else { 1 },
        context: Memory::default(),
    }
}

/// The devices as the engine sees them, by node; one partition.
pub(super) fn cluster(setup: &Setup) -> tandem_core::Cluster {
    let mut builder = ClusterBuilder::default();
    builder.partition("local");
    // A node has GPUs of one kind and size; where they differ, the smallest is what all can give.
    let memory = setup.devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
    let kind = setup.devices.first().map_or("none", |device| device.kind.as_str());
    let kind = builder.gpu_type(kind, Ratio::ONE);
    for node in setup.devices.chunk_by(|one, other| one.node == other.node) {
        let count = u32::try_from(node.len()).expect("devices are counted in u32");
        builder.node(count, kind, Memory::from_mib(memory >> 20));
    }
    builder.taking_every_job().build()
}
