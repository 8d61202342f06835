//! Tesserae (arXiv 2508.04953): graph matching for packing and for migration, in rounds.
//!
//! From the paper: a scheduling policy orders the jobs (here least attained service, its Tesserae-T); the
//! first of them that the GPUs can hold get GPUs of their own; a maximum-weight bipartite matching packs
//! pending jobs onto placed ones of equal gang size, by the sum of their normalised throughputs; then the plan
//! is mapped onto the GPUs so that as few jobs as possible migrate.
//!
//! Ours: migration is avoided by letting every job that goes on keep its GPUs and by moving others only if a
//! gang finds no room; the paper solves an assignment between the nodes of two rounds for the same purpose.
//! Attained service counts in powers of two of GPU-seconds, so that jobs that have attained about the same do
//! not displace each other in every round. Between rounds pending jobs only take free GPUs.

use crate::Entry;
use crate::kit::{
    KeyedPolicy, PairRates, PairRule, Queue, Reviews, interval, keyed, preempt_and_share,
};
use crate::spec::PolicyParam;
use tandem_core::{Draft, Job, MICROS_PER_SECOND, PPM_ONE, Time};

const INTERVAL: PolicyParam = interval("interval_s", 360);

pub(crate) const ENTRY: Entry = Entry {
    name: "tesserae",
    summary: "least attained service in rounds, packed by matching of summed throughputs",
    params: &[INTERVAL],
    tuning: &[],
    tenants_max: 2,
    build: |settings| keyed(Tesserae { rounds: Reviews::every(settings.whole(INTERVAL.name)) }),
};

struct Tesserae {
    rounds: Reviews,
}

fn level(job: &Job, now: Time) -> u32 {
    let gpu_seconds = job.attained(now).0 / MICROS_PER_SECOND;
    gpu_seconds.checked_ilog2().map_or(0, |power| power + 1)
}

impl KeyedPolicy for Tesserae {
    type Key = u32;

    fn key(&self, job: &Job, now: Time) -> u32 {
        level(job, now)
    }

    fn plan(&mut self, queue: &mut Queue<u32>, draft: &mut Draft<'_>) {
        if queue.is_empty() && draft.occupancy().none_shared() {
            return;
        }
        let is_round = self.rounds.begin(draft.now());
        preempt_and_share(queue, draft, is_round, &mut SummedThroughput);
        draft.wake_at(self.rounds.after(draft.now()));
    }
}

/// A pair does more work than one job, and the matching prefers the pairs that do the most.
struct SummedThroughput;

impl PairRule for SummedThroughput {
    type Rank = u32;

    fn rank(&self, draft: &Draft<'_>, job: &Job) -> u32 {
        level(job, draft.now())
    }

    fn gain(&self, _: &Draft<'_>, _: &Job, _: &Job, rates: PairRates) -> Option<i64> {
        self.keeps(rates).then(|| i64::from(rates.sum().0))
    }

    fn keeps(&self, rates: PairRates) -> bool {
        rates.sum().0 > PPM_ONE
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::simulate;

    #[test]
    fn the_matching_takes_the_pair_with_the_higher_sum() {
        // c at 20 % fits beside the 80 % job at full speed, beside the 90 % job it does not.
        let rows = "a,0,1,1000,90,\nb,0,1,1000,80,\nc,0,1,500,20,\n";
        let times = simulate("tesserae", "1x2", rows);
        assert_eq!(times, [(0.0, 1000.0), (0.0, 1000.0), (0.0, 500.0)]);
    }

    #[test]
    fn a_pair_that_does_not_add_throughput_is_not_formed() {
        let times = simulate("tesserae", "1x1", "a,0,1,100,100,\nb,0,1,100,100,\n");
        assert_eq!(times, [(0.0, 100.0), (100.0, 200.0)]);
    }

    #[test]
    fn the_job_with_the_least_attained_service_runs_in_the_next_round() {
        let times = simulate("tesserae", "1x1", "old,0,1,2000,100,\nnew,10,1,100,100,\n");
        // The round at 360 s preempts the old job, which pays the restore of 40 s.
        assert_eq!(times, [(0.0, 2140.0), (360.0, 460.0)]);
    }
}
