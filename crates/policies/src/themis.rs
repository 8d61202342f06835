//! Themis (NSDI'20): finish-time fairness by auctions of leases.
//!
//! From the paper: ρ of a job is its finish time in the shared cluster over its finish time in a cluster of
//! its own with a 1/N part of the GPUs. GPUs are leased; when leases end, they are offered to the
//! 1 − f of the jobs that are worst off, and the winners maximise the product of the valuations
//! 1 / ρ (its partial allocation mechanism). What is left goes to the other jobs.
//!
//! Ours: every job is an app of its own with one gang, so a bid is all of its gang or nothing and the product
//! is maximised greedily by the logarithm of the improvement per GPU; the hidden payments of the mechanism,
//! which make bidders honest, are left out because bids are computed here. All leases end together, at
//! reviews. N is the number of jobs in the partition now. The other jobs are served by ρ instead of at random.

use crate::Entry;
use crate::kit::{
    KeyedPolicy, Queue, Reviews, interval, keyed, place_in_order, rank_all, remaining_ms,
    run_highest,
};
use crate::spec::{PolicyParam, Value};
use tandem_core::{Draft, Job, JobId, MICROS_PER_SECOND, PPM_ONE, Reason, Time};

const LEASE: PolicyParam = interval("lease_s", 1200);
const FAIRNESS: PolicyParam = PolicyParam {
    name: "fairness",
    default: Value::Share(800_000),
    help: "the part of the jobs, those that are best off, to which an auction offers nothing",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "themis",
    summary: "finish-time fairness: leases go to the jobs that are worst off; preempts at leases",
    params: &[LEASE, FAIRNESS],
    tuning: &[],
    tenants_max: 1,
    build: |settings| {
        keyed(Themis {
            leases: Reviews::every(settings.whole(LEASE.name)),
            fairness: f64::from(settings.share(FAIRNESS.name)) / f64::from(PPM_ONE),
        })
    },
};

struct Themis {
    leases: Reviews,
    fairness: f64,
}

/// A job's bid.
struct Bid {
    job: JobId,
    /// Finish-time fairness if it waits until the next auction.
    without: f64,
    /// The logarithm of the improvement by its gang, per GPU.
    improvement: f64,
}

/// The finish time of a job in the shared cluster over that in a part of its own, if it begins to run after
/// `wait_s`. Its own part is `gpus / jobs`, at least one GPU; with fewer GPUs than its gang it would take
/// proportionally longer.
fn finish_time_fairness(job: &Job, now: Time, wait_s: f64, own_part: f64) -> f64 {
    let elapsed_s = now.since(job.spec.submit).0 as f64 / MICROS_PER_SECOND as f64;
    let remaining_s = remaining_ms(job, now) as f64 / 1000.0;
    let total_s = remaining_s.max(job.spec.estimate.0 as f64 / MICROS_PER_SECOND as f64);
    let alone_s = total_s * (f64::from(job.spec.gpus) / own_part).max(1.0);
    (elapsed_s + wait_s + remaining_s) / alone_s
}

impl Themis {
    /// All jobs, the winners of the auction first, then the others by finish-time fairness.
    fn auction(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Vec<JobId> {
        let now = draft.now();
        let own_part = (f64::from(draft.up_count()) / jobs.len().max(1) as f64).max(1.0);
        let lease_s = self.leases.after(now).since(now).0 as f64 / MICROS_PER_SECOND as f64;
        let bid = |&job: &JobId| {
            let bidder = draft.job(job);
            let of = |wait_s| finish_time_fairness(bidder, now, wait_s, own_part);
            let (with, without) = (of(0.0), of(lease_s));
            let improvement = (without / with).ln() / f64::from(bidder.spec.gpus);
            Bid { job, without, improvement }
        };
        let mut bids: Vec<Bid> = jobs.iter().map(bid).collect();
        bids.sort_by(|one, other| {
            other.without.total_cmp(&one.without).then(one.job.cmp(&other.job))
        });
        let offered = ((1.0 - self.fairness) * bids.len() as f64).ceil() as usize;
        let offered = offered.clamp(1, bids.len().max(1)).min(bids.len());
        bids[..offered].sort_by(|one, other| {
            other.improvement.total_cmp(&one.improvement).then(one.job.cmp(&other.job))
        });
        bids.into_iter().map(|bid| bid.job).collect()
    }
}

impl KeyedPolicy for Themis {
    type Key = ();

    fn key(&self, _: &Job, _: Time) {}

    fn plan(&mut self, queue: &mut Queue<()>, draft: &mut Draft<'_>) {
        if queue.is_empty() {
            return;
        }
        if self.leases.begin(draft.now()) {
            let jobs = rank_all(queue, draft, |_, _| ());
            let ranked = self.auction(draft, &jobs);
            run_highest(draft, &ranked);
        } else {
            place_in_order(queue, draft, true);
        }
        draft.explain_others(Reason::Outranked);
        draft.wake_at(self.leases.after(draft.now()));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::simulate;

    #[test]
    fn a_lease_goes_to_the_job_that_is_worst_off() {
        // At 1200 s, with N = 2 on one GPU of a part of at least one: long has (1200 + 1200 + 8800) / 10,000
        // = 1.12 without the GPU, short has (1190 + 1200 + 600) / 600 = 4.98.
        let times = simulate("themis", "1x1", "long,0,1,10000,,\nshort,10,1,600,,\n");
        assert_eq!(times[1], (1200.0, 1800.0));
        assert_eq!(times[0], (0.0, 10_640.0));
    }

    #[test]
    fn between_leases_nobody_is_preempted_and_free_gpus_are_used() {
        let times = simulate("themis", "1x2", "a,0,1,5000,,\nb,5,1,100,,\nc,10,1,50,,\n");
        assert_eq!(times[1..], [(5.0, 105.0), (105.0, 155.0)]);
    }

    #[test]
    fn all_jobs_take_part_if_fairness_is_zero_and_small_gangs_improve_most_per_gpu() {
        // Both are pending at 1200 s; of equal jobs the gang of one gains more per GPU than that of two.
        let rows = "x,0,2,1300,,\nwide,1,2,1000,,\nthin,2,1,1000,,\n";
        let times = simulate("themis:fairness=0", "1x2", rows);
        assert_eq!(times[2].0, 1200.0, "{times:?}");
        assert!(times[1].0 > 1200.0, "{times:?}");
    }
}
