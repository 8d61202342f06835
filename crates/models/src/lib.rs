//! Models of jobs: memory, throughput, durations and interference. Pure; fitted from data that readers
//! elsewhere provide.

pub mod device;
pub mod errors;
pub mod expectation;
pub mod feedback;
pub mod history;
pub mod interference;
mod least_squares;
mod linalg;
pub mod memory;
pub mod network;
mod recent;
mod sub_batches;
pub mod throughput;

pub use sub_batches::sub_batches;
