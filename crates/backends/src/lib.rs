//! Who carries out what the scheduler decides. A back end takes operations and reports events; it
//! decides nothing. `local` runs processes of this machine on the devices that a provider knows
//! (`providers`); `slurm` lets Slurm run its own jobs where we say.

mod call;
pub mod crash;
mod event;
pub mod local;
mod offer;
mod op;
pub mod providers;
pub mod slurm;

pub use event::{BackendEvent, Exit, Found, RunSample, Sample, Status, Verdict};
pub use offer::{Capabilities, Known, Offer, shown};
pub use op::{Launch, Op, OpId, Owner, RunId, Seat};
pub use providers::{Device, DeviceSample, Enforcement, Foreign, Provider, ProviderError, Setting};

/// Takes operations, reports events through the sink it was made with.
///
/// What the machine shows is the truth: after a restart of the daemon `recover` comes first, and
/// operations whose outcome is not known are sent again under the same [`OpId`].
pub trait Backend: Send {
    /// The devices, by index. Fixed for the life of the back end.
    fn devices(&self) -> &[Device];

    /// What can be done with its runs. Fixed for the life of the back end.
    fn capabilities(&self) -> Capabilities;

    /// Devices that take no jobs at present, and why; what changes from here on is told. Asked for once,
    /// before `recover`, so that nobody is put there meanwhile.
    fn closed(&mut self) -> Vec<(u32, String)> {
        Vec::new()
    }

    /// Finds what became of runs that an earlier daemon had started or was about to start, and
    /// watches those that still run as if it had started them itself.
    fn recover(&mut self, jobs: &[Known]) -> Vec<(RunId, Found)>;

    /// Runs of which there are records that may have to be forgotten.
    fn records(&self) -> Vec<RunId> {
        Vec::new()
    }

    /// Begins an operation. Returns at once; the outcome is an event. Sent twice, it has one effect.
    fn apply(&mut self, id: OpId, op: Op);

    /// Forgets a run that is over and known to be: its records may be deleted.
    fn forget(&mut self, run: RunId);
}

/// Takes events of a back end, from any of its threads.
pub type Sink = Box<dyn Fn(BackendEvent) + Send + Sync>;
