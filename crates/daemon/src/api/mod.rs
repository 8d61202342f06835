//! The interface over HTTP.

pub mod types;
