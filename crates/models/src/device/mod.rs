//! A model of one GPU from inside: the speeds of tenants that share it under caps, and the search for caps.
//!
//! A tenant's budget is a cap on the SMs that it may occupy. Budgets may add up to more than the GPU; then
//! tenants compete. [`Operators`] evaluates budgets event by event from operator traces, [`Summary`] does so
//! in microseconds from a summary of them, and [`allocate()`] searches for budgets with either, or with live
//! measurements: all it needs is a [`BudgetEvaluator`].

mod allocate;
mod batch;
mod decide;
mod duty;
mod evaluate;
mod gpu;
mod modes;
mod race;
mod requests;
mod run;
mod summary;
mod tenant;

pub use allocate::{
    BudgetAllocation, BudgetEvaluator, Effort, Goal, Guarantee, Measurement, Objective,
    Unallocated, allocate,
};
pub use decide::{Decision, decide};
pub use duty::{DutyLaw, DutyPoint, DutyShares};
pub use evaluate::{DeviceSharing, Operators, SmSegment};
pub use gpu::{Constants, DeviceGpu, SmScheduler};
pub use modes::{Mode, ModeResult, SHARING_PAYS_FROM, compare, is_budget, pays, thorough};
pub use summary::Summary;
pub use tenant::{
    BATCH_MAX, DeviceTenant, NS_MAX, Operator, OperatorKind, Requests, SMS_WANTED_MAX, check_memory,
};

use tandem_core::Memory;
use thiserror::Error;

/// Invalid input of the device model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The GPU is unknown.
    #[error("unknown GPU '{name}'; known are {known}")]
    UnknownGpu {
        /// The name.
        name: String,
        /// The known GPUs.
        known: String,
    },
    /// The number of SMs is out of range.
    #[error("a GPU of {sms} SMs is out of range; the range is {min} to {max}")]
    Sms {
        /// The number.
        sms: u32,
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// There are no tenants.
    #[error("there are no tenants")]
    NoTenants,
    /// There are too many tenants.
    #[error("{count} tenants on one GPU; at most {limit} are supported")]
    TooManyTenants {
        /// Their number.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A tenant has no operators.
    #[error("tenant {tenant} has no operators")]
    NoOperators {
        /// The tenant.
        tenant: String,
    },
    /// A number of an operator is out of range.
    #[error(
        "tenant {tenant}: operator {operator}: durations are above 0 and at most an hour, SMs above 0 and at most 10⁹"
    )]
    Operator {
        /// The tenant.
        tenant: String,
        /// The operator, from zero.
        operator: usize,
    },
    /// The tenants do not fit into memory.
    #[error("{gpu} has {available}, but {tenants} and {context} of context each need {wanted}")]
    MemoryOver {
        /// The GPU.
        gpu: String,
        /// The memory that they need.
        wanted: Memory,
        /// The memory of the GPU.
        available: Memory,
        /// The context of each process.
        context: Memory,
        /// The tenants.
        tenants: String,
    },
    /// Ten iterations of the slowest tenant take too many operators of the fastest.
    #[error(
        "{slowest} and {fastest} are too unlike: ten iterations of the first take more than {limit} events"
    )]
    TooLong {
        /// The tenant with the fewest iterations.
        slowest: String,
        /// The tenant with the most iterations.
        fastest: String,
        /// The limit.
        limit: u64,
    },
}
