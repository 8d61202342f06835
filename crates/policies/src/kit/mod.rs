//! The steps that policies are made of.
//!
//! A policy states a key ([`KeyedPolicy`]) and the kit keeps the queue. A plan is then a few calls:
//!
//! | step | what it does |
//! |---|---|
//! | [`place_in_order`], [`backfill`] | give whole GPUs to pending jobs in the order of their keys |
//! | [`run_highest`] | preempt lower-ranked jobs so that the highest-ranked ones run |
//! | [`ScatterSharing`] | let gangs use free GPUs together with GPUs of several tenants |
//! | [`preempt_and_share`] | preempt at reviews, then pair pending jobs with tenants by matching |
//! | [`repair`] | match the pairs that stand anew, on a general graph |
//! | [`place_groups`] | place groups of several jobs, with as few moves as it finds |
//! | [`Reviews`] | preempt only at fixed intervals |
//! | [`Hosts`], [`PairCandidates`] | find the tenants that can take a co-located job |
//!
//! `docs/developers/add-a-policy.md` walks through an example.

mod finish;
mod groups;
mod hosts;
mod keyed;
mod pairing;
mod placement;
mod preempt_and_share;
mod preemption;
mod queue;
mod remaining;
mod repair;
mod reviews;
mod scatter;

pub use finish::{Finish, Side};
pub use groups::{Group, group_rates, movable_jobs, place_groups};
pub use hosts::{Host, Hosts, hosts_by_size};
pub use keyed::{KeyedPolicy, keyed};
pub use pairing::{PairCandidates, PairLimits, PairOffer, PairRates, partner, sub_batches_on};
pub use placement::{BACKFILL, backfill, place_in_order, place_ranked};
pub use preempt_and_share::{PairRule, preempt_and_share};
pub use preemption::{admit_highest, evicted_jobs, rank_all, run_highest};
pub use queue::{Next, Queue};
pub use remaining::{HORIZON_MS, remaining_ms, restore_ms};
pub use repair::{RepairRule, part_onto_free_gpus, repair};
pub use reviews::{Reviews, interval};
pub use scatter::{ACCUMULATE, CONSOLIDATE, ChooseHosts, ScatterSharing, Slot};
