//! The pure core of Tandem: jobs, clusters, plans, the rate law, and the engine that turns events into
//! actions. No I/O, no clock, no threads: simulation and live scheduling run the same code.

mod action;
mod bitset;
mod budget;
mod check;
mod cluster;
mod diff;
mod draft;
mod engine;
mod event;
mod gate;
mod gpus;
mod interference;
mod job;
mod job_map;
mod occupancy;
mod plan;
mod policy;
mod rate;
mod shares;
mod state;
mod sub_batch;
mod units;

pub use action::Action;
pub use budget::{BudgetMode, Budgets, Promise, promise_in_the_way};
pub use check::Illegal;
pub use cluster::{
    Cluster, ClusterBuilder, Gpu, GpuId, GpuType, GpuTypeId, Node, NodeId, Partition, PartitionId,
};
pub use draft::Draft;
pub use engine::{Engine, OnIllegal, Step};
pub use event::Event;
pub use gpus::Gpus;
pub use interference::{ClassTraits, ClosedForm, Interference, Learner, Observation};
pub use job::{
    ClassId, Job, JobDescription, JobId, JobSpec, PRIORITY_MAX, Profile, Progress, Reason,
    SchedulingState, Tolerance, UserId,
};
pub use job_map::JobMap;
pub use occupancy::{Occupancy, PlacementRule, Tenants, only_tenant};
pub use plan::{BUDGET_MIN, Placement};
pub use policy::Policy;
pub use rate::{
    GangGpu, HalfIfUnfit, Tenant, cap_for_rate, gang_rate, rate_behind, rate_on_gpu, rate_under_cap,
};
pub use shares::{
    Account, AccountId, FairShare, JobShare, Limit, LimitOf, Limits, Reservation, Shares, UserShare,
};
pub use state::{ClusterState, Rules};
pub use sub_batch::{SubBatch, SubBatches};
pub use units::{MICROS_PER_SECOND, Memory, PPM_ONE, Ppm, Ratio, Span, Time, Utilisation, Work};
