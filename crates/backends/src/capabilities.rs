//! What a back end can do.

/// What a back end can do with its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Why runs must not be paused; `None` if they may be.
    pub pause_forbidden: Option<String>,
    /// A paused run frees its devices, except for the memory it holds.
    pub pause_frees_device: bool,
    /// A run on several devices can share them.
    pub gangs_share: bool,
    /// A run can be preempted and continued on other devices.
    pub moves: bool,
    /// The back end measures the memory of runs.
    pub measures_memory: bool,
    /// Jobs come from a cluster, which keeps the queue, the time limits and the environment.
    pub keeps_queue: bool,
    /// The share of a device that a run may use is enforced, and can be changed while it runs.
    pub live_budgets: bool,
}

impl Capabilities {
    /// Local processes on devices of this machine.
    pub const LOCAL: Self = Self {
        pause_forbidden: None,
        pause_frees_device: true,
        gangs_share: true,
        moves: true,
        measures_memory: true,
        keeps_queue: false,
        live_budgets: false,
    };

    /// The least that a cluster can do. A suspended job keeps its GPUs in the accounting of the cluster, and
    /// their memory.
    pub const CLUSTER: Self = Self {
        pause_forbidden: None,
        pause_frees_device: false,
        gangs_share: false,
        moves: false,
        measures_memory: false,
        keeps_queue: true,
        live_budgets: false,
    };
}
