//! The live scheduler of one machine: the cycle that joins requests, the scheduler, its journal and a
//! back end; the interface over HTTP, and the client of it.

pub mod api;
pub mod class;
pub mod client;
pub mod config;
pub mod job;
pub mod request;
pub mod users;
