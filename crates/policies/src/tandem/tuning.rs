//! Every number of `tandem` that was chosen by experiment.
//!
//! The effect of each, on seeds by which nothing was chosen, is in `docs/developers/tandem-tuning.md`;
//! `cargo run --release -p tandem-policies --example ablation` measures it again.

use crate::spec::{PolicyParam, Settings, Value};

macro_rules! tuning {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:literal;)+) => {
        /// The chosen numbers.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Tuning {
            $($(#[doc = $doc])+ pub(super) $name: $kind,)+
        }

        /// The chosen numbers as parameters.
        pub(super) const TUNING: &[PolicyParam] = &[$(PolicyParam {
            name: stringify!($name),
            default: Value::Whole($default),
            help: concat!($($doc),+),
        }),+];

        impl Tuning {
            pub(super) fn new(settings: &Settings) -> Self {
                // No number makes sense beyond a million, and below that nothing overflows.
                let whole = |name| settings.whole(name).min(1_000_000);
                Self { $($name: <$kind>::try_from(whole(stringify!($name))).expect("at most a million"),)+ }
            }
        }

        #[cfg(test)]
        impl Default for Tuning {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }
    };
}

impl Tuning {
    /// The time over which the sharing of a job with this restore time is judged.
    pub(super) fn horizon_ms(&self, restore_ms: i64) -> i64 {
        self.share_horizon_ms.max(restore_ms.saturating_mul(self.share_horizon_restores))
    }
}

tuning! {
    /// Milliseconds. Remaining times below this count as this: estimates are not more precise.
    remaining_min_ms: i64 = 1000;

    /// Quarters. A gang of g counts g^(n/4) times: it is harder to place again than a single job, and
    /// ordering by time per GPU makes large gangs wait longest.
    gang_exponent_quarters: u32 = 1;

    /// Percent. A job whose projected JCT is near the cluster's p99 gets up to this much more value: it
    /// can still be kept out of the tail.
    urgency_percent: i128 = 150;
    /// Percent of the p99 at which urgency begins; it ends one p99 later.
    urgency_from_percent: i128 = 50;

    /// Percent of g·n/P that a delay costs in addition to the job itself: n jobs wait for P GPUs, and a
    /// late gang of g delays them.
    queue_cost_percent: i64 = 100;

    /// Multiples of the restore time for which a restored job is neither moved nor separated from its
    /// co-located jobs: beliefs that swing would otherwise move it again and again. A job of more value
    /// may preempt it before, since that ends with the shortest job.
    settle_restores: u64 = 2;

    /// Milliseconds. The time over which sharing is judged: afterwards other GPUs fall free.
    share_horizon_ms: i64 = 600_000;
    /// Multiples of the restore time over which sharing is judged at least: otherwise no pair would pay
    /// for the restore with which it ends.
    share_horizon_restores: i64 = 4;
    /// Nodes that are searched for one job that shares with several hosts; the search goes round in
    /// larger partitions. Bounds the time of a review.
    mix_nodes_max: u32 = 128;
    /// Pending jobs that may share with several hosts in one review. Bounds the time of a review.
    mix_jobs_max: usize = 128;

    /// GPU-seconds that every user starts with in fair shares: smaller differences do not count.
    fairness_grace_gpu_s: u64 = 3600;
    /// The largest factor, up or down, of a user's fair share.
    fairness_factor_max: u64 = 16;
}
