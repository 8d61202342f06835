//! Trace-driven simulation: the event loop, the world that knows the truth, trace readers, faults,
//! metrics and the report. The scheduler in it is the engine of `tandem-core`, unchanged.

mod bound;
pub mod clusters;
mod compare;
mod decimal;
mod driver;
mod estimates;
mod faults;
pub mod forecast;
mod imitation;
pub mod interference;
mod links;
mod metrics;
mod observer;
mod one_line;
mod outputs;
pub mod profiles;
mod record;
pub mod report;
mod run;
mod sheet;
mod timing;
pub mod trace;
mod workload;
mod world;

pub use bound::LowerBound;
pub use compare::compare;
pub use decimal::parse_scaled;
pub use driver::Acts;
pub use estimates::EstimateErrors;
pub use faults::FaultOptions;
pub use imitation::Imitation;
pub use links::Network;
pub use metrics::{Metrics, Timing};
pub use outputs::{Results, write_jobs_csv};
pub use record::{Record, Sample, Stay};
pub use run::{Run, RunError, RunOptions, run};
pub use timing::thread_cpu_ns;
pub use workload::{Estimates, Load, Workload, WorkloadJob, WorkloadOptions, assign_classes};
pub use world::{Outcome, WorldOptions};
