//! The back end of a Slurm cluster. Slurm keeps the queue, starts, stops and accounts for jobs; Tandem decides
//! which GPU a job gets and when. Users keep `sbatch`.
//!
//! Our part of Slurm's job_submit plugin (`files/tandem.lua`) makes GPU jobs wait for a licence (`licence`) that is
//! reserved as long as the daemon lives (`gate`), and writes an `admin_comment`. Each step of the control loop
//! (`step`) lists jobs and nodes (`jobs`, `nodes`), compares them with the desired state (`reconcile`, which is
//! pure), and sends requests with Slurm's own programs (`commands`). Slurm is the truth: what a list shows is so.

mod admin_comment;
mod checks;
mod commands;
mod completions;
mod dependency;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod history;
mod jobs;
mod known_nodes;
mod licence;
mod nodes;
mod reconcile;
mod release;
mod setup;
mod site_conf;
mod step;
mod syntax;
#[cfg(test)]
mod testing;

pub use checks::{SetupCheck, check};
pub use commands::CallError;
pub use history::{gpus_of_nodes, history};
pub use nodes::NodeListError;
pub use release::{ReleaseReport, release_all};
pub use setup::{
    Setup, SetupError, SetupFile, SetupOptions, default_slurm_uid, detect, gres_lines, setup,
};
pub use site_conf::{SiteConfError, SiteEdit};

use crate::cluster::control_loop::{ControlLoop, HoldsJobs, retry};
use crate::event::BackendEvent;
use crate::op::{Op, OpId, RunId};
use crate::providers::Device;
use crate::recovery::{KnownJob, RecoveredRun};
use crate::{Backend, Capabilities, Sink};
use gate::Gate;
use jobs::JobList;
use nodes::NodeLister;
use reconcile::{ClusterGpu, Patience, Reconciler, ReconcilerOptions};
use std::path::PathBuf;
use std::time::Duration;
use step::{OtherJobs, Slurm};
use thiserror::Error;

/// The oldest version whose output we can read.
const VERSION_MIN: (u32, u32) = (22, 5);
/// From this version on a second `Gres=` of a job replaces the first.
const VERSION_GRES_REPLACES: (u32, u32, u32) = (23, 2, 7);

/// From this version on the plugin leaves the GPU request of jobs that may share in place.
const VERSION_SHARE_REPLACES: (u32, u32, u32) = (23, 11, 2);

const LOST: &str = "Slurm no longer lists it, and its completion log does not have it";

/// How a [`SlurmBackend`] works.
#[derive(Clone, Debug)]
pub struct SlurmOptions {
    /// The partition whose GPU jobs Tandem manages.
    pub partition: String,
    /// The most jobs on a GPU.
    pub tenants_max: u64,
    /// Memory of each GPU, which Slurm does not know.
    pub gpu_memory_bytes: u64,
    /// The longest time between two lists.
    pub poll_every: Duration,
    /// When the daemon has been away for this long, Slurm starts waiting jobs itself.
    pub reservation: Duration,
    /// A job that was given a place and has not begun by then loses it.
    pub start_within: Duration,
    /// After this many places that Slurm did not give, a job goes on as a plain Slurm job.
    pub tries_max: u32,
    /// A job may start before others whose Slurm priority is higher by up to this part.
    pub priority_window: f64,
    /// Where the order of the nodes is kept.
    pub known_nodes: PathBuf,
    /// Slurm's job completion log, if it has one.
    pub completions: Option<PathBuf>,
}

/// Why Slurm cannot be used.
#[derive(Debug, Error)]
pub enum SlurmError {
    /// A program of Slurm failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The nodes cannot be used.
    #[error(transparent)]
    Cluster(#[from] NodeListError),
    /// The list of jobs has an unknown format.
    #[error("squeue: its list of jobs cannot be read: {0}")]
    Unreadable(String),
    /// The order of the nodes cannot be read or kept.
    #[error("{}: {cause}; it numbers the GPUs of running jobs", file.display())]
    KnownNodes {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// Slurm is too old.
    #[error("Slurm {0}.{1:02} is too old; Tandem needs 22.05 or newer")]
    Old(u32, u32),
}

/// Places the jobs of a Slurm cluster.
pub struct SlurmBackend {
    options: SlurmOptions,
    control_loop: ControlLoop<Reconciler>,
    devices: Vec<Device>,
    gate: Option<Gate>,
}

impl SlurmBackend {
    /// Connects to Slurm, which has to answer. The sink is called from a thread of its own and must not call
    /// the back end. Slurm is not changed before [`Backend::recover`].
    pub fn new(options: SlurmOptions, sink: Sink) -> Result<Self, SlurmError> {
        let version = list_jobs(Some(&options.partition))?.version.unwrap_or_default();
        let (major, minor, _) = version;
        if (major, minor) < VERSION_MIN {
            return Err(SlurmError::Old(major, minor));
        }
        let nodes = nodes::gpu_nodes(nodes::list()?, &options.partition)?;
        let file = &options.known_nodes;
        let fails = |cause| SlurmError::KnownNodes { file: file.clone(), cause };
        let nodes = known_nodes::in_order(known_nodes::read(file).map_err(fails)?, nodes);
        known_nodes::write(file, &nodes).map_err(fails)?;
        let gres_update_replaces = version >= VERSION_GRES_REPLACES;
        let patience = Patience {
            start_within_s: options.start_within.as_secs().max(1),
            tries_max: options.tries_max.max(1),
        };
        let (tenants_max, priority_window) = (options.tenants_max, options.priority_window);
        let rules =
            ReconcilerOptions { tenants_max, gres_update_replaces, patience, priority_window };
        let reconciler = Reconciler::new(options.partition.clone(), nodes, rules);
        let device = |(index, gpu): (u32, &ClusterGpu)| {
            let node = reconciler.nodes()[gpu.node].name.clone();
            Device {
                index,
                name: format!("{node}:{}", gpu.gres_type),
                kind: "gpu".to_owned(),
                memory_bytes: options.gpu_memory_bytes,
                node,
            }
        };
        let devices = (0..).zip(&reconciler.gpus).map(device).collect();
        let gate = Some(Gate::new(options.reservation, version < VERSION_SHARE_REPLACES));
        Ok(Self { options, control_loop: ControlLoop::new(reconciler, sink), devices, gate })
    }
}

impl Backend for SlurmBackend {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CLUSTER
    }

    fn unavailable_devices(&mut self) -> Vec<(u32, String)> {
        let unavailable = |event| match event {
            BackendEvent::Device { device, unavailable } => Some((device, unavailable?)),
            _ => None,
        };
        self.control_loop.with(|reconciler| {
            let nodes = reconciler.nodes().to_vec();
            reconciler.update_nodes(&nodes).into_iter().filter_map(unavailable).collect()
        })
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        // Before the daemon says that it is ready: jobs submitted from then on wait for it.
        if let Some(gate) = &mut self.gate {
            gate.keep();
        }
        let list = retry::<Slurm, _>(|| list_jobs(Some(&self.options.partition)));
        let (mut recovered, missing) =
            self.control_loop.with(|reconciler| reconciler.recover(jobs, &list));
        recovered.extend(missing.into_iter().map(|missing| {
            let found = match completions::look_up(&self.options, &missing) {
                Some(exit) => RecoveredRun::Exited(exit),
                None => RecoveredRun::Lost { reason: LOST.to_owned() },
            };
            (missing.run, found)
        }));
        if let Some(gate) = self.gate.take() {
            let (node_list, other_jobs) = (NodeLister::default(), OtherJobs::default());
            let options = self.options.clone();
            self.control_loop.start(Slurm { options, gate, node_list, other_jobs, last: None });
        }
        recovered
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let run = op.run();
        let is_known = self.control_loop.change(|jobs| jobs.apply(id, op));
        if !is_known {
            // Its end was reported or will be.
            tracing::warn!("run {run} is not managed in Slurm");
        }
    }

    fn forget(&mut self, run: RunId) {
        self.control_loop.with(|reconciler| reconciler.jobs().forget(run));
    }
}

/// All jobs of a partition, ended ones included; without one, all jobs that have not ended. Versions before 24.05.1
/// list all jobs.
fn list_jobs(partition: Option<&str>) -> Result<JobList, SlurmError> {
    let of_partition = partition.map(|partition| ["-p", partition, "-t", "all"]);
    squeue(of_partition.iter().flatten().copied())
}

/// The jobs of all partitions that may have GPUs.
fn list_running_jobs() -> Result<JobList, SlurmError> {
    squeue(["-t", "running,suspended,configuring,completing"])
}

fn squeue<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<JobList, SlurmError> {
    let arguments: Vec<&str> = ["--json", "--all"].into_iter().chain(arguments).collect();
    let json = commands::output("squeue", &arguments)?;
    jobs::read(&json).map_err(SlurmError::Unreadable)
}
