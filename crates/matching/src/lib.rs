//! Integer matching: minimum-cost assignment of rows to columns, and maximum-weight matching on
//! general graphs. Every optimum comes with dual values that prove it.
//!
//! Pure: the same input gives the same output, and nothing is read, timed or spawned.

mod assign;
mod certificate;
mod costs;
mod general;
pub mod instance;

pub use assign::{AssignOptions, AssignOutcome, Assignment, Duals, Matrix, assign, assign_with};
pub use certificate::{Violation, certify};
pub use costs::{Cell, CostError, Dense, FORBIDDEN, LIMIT, Sparse};
pub use general::{
    Blossom, Graph, GraphError, Matching, MatchingViolation, PairCount, certify_matching,
    maximum_weight_matching,
};
