//! Trace-driven simulation: the event loop, the simulated world with the true durations and rates, trace
//! readers, faults, metrics and the report. The scheduler in it is the engine of `tandem-core`, unchanged.

mod bound;
pub mod clusters;
mod compare;
mod decimal;
mod driven_world;
mod driver;
mod estimates;
mod faults;
pub mod forecast;
#[doc(hidden)]
pub mod fuzzing;
pub mod interference;
mod links;
mod metrics;
mod observer;
mod one_line;
pub mod optimal;
mod outputs;
pub mod profiles;
mod record;
pub mod regimes;
pub mod report;
mod run;
pub mod shares;
mod sheet;
mod timing;
pub mod trace;
mod workload;
mod world;

pub use bound::LowerBound;
pub use compare::compare;
pub use decimal::parse_scaled;
pub use driven_world::DrivenWorld;
pub use driver::TimedActions;
pub use estimates::EstimateErrors;
pub use faults::FaultOptions;
pub use links::Network;
pub use metrics::{Metrics, Timing};
pub use outputs::{SimResults, write_jobs_csv};
pub use record::{QueueSample, RunHistory, Stay};
pub use run::{RunError, RunOptions, SimRun, run};
pub use timing::thread_cpu_ns;
pub use workload::{Estimates, LoadFactor, Workload, WorkloadJob, WorkloadOptions, assign_classes};
pub use world::{JobOutcome, WorldOptions};
