//! The preemptive policies where gaps are scattered: rank counts, nothing idles, nobody leaves for
//! nothing.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, simulate, times, workload};
use tandem_policies::PolicySpec;
use tandem_sim::RunOptions;

/// Start and end of every job, and preemptions in all.
fn run(policy: &str, cluster_spec: &str, rows: &str) -> (Vec<(f64, f64)>, u64) {
    let csv = format!("job_id,submit_s,gpus,duration_s\n{rows}");
    let workload = workload(&csv, cluster(cluster_spec));
    let options = RunOptions { verify: true, ..RunOptions::default() };
    let run = simulate(&workload, &PolicySpec::parse(policy).unwrap(), &options);
    (times(&run), run.metrics.preemptions)
}

#[test]
fn a_short_gang_runs_although_long_jobs_sit_on_both_nodes() {
    let rows = "B,0,4,1000000\nF,0,4,5\nC,0,4,1000000\nA,10,8,10\n";
    for policy in ["srtf", "srsf"] {
        // C moves to the free half of the other node and pays the restore.
        let (times, preemptions) = run(policy, "2x8", rows);
        assert_eq!(times[3], (10.0, 20.0), "{policy}");
        assert_eq!((times[2].1, preemptions), (1_000_040.0, 1), "{policy}");
    }
    // The long ones sink after 18,000 GPU-seconds, at 4,500 s.
    let (times, _) = run("tiresias", "2x8", rows);
    assert_eq!(times[3], (4500.0, 4510.0));
}

#[test]
fn gpus_do_not_idle_for_a_gang_that_does_not_fit_them() {
    let rows = "B,0,5,1000\nC,0,5,1000\nA,10,6,2000\nD,60,1,5000\n";
    for policy in ["srtf", "tiresias"] {
        let (times, preemptions) = run(policy, "2x8", rows);
        assert_eq!((times[2].0, times[3].0, preemptions), (1000.0, 60.0, 0), "{policy}");
    }
}

#[test]
fn nobody_is_preempted_for_nothing() {
    let rows = "P,0,2,1000\nF,0,3,5\nQ,0,3,1000\nL,0,1,100000\nA,10,4,3000\nX,20,1,50\n";
    let (times, preemptions) = run("srtf", "2x5", rows);
    assert_eq!((times[3], preemptions), ((0.0, 100_000.0), 0));
}

#[test]
fn the_shorter_job_takes_the_gpus_of_the_longer_and_the_longer_pays_the_restore() {
    let (times, preemptions) = run("srtf", "1x1", "long,0,1,100\nshort,10,1,20\n");
    assert_eq!((times, preemptions), (vec![(0.0, 160.0), (10.0, 30.0)], 1));
}
