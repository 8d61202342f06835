//! What the plugin forbids, and what it leaves alone.

use crate::cluster::{ANN, BEN, Cluster, PATIENCE, text, until};
use serde_json::Value;

#[test]
fn users_cannot_bypass_the_gate() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    // All GPUs are taken: a job that starts has bypassed the gate.
    let all = [0, 1].map(|_| cluster.sbatch(BEN, &["--gres=gpu:2"], "sleep 600"));
    all.iter().for_each(|job| cluster.until_state(*job, "RUNNING"));
    users_cannot_change_a_waiting_job(&cluster);
    shares_are_given_by_tandem(&cluster);
    other_jobs_cannot_become_gpu_jobs(&cluster);
    cluster.ok(cluster.program("scancel").args(all.map(|job| job.to_string())));
    other_jobs_are_left_alone(&cluster);
}

fn users_cannot_change_a_waiting_job(cluster: &Cluster) {
    let job = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
    let id = job.to_string();
    let array = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=1-3"], "true");
    let target = format!("jobid={id}");
    let task = format!("jobid={array}_2");
    let attempts: &[&[&str]] = &[
        &["update", &target, "licenses="],
        &["update", &target, "licenses=tandem_gate:0"],
        &["update", &task, "licenses="],
        &["update", &target, "priority=100"],
        &["update", &target, "gres=gpu:1"],
        &["update", &target, "tresperjob=gres:gpu:1"],
        &["update", &target, "reqnodelist=n1"],
        &["update", &target, "partition=plain"],
        &["update", &target, "admincomment=mine"],
        &["update", &target, "numnodes=2"],
        &["top", &id],
    ];
    let before = cluster.record(job);
    for user in [ANN, BEN] {
        for arguments in attempts {
            let output = cluster.output(cluster.by(user, "scontrol").args(*arguments));
            let message = text(&output.stderr) + &text(&output.stdout);
            assert!(!output.status.success(), "{user}: {arguments:?}: {message}");
        }
        let record = cluster.record(job);
        for field in [
            "licenses",
            "tres_per_node",
            "tres_per_job",
            "required_nodes",
            "partition",
            "admin_comment",
            "node_count",
        ] {
            assert_eq!(record[field], before[field], "{field}");
        }
    }
    // The owner, and no other user, may still change the time limit, hold and cancel.
    cluster.ok(cluster.by(ANN, "scontrol").args(["update", &target, "timelimit=7"]));
    let ben = cluster.output(cluster.by(BEN, "scontrol").args(["update", &target, "timelimit=9"]));
    assert!(!ben.status.success());
    assert!(!cluster.output(cluster.by(BEN, "scancel").arg(&id)).stderr.is_empty());
    assert_eq!(cluster.state(job), "PENDING");
    cluster.ok(cluster.by(ANN, "scontrol").args(["hold", &id]));
    let tandem = env!("CARGO_BIN_EXE_tandem");
    let is_told = || {
        let jobs = cluster.jobs();
        let Some(job) = jobs.get(&id) else { return false };
        let explain = ["explain", &job["id"].to_string()];
        cluster.ok(cluster.program(tandem).args(explain)).contains("held in Slurm")
    };
    assert!(until(PATIENCE, is_told), "{}", cluster.log());
    cluster.ok(cluster.by(ANN, "scontrol").args(["release", &id]));
    for job in [id, array.to_string()] {
        cluster.ok(cluster.by(ANN, "scancel").arg(job));
    }
}

fn shares_are_given_by_tandem(cluster: &Cluster) {
    for request in ["--gres=shard:10", "--gres=shard:g1:10"] {
        let mut sbatch = cluster.by(ANN, "sbatch");
        sbatch.args([request, "-o", "/dev/null", "--wrap", "true"]);
        let output = cluster.output(&mut sbatch);
        let message = text(&output.stderr);
        assert!(!output.status.success() && message.contains("Tandem:"), "{request}: {message}");
    }
}

/// Jobs that Tandem does not manage cannot be changed into jobs that it should have held.
fn other_jobs_cannot_become_gpu_jobs(cluster: &Cluster) {
    let plain = cluster.sbatch(ANN, &["-p", "plain", "--gres=gpu:1", "-H"], "true");
    let without = cluster.sbatch(ANN, &["-H"], "true");
    for change in [
        format!("jobid={plain} partition=tandem"),
        format!("jobid={without} gres=gpu:1"),
        format!("jobid={without} gres=shard:g0:1"),
    ] {
        let mut scontrol = cluster.by(ANN, "scontrol");
        let output = cluster.output(scontrol.arg("update").args(change.split(' ')));
        assert!(!output.status.success(), "{change}");
    }
    assert_eq!(cluster.record(plain)["partition"], "plain");
    assert_eq!(cluster.record(without)["tres_per_node"], "");
}

/// Jobs of other partitions and jobs without GPUs.
fn other_jobs_are_left_alone(cluster: &Cluster) {
    let elsewhere = cluster.sbatch(ANN, &["-p", "plain", "--gres=gpu:1"], "true");
    let without = cluster.sbatch(ANN, &[], "true");
    cluster.until_state(elsewhere, "COMPLETED");
    cluster.until_state(without, "COMPLETED");
    assert_eq!(cluster.record(elsewhere)["admin_comment"], Value::from(""));
}
