//! The sharing policies on cases small enough to compute by hand.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, simulate, times, workload};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{
    GpuTypeId, Interference, Memory, Ppm, Profile, Ratio, SubBatch, SubBatches, Work,
};
use tandem_policies::{Finish, PolicySpec};
use tandem_sim::{RunOptions, SimRun, Workload};

const HEADER: &str = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n";

fn jobs(rows: &str, spec: &str) -> Workload {
    workload(&format!("{HEADER}{rows}"), cluster(spec))
}

fn run(workload: &Workload, policy: &str) -> SimRun {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    simulate(workload, &PolicySpec::parse(policy).unwrap(), &options)
}

#[test]
fn bsbf_shares_where_that_beats_waiting_and_ffs_wherever_it_fits() {
    // 80 % + 80 %: both run at 0.625. Beside the resident the guest's 10 s take 16 s; after it, 90 + 10.
    let pays = jobs("a,0,1,100,80,\nb,10,1,10,80,\n", "1x1");
    assert_eq!(times(&run(&pays, "sjf-bsbf")), [(0.0, 106.0), (10.0, 26.0)]);
    // Two of equal length at half speed finish together, twice as late: waiting is better.
    let does_not = jobs("a,0,1,100,100,\nb,0,1,100,100,\n", "1x1");
    assert_eq!(times(&run(&does_not, "sjf-bsbf")), [(0.0, 100.0), (100.0, 200.0)]);
    assert_eq!(times(&run(&does_not, "sjf-ffs")), [(0.0, 200.0), (0.0, 200.0)]);
}

#[test]
fn a_gang_uses_free_gpus_and_those_of_several_residents() {
    // Three GPUs: one free, two residents; a gang of three shares with both.
    let rows = "a,0,1,100,40,\nb,0,1,100,40,\nc,1,3,10,40,\n";
    for policy in ["sjf-ffs", "sjf-bsbf", "sjf-bsbf:order=benefit"] {
        let run = run(&jobs(rows, "3x1"), policy);
        assert_eq!(times(&run)[2], (1.0, 11.0), "{policy}");
        assert_eq!(run.nodes[run.outcomes[2].nodes.start as usize].0, 2, "{policy}: free first");
    }
}

#[test]
fn consolidation_keeps_guests_on_the_fewest_nodes() {
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
    let way = |count, tenths, mib| SubBatch {
        count,
        slowdown: Ratio::new(tenths, 10),
        memory: Memory::from_mib(mib),
    };
    let ways = SubBatches::new([way(2, 12, 400), way(4, 16, 200), way(8, 20, 100)]);
    workload.offer_sub_batches(|spec| match spec.profile.memory {
        Memory(700_000) => ways.clone(),
        _ => SubBatches::default(),
    });
    workload
}

#[test]
fn a_pair_that_fits_only_in_sub_batches_gets_as_many_as_it_needs() {
    let workload = with_sub_batches("a,0,1,1000,40,800\nb,1,1,10,40,700\n");
    let alone = run(&workload, "sjf-bsbf:accumulate=false");
    assert_eq!(times(&alone), [(0.0, 1000.0), (1000.0, 1010.0)]);
    // 10 s × 1.6 with its batches in four parts; 40 % + 40 % disturb nobody.
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

#[test]
fn lucid_joins_gangs_of_equal_size_whose_scores_allow_it() {
    let second_of = |rows: &str| times(&run(&jobs(rows, "1x2"), "lucid"))[1];
    // 50 % and 50 % are light; they take the same GPUs and leave each other alone.
    assert_eq!(second_of("a,0,2,100,50,\nb,1,2,10,50,\n"), (1.0, 11.0));
    for (why, rows) in [
        ("another gang size", "a,0,2,100,50,\nb,1,1,10,50,\n"),
        ("heavy and light", "a,0,2,100,60,\nb,1,2,10,30,\n"),
        ("unknown", "a,0,2,100,,\nb,1,2,10,10,\n"),
        ("memory", "a,0,2,100,10,14000\nb,1,2,10,10,14000\n"),
    ] {
        assert_eq!(second_of(rows), (100.0, 110.0), "{why}");
    }
    // A tiny one may join a heavy one; the third finds both GPUs shared.
    let three = run(&jobs("a,0,2,100,60,\nb,1,2,10,20,\nc,2,2,50,20,\n", "1x2"), "lucid");
    assert_eq!(times(&three)[1..], [(1.0, 11.0), (11.0, 61.0)]);
}

/// A job keeps its own utilisation of its speed, whoever is beside it.
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
