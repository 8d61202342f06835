//! The live scheduler of one machine: the cycle that joins requests, the scheduler, its journal and a
//! back end; the interface over HTTP, the client of it, and the configuration of both.

pub mod api;
pub mod class;
pub mod client;
pub mod clock;
pub mod command;
pub mod config;
pub mod cycle;
pub mod daemon;
pub mod forecast;
#[doc(hidden)]
pub mod fuzzing;
pub mod history;
mod import;
pub mod job;
pub mod job_sockets;
pub mod journal;
pub mod limits;
pub mod machine;
pub mod mail;
pub mod meter;
mod output_tail;
pub mod people;
mod progress;
pub mod publish;
mod reasons;
pub mod relays;
pub mod request;
pub mod resume;
mod savings;
pub mod scheduler;
pub mod store;
pub mod time;
pub mod tls;
pub mod tokens;
pub mod users;
