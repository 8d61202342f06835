//! Every number of `tandem` that was chosen by experiment.
//!
//! The effect of each, on seeds by which nothing was chosen, is in `docs/developers/tuning.md`;
//! `cargo run --release -p tandem-policies --example ablation` measures it again.

use crate::spec::{Param, Settings, Value};

macro_rules! tuning {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:literal;)+) => {
        /// The chosen numbers.
        #[derive(Clone, Copy, Debug)]
        pub(super) struct Tuning {
            $($(#[doc = $doc])+ pub(super) $name: $kind,)+
        }

        /// The chosen numbers as parameters.
        pub(super) const TUNING: &[Param] = &[$(Param {
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

tuning! {
    /// Milliseconds. Remaining times below this count as this: estimates are not more precise.
    remaining_min_ms: i64 = 1000;

    /// Quarters. A gang of g counts g^(n/4) times: it is harder to place again than a single job, and
    /// ordering by time per GPU makes large gangs wait longest.
    gang_exponent_quarters: u32 = 1;
    /// Percent. A gang of g of the partition's P GPUs counts 1 + n/100 · g/P times, so that a gang that
    /// needs most of its partition finds room at all.
    gang_share_percent: i128 = 50;
    /// Percent, in addition to `gang_share_percent`, as far as longer jobs ask for the whole partition:
    /// they and those that follow them would keep the gang waiting.
    gang_crowd_percent: i128 = 100;
    /// Multiples of the partition. `gang_crowd_percent` fades where all jobs ask for more GPUs than this:
    /// in a deep queue other jobs make better use of them.
    gang_deep_queue_times: i128 = 2;
    /// Percent of what g^¼ adds that is taken back where only a few narrow jobs are left: the gang waits
    /// for them alone.
    gang_idle_percent: i128 = 50;
    /// Narrow jobs are few if they ask for less than one in this many GPUs of the partition.
    gang_few_part: i128 = 5;
    /// Only gangs of at least one in this many GPUs of the partition get more than g^(n/4).
    gang_large_part: u64 = 16;

    /// Percent. A job whose projected JCT is near the cluster's p99 gets up to this much more value: it
    /// can still be kept out of the tail.
    urgency_percent: i128 = 150;
    /// Percent of the p99 at which urgency begins; it ends one p99 later.
    urgency_from_percent: i128 = 50;
    /// 1: the JCTs of all partitions count for mean and p99; 0: those of the job's own partition.
    cluster_history: u64 = 1;
    /// Thousandths of its weight that a delay by co-located jobs costs a job more, at most: hosts are
    /// the jobs with the longest remaining time, and sharing must not lengthen the tail.
    tail_cost_permille: i128 = 375;
    /// Multiples of the mean JCT. A job whose projected JCT is this many means has half of that cost.
    tail_cost_half_at: i128 = 3;

    /// Percent of g·n/P that a delay costs in addition to the job itself: n jobs wait for P GPUs, and a
    /// late gang of g delays them.
    queue_cost_percent: i64 = 100;

    /// Multiples of the restore time for which a restored job keeps its GPUs. It bounds thrashing: every
    /// job makes progress whatever later reviews decide.
    settle_restores: u64 = 2;
    /// Percent by which the value of newcomers must exceed the value of the jobs that they preempt.
    preempt_margin_percent: i128 = 10;
    /// Nodes that are cleared beyond those that a gang needs, if that is cheaper: short jobs on many
    /// nodes then move together.
    spare_nodes: usize = 2;
    /// Pending jobs that are considered for the GPUs that a preemption leaves over.
    followers_max: usize = 64;
    /// Nodes that are compared in detail for a preemption, those where least value is lost.
    nodes_compared: usize = 4;

    /// Milliseconds. The time over which sharing is judged: afterwards other GPUs fall free.
    share_horizon_ms: i64 = 600_000;
    /// Percent that the cost of sharing counts more than its gain: rates are beliefs, and ending a pair
    /// costs a restore.
    share_margin_percent: i64 = 10;
    /// Pending jobs of each gang size in one matching. Bounds the time of a review.
    match_jobs_max: usize = 64;
    /// Hosts of each gang size in one matching. Bounds the time of a review.
    match_hosts_max: usize = 1024;
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
