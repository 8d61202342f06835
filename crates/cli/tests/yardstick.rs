//! The reference data: exact answers where they are known, and every file of it readable. The data
//! are not part of the project; without them these tests say that they are skipped.

mod common;

use common::{read, reference_data};
use serde_json::Value;
use std::path::Path;

fn path(data: &Path, name: &str) -> String {
    data.join(name).display().to_string()
}

/// Runs the window and gives the figures of its only run; the jobs go to `jobs.csv` in `dir`.
fn window(data: &Path, dir: &Path, policy: &str) -> Value {
    let (trace, cluster) = (path(data, "venus/window.csv"), path(data, "venus/partitions.csv"));
    let args = ["sim", "--trace", &trace, "--cluster", &cluster, "--policy", policy, "--json"];
    let ran = common::succeed_in(dir, &[&args[..], &["--jobs-csv", "jobs.csv"]].concat());
    let results = ran.json();
    assert_eq!(results["jobs"], 9214);
    results["runs"][0].clone()
}

fn assert_equal_to_answers(policy: &str, means: [&str; 3]) {
    let Some(data) = reference_data() else { return };
    let dir = common::folder();
    let run = window(&data, dir.path(), policy);
    let found = ["avg_jct_s", "avg_wait_s", "makespan_s"]
        .map(|name| format!("{:.3}", run[name].as_f64().expect("a number")));
    assert_eq!(found, means);

    let answers = read(&data.join(format!("venus/window_{policy}.csv")));
    let mut expected: Vec<Vec<&str>> =
        answers.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let jobs = read(&dir.path().join("jobs.csv"));
    let mut found: Vec<Vec<&str>> = jobs
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            // The answers have no GPUs, no sharing and no preemptions.
            vec![fields[0], fields[1], fields[2], fields[3], fields[4], fields[6]]
        })
        .collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(expected.len(), 9214);
    assert_eq!(found.len(), 9214);
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(found, expected, "job_id, partition, submit, start, end, nodes");
    }
}

#[test]
fn fifo_equals_the_known_answers() {
    assert_equal_to_answers("fifo", ["50122.004", "37512.659", "3484467.000"]);
}

#[test]
fn sjf_equals_the_known_answers() {
    assert_equal_to_answers("sjf", ["17308.684", "4699.340", "4089796.000"]);
}

/// The published simulator preempts in other places than ours, so its means are met within 5 %.
#[test]
fn preemptive_policies_come_close_to_a_published_simulator() {
    let Some(data) = reference_data() else { return };
    for (policy, published) in [("srtf", 13_716.0), ("tiresias", 15_363.0)] {
        let dir = common::folder();
        let run = window(&data, dir.path(), policy);
        let mean = run["avg_jct_s"].as_f64().expect("a number");
        let off = (mean / published - 1.0).abs();
        assert!(off <= 0.05, "{policy}: mean JCT {mean}, published {published}");
    }
}

fn simulate(data: &Path, args: &[&str]) -> Value {
    let dir = common::folder();
    let args: Vec<String> = args
        .iter()
        // A name with a slash is a file of the reference data.
        .map(|arg| if arg.contains('/') { path(data, arg) } else { (*arg).to_owned() })
        .collect();
    let mut all = vec!["sim", "--json"];
    all.extend(args.iter().map(String::as_str));
    common::succeed_in(dir.path(), &all).json()
}

#[test]
fn muris_traces_run_with_classes_of_gavels_table() {
    let Some(data) = reference_data() else { return };
    for (trace, jobs) in [("muri/trace1.csv", 1494), ("muri/trace3.csv", 992)] {
        for gpu in ["k80", "p100", "v100"] {
            let table = format!("gavel/simulation_throughputs.json:gpu={gpu}");
            let results = simulate(
                &data,
                &[
                    "--trace",
                    trace,
                    "--cluster",
                    "8x8",
                    "--policy",
                    "sjf",
                    "--interference",
                    &table,
                    "--classes",
                    "table:1",
                ],
            );
            assert_eq!((&results["jobs"], &results["gpus"]), (&jobs.into(), &64.into()));
        }
    }
}

#[test]
fn polluxs_workloads_run() {
    let Some(data) = reference_data() else { return };
    for number in 1..=3 {
        let trace = format!("pollux/workloads/workload-{number}.csv");
        let results =
            simulate(&data, &["--trace", &trace, "--cluster", "16x4", "--policy", "fifo"]);
        assert_eq!(results["jobs"], 160);
    }
}

#[test]
fn the_window_runs_with_lucids_table() {
    let Some(data) = reference_data() else { return };
    let args = [
        "--trace",
        "venus/window.csv",
        "--cluster",
        "venus/partitions.csv",
        "--policy",
        "fifo",
        "--interference",
        "lucid/colocate_info.csv",
    ];
    let results = simulate(&data, &args);
    // Nothing shares a GPU under FIFO, so the table changes nothing.
    let mean = results["runs"][0]["avg_jct_s"].as_f64().expect("a number");
    assert_eq!(format!("{mean:.3}"), "50122.004");
}

/// Muri's models are not Lucid's; the message has to say so, and how to go on.
#[test]
fn a_table_that_knows_too_few_classes_is_refused() {
    let Some(data) = reference_data() else { return };
    let dir = common::folder();
    let (trace, table) = (path(&data, "muri/trace1.csv"), path(&data, "lucid/colocate_info.csv"));
    let ran = common::run_in(
        dir.path(),
        &[
            "sim",
            "--trace",
            &trace,
            "--cluster",
            "8x8",
            "--policy",
            "fifo",
            "--interference",
            &table,
        ],
    );
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.stderr.lines().count(), 1);
    assert!(ran.stderr.contains("of 1494 jobs, fewer than half"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--classes table:SEED"), "{}", ran.stderr);
}
