//! History for dashboards: placements over time, and series of jobs and devices. No decision depends on it. It
//! is bounded; series are in memory and start empty with the daemon.

mod placements;
mod scalars;
mod series;

pub use placements::{PlacedJob, PlacementLog, PlacementRecord};
pub use scalars::{Scalars, scalars_of};
pub use series::{DeviceColumns, JobColumns, MachineColumns, Samples};

/// The recorded history.
#[derive(Default)]
pub struct History {
    /// Which job ran where, beside which others and how fast.
    pub placements: PlacementLog,
    /// Series of jobs and devices.
    pub samples: Samples,
}
