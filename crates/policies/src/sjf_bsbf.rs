//! SJF-BSBF (Luo et al., IWQoS 2024), best sharing benefit first: shortest job first. A job that finds
//! no whole GPUs takes the free ones and shares GPUs of the hosts with which sharing now is better than
//! waiting for them to end.

use crate::Entry;
use crate::kit::{
    ACCUMULATE, CONSOLIDATE, ChooseHosts, Finish, Host, Hosts, ScatterSharing, Slot, keyed,
};
use crate::spec::{PolicyParam, Value};
use std::cmp::Reverse;
use tandem_core::{Draft, Job, Work};

const ORDER: PolicyParam = PolicyParam {
    name: "order",
    default: Value::Choice { word: "tcon", of: &["tcon", "benefit"] },
    help: "hosts by mean finish time of the pair, or by what sharing gains over waiting",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-bsbf",
    summary: "shortest job first, sharing with hosts where that beats waiting for them",
    params: &[ACCUMULATE, ORDER, CONSOLIDATE],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        let choose = BestBenefit {
            accumulate: settings.flag(ACCUMULATE.name),
            by_benefit: settings.choice(ORDER.name) == "benefit",
            offers: Vec::new(),
        };
        keyed(ScatterSharing::new(choose, settings))
    },
};

struct BestBenefit {
    accumulate: bool,
    by_benefit: bool,
    /// Offers with the positions of their hosts; kept for its allocation.
    offers: Vec<(Offer, usize)>,
}

/// A host with which sharing pays.
#[derive(Clone, Copy)]
struct Offer {
    /// Mean finish time of the two.
    together: Finish,
    /// Its advantage over waiting for the host to end.
    benefit: Finish,
    /// The number of sub-batches that the pending job runs in.
    sub_batches: u32,
}

impl BestBenefit {
    /// The best offer to share with `host`, if sharing beats waiting; equality is not sharing.
    fn offer(
        &self,
        draft: &Draft<'_>,
        job: &Job,
        twice_remaining: Work,
        host: &Host,
    ) -> Option<Offer> {
        let mut options = host.sub_batch_options(draft, job, self.accumulate).peekable();
        options.peek()?;
        let (own_rate, host_rate) = host.rates(draft, job)?;
        let (together, sub_batches) = options
            .map(|option| {
                let pending = (twice_remaining.times(option.slowdown), own_rate);
                (Finish::together(pending, (host.twice_remaining, host_rate)), option.count)
            })
            .min()?;
        let in_turn = Finish::in_turn(twice_remaining, host.twice_remaining);
        (together < in_turn).then(|| Offer {
            together,
            benefit: in_turn.since(together),
            sub_batches,
        })
    }
}

impl ChooseHosts for BestBenefit {
    fn choose(&mut self, draft: &Draft<'_>, job: &Job, hosts: &Hosts, slots: &mut Vec<Slot>) {
        let twice_remaining = job.twice_remaining(draft.now());
        let mut found = slots.len();
        self.offers.clear();
        for (index, host) in hosts.all().iter().enumerate() {
            if let Some(offer) = self.offer(draft, job, twice_remaining, host) {
                self.offers.push((offer, index));
                found += host.gpu_count();
            }
        }
        if found < job.spec.gpus as usize {
            return;
        }
        // The sort is stable and hosts are in order of submission, which breaks ties.
        if self.by_benefit {
            self.offers.sort_by_key(|(offer, _)| Reverse(offer.benefit));
        } else {
            self.offers.sort_by_key(|(offer, _)| offer.together);
        }
        for &(Offer { sub_batches, .. }, index) in &self.offers {
            let gpus = hosts.gpus(&hosts.all()[index]);
            slots.extend(gpus.map(|gpu| Slot { gpu, sub_batches }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Finish;
    use crate::testing::{run, times, workload};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use tandem_core::{
        GpuTypeId, Interference, Memory, Ppm, Profile, Ratio, SubBatch, SubBatches, Work,
    };
    use tandem_policies::PolicySpec;
    use tandem_sim::{RunOptions, Workload};

    fn jobs(rows: &str, cluster: &str) -> Workload {
        workload(cluster, "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib", rows)
    }

    #[test]
    fn bsbf_shares_where_that_beats_waiting_and_ffs_wherever_it_fits() {
        // 80 % + 80 %: both run at 0.625. Beside the host the 10 s of the other take 16 s; after it, 90 + 10.
        let pays = jobs("a,0,1,100,80,\nb,10,1,10,80,\n", "1x1");
        assert_eq!(times(&run(&pays, "sjf-bsbf")), [(0.0, 106.0), (10.0, 26.0)]);
        // Two of equal length at half speed finish together, twice as late: waiting is better.
        let does_not = jobs("a,0,1,100,100,\nb,0,1,100,100,\n", "1x1");
        assert_eq!(times(&run(&does_not, "sjf-bsbf")), [(0.0, 100.0), (100.0, 200.0)]);
        assert_eq!(times(&run(&does_not, "sjf-ffs")), [(0.0, 200.0), (0.0, 200.0)]);
    }

    #[test]
    fn a_gang_uses_free_gpus_and_gpus_of_several_tenants() {
        // Three GPUs: one free, two with a tenant; a gang of three shares with both.
        let rows = "a,0,1,100,40,\nb,0,1,100,40,\nc,1,3,10,40,\n";
        for policy in ["sjf-ffs", "sjf-bsbf", "sjf-bsbf:order=benefit"] {
            let run = run(&jobs(rows, "3x1"), policy);
            assert_eq!(times(&run)[2], (1.0, 11.0), "{policy}");
            assert_eq!(
                run.nodes[run.outcomes[2].nodes.start as usize].0, 2,
                "{policy}: free first"
            );
        }
    }

    #[test]
    fn consolidation_keeps_shared_gangs_on_the_fewest_nodes() {
        // b takes node 0, a the first GPU of node 1. Of the two b, which ends sooner, is the better host.
        let rows = "a,0,1,100,40,\nb,0,2,50,40,\nc,1,2,10,40,\n";
        let nodes = |policy: &str| {
            let run = run(&jobs(rows, "2x2"), policy);
            let range = run.outcomes[2].nodes.clone();
            run.nodes[range.start as usize..range.end as usize].to_vec()
        };
        assert_eq!(nodes("sjf-bsbf"), [(1, 1), (0, 1)], "the free GPU, then one of b");
        assert_eq!(nodes("sjf-bsbf:consolidate=true"), [(0, 2)], "both of b");
        assert_eq!(nodes("sjf-ffs:consolidate=true"), [(0, 2)], "the node that is complete first");
    }

    /// On a GPU of 1,000 MiB. A job of 700 MiB can compute its batches in parts.
    fn with_sub_batches(rows: &str) -> Workload {
        let mut workload = jobs(rows, "1x1:1000");
        let option = |count, tenths, mib| SubBatch {
            count,
            slowdown: Ratio::new(tenths, 10),
            memory: Memory::from_mib(mib),
        };
        let options = SubBatches::new([option(2, 12, 400), option(4, 16, 200), option(8, 20, 100)]);
        workload.offer_sub_batches(|spec| match spec.profile.memory {
            Memory(700_000) => options.clone(),
            _ => SubBatches::default(),
        });
        workload
    }

    #[test]
    fn a_pair_that_fits_only_in_sub_batches_gets_as_many_as_it_needs() {
        let workload = with_sub_batches("a,0,1,1000,40,800\nb,1,1,10,40,700\n");
        let alone = run(&workload, "sjf-bsbf:accumulate=false");
        assert_eq!(times(&alone), [(0.0, 1000.0), (1000.0, 1010.0)]);
        // 10 s × 1.6 with its batches in four parts; 40 % + 40 % slow no job down.
        let shared = run(&workload, "sjf-bsbf");
        assert_eq!(times(&shared), [(0.0, 1000.0), (1.0, 17.0)]);
        // A mean JCT of 508 s instead of 1004.5 s.
        assert!(shared.metrics.avg_jct_s * 1.9 < alone.metrics.avg_jct_s);
    }

    #[test]
    fn sub_batches_that_cost_more_than_waiting_are_left_to_first_fit() {
        let workload = with_sub_batches("a,0,1,1000,40,700\nb,0,1,10,40,800\n");
        let alone = [(10.0, 1010.0), (0.0, 10.0)];
        assert_eq!(times(&run(&workload, "sjf-bsbf")), alone);
        assert_eq!(times(&run(&workload, "sjf-ffs:accumulate=false")), alone);
        assert_eq!(times(&run(&workload, "sjf-ffs")), [(0.0, 1600.0), (0.0, 10.0)]);
    }

    /// The rate of a job is its own utilisation, beside any other job.
    struct OwnRate;

    impl Interference for OwnRate {
        fn pair_rate(&self, job: &Profile, _: &Profile, _: GpuTypeId) -> Option<Ratio> {
            Some(Ratio::new(u64::from(job.gpu_util.unwrap().0), 100_000))
        }
    }

    proptest! {
        /// The closed forms of the sharing test are what the world does with two jobs.
        #[test]
        fn mean_finish_times_of_two_are_as_predicted(
            seconds in (1_u32..50_000, 1_u32..50_000),
            percent in (10_u32..=100, 10_u32..=100),
        ) {
            let rows = format!("a,0,1,{},{},\nb,0,1,{},{},\n", seconds.0, percent.0, seconds.1, percent.1);
            let workload = jobs(&rows, "1x1");
            let truth: Arc<dyn Interference> = Arc::new(OwnRate);
            let mean = |policy: &str| {
                let policy = PolicySpec::parse(policy).unwrap();
                let options = RunOptions::default();
                let run = tandem_sim::run(&workload, &policy, &truth, &options, &AtomicU64::new(0));
                run.unwrap().metrics.avg_jct_s
            };
            let twice = |seconds: u32| Work(u128::from(seconds) * 2_000_000_000_000);
            let side = |seconds, percent| (twice(seconds), Ppm(percent * 10_000));
            let together = Finish::together(side(seconds.0, percent.0), side(seconds.1, percent.1));
            // Completions are rounded up to the microsecond.
            prop_assert!((mean("sjf-ffs") - together.seconds()).abs() < 2e-6);
            let (first, second) = (seconds.0.min(seconds.1), seconds.0.max(seconds.1));
            let in_turn = Finish::in_turn(twice(second), twice(first));
            prop_assert!((mean("sjf") - in_turn.seconds()).abs() < 2e-6);
            let best = mean("sjf-ffs").min(mean("sjf"));
            prop_assert!((mean("sjf-bsbf") - best).abs() < 4e-6, "and bsbf takes the better of the two");
        }
    }
}
