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
}
