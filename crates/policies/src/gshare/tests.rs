use crate::testing::{run, simulate, times};
use std::fmt::Write;
use tandem_core::{Memory, Ratio, SubBatch, SubBatches};

#[test]
fn a_light_job_joins_a_light_one_instead_of_waiting() {
    let times = simulate("gshare", "1x1", "a,0,1,1000,40,1000\nb,10,1,1000,40,1000\n");
    assert_eq!(times, [(0.0, 1000.0), (10.0, 1010.0)]);
}

#[test]
fn jobs_that_gain_nothing_together_take_turns() {
    let times = simulate("gshare", "1x1", "a,0,1,1000,100,1000\nb,10,1,2000,100,1000\n");
    assert_eq!(times, [(0.0, 1000.0), (1000.0, 3000.0)]);
}

#[test]
fn a_pair_that_exceeds_the_memory_does_not_share() {
    let times = simulate("gshare", "1x1:1500", "a,0,1,1000,40,1000\nb,10,1,2000,40,1000\n");
    assert_eq!(times, [(0.0, 1000.0), (1000.0, 3000.0)]);
}

#[test]
fn gangs_across_nodes_share_too() {
    let times = simulate("gshare", "2x8", "a,0,16,1000,40,1000\nb,10,16,1000,40,1000\n");
    assert_eq!(times, [(0.0, 1000.0), (10.0, 1010.0)]);
}

#[test]
fn the_matching_chooses_the_host_that_is_slowed_down_less() {
    let rows = "heavy,0,1,5000,90,1000\nlight,0,1,5000,20,1000\nthird,10,1,1000,40,1000\n";
    let times = simulate("gshare", "1x2", rows);
    // Beside the light one no job is slowed down.
    assert_eq!(times, [(0.0, 5000.0), (0.0, 5000.0), (10.0, 1010.0)]);
}

#[test]
fn only_the_end_of_a_slice_preempts() {
    let rows = "long,0,1,10000,100,1000\nshort,10,1,100,100,1000\n";
    let times = simulate("gshare:slice_s=300", "1x1", rows);
    // The long one pays 40 s to restore its state.
    assert_eq!(times, [(0.0, 10_140.0), (300.0, 400.0)]);
}

#[test]
fn a_job_that_has_waited_too_long_goes_first() {
    // Short jobs come faster than the GPU can run them, for ten hours.
    let mut rows = String::new();
    for at in 0..60 {
        writeln!(rows, "s{at},{},1,700,100,1000", at * 600).unwrap();
    }
    rows.push_str("long,10,1,20000,100,1000\n");
    let start_of_long = |policy: &str| simulate(policy, "1x1", &rows)[1].0;
    let (aged, not_aged) = (start_of_long("gshare:age_h=1"), start_of_long("gshare:age_h=1000"));
    assert!(not_aged > 40_000.0, "it starts when no other job waits: {not_aged}");
    assert!(aged <= 4_800.0, "it starts at the first review after an hour: {aged}");
}

#[test]
fn a_pair_that_fits_only_in_sub_batches_runs_in_them() {
    let mut workload = crate::testing::workload(
        "1x1:1000",
        "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib",
        "a,0,1,1000,40,800\nb,1,1,100,40,700\n",
    );
    let option = |count, tenths, mib| SubBatch {
        count,
        slowdown: Ratio::new(tenths, 10),
        memory: Memory::from_mib(mib),
    };
    workload.offer_sub_batches(|spec| match spec.profile.memory {
        Memory(700_000) => SubBatches::new([option(2, 12, 400), option(4, 16, 200)]),
        _ => SubBatches::default(),
    });
    let ends = |policy: &str| times(&run(&workload, policy));
    // Without sub-batches it takes a turn at the end of the slice, and the other one restores.
    assert_eq!(ends("gshare:accumulate=false"), [(0.0, 1140.0), (600.0, 700.0)]);
    // 100 s × 1.6 with its batches in four parts; 40 % + 40 % slow no job down.
    assert_eq!(ends("gshare"), [(0.0, 1000.0), (1.0, 161.0)]);
}
