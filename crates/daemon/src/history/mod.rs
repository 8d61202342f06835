//! What happened: placements over time, and series of jobs and devices. Nothing is decided by it, so that it
//! is bounded, and lost where keeping it would cost more than it tells.

mod placements;
mod series;

pub use placements::{PlacementLog, PlacementRecord};
pub use series::{DeviceColumns, JobColumns, MachineColumns, SCALARS_MAX, Samples, Scalars};

/// What the cycle notes as it goes.
#[derive(Default)]
pub struct History {
    /// Which job ran where, beside which others and how fast.
    pub placements: PlacementLog,
    /// How jobs and devices did.
    pub samples: Samples,
}
