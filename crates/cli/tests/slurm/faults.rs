//! Daemons that die, nodes that are lost, jobs that others change: nothing is lost or doubled.

use crate::cluster::{ANN, BEN, Cluster, PATIENCE, stay, stays, until};
use crate::common::tell;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Hands in so many jobs of one GPU; their numbers.
fn send(cluster: &Cluster, count: usize, seconds: f64, file: &str) -> Vec<u64> {
    let script = stay(&cluster.notes(file), seconds, 0);
    let user = |number: usize| if number.is_multiple_of(2) { ANN } else { BEN };
    (0..count).map(|number| cluster.sbatch(user(number), &["--gres=gpu:1"], &script)).collect()
}

/// Every one of these jobs ran to its end, once, and both sides know it.
fn all_ran_once(cluster: &Cluster, jobs: &[u64], file: &str) {
    let mut ran: BTreeMap<String, u32> = BTreeMap::new();
    for stay in stays(&cluster.notes(file)) {
        *ran.entry(stay.job).or_default() += 1;
    }
    for job in jobs {
        assert_eq!(ran.get(&job.to_string()), Some(&1), "job {job} ran {ran:?}");
        assert_eq!(cluster.state(*job), "COMPLETED");
    }
    let is_known = || {
        let known = cluster.jobs();
        jobs.iter().all(|job| known[&job.to_string()]["state"] == "completed")
    };
    assert!(until(PATIENCE, is_known), "{:?}\n{}", cluster.jobs(), cluster.log());
}

#[test]
fn our_daemon_dies_again_and_again() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    let jobs = send(&cluster, 24, 2.0, "stays");
    // At any point between a list, a placement and a release.
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(300 + 170 * round));
        cluster.kill_daemon();
        cluster.start_daemon();
    }
    cluster.until_idle(PATIENCE);
    all_ran_once(&cluster, &jobs, "stays");
    // Jobs that begin and end while nobody is there.
    let before = send(&cluster, 4, 3.0, "later");
    let running = || before.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    cluster.kill_daemon();
    cluster.until_idle(PATIENCE);
    cluster.start_daemon();
    all_ran_once(&cluster, &before, "later");
}

#[test]
fn slurmctld_dies_and_gives_numbers_again() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    // Saved, as Slurm does every few seconds, and running on when it dies.
    let jobs = send(&cluster, 4, 20.0, "stays");
    let running = || jobs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    std::thread::sleep(Duration::from_secs(6));
    // These it will not remember.
    let lost: Vec<u64> =
        (0..3).map(|_| cluster.sbatch(ANN, &["--gres=gpu:2", "-H"], "echo lost; exit 9")).collect();
    cluster.daemon_of_slurm("kill", "slurmctld");
    std::thread::sleep(Duration::from_secs(2));
    cluster.daemon_of_slurm("start", "slurmctld");
    let answers = || !cluster.records().is_empty();
    assert!(until(PATIENCE, answers), "slurmctld does not answer");
    // Others get their numbers, if they were lost.
    let script = stay(&cluster.notes("new"), 1.0, 0);
    let new: Vec<u64> = (0..4).map(|_| cluster.sbatch(BEN, &["--gres=gpu:1"], &script)).collect();
    let again = new.iter().filter(|job| lost.contains(job)).count();
    tell(&format!("slurmctld forgot {} jobs and gave {again} of their numbers again", lost.len()));
    for job in &lost {
        if !new.contains(job) {
            let _ = cluster.output(cluster.program("scancel").arg(job.to_string()));
        }
    }
    cluster.until_idle(PATIENCE);
    all_ran_once(&cluster, &jobs, "stays");
    let done: BTreeSet<String> =
        stays(&cluster.notes("new")).into_iter().map(|stay| stay.job).collect();
    assert_eq!(done, new.iter().map(ToString::to_string).collect());
    // What was lost is over for us too, and nobody acted on another's job in its name.
    let settled = || cluster.jobs().values().all(|job| job["end_time"].is_string());
    assert!(until(PATIENCE, settled), "{:?}", cluster.jobs());
}

#[test]
fn a_node_is_lost() {
    let Some(mut cluster) = Cluster::up(3, 1) else { return };
    cluster.start_daemon();
    let script = stay(&cluster.notes("stays"), 12.0, 0);
    let alone = ["--gres=gpu:1", "--comment=tandem:exclusive"];
    let jobs: Vec<u64> = (0..3).map(|_| cluster.sbatch(ANN, &alone, &script)).collect();
    let running = || jobs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    // A slurmd that comes back finds its job.
    cluster.daemon_of_slurm("kill", "n0");
    std::thread::sleep(Duration::from_secs(2));
    cluster.daemon_of_slurm("start", "n0");
    // One that does not come back takes its job with it.
    let victim = cluster
        .records()
        .iter()
        .find(|record| record["nodes"] == "n1")
        .and_then(|record| record["job_id"].as_u64())
        .expect("one of them is on n1");
    let pid = std::fs::read_to_string(cluster.path("slurm/n1.pid")).expect("its pid");
    cluster.daemon_of_slurm("kill", "n1");
    kill_steps(&cluster, victim);
    cluster.scontrol(&["update", "nodename=n1", "state=down", "reason=test"]);
    let elsewhere = || {
        let record = cluster.record(victim);
        record["job_state"] == "RUNNING" && record["nodes"] != "n1" && record["restart_cnt"] == 1
    };
    assert!(until(PATIENCE, elsewhere), "{} {pid} {}", cluster.record(victim), cluster.log());
    cluster.until_idle(PATIENCE);
    all_ran_once(&cluster, &jobs, "stays");
    let victim = &cluster.jobs()[&victim.to_string()];
    assert_ne!(victim["devices"], serde_json::json!([1]), "{victim}");
}

/// What a lost node takes with it.
fn kill_steps(cluster: &Cluster, job: u64) {
    let _ = cluster.output(cluster.program("pkill").args([
        "-9",
        "-f",
        &format!("slurmstepd: \\[{job}\\."),
    ]));
    let script = cluster.path(&format!("slurm/spool/n1/job{job:05}/slurm_script"));
    let script = script.display().to_string();
    let _ = cluster.output(cluster.program("pkill").args(["-9", "-f", &script]));
}

#[test]
fn others_change_jobs_behind_our_back() {
    let Some(mut cluster) = Cluster::up(2, 1) else { return };
    cluster.start_daemon();
    let long = stay(&cluster.notes("long"), 600.0, 0);
    let alone = ["--gres=gpu:1", "--comment=tandem:exclusive"];
    let (first, second) = (cluster.sbatch(ANN, &alone, &long), cluster.sbatch(ANN, &alone, &long));
    cluster.until_state(first, "RUNNING");
    cluster.until_state(second, "RUNNING");
    let waits = cluster.sbatch(BEN, &alone, &stay(&cluster.notes("stays"), 1.0, 0));
    // An operator cancels one that runs: the next begins in its place.
    cluster.ok(cluster.program("scancel").arg(first.to_string()));
    cluster.until_state(waits, "COMPLETED");
    // A user sends one back to the queue: it begins again.
    cluster.ok(cluster.by(ANN, "scontrol").args(["requeue", &second.to_string()]));
    let again = || {
        let record = cluster.record(second);
        record["job_state"] == "RUNNING" && record["restart_cnt"] == 1
    };
    assert!(until(PATIENCE, again), "{} {}", cluster.record(second), cluster.log());
    // An operator releases one without us: we let it go, and keep off its GPU.
    let third = cluster.sbatch(BEN, &alone, &long);
    cluster.until_state(third, "RUNNING");
    let fourth = cluster.sbatch(BEN, &alone, &long);
    let known = || cluster.jobs().contains_key(&fourth.to_string());
    assert!(until(PATIENCE, known), "{}", cluster.log());
    cluster.scontrol(&["release", &fourth.to_string()]);
    cluster.until_state(fourth, "RUNNING");
    let let_go = || cluster.jobs()[&fourth.to_string()]["state"] == "cancelled";
    assert!(until(PATIENCE, let_go), "{}", cluster.log());
    assert_eq!(cluster.state(fourth), "RUNNING");
    // Jobs of another partition on our GPUs are strangers there.
    for job in [second, third, fourth] {
        cluster.ok(cluster.program("scancel").arg(job.to_string()));
    }
    cluster.until_idle(PATIENCE);
    let stranger = cluster.sbatch(BEN, &["-p", "plain", "--gres=gpu:1", "-w", "n0"], "sleep 600");
    cluster.until_state(stranger, "RUNNING");
    let tandem = env!("CARGO_BIN_EXE_tandem");
    let seen =
        || cluster.ok(cluster.program(tandem).args(["gpus", "--json"])).contains("\"foreign\"");
    assert!(until(PATIENCE, seen), "{}", cluster.log());
    let ours = cluster.sbatch(ANN, &["--gres=gpu:1"], &stay(&cluster.notes("ours"), 1.0, 0));
    cluster.until_state(ours, "COMPLETED");
    assert_eq!(stays(&cluster.notes("ours"))[0].node, 1);
}

/// Makes Slurm lose count of shards, by what trap 1 of the design is about: a second choice of GPUs is
/// merged with the first. Whether it has by then depends on how far it is with the end of the first.
fn leak(cluster: &mut Cluster) -> bool {
    cluster.start_daemon();
    let job = cluster.sbatch(ANN, &["--gres=gpu:1", "--comment=tandem:class=leak"], "sleep 600");
    cluster.until_state(job, "RUNNING");
    let sits = cluster.record(job)["tres_per_node"].as_str().unwrap_or_default().to_owned();
    let other = if sits.contains("g0") { "g1" } else { "g0" };
    cluster.kill_daemon();
    let id = job.to_string();
    let node = |cluster: &Cluster| cluster.scontrol(&["show", "node", "n0", "-d"]);
    cluster.scontrol(&["requeuehold", &id]);
    cluster.until_state(job, "PENDING");
    assert!(until(PATIENCE, || node(cluster).contains("State=IDLE")), "{}", node(cluster));
    // In the second in which it ended it would fail.
    std::thread::sleep(Duration::from_secs(2));
    let gpus = format!("gres=shard:{other}:90");
    cluster.scontrol(&["update", &format!("jobid={id}"), &gpus, "starttime=now"]);
    cluster.scontrol(&["release", &id]);
    cluster.until_state(job, "RUNNING");
    cluster.ok(cluster.program("scancel").arg(&id));
    cluster.until_idle(PATIENCE);
    assert!(until(PATIENCE, || node(cluster).contains("State=IDLE")), "{}", node(cluster));
    // Nothing runs: all shards that are used are lost.
    let book = node(cluster);
    let used = book.lines().find(|line| line.contains("GresUsed=")).unwrap_or_default();
    !(used.contains("shard:g0:0(") && used.contains("shard:g1:0("))
}

/// Shards that Slurm has lost count of are given back, and jobs begin again.
#[test]
fn a_shard_leak_is_mended() {
    let Some(mut cluster) = Cluster::up(1, 2) else { return };
    let leaks = (0..5).any(|_| leak(&mut cluster));
    assert!(leaks, "Slurm counts well; {}", cluster.log());
    // Both GPUs are idle, and one of them has no room in Slurm's books.
    cluster.start_daemon();
    let script = stay(&cluster.notes("stays"), 2.0, 0);
    let gang = cluster.sbatch(ANN, &["--gres=gpu:2"], &script);
    cluster.until_state(gang, "COMPLETED");
    let log = std::fs::read_to_string(cluster.path("daemon.log")).unwrap_or_default();
    assert!(log.contains("lost count"), "{}", cluster.log());
}

#[test]
fn without_us_jobs_become_slurms_own() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    let long = stay(&cluster.notes("long"), 600.0, 0);
    let gang = ["--gres=gpu:2"];
    let runs: Vec<u64> = (0..2).map(|_| cluster.sbatch(ANN, &gang, &long)).collect();
    let running = || runs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    let script = stay(&cluster.notes("stays"), 1.0, 0);
    let single = cluster.sbatch(BEN, &["--gres=gpu:1"], &script);
    let pair = cluster.sbatch(BEN, &["--gpus=2"], &script);
    let array = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=1-3"], &script);
    let both = cluster.sbatch(ANN, &["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"], &script);
    let later = cluster.sbatch(BEN, &["--gres=gpu:1", &format!("-dafterok:{single}")], &script);
    let known = || cluster.jobs().len() >= 2 + 6;
    assert!(until(PATIENCE, known), "{:?}", cluster.jobs());
    cluster.kill_daemon();
    // Only operators may.
    let tandem = env!("CARGO_BIN_EXE_tandem");
    let ben = cluster.output(cluster.by(BEN, tandem).args(["slurm", "release"]));
    assert!(!ben.status.success());
    assert_eq!(cluster.state(single), "PENDING");
    cluster.ok(cluster.program(tandem).args(["slurm", "release"]));
    for job in [single, pair, array, both, later] {
        assert_ne!(cluster.record(job)["priority"], 0, "{}", cluster.record(job));
    }
    for job in runs {
        assert_eq!(cluster.state(job), "RUNNING");
        cluster.ok(cluster.program("scancel").arg(job.to_string()));
    }
    cluster.until_idle(PATIENCE);
    let stays = stays(&cluster.notes("stays"));
    let gpus = |job: u64| -> Vec<usize> {
        let of = stays.iter().filter(|stay| stay.job.split('_').next() == Some(&job.to_string()));
        of.map(|stay| stay.gpus.len()).collect()
    };
    assert_eq!(gpus(single), [1]);
    assert_eq!(gpus(pair), [2]);
    assert_eq!(gpus(array), [1, 1, 1]);
    assert_eq!(gpus(both), [2]);
    assert_eq!(gpus(later), [1]);
    // A daemon that comes back leaves them alone.
    cluster.start_daemon();
    let over = || cluster.jobs().values().all(|job: &Value| job["end_time"].is_string());
    assert!(until(PATIENCE, over), "{:?}", cluster.jobs());
}
