//! Back ends carry out what the scheduler decides. A back end takes operations and reports events; it
//! makes no scheduling decision itself.
//!
//! - `local` runs processes on this machine, on the devices of a provider (`providers`).
//! - `slurm` places the jobs of a Slurm cluster.
//! - `kubernetes` places the pods of a Kubernetes cluster, behind a feature of that name.
//! - `cluster` and `relay` hold what every back end of a cluster needs: the jobs that it imports, the state
//!   that each of them should be in, and the connection from a job on a node to the daemon.

mod capabilities;
mod cluster;
pub mod crash;
mod event;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod local;
mod op;
mod program;
pub mod providers;
mod recovery;
pub mod relay;
pub mod slurm;

pub use capabilities::Capabilities;
pub use cluster::{ClusterJob, short_id};
pub use event::{BackendEvent, Exit, ExitCause, ExitStatus, RunHandle, RunSample, UsageSample};
pub use op::{DeviceAllocation, Launch, Op, OpId, Owner, ProcessLimits, RunId};
pub use providers::{
    Device, DeviceSample, Enforcement, Foreign, ProcessSetup, Provider, ProviderError,
};
pub use recovery::{KnownJob, RecoveredRun};

/// Takes operations and reports events through the sink that it was made with.
///
/// The machine or the cluster is the truth. After a restart of the daemon `recover` comes first. Then the
/// daemon sends operations whose result it does not know again, under the same [`OpId`].
pub trait Backend: Send {
    /// The devices, by index. Fixed for the life of the back end.
    fn devices(&self) -> &[Device];

    /// What the back end can do with its runs. Fixed for the life of the back end.
    fn capabilities(&self) -> Capabilities;

    /// Devices that accept no jobs at present, with the reason. Later changes are events. Called once,
    /// before `recover`, so that no job is placed on such a device in between.
    fn unavailable_devices(&mut self) -> Vec<(u32, String)> {
        Vec::new()
    }

    /// Finds out what happened to runs that an earlier daemon had started or was about to start. Those that
    /// still run are watched from here on as if this daemon had started them.
    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)>;

    /// Runs that have records on disk, which may have to be forgotten.
    fn records(&self) -> Vec<RunId> {
        Vec::new()
    }

    /// The devices of a run by its records, if its process lives.
    fn live_devices(&self, _run: RunId) -> Option<Vec<u32>> {
        None
    }

    /// Holds the devices of a run that belongs to no job, until its process has ended: they are unavailable till
    /// an event says otherwise. Gives them with the reason; none if nothing of the run lives. Called after
    /// `recover`.
    fn hold(&mut self, _run: RunId) -> Vec<(u32, String)> {
        Vec::new()
    }

    /// Begins an operation. Returns at once; the result is an event. Idempotent: an operation that is sent
    /// twice has one effect.
    fn apply(&mut self, id: OpId, op: Op);

    /// Forgets a run whose end the daemon has recorded: its records may be deleted.
    fn forget(&mut self, run: RunId);
}

/// Takes the events of a back end, from any of its threads.
pub type Sink = Box<dyn Fn(BackendEvent) + Send + Sync>;
