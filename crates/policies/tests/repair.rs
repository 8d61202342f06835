//! Pairs that stand: those that lose part, queue or no queue, and those that could be better are matched
//! anew. In the simulator; `crates/daemon/tests/parity` and `crates/cli/tests/live_jobs.rs` do the same live.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../sim/tests/common/mod.rs"]
mod common;

use common::{cluster, simulate, times};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{ClassId, Interference, Ratio};
use tandem_policies::PolicySpec;
use tandem_sim::interference::{Beliefs, Learning, PairTable, trace_beliefs};
use tandem_sim::trace::{ReadOptions, parse};
use tandem_sim::{RunOptions, SimRun, Workload, WorkloadOptions, run};

/// Seconds after which a rate is measured, and between two reviews.
const MEASURED_S: f64 = 60.0;
const POLICIES: [(&str, f64); 2] = [("gshare", 600.0), ("tandem", 60.0)];

/// A table in which class `X` runs at the given rate beside itself and every other pair at 0.9.
fn table(own: f64) -> PairTable {
    let mut rows = "model1,dataset1,gpu_num1,batchsize1,amp1,speed1,\
                    model2,dataset2,gpu_num2,batchsize2,amp2,speed2\n"
        .to_owned();
    let pairs = [("X", "X"), ("X", "Y"), ("X", "Z"), ("Y", "Y"), ("Y", "Z"), ("Z", "Z")];
    for (a, b) in pairs {
        let rate = if (a, b) == ("X", "X") { own } else { 0.9 };
        rows += &format!("{a},d,1,32,0,{rate},{b},d,1,32,0,{rate}\n");
    }
    let folder = std::env::temp_dir().join(format!("tandem-repair-{}-{own}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("pairs.csv");
    std::fs::write(&file, rows).unwrap();
    let table = PairTable::read(&file.to_string_lossy()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    table
}

/// Jobs of class X, given as (submission, duration), with rates that are learned during the run.
fn learned(policy: &str, cluster_spec: &str, own_rate: f64, jobs: &[(u32, u32)]) -> SimRun {
    let mut csv =
        "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib,gpu_util\n".to_owned();
    for (id, (submit, duration)) in jobs.iter().enumerate() {
        csv += &format!("{id},{submit},1,{duration},X,d,32,0,1000,90\n");
    }
    let trace = parse(csv.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
    let table = table(own_rate);
    let truth: Arc<dyn Interference> = Arc::new(table.for_trace(&trace).unwrap());
    let beliefs = |seed| {
        let learning = Learning { train_pairs: 0.8, seed, online: true };
        trace_beliefs(&trace, truth.clone(), Some(&table), None, None, learning).unwrap()
    };
    // Trained on the other pairs, so that the pair looks as good as they are.
    let looks_good = |beliefs: &Beliefs| {
        beliefs.of_classes(ClassId(0), ClassId(0)).is_some_and(|rate| rate > Ratio::new(85, 100))
    };
    let beliefs = (1..100).map(beliefs).find(looks_good).unwrap();
    let options = WorkloadOptions::default();
    let workload = Workload::new(trace, cluster(cluster_spec), "trace.csv", &options).unwrap();
    let options = RunOptions { beliefs: Some(beliefs), verify: true, ..RunOptions::default() };
    let policy = PolicySpec::parse(policy).unwrap();
    run(&workload, &policy, &truth, &options, &AtomicU64::new(0)).unwrap()
}

fn mean_jct(run: &SimRun, jobs: &[(u32, u32)]) -> f64 {
    let times = times(run);
    let jcts = times.iter().zip(jobs).map(|(time, job)| time.1 - f64::from(job.0));
    jcts.sum::<f64>() / jobs.len() as f64
}

#[test]
fn a_pair_that_loses_parts_within_two_slices_although_no_job_waits() {
    for (policy, slice_s) in POLICIES {
        for rate in [0.3, 0.4, 0.5, 0.55] {
            for (one, other) in [(20_000, 20_000), (20_000, 12_000), (9000, 30_000)] {
                let jobs = [(0, one), (10, other)];
                let run = learned(policy, "1x1", rate, &jobs);
                let shared_s = run.outcomes[0].shared.0 as f64 / 1e6;
                let of = format!("{policy}, rate {rate}, {one} s and {other} s: {:?}", times(&run));
                assert!(shared_s > 0.0, "{of}: they try it");
                assert!(shared_s <= MEASURED_S + 2.0 * slice_s, "{of}: shared {shared_s} s");
                let (short, long) = (one.min(other), one.max(other));
                let in_turn = f64::from(short) + f64::from(long) / 2.0;
                let mean = mean_jct(&run, &jobs);
                assert!(mean <= 1.03 * in_turn + slice_s, "{of}: {mean}, in turn {in_turn}");
            }
        }
    }
}

#[test]
fn losing_pairs_on_two_gpus_take_turns_and_good_pairs_stay() {
    let jobs = [(0, 20_000), (0, 20_000), (10, 20_000), (10, 20_000)];
    for (policy, slice_s) in POLICIES {
        let losing = learned(policy, "1x2", 0.45, &jobs);
        let mean = mean_jct(&losing, &jobs);
        assert!(mean <= 1.03 * 30_000.0 + slice_s, "{policy}: {mean}");
        let good = learned(policy, "1x2", 0.9, &jobs);
        let restarts: u32 = good.outcomes.iter().map(|outcome| outcome.preemptions).sum();
        assert_eq!(restarts, 0, "{policy}: noise makes no pair swing");
    }
}

/// Ends of jobs given as (submission, utilisation, duration) on two GPUs.
fn ends(policy: &str, jobs: &[(u32, u32, u32)]) -> Vec<f64> {
    let mut csv = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n".to_owned();
    for (id, (submit, util, duration)) in jobs.iter().enumerate() {
        csv += &format!("{id},{submit},1,{duration},{util},1000\n");
    }
    let options = RunOptions { verify: true, ..RunOptions::default() };
    let workload = common::workload(&csv, cluster("1x2"));
    let run = simulate(&workload, &PolicySpec::parse(policy).unwrap(), &options);
    times(&run).into_iter().map(|(_, end)| end).collect()
}

#[test]
fn four_jobs_on_two_gpus_end_within_three_percent_of_the_best_pairing() {
    // In the best pairing no job slows another down.
    let cases: [[(u32, u32, u32); 4]; 4] = [
        [(0, 10, 40_000), (0, 60, 40_000), (10, 10, 40_000), (1300, 60, 40_000)],
        [(0, 20, 30_000), (0, 70, 50_000), (20, 25, 40_000), (2000, 75, 45_000)],
        [(0, 55, 30_000), (0, 5, 30_000), (700, 5, 30_000), (1500, 90, 30_000)],
        [(0, 45, 60_000), (0, 45, 20_000), (100, 50, 40_000), (900, 50, 40_000)],
    ];
    for (policy, _) in POLICIES {
        for policy in [policy.to_owned(), format!("{policy}:tenants=2")] {
            if policy == "gshare:tenants=2" {
                continue;
            }
            for jobs in &cases {
                for (end, job) in ends(&policy, jobs).iter().zip(jobs) {
                    let best = f64::from(job.0) + f64::from(job.2);
                    assert!(*end <= 1.03 * best, "{policy}: {end} after {best} in {jobs:?}");
                }
            }
        }
    }
}
