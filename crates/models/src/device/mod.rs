//! Inside one GPU: how fast tenants run that divide it under caps, and which caps to give them.
//!
//! A tenant's budget is a cap on the SMs it may occupy. Budgets may add up to more than the GPU has;
//! tenants then compete. [`Operators`] evaluates a vector of budgets event by event from operator
//! traces, [`Summary`] in microseconds from a summary of them, and [`allocate()`] searches for budgets with
//! either, or with live measurements: all it needs is [`BudgetEvaluator`].

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
    Allocation, BudgetEvaluator, Effort, Goal, Measurement, Objective, Promise, Unallocated,
    allocate,
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

/// What is wrong with a GPU, its tenants or what is asked of them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// No such GPU.
    #[error("GPU '{name}' is not known; known are {known}")]
    UnknownGpu {
        /// The name.
        name: String,
        /// Those that are.
        known: String,
    },
    /// A number of SMs that no GPU has.
    #[error("a GPU of {sms} SMs cannot be divided; from {min} to {max} can")]
    Sms {
        /// The number.
        sms: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// Nothing to evaluate.
    #[error("there are no tenants")]
    NoTenants,
    /// More than are allowed.
    #[error("{count} tenants on one GPU; at most {limit} are possible")]
    TooManyTenants {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A tenant that does nothing.
    #[error("tenant {tenant} has no operators")]
    NoOperators {
        /// The tenant.
        tenant: String,
    },
    /// A number that cannot be.
    #[error(
        "tenant {tenant}: operator {operator}: durations are above 0 and at most an hour, SMs above 0 and at most 10⁹"
    )]
    Operator {
        /// The tenant.
        tenant: String,
        /// The operator, counted from zero.
        operator: usize,
    },
    /// Too much for the memory.
    #[error("{gpu} has {available}, but {tenants} and {context} of context each need {wanted}")]
    MemoryOver {
        /// The GPU.
        gpu: String,
        /// What they need.
        wanted: Memory,
        /// What it has.
        available: Memory,
        /// What each process takes by itself.
        context: Memory,
        /// The tenants.
        tenants: String,
    },
    /// Ten iterations of the slowest take too many operators of the fastest.
    #[error(
        "{slowest} and {fastest} are too unlike: ten iterations of the first take more than {limit} events"
    )]
    TooLong {
        /// The tenant with the fewest iterations.
        slowest: String,
        /// The one with the most.
        fastest: String,
        /// The limit.
        limit: u64,
    },
}
