//! Measurements of jobs that run alone, as the models take them: speed, utilisation and memory per
//! class, and step times per placement and batch size. What they mean is the models' business.

mod lucid_solo;
mod sheet;

pub use lucid_solo::{SoloProfile, SoloProfiles};
