//! The published behaviour of the rivals, each in one comparison on the reference data; docs/validation.md cites
//! the figures.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{folder, read, reference_data, skipped, succeed_in};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Runs `tandem compare` on the window at 1.5 times its load with Lucid's rates; the mean JCT of each policy.
fn on_window(data: &Path, policies: &[&str], more: &[&str]) -> Vec<f64> {
    let text = |path: PathBuf| path.display().to_string();
    let trace = text(data.join("venus/window.csv"));
    let cluster = text(data.join("venus/partitions.csv"));
    let rates = text(data.join("lucid/colocate_info.csv"));
    let fixed =
        ["--trace", &trace, "--cluster", &cluster, "--interference", &rates, "--load", "1.5"];
    means(&[&fixed, more].concat(), policies)
}

/// The mean JCT of each policy in Muri's world, on its third trace.
fn in_muris_world(data: &Path, policies: &[&str]) -> Vec<f64> {
    let trace = data.join("muri/trace3.csv").display().to_string();
    means(&["--trace", &trace, "--cluster", "8x8", "--interference", "muri-stages"], policies)
}

fn means(options: &[&str], policies: &[&str]) -> Vec<f64> {
    let list = policies.join(",");
    let args = [&["compare", "--policies", &list, "--json"], options].concat();
    let dir = folder();
    let ran = succeed_in(dir.path(), &args).json();
    let runs = ran["runs"].as_array().unwrap();
    runs.iter().map(|run| run["avg_jct_s"].as_f64().unwrap()).collect()
}

/// Against the figures of Muri's own simulator, under its own assumptions.
#[test]
fn muris_world_gives_muris_figures() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    // Its Tiresias has three queues, and runs what runs already first inside a queue.
    let published = [
        ("srtf", 193_082.0),
        ("tiresias:threshold_gpu_s=3250,second_gpu_s=7200,order=start", 347_213.0),
        ("muri-s", 83_242.0),
    ];
    let found = in_muris_world(&data, &published.map(|(policy, _)| policy));
    for ((policy, wanted), found) in published.iter().zip(&found) {
        assert!((found / wanted - 1.0).abs() < 0.05, "{policy}: {found} instead of {wanted}");
    }
    // 2.3 times as fast as SRTF.
    assert!((2.2..2.6).contains(&(found[0] / found[2])), "{found:?}");
}

#[test]
fn packing_makes_gavel_faster() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    let found = on_window(&data, &["gavel", "gavel:packing=false"], &[]);
    assert!(found[1] / found[0] > 1.5, "{found:?}");
}

#[test]
fn lucid_is_faster_than_tiresias_without_preemption() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    let found = on_window(&data, &["lucid", "tiresias"], &[]);
    // The paper has up to 1.3.
    assert!((1.2..1.4).contains(&(found[1] / found[0])), "{found:?}");
}

#[test]
fn packing_makes_tesserae_faster_than_tiresias() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    let found = on_window(&data, &["tesserae", "tiresias"], &[]);
    assert!(found[1] / found[0] > 1.5, "{found:?}");
}

#[test]
fn opportunistic_jobs_make_antman_faster_than_its_order_alone() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    let found = on_window(&data, &["antman", "fifo", "fifo:backfill=true"], &[]);
    assert!(found[0] < found[1] && found[0] < found[2], "{found:?}");
}

/// The worst job relative to a cluster of its own with its part of the GPUs, with reviews as often as those
/// of Tiresias.
#[test]
fn the_worst_job_under_themis_is_far_better_off_than_under_tiresias() {
    let Some(data) = reference_data() else { return skipped("no reference data") };
    let dir = folder();
    let out = dir.path().join("out").display().to_string();
    let policies = ["themis:lease_s=60", "tiresias"];
    on_window(&data, &policies, &["--out", &out]);
    let nodes: BTreeMap<String, f64> =
        rows(&data.join("venus/partitions.csv"), &["partition", "nodes"])
            .into_iter()
            .map(|row| (row[0].clone(), row[1].parse().unwrap()))
            .collect();
    let durations: BTreeMap<String, f64> =
        rows(&data.join("venus/window.csv"), &["job_id", "duration"])
            .into_iter()
            .map(|row| (row[0].clone(), row[1].parse().unwrap()))
            .collect();
    let worst = |name: &str| {
        let file = dir.path().join(format!("out/jobs-{name}.csv"));
        finish_time_fairness(&file, &nodes, &durations).into_iter().fold(0.0, f64::max)
    };
    let (themis, tiresias) = (worst("themis-lease_s=60"), worst("tiresias"));
    assert!(themis * 5.0 < tiresias, "{themis} {tiresias}");
}

/// The named columns of a CSV file without quotes.
fn rows(file: &Path, columns: &[&str]) -> Vec<Vec<String>> {
    let text = read(file);
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let places: Vec<usize> = columns
        .iter()
        .map(|column| header.iter().position(|name| name == column).unwrap())
        .collect();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        places.iter().map(|&place| cells[place].to_owned()).collect()
    };
    lines.map(row).collect()
}

/// Of every job: its JCT over that on its part of the partition's GPUs, by the mean number of jobs there while
/// it was in the system.
fn finish_time_fairness(
    jobs: &Path,
    nodes: &BTreeMap<String, f64>,
    durations: &BTreeMap<String, f64>,
) -> Vec<f64> {
    let mut by_partition: BTreeMap<String, Vec<(f64, f64, f64, f64)>> = BTreeMap::new();
    for row in rows(jobs, &["partition", "submit_s", "end_s", "gpus", "job_id"]) {
        let number = |index: usize| row[index].parse::<f64>().unwrap();
        let job = (number(1), number(2), number(3), durations[&row[4]]);
        by_partition.entry(row[0].clone()).or_default().push(job);
    }
    let mut all = Vec::new();
    for (partition, jobs) in by_partition {
        let gpus = nodes[&partition] * 8.0;
        for &(submit, end, gang, duration) in &jobs {
            let overlap = |&(from, to, _, _): &(f64, f64, f64, f64)| {
                (to.min(end) - from.max(submit)).max(0.0)
            };
            let others: f64 = jobs.iter().map(overlap).sum::<f64>() / (end - submit);
            let own_part = (gpus / others.max(1.0)).max(1.0);
            all.push((end - submit) / (duration * (gang / own_part).max(1.0)));
        }
    }
    all
}
