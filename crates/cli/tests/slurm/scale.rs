//! 1,000 pending and 500 running jobs on 64 nodes.

use crate::cluster::{ANN, BEN, Cluster, until};
use crate::common::tell;
use std::process::Stdio;
use std::time::{Duration, Instant};

const NODES: usize = 64;
const GPUS: usize = 8;
const RUNNING: usize = 500;
const PENDING: usize = 1000;

#[test]
fn a_thousand_pending_and_five_hundred_running_jobs() {
    let Some(mut cluster) = Cluster::up(NODES, GPUS) else { return };
    // First, because what is submitted without it is Slurm's alone.
    cluster.start_daemon();
    // Arrays, because sbatch is slow; every task is a job for Tandem.
    let tasks = |count: usize| format!("--array=1-{count}");
    let alone = ["--gres=gpu:1", "--comment=tandem:exclusive"];
    let run = cluster.sbatch(ANN, &[&alone[..], &[&tasks(RUNNING)]].concat(), "sleep 900");
    let began = Instant::now();
    let count = |state: &str| {
        let records = cluster.records();
        records.iter().filter(|record| record["job_state"] == state).count()
    };
    let all_run = || count("RUNNING") >= RUNNING;
    assert!(
        until(Duration::from_secs(300), all_run),
        "{} run; {}",
        count("RUNNING"),
        cluster.log()
    );
    let start_s = began.elapsed().as_secs_f64();
    for user in [ANN, BEN] {
        cluster.sbatch(user, &[&alone[..], &[&tasks(PENDING / 2)]].concat(), "sleep 900");
    }
    let known = || cluster.jobs().len() >= RUNNING + PENDING;
    assert!(until(Duration::from_secs(120), known), "{}; {}", cluster.jobs().len(), cluster.log());
    // The rate of changes with one call each.
    let probe = cluster.sbatch(ANN, &["--gres=gpu:1", "-H"], "true").to_string();
    let calls = 40;
    let asked = Instant::now();
    for minutes in 1..=calls {
        let limit = format!("timelimit={minutes}");
        cluster.scontrol(&["update", &format!("jobid={probe}"), &limit]);
    }
    let single = f64::from(calls) / asked.elapsed().as_secs_f64();
    // Some jobs end and others start: cycles with requests.
    let log = || std::fs::read_to_string(cluster.path("daemon.log")).expect("a log");
    let before = log().len();
    let ended: Vec<String> = (1..=60).map(|task| format!("{run}_{task}")).collect();
    cluster.ok(cluster.program("scancel").args(&ended).stdout(Stdio::null()));
    // The same lists, asked for beside the daemon: how slow this machine is at present.
    let mut lists: Vec<u64> = Vec::new();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_secs(2));
        let asked = Instant::now();
        cluster.records();
        cluster.scontrol(&["show", "node"]);
        lists.push(asked.elapsed().as_millis() as u64);
    }
    lists.sort_unstable();
    let list_ms = lists[lists.len() / 2];
    let log = log().split_off(before);
    let (mut cycles, mut requests, mut asking_s) = (Vec::new(), 0, 0.0);
    for line in log.lines().filter(|line| line.contains("listed ")) {
        let numbers: Vec<u64> = line[line.find("listed ").expect("it is there")..]
            .split(|character: char| !character.is_ascii_digit())
            .filter_map(|word| word.parse().ok())
            .collect();
        let [_, listed_ms, decided_ms, asked, ask_ms] = numbers[..] else { panic!("{line}") };
        cycles.push(listed_ms + decided_ms);
        requests += asked;
        asking_s += ask_ms as f64 / 1000.0;
    }
    let batched = requests as f64 / asking_s;
    cycles.sort_unstable();
    let typical = cycles[cycles.len() / 2];
    tell(&format!(
        "{RUNNING} jobs started within {start_s:.0} s; {} cycles, listing and reconciling took {typical} ms, \
         at most {} ms, the lists alone {list_ms} ms; {requests} requests, {batched:.0} per second in batches, {single:.0} one by one",
        cycles.len(),
        cycles[cycles.len() - 1]
    ));
    // The median, not the maximum: all nodes and their jobs share this machine's CPUs with the controller.
    let limit = 1000.max(3 * list_ms);
    assert!(
        typical <= limit,
        "half of the cycles took {typical} ms and more, the lists alone {list_ms}"
    );
    // A batch must not be much slower than single calls. The two are measured under different load.
    assert!(
        requests >= 60 && batched * 2.0 >= single,
        "{batched:.0} against {single:.0} per second"
    );
}
