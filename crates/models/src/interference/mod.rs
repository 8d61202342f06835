//! Interference between co-located jobs: predicted from solo profiles, learned from observations.
//!
//! - [`profile`]: solo profiles of classes.
//! - `gaussian`: a Gaussian process over ordered pairs of classes.
//! - `held_out`: the structure of errors on held-out rates.
//! - [`offline`]: the predictor, fitted to measured pairs.
//! - [`online`]: beliefs that start from the predictor and follow observations.
//! - `beliefs`: the same as an interference model of the planning engine.
//! - `co_tenants`: what a rate beside several co-tenants says about each pair.
//! - `next_experiments`: which pairs to measure next.
//! - [`evaluate`]: errors of both on held-out pairs.

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

/// The smallest predicted rate: a running pair makes progress.
pub const RATE_MIN: f64 = 0.01;
/// The largest predicted rate: sharing may help a little.
pub const RATE_MAX: f64 = 1.5;
/// A measured rate beyond this, or below its negative, is an error and must not outweigh the others.
const MEASURED_MAX: f64 = 10.0;
