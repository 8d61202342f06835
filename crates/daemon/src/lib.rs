//! The live scheduler of one machine: the cycle that joins requests, the scheduler, its journal and a
//! back end; the interface over HTTP, and the client of it.

pub mod api;
pub mod class;
pub mod clock;
pub mod command;
mod crash;
pub mod cycle;
pub mod daemon;
pub mod forecast;
pub mod job;
pub mod journal;
pub mod links;
pub mod meter;
pub mod publish;
pub mod request;
pub mod scheduler;
pub mod store;
pub mod time;
