//! How a scheduler begins: from what was stored and from what the back end found.

use super::classes::{Class, Classes};
use super::devices::Devices;
use super::jobs::Jobs;
use super::planning::Planner;
use super::processes::Processes;
use super::recover::Recovery;
use super::{Now, Scheduler, Setup, StepOutcome};
use crate::job::{Job, JobState};
use crate::request::JobRequest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_core::{
    ClusterBuilder, Engine, Event, Learner, Memory, OnIllegal, PlacementRule, Ratio, Rules,
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
    /// Jobs that have not ended, in order.
    pub jobs: Vec<Kept>,
    /// What is known about classes.
    pub classes: BTreeMap<String, Class>,
    /// The number of the next job.
    pub next_job: u64,
    /// The number of the first operation.
    pub next_op: u64,
    /// Drained devices.
    pub drained: Vec<u32>,
    /// Devices that are unavailable by the back end, with the reason.
    #[serde(default)]
    pub closed: Vec<(u32, String)>,
    /// States of jobs that have ended and that others depend on.
    #[serde(default)]
    pub over: BTreeMap<u64, JobState>,
}

fn first_version() -> u32 {
    1
}

/// A job that has not ended, and what the back end found of its run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// As it was stored.
    pub job: Job,
    /// Its request, without the environment, which influences no decision.
    pub request: Arc<JobRequest>,
    /// What was found, if it had a run.
    pub found: Option<RecoveredRun>,
}

impl Scheduler {
    /// Begins; the first step follows from it at once. The engine plans with `learner` and corrects it
    /// by what was observed, in this life and before.
    pub fn begin(
        start: Start,
        policy: &PolicySpec,
        learner: Box<dyn Learner>,
    ) -> (Self, StepOutcome) {
        let cluster = Arc::new(cluster(&start.setup));
        let rules = rules(policy, start.setup.share);
        let engine = Engine::new(cluster, rules, learner, OnIllegal::Refuse, || policy.build());
        let mut scheduler = Self {
            now: start.now,
            jobs: Jobs::new(start.next_job),
            devices: Devices::new(start.setup.devices.len(), start.setup.foreign_avoid),
            planner: Planner::new(engine),
            processes: Processes::new(start.next_op),
            learning: Classes::new(start.classes),
            relocate_at: None,
            setup: start.setup,
        };
        for observation in scheduler.learning.observations() {
            scheduler.planner.tell(Event::Observed(observation));
        }
        let recovery = scheduler.recover(start.jobs, &start.over);
        for device in start.drained {
            scheduler.drain(device, true);
        }
        for (device, reason) in start.closed {
            scheduler.close(device, Some(&reason));
        }
        // The policy plans once it knows all jobs.
        scheduler.plan();
        let Recovery { runs, inputs } = recovery;
        for (id, phase, allocation) in runs {
            scheduler.set_phase(id, phase, Some(allocation));
            scheduler.processes.mark(id);
            scheduler.relocate_if_closed(id);
        }
        let outcome = scheduler.step(start.now, &inputs);
        (scheduler, outcome)
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
fn cluster(setup: &Setup) -> tandem_core::Cluster {
    let mut builder = ClusterBuilder::default();
    builder.partition("local");
    // A node has GPUs of one type and size; where memory differs, the smallest counts.
    let memory = setup.devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
    let kind = setup.devices.first().map_or("none", |device| device.kind.as_str());
    let kind = builder.gpu_type(kind, Ratio::ONE);
    for node in setup.devices.chunk_by(|one, other| one.node == other.node) {
        let count = u32::try_from(node.len()).expect("devices are counted in u32");
        builder.node(count, kind, Memory::from_mib(memory >> 20));
    }
    builder.taking_every_job().build()
}
