//! The scheduling policies, one file each, and the registry that lists them.
//!
//! To add a policy: write a file with an [`Entry`] and add one line to `registry.rs`. `compare`,
//! `--help` and the contract tests follow the registry.

mod fifo;
mod gshare;
mod hosts;
mod lucid;
mod pair;
mod queue;
mod ranked;
mod registry;
mod remaining;
mod reviews;
mod sharing;
mod sjf;
mod sjf_bsbf;
mod sjf_ffs;
mod spec;
mod srtf;
mod tandem;
mod tiresias;

pub use pair::{Finish, Side};
pub use registry::{Entry, REGISTRY};
pub use spec::{Param, PolicySpec, Settings, SpecError, Value};
