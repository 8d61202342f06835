//! The exclusive policies against an independent implementation in Python, job by job, on random
//! clusters and traces. Every case comes from a seed that the message of a failure names.

mod common;

use common::{Dice, read, workspace, write};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const CASES: u64 = 30;
const JOBS_MAX: u64 = 400;
const NODES_MAX: u64 = 18;

/// A cluster, as both programs are told of it.
struct Machines {
    /// For `--cluster`; a file name is relative to the folder of the case.
    spec: String,
    /// Name and GPUs of each partition.
    partitions: Vec<(String, u64)>,
    gpus_per_node: u64,
}

#[test]
fn partition_files() {
    compare_cases(1_000, |dice, dir| {
        let count = dice.between(1, 4);
        let mut file = "partition,nodes\n".to_owned();
        let mut partitions = Vec::new();
        for number in 0..count {
            let nodes = dice.between(1, NODES_MAX / count);
            writeln!(file, "vc{number},{nodes}").unwrap();
            partitions.push((format!("vc{number}"), nodes * 8));
        }
        write(dir, "partitions.csv", file);
        Machines { spec: "partitions.csv".to_owned(), partitions, gpus_per_node: 8 }
    });
}

#[test]
fn shorthands() {
    compare_cases(2_000, |dice, _| {
        let (nodes, gpus_per_node) = (dice.between(1, NODES_MAX), dice.pick(&[1, 2, 3, 4, 8]));
        let total = nodes * gpus_per_node;
        // One partition takes every job, whatever its column says.
        let partitions = ["", "vc0", "vc1"].map(|name| (name.to_owned(), total)).to_vec();
        Machines { spec: format!("{nodes}x{gpus_per_node}"), partitions, gpus_per_node }
    });
}

fn compare_cases(first_seed: u64, machines: impl Fn(&mut Dice, &Path) -> Machines) {
    for seed in first_seed..first_seed + CASES {
        let dir = common::folder();
        let mut dice = Dice(seed);
        let machines = machines(&mut dice, dir.path());
        write(dir.path(), "trace.csv", trace(&mut dice, &machines));
        let mut options = Vec::new();
        if dice.once_in(3) {
            options.extend(["--placement", "scatter"].map(str::to_owned));
        }
        if dice.once_in(2) {
            let hundredths = dice.between(70, 300);
            options.push("--load".to_owned());
            options.push(format!("{}.{:02}", hundredths / 100, hundredths % 100));
        }
        let backfill = dice.once_in(3);
        for policy in ["fifo", "sjf"] {
            let difference = compare(dir.path(), &machines.spec, policy, backfill, &options);
            if let Some(difference) = difference {
                let kept = dir.keep();
                panic!(
                    "seed {seed}, {policy} on {}, backfill {backfill}, {options:?}: {difference}\n\
                     files in {}",
                    machines.spec,
                    kept.display()
                );
            }
        }
    }
}

/// The first difference between the two programs, if there is one.
fn compare(
    dir: &Path,
    cluster: &str,
    policy: &str,
    backfill: bool,
    options: &[String],
) -> Option<String> {
    let mut oracle = Command::new("python3");
    oracle.arg(workspace().join("tests/oracle/exclusive.py"));
    oracle.args(["--trace", "trace.csv", "--cluster", cluster, "--policy", policy]);
    oracle.args(["--jobs-csv", "oracle.csv"]).args(options).current_dir(dir);
    if backfill {
        oracle.arg("--backfill");
    }
    let output = oracle.output().expect("the oracle needs python3: apt-get install python3");
    assert!(output.status.success(), "oracle: {}", String::from_utf8_lossy(&output.stderr));

    let spec = if backfill { format!("{policy}:backfill=true") } else { policy.to_owned() };
    let mut args = vec!["sim", "--trace", "trace.csv", "--cluster", cluster, "--policy", &spec];
    args.extend(["--jobs-csv", "tandem.csv", "--quiet"]);
    args.extend(options.iter().map(String::as_str));
    common::succeed_in(dir, &args);

    let (expected, found) = (read(&dir.join("oracle.csv")), read(&dir.join("tandem.csv")));
    if expected.lines().count() != found.lines().count() {
        return Some(format!("{} jobs, not {}", found.lines().count(), expected.lines().count()));
    }
    // Ours has two more columns, which stay zero where nothing is shared or preempted.
    let differs = |(expected, found): &(&str, &str)| match expected.strip_prefix("job_id,") {
        Some(_) => *found != common::JOBS_HEADER,
        None => *found != format!("{expected},0,0"),
    };
    let (expected, found) = expected.lines().zip(found.lines()).find(differs)?;
    Some(format!("expected {expected}, found {found}"))
}

/// A trace that keeps the cluster busy, with ties, gangs of every shape and fractions of seconds.
fn trace(dice: &mut Dice, machines: &Machines) -> String {
    let jobs = dice.between(1, JOBS_MAX);
    let in_order = dice.once_in(2);
    let fractions = dice.once_in(2);
    // Few different values make many ties.
    let (gap_s, duration_s) = (dice.pick(&[0, 1, 5, 40, 300]), dice.pick(&[3, 60, 2_000]));
    let mut now_micros = dice.between(0, 1_000_000) * 1_000_000;
    let mut rows = Vec::new();
    for number in 0..jobs {
        now_micros += dice.between(0, gap_s) * 1_000_000;
        if fractions && dice.once_in(2) {
            now_micros += dice.between(0, 999_999);
        }
        let duration_micros = match dice.between(0, 9) {
            0 => dice.between(0, 999_999),
            1 if fractions => dice.between(1, duration_s * 1_000_000),
            2 => dice.between(1, duration_s * 20) * 1_000_000,
            _ => dice.between(0, duration_s) * 1_000_000,
        };
        let partition = usize::try_from(dice.between(0, machines.partitions.len() as u64 - 1));
        let (name, size) = &machines.partitions[partition.expect("few partitions")];
        let id = if dice.once_in(40) { format!("\"job,{number}\"") } else { format!("{number}") };
        let gpus = gang(dice, machines.gpus_per_node, *size);
        let (submit, duration) = (seconds(dice, now_micros), seconds(dice, duration_micros));
        rows.push(format!("{id},{name},u{},{gpus},{submit},{duration}\n", number % 7));
    }
    if !in_order {
        for last in (1..rows.len()).rev() {
            let other = usize::try_from(dice.between(0, last as u64)).expect("few rows");
            rows.swap(last, other);
        }
    }
    format!("job_id,vc,user,gpu_num,submit_s,duration\n{}", rows.concat())
}

/// Mostly parts of a node and whole nodes, now and then any size up to the whole partition.
fn gang(dice: &mut Dice, gpus_per_node: u64, partition: u64) -> u64 {
    let gpus = match dice.between(0, 9) {
        0..=4 => dice.between(1, gpus_per_node),
        5..=6 => gpus_per_node * dice.between(1, 3),
        7..=8 => dice.between(1, 3 * gpus_per_node),
        _ => dice.between(1, partition),
    };
    gpus.min(partition)
}

/// Seconds as decimal text, sometimes with zeros at the end.
fn seconds(dice: &mut Dice, micros: u64) -> String {
    let (whole, fraction) = (micros / 1_000_000, micros % 1_000_000);
    match fraction {
        0 if dice.once_in(5) => format!("{whole}.0"),
        0 => whole.to_string(),
        _ => format!("{whole}.{fraction:06}"),
    }
}
