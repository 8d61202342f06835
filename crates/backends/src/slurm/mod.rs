//! The back end of a Slurm cluster. Slurm keeps the queue, starts, stops and accounts for jobs; Tandem decides
//! which GPU a job gets and when. Users keep `sbatch`.
//!
//! Our part of Slurm's job_submit plugin (`files/tandem.lua`) holds GPU jobs and writes an `admin_comment`.
//! Each step of the control loop (`step`) lists jobs and nodes (`jobs`, `nodes`), compares them with the desired
//! state (`reconcile`, which is pure), and sends requests with Slurm's own programs (`commands`). Slurm is the
//! truth: what a list shows is so.

mod admin_comment;
mod checks;
mod commands;
mod completions;
mod dependency;
#[doc(hidden)]
pub mod fuzzing;
mod jobs;
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
use jobs::JobList;
use reconcile::{ClusterGpu, Reconciler};
use std::path::PathBuf;
use std::time::Duration;
use step::Slurm;
use thiserror::Error;

/// The oldest version whose output we can read.
const VERSION_MIN: (u32, u32) = (22, 5);
/// From this version on a second `Gres=` of a job replaces the first.
const VERSION_GRES_REPLACES: (u32, u32, u32) = (23, 2, 7);

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
    /// Time between two lists.
    pub poll_every: Duration,
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
    /// Slurm is too old.
    #[error("Slurm {0}.{1:02} is too old; Tandem needs 22.05 or newer")]
    Old(u32, u32),
}

/// Places the jobs of a Slurm cluster.
pub struct SlurmBackend {
    options: SlurmOptions,
    control_loop: ControlLoop<Reconciler>,
    devices: Vec<Device>,
}

impl SlurmBackend {
    /// Connects to Slurm, which has to answer. The sink is called from a thread of its own and must not call
    /// the back end. Slurm is not changed before [`Backend::recover`].
    pub fn new(options: SlurmOptions, sink: Sink) -> Result<Self, SlurmError> {
        let version = list_jobs()?.version.unwrap_or_default();
        let (major, minor, _) = version;
        if (major, minor) < VERSION_MIN {
            return Err(SlurmError::Old(major, minor));
        }
        let nodes = nodes::gpu_nodes(nodes::list()?, &options.partition)?;
        let replaces = version >= VERSION_GRES_REPLACES;
        let reconciler =
            Reconciler::new(options.partition.clone(), nodes, options.tenants_max, replaces);
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
        Ok(Self { options, control_loop: ControlLoop::new(reconciler, sink), devices })
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
        let list = retry::<Slurm, _>(list_jobs);
        let (mut recovered, missing) =
            self.control_loop.with(|reconciler| reconciler.recover(jobs, &list));
        recovered.extend(missing.into_iter().map(|missing| {
            let found = match completions::look_up(&self.options, &missing) {
                Some(exit) => RecoveredRun::Exited(exit),
                None => RecoveredRun::Lost { reason: LOST.to_owned() },
            };
            (missing.run, found)
        }));
        self.control_loop.start(Slurm { options: self.options.clone() });
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

fn list_jobs() -> Result<JobList, SlurmError> {
    let json = commands::output("squeue", &["--json", "--all"])?;
    jobs::read(&json).map_err(SlurmError::Unreadable)
}
