//! How much jobs slow each other down: predicted from solo profiles, learned from what is observed.
//!
//! - [`profile`]: what is known about a class of jobs when it runs alone.
//! - `gaussian`: a Gaussian process over ordered pairs of classes.
//! - `held_out`: what errors on rates that were not shown have in common.
//! - [`offline`]: the predictor, fitted to measured pairs.
//! - [`online`]: beliefs that start from the predictor and follow what is observed.
//! - `beliefs`: the same as the planning engine asks for it.
//! - `co_tenants`: what a rate beside several co-tenants says about each pair.
//! - `next_experiments`: which pairs to measure next.
//! - [`evaluate`]: how good both are on pairs that they have not seen.

mod beliefs;
mod co_tenants;
pub mod evaluate;
mod gaussian;
mod held_out;
mod next_experiments;
pub mod offline;
pub mod online;
pub mod profile;

pub use beliefs::{Beliefs, CLASSES_MAX, Optimism};
pub use co_tenants::{CoTenants, PairObservation};
pub use next_experiments::NextExperiments;
pub use offline::{FitError, Offline, Prediction};
pub use online::{Belief, Online};
pub use profile::{ClassProfile, MeasuredPair};

/// Rates that a prediction may take: a pair that runs makes progress, and sharing may help a little.
pub const RATE_MIN: f64 = 0.01;
/// The largest rate that a prediction may take.
pub const RATE_MAX: f64 = 1.5;
/// A measured rate beyond this, or below its negative, is a mistake, and must not drown the others.
const MEASURED_MAX: f64 = 10.0;
