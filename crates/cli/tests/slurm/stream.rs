//! A mixed stream of jobs, with Tandem and with Slurm alone.

use crate::cluster::{ANN, BEN, Cluster, Execution, PATIENCE, executions, recording_script, until};
use crate::common::{Dice, tell};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The most jobs on a GPU under the policy.
const TENANTS_MAX: usize = 3;
/// Shards of a GPU.
const SHARDS: u64 = 100;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// A job of the stream, and its expected result.
struct Submitted {
    name: String,
    id: u64,
    tasks: u32,
    /// GPUs that each task sees.
    gpus: usize,
    code: i32,
    /// The job on which it depends.
    after: Option<String>,
    at: f64,
}

/// Submits the stream: single jobs, gangs, jobs on two nodes, arrays, dependencies, of two users.
fn submit(cluster: &Cluster, partition: &str, file: &Path) -> Vec<Submitted> {
    let mut dice = Dice(8);
    let mut submitted: Vec<Submitted> = Vec::new();
    for number in 0..74 {
        let user = dice.pick(&[ANN, BEN]);
        let name = format!("s{number}");
        let seconds = dice.pick(&[1.0, 2.0, 3.0]);
        let code = if dice.once_in(6) { 3 } else { 0 };
        let (mut options, mut tasks, mut gpus, mut after) = (vec!["--gres=gpu:1"], 1, 1, None);
        let dependency;
        match number % 12 {
            3 => {
                options = vec!["--gpus=2"];
                gpus = 2;
            }
            7 => {
                options = vec!["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"];
                gpus = 2;
            }
            5 => {
                options.push("--array=1-8%3");
                tasks = 8;
            }
            9 => {
                let before = submitted.last().expect("it is not the first");
                dependency = format!("--dependency=afterany:{}", before.id);
                after = Some(before.name.clone());
                options.push(&dependency);
            }
            11 => {
                let fine =
                    |one: &&Submitted| one.code == 0 && one.tasks == 1 && one.after.is_none();
                let before = submitted.iter().rev().find(fine).expect("most are fine");
                dependency = format!("--dependency=afterok:{}", before.id);
                after = Some(before.name.clone());
                options.push(&dependency);
            }
            _ => {}
        }
        let options = [&["-p", partition, "-J", &name], &options[..]].concat();
        let id = cluster.sbatch(user, &options, &recording_script(file, seconds, code));
        submitted.push(Submitted { name, id, tasks, gpus, code, after, at: now() });
    }
    submitted
}

/// Checks the results of a stream, and returns its mean completion time.
fn check(cluster: &Cluster, submitted: &[Submitted], ran: &[Execution]) -> f64 {
    let mut by_name: BTreeMap<&str, Vec<&Execution>> = BTreeMap::new();
    for execution in ran {
        by_name.entry(&execution.name).or_default().push(execution);
    }
    let records = cluster.records();
    let (mut sum, mut count) = (0.0, 0.0);
    for one in submitted {
        let ran = by_name.get(one.name.as_str()).cloned().unwrap_or_default();
        let tasks: BTreeSet<&str> = ran.iter().map(|execution| execution.job.as_str()).collect();
        assert_eq!(ran.len(), one.tasks as usize, "{}: {ran:?}", one.name);
        assert_eq!(tasks.len(), ran.len(), "{}: a task ran twice", one.name);
        for execution in &ran {
            assert_eq!(execution.gpus.len(), one.gpus, "{execution:?}");
            sum += execution.end - one.at;
            count += 1.0;
        }
        if let Some(before) = &one.after {
            let end =
                by_name[before.as_str()].iter().map(|execution| execution.end).fold(0.0, f64::max);
            assert!(ran[0].begin >= end, "{} began before {before} was over", one.name);
        }
        if one.tasks > 1 {
            let most = ran.iter().map(|execution| overlap(execution, &ran)).max().unwrap_or(0);
            assert!(most <= 3, "{most} tasks of {} at a time", one.name);
        }
        let of_it = |record: &&Value| record["name"] == one.name.as_str();
        for record in records.iter().filter(of_it) {
            assert_eq!(record["exit_code"], one.code << 8, "{record}");
        }
    }
    sum / count
}

/// How many of these ran when this one started, itself included.
fn overlap(execution: &Execution, others: &[&Execution]) -> usize {
    others
        .iter()
        .filter(|other| other.begin <= execution.begin && execution.begin < other.end)
        .count()
}

/// Shards and whole GPUs in use according to Slurm, by node and GPU.
fn used(records: &[Value]) -> BTreeMap<(String, String), (u64, u64)> {
    let mut used: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    for record in records {
        if !matches!(record["job_state"].as_str(), Some("RUNNING" | "SUSPENDED")) {
            continue;
        }
        let nodes = nodes(record["nodes"].as_str().unwrap_or_default());
        let details = record["gres_detail"].as_array().cloned().unwrap_or_default();
        for (node, detail) in nodes.iter().zip(details) {
            for part in detail.as_str().unwrap_or_default().split("),") {
                let (what, index) = part.split_once("(IDX:").unwrap_or((part, ""));
                let index = index.trim_end_matches(')');
                let count =
                    what.rsplit(':').next().and_then(|count| count.parse().ok()).unwrap_or(0);
                if index.is_empty() || count == 0 {
                    continue;
                }
                let entry = used.entry((node.clone(), index.to_owned())).or_default();
                if what.starts_with("shard") {
                    entry.0 += count;
                } else {
                    entry.1 += count;
                }
            }
        }
    }
    used
}

/// The nodes of `n[0-1,3]`.
fn nodes(list: &str) -> Vec<String> {
    let Some(inner) = list.strip_prefix("n[").and_then(|rest| rest.strip_suffix(']')) else {
        return vec![list.to_owned()];
    };
    let mut nodes = Vec::new();
    for part in inner.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) =
            (first.parse().expect("a node"), last.parse().expect("a node"));
        nodes.extend((first..=last).map(|node| format!("n{node}")));
    }
    nodes
}

#[test]
fn a_mixed_stream_runs_on_the_planned_gpus() {
    let Some(mut cluster) = Cluster::up(4, 2) else { return };
    // Slurm alone first: whole GPUs, one job each.
    let plain_file = cluster.shared_file("plain");
    let plain = submit(&cluster, "plain", &plain_file);
    cluster.until_idle(Duration::from_secs(240));
    let plain_mean = check(&cluster, &plain, &executions(&plain_file));

    cluster.start_daemon();
    let file = cluster.shared_file("shared");
    let done = AtomicBool::new(false);
    let (submitted, samples) = std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut samples = 0;
            while !done.load(Ordering::Relaxed) {
                for (place, (shards, whole)) in used(&cluster.records()) {
                    assert!(
                        shards <= SHARDS && whole <= 1,
                        "{place:?}: {shards} shards, {whole} whole"
                    );
                    assert!(shards == 0 || whole == 0, "{place:?} is whole and shared");
                }
                samples += 1;
                std::thread::sleep(Duration::from_millis(300));
            }
            samples
        });
        let submitted = submit(&cluster, "tandem", &file);
        cluster.until_idle(Duration::from_secs(240));
        done.store(true, Ordering::Relaxed);
        (submitted, sampler.join().expect("no GPU was over capacity"))
    });
    let ran = executions(&file);
    let mean = check(&cluster, &submitted, &ran);
    let jobs: u32 = submitted.iter().map(|one| one.tasks).sum();
    assert!(jobs >= 100, "{jobs}");

    // According to the jobs: at most as many tenants as the policy allows, gangs alone, and some sharing.
    let mut most = 0;
    for execution in &ran {
        for gpu in &execution.gpus {
            let there: Vec<&Execution> = ran
                .iter()
                .filter(|other| other.node == execution.node && other.gpus.contains(gpu))
                .collect();
            let tenants = overlap(execution, &there);
            assert!(tenants <= TENANTS_MAX, "{tenants} on GPU {gpu} of {}", execution.node);
            assert!(tenants == 1 || execution.gpus.len() == 1, "{execution:?} shared");
            most = most.max(tenants);
        }
    }
    assert!(most > 1, "no job shared");
    // On the planned GPUs, with the right exit codes.
    until(PATIENCE, || cluster.jobs().values().all(|job| job["end_time"].is_string()));
    let known = cluster.jobs();
    for execution in &ran {
        let job = &known[&execution.job];
        let planned: BTreeSet<usize> = job["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|device| usize::try_from(device.as_u64().expect("a number")).expect("small"))
            .collect();
        for gpu in &execution.gpus {
            assert!(
                planned.contains(&(execution.node * cluster.gpus + gpu)),
                "{execution:?} {job}"
            );
        }
        let one = submitted.iter().find(|one| one.name == execution.name).expect("we submitted it");
        assert_eq!(job["exit_code"], one.code, "{job}");
        let state = if one.code == 0 { "completed" } else { "failed" };
        assert_eq!(job["state"], state, "{job}");
    }
    tell(&format!(
        "{jobs} jobs on 8 GPUs, mean completion time: Slurm alone {plain_mean:.1} s, with Tandem \
         {mean:.1} s ({:+.0} %); up to {most} on a GPU; {samples} samples",
        (mean / plain_mean - 1.0) * 100.0
    ));
}

#[test]
fn commands_of_users_work_as_before() {
    let Some(mut cluster) = Cluster::up(2, 1) else { return };
    cluster.start_daemon();
    let file = cluster.shared_file("executions");
    // sbatch -W returns the exit code.
    let mut wait = cluster.by(ANN, "sbatch");
    wait.args(["-W", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 1; exit 42"]);
    assert_eq!(cluster.output(&mut wait).status.code(), Some(42));
    // An interactive job.
    let mut srun = cluster.by(ANN, "srun");
    let shown =
        cluster.ok(srun.args(["--gres=gpu:1", "sh", "-c", "echo on $CUDA_VISIBLE_DEVICES"]));
    assert_eq!(shown.trim(), "on 0");
    // Running and pending jobs are cancelled.
    let long = recording_script(&file, 600.0, 0);
    let runs = cluster.sbatch(ANN, &["--gres=gpu:1", "--comment=tandem:exclusive"], &long);
    cluster.until_state(runs, "RUNNING");
    let other = cluster.sbatch(ANN, &["--gres=gpu:1", "--comment=tandem:exclusive"], &long);
    cluster.until_state(other, "RUNNING");
    let waits = cluster.sbatch(ANN, &["--gres=gpu:1"], &long);
    let known = || cluster.jobs().contains_key(&waits.to_string());
    assert!(until(PATIENCE, known), "{}", cluster.log());
    assert_eq!(cluster.state(waits), "PENDING");
    for job in [waits, runs, other] {
        cluster.ok(cluster.by(ANN, "scancel").arg(job.to_string()));
        cluster.until_state(job, "CANCELLED");
    }
    let is_cancelled = |job: u64| cluster.jobs()[&job.to_string()]["state"] == "cancelled";
    let all = [waits, runs, other];
    assert!(until(PATIENCE, || all.into_iter().all(is_cancelled)), "{}", cluster.log());
    // Pause and resume.
    let paused = cluster.sbatch(ANN, &["--gres=gpu:1"], &recording_script(&file, 8.0, 0));
    cluster.until_state(paused, "RUNNING");
    let number = cluster.jobs()[&paused.to_string()]["id"].to_string();
    let tandem = env!("CARGO_BIN_EXE_tandem");
    cluster.ok(cluster.program(tandem).args(["pause", &number]));
    cluster.until_state(paused, "SUSPENDED");
    cluster.ok(cluster.program(tandem).args(["resume", &number]));
    cluster.until_state(paused, "COMPLETED");
    // A dependency that is never satisfied shows as in plain Slurm.
    let fails = cluster.sbatch(ANN, &["--gres=gpu:1"], "exit 1");
    let after = cluster.sbatch(ANN, &["--gres=gpu:1", &format!("-dafterok:{fails}")], "true");
    let never = || cluster.record(after)["state_reason"] == "DependencyNeverSatisfied";
    assert!(until(PATIENCE, never), "{}", cluster.record(after));
    // A hostile name has no effect.
    let name = "x JobState=COMPLETED\nJobId=1 $(reboot) é";
    let hostile = cluster.sbatch(BEN, &["--gres=gpu:1", "-J", name, "--comment", name], "exit 5");
    cluster.until_state(hostile, "FAILED");
    assert!(until(PATIENCE, || {
        cluster.jobs().get(&hostile.to_string()).is_some_and(|job| job["exit_code"] == 5)
    }));
    // `tandem submit` refers to sbatch.
    let refused = cluster.output(cluster.program(tandem).args(["submit", "--", "true"]));
    assert_eq!(refused.status.code(), Some(5));
}
