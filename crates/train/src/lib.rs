//! The sample job of the demo and the tests: trains a small model on generated data, on one core.
//!
//! It is an honest training job. It speaks the job protocol, computes its batches in as many parts as it is
//! told with the result unchanged, saves checkpoints, and continues from them bit by bit.

mod args;
mod checkpoint;
mod data;
mod error;
mod losses;
mod model;
mod optimiser;
mod report;
mod run;

pub use args::{ModelKind, TrainArgs};
pub use error::TrainError;
pub use run::{Trained, run};
