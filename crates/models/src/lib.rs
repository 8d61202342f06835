//! What jobs need, how fast they run and how they slow each other down: pure models, fitted from data
//! that comes in through readers at the edge.

pub mod interference;
mod linalg;
