//! What jobs need, how fast they run and how they slow each other down: pure models, fitted from data
//! that comes in through readers at the edge.

pub mod device;
pub mod errors;
pub mod history;
pub mod interference;
mod least_squares;
mod linalg;
pub mod memory;
pub mod network;
mod sub_batches;
pub mod throughput;

pub use sub_batches::sub_batches;
