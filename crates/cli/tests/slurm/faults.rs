//! Faults: daemons that die, nodes that are lost, jobs that others change. No job is lost or runs twice.

use crate::cluster::{ANN, BEN, Cluster, PATIENCE, executions, recording_script, until};
use crate::common::tell;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Submits jobs of one GPU and returns their ids.
fn submit(cluster: &Cluster, count: usize, seconds: f64, file: &str) -> Vec<u64> {
    let script = recording_script(&cluster.shared_file(file), seconds, 0);
    let user = |number: usize| if number.is_multiple_of(2) { ANN } else { BEN };
    (0..count).map(|number| cluster.sbatch(user(number), &["--gres=gpu:1"], &script)).collect()
}

/// Every job ran to its end exactly once, according to Slurm and to Tandem.
fn assert_each_ran_once(cluster: &Cluster, jobs: &[u64], file: &str) {
    let mut ran: BTreeMap<String, u32> = BTreeMap::new();
    for execution in executions(&cluster.shared_file(file)) {
        *ran.entry(execution.job).or_default() += 1;
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
fn the_daemon_is_killed_again_and_again() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    let jobs = submit(&cluster, 24, 2.0, "executions");
    // At random points between list, placement and release.
    for round in 0..8 {
        std::thread::sleep(Duration::from_millis(300 + 170 * round));
        cluster.kill_daemon();
        cluster.start_daemon();
    }
    cluster.until_idle(PATIENCE);
    assert_each_ran_once(&cluster, &jobs, "executions");
    // Jobs that end while no daemon runs.
    let before = submit(&cluster, 4, 3.0, "later");
    let running = || before.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    cluster.kill_daemon();
    cluster.until_idle(PATIENCE);
    cluster.start_daemon();
    assert_each_ran_once(&cluster, &before, "later");
}

#[test]
fn slurmctld_dies_and_reuses_ids() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    // Slurm saves its state every few seconds: these jobs are saved and keep running.
    let jobs = submit(&cluster, 4, 20.0, "executions");
    let running = || jobs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    std::thread::sleep(Duration::from_secs(6));
    // These are not saved.
    let lost: Vec<u64> =
        (0..3).map(|_| cluster.sbatch(ANN, &["--gres=gpu:2", "-H"], "echo lost; exit 9")).collect();
    cluster.slurm_daemon("kill", "slurmctld");
    std::thread::sleep(Duration::from_secs(2));
    cluster.slurm_daemon("start", "slurmctld");
    let answers = || !cluster.records().is_empty();
    assert!(until(PATIENCE, answers), "slurmctld does not answer");
    // New jobs get the ids of lost jobs.
    let script = recording_script(&cluster.shared_file("new"), 1.0, 0);
    let new: Vec<u64> = (0..4).map(|_| cluster.sbatch(BEN, &["--gres=gpu:1"], &script)).collect();
    let reused = new.iter().filter(|job| lost.contains(job)).count();
    tell(&format!("slurmctld lost {} jobs and reused {reused} of their ids", lost.len()));
    for job in &lost {
        if !new.contains(job) {
            let _ = cluster.output(cluster.program("scancel").arg(job.to_string()));
        }
    }
    cluster.until_idle(PATIENCE);
    assert_each_ran_once(&cluster, &jobs, "executions");
    let done: BTreeSet<String> = executions(&cluster.shared_file("new"))
        .into_iter()
        .map(|execution| execution.job)
        .collect();
    assert_eq!(done, new.iter().map(ToString::to_string).collect());
    // Lost jobs have ended for Tandem too, and no new job was changed in their name.
    let settled = || cluster.jobs().values().all(|job| job["end_time"].is_string());
    assert!(until(PATIENCE, settled), "{:?}", cluster.jobs());
}

#[test]
fn a_node_is_lost() {
    let Some(mut cluster) = Cluster::up(3, 1) else { return };
    cluster.start_daemon();
    let script = recording_script(&cluster.shared_file("executions"), 12.0, 0);
    let alone = ["--gres=gpu:1", "--comment=tandem:exclusive"];
    let jobs: Vec<u64> = (0..3).map(|_| cluster.sbatch(ANN, &alone, &script)).collect();
    let running = || jobs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    // A restarted slurmd finds its job.
    cluster.slurm_daemon("kill", "n0");
    std::thread::sleep(Duration::from_secs(2));
    cluster.slurm_daemon("start", "n0");
    // A node that does not come back loses its job.
    let victim = cluster
        .records()
        .iter()
        .find(|record| record["nodes"] == "n1")
        .and_then(|record| record["job_id"].as_u64())
        .expect("one of them is on n1");
    let pid = std::fs::read_to_string(cluster.path("slurm/n1.pid")).expect("its pid");
    cluster.slurm_daemon("kill", "n1");
    kill_steps(&cluster, victim);
    cluster.scontrol(&["update", "nodename=n1", "state=down", "reason=test"]);
    let elsewhere = || {
        let record = cluster.record(victim);
        record["job_state"] == "RUNNING" && record["nodes"] != "n1" && record["restart_cnt"] == 1
    };
    assert!(until(PATIENCE, elsewhere), "{} {pid} {}", cluster.record(victim), cluster.log());
    cluster.until_idle(PATIENCE);
    assert_each_ran_once(&cluster, &jobs, "executions");
    let victim = &cluster.jobs()[&victim.to_string()];
    assert_ne!(victim["devices"], serde_json::json!([1]), "{victim}");
}

/// Kills the processes of a job on a lost node: its script, and the step daemon above it.
fn kill_steps(cluster: &Cluster, job: u64) {
    let script = cluster.path(&format!("slurm/spool/n1/job{job:05}/slurm_script"));
    let script = script.display().to_string();
    let command_line = |pid: &str| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    };
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().into_string().ok());
    let scripts: Vec<String> = pids.filter(|pid| command_line(pid).contains(&script)).collect();
    assert!(!scripts.is_empty(), "job {job} does not run");
    for pid in scripts {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let parent = parent.map(str::trim).filter(|pid| command_line(pid).contains("slurmstepd"));
        for pid in parent.into_iter().chain([pid.as_str()]) {
            let _ = cluster.output(cluster.program("kill").args(["-9", pid]));
        }
    }
}

#[test]
fn jobs_are_changed_by_operators_and_users() {
    let Some(mut cluster) = Cluster::up(2, 1) else { return };
    cluster.start_daemon();
    let long = recording_script(&cluster.shared_file("long"), 600.0, 0);
    let alone = ["--gres=gpu:1", "--comment=tandem:exclusive"];
    let (first, second) = (cluster.sbatch(ANN, &alone, &long), cluster.sbatch(ANN, &alone, &long));
    cluster.until_state(first, "RUNNING");
    cluster.until_state(second, "RUNNING");
    let waits =
        cluster.sbatch(BEN, &alone, &recording_script(&cluster.shared_file("executions"), 1.0, 0));
    // An operator cancels a running job: the next one starts.
    cluster.ok(cluster.program("scancel").arg(first.to_string()));
    cluster.until_state(waits, "COMPLETED");
    // A user requeues a job: it starts again.
    cluster.ok(cluster.by(ANN, "scontrol").args(["requeue", &second.to_string()]));
    let again = || {
        let record = cluster.record(second);
        record["job_state"] == "RUNNING" && record["restart_cnt"] == 1
    };
    assert!(until(PATIENCE, again), "{} {}", cluster.record(second), cluster.log());
    // An operator takes the licence from a job: Tandem no longer manages it, and avoids its GPU.
    let third = cluster.sbatch(BEN, &alone, &long);
    cluster.until_state(third, "RUNNING");
    let fourth = cluster.sbatch(BEN, &alone, &long);
    let known = || cluster.jobs().contains_key(&fourth.to_string());
    assert!(until(PATIENCE, known), "{}", cluster.log());
    let request = cluster.record(fourth)["licenses"].as_str().unwrap_or_default().to_owned();
    assert!(request.contains("tandem_"), "{request}");
    let target = format!("jobid={fourth}");
    cluster.scontrol(&["update", &target, "Licenses="]);
    cluster.until_state(fourth, "RUNNING");
    let is_withdrawn = || cluster.jobs()[&fourth.to_string()]["state"] == "cancelled";
    assert!(until(PATIENCE, is_withdrawn), "{}", cluster.log());
    assert_eq!(cluster.state(fourth), "RUNNING");
    // A job of another partition on a GPU is foreign.
    for job in [second, third, fourth] {
        cluster.ok(cluster.program("scancel").arg(job.to_string()));
    }
    cluster.until_idle(PATIENCE);
    let foreign = cluster.sbatch(BEN, &["-p", "plain", "--gres=gpu:1", "-w", "n0"], "sleep 600");
    cluster.until_state(foreign, "RUNNING");
    let tandem = env!("CARGO_BIN_EXE_tandem");
    let seen =
        || cluster.ok(cluster.program(tandem).args(["gpus", "--json"])).contains("\"foreign\"");
    assert!(until(PATIENCE, seen), "{}", cluster.log());
    let ours = cluster.sbatch(
        ANN,
        &["--gres=gpu:1"],
        &recording_script(&cluster.shared_file("ours"), 1.0, 0),
    );
    cluster.until_state(ours, "COMPLETED");
    assert_eq!(executions(&cluster.shared_file("ours"))[0].node, 1);
}

/// Makes Slurm leak shards: versions before 23.02.7 merge a second `Gres=` with the first. Whether a leak
/// results depends on timing.
fn leak_shards(cluster: &mut Cluster) -> bool {
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
    // In the second of its end a new start would fail.
    std::thread::sleep(Duration::from_secs(2));
    let gpus = format!("gres=shard:{other}:90");
    cluster.scontrol(&["update", &format!("jobid={id}"), &gpus, "starttime=now"]);
    cluster.scontrol(&["release", &id]);
    cluster.until_state(job, "RUNNING");
    cluster.ok(cluster.program("scancel").arg(&id));
    cluster.until_idle(PATIENCE);
    assert!(until(PATIENCE, || node(cluster).contains("State=IDLE")), "{}", node(cluster));
    // Nothing runs: shards in use have leaked.
    let node = node(cluster);
    let used = node.lines().find(|line| line.contains("GresUsed=")).unwrap_or_default();
    !(used.contains("shard:g0:0(") && used.contains("shard:g1:0("))
}

/// Tandem makes Slurm recount its shards, and jobs start again.
#[test]
fn a_shard_leak_is_repaired() {
    let Some(mut cluster) = Cluster::up(1, 2) else { return };
    let leaks = (0..5).any(|_| leak_shards(&mut cluster));
    assert!(leaks, "no shards leaked; {}", cluster.log());
    // Both GPUs are idle, but one of them has no free shards in Slurm's accounting.
    cluster.start_daemon();
    let script = recording_script(&cluster.shared_file("executions"), 2.0, 0);
    let gang = cluster.sbatch(ANN, &["--gres=gpu:2"], &script);
    cluster.until_state(gang, "COMPLETED");
    let log = std::fs::read_to_string(cluster.path("daemon.log")).unwrap_or_default();
    assert!(log.contains("lost count"), "{}", cluster.log());
}

#[test]
fn release_makes_plain_slurm_jobs() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    let long = recording_script(&cluster.shared_file("long"), 600.0, 0);
    let gang = ["--gres=gpu:2"];
    let runs: Vec<u64> = (0..2).map(|_| cluster.sbatch(ANN, &gang, &long)).collect();
    let running = || runs.iter().all(|job| cluster.state(*job) == "RUNNING");
    assert!(until(PATIENCE, running), "{}", cluster.log());
    let script = recording_script(&cluster.shared_file("executions"), 1.0, 0);
    let single = cluster.sbatch(BEN, &["--gres=gpu:1"], &script);
    let pair = cluster.sbatch(BEN, &["--gpus=2"], &script);
    let array = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=1-3"], &script);
    let both = cluster.sbatch(ANN, &["--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2"], &script);
    let later = cluster.sbatch(BEN, &["--gres=gpu:1", &format!("-dafterok:{single}")], &script);
    let known = || cluster.jobs().len() >= 2 + 6;
    assert!(until(PATIENCE, known), "{:?}", cluster.jobs());
    cluster.kill_daemon();
    // Only operators may do this.
    let tandem = env!("CARGO_BIN_EXE_tandem");
    let ben = cluster.output(cluster.by(BEN, tandem).args(["slurm", "release"]));
    assert!(!ben.status.success());
    assert_eq!(cluster.state(single), "PENDING");
    cluster.ok(cluster.program(tandem).args(["slurm", "release"]));
    for job in [single, pair, array, both, later] {
        let record = cluster.record(job);
        assert!(!record["licenses"].to_string().contains("tandem_"), "{record}");
    }
    let reservations = cluster.scontrol(&["show", "reservation"]);
    assert!(!reservations.contains("tandem_"), "{reservations}");
    for job in runs {
        assert_eq!(cluster.state(job), "RUNNING");
        cluster.ok(cluster.program("scancel").arg(job.to_string()));
    }
    cluster.until_idle(PATIENCE);
    let executions = executions(&cluster.shared_file("executions"));
    let gpus = |job: u64| -> Vec<usize> {
        let of = executions
            .iter()
            .filter(|execution| execution.job.split('_').next() == Some(&job.to_string()));
        of.map(|execution| execution.gpus.len()).collect()
    };
    assert_eq!(gpus(single), [1]);
    assert_eq!(gpus(pair), [2]);
    assert_eq!(gpus(array), [1, 1, 1]);
    assert_eq!(gpus(both), [2]);
    assert_eq!(gpus(later), [1]);
    // A restarted daemon leaves them alone.
    cluster.start_daemon();
    let over = || cluster.jobs().values().all(|job: &Value| job["end_time"].is_string());
    assert!(until(PATIENCE, over), "{:?}", cluster.jobs());
}
