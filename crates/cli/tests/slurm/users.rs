//! What the plugin forbids, and what it leaves alone.

use crate::cluster::{ANN, BEN, Cluster, text};
use serde_json::Value;

/// No daemon runs: a job that starts has bypassed the hold.
#[test]
fn users_cannot_bypass_the_hold() {
    let Some(cluster) = Cluster::up(2, 2) else { return };
    users_cannot_change_a_held_job(&cluster);
    gpus_can_be_requested_by_number_only(&cluster);
    other_jobs_cannot_become_gpu_jobs(&cluster);
    other_jobs_are_left_alone(&cluster);
}

fn users_cannot_change_a_held_job(cluster: &Cluster) {
    let job = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
    let id = job.to_string();
    let array = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=1-3"], "true");
    let target = format!("jobid={id}");
    let attempts: &[&[&str]] = &[
        &["release", &id],
        &["update", &target, "priority=100"],
        &["update", &target, "gres=gpu:1"],
        &["update", &target, "tresperjob=gres:gpu:1"],
        &["update", &target, "reqnodelist=n1"],
        &["update", &target, "excnodelist=n1"],
        &["update", &target, "partition=plain"],
        &["update", &target, "admincomment=mine"],
        &["update", &target, "numnodes=2"],
        &["release", &format!("{array}_2")],
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
            "priority",
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
    // The owner, and no other user, may still change the time limit and cancel.
    cluster.ok(cluster.by(ANN, "scontrol").args(["update", &target, "timelimit=7"]));
    let ben = cluster.output(cluster.by(BEN, "scontrol").args(["update", &target, "timelimit=9"]));
    assert!(!ben.status.success());
    assert!(!cluster.output(cluster.by(BEN, "scancel").arg(&id)).stderr.is_empty());
    assert_eq!(cluster.state(job), "PENDING");
}

fn gpus_can_be_requested_by_number_only(cluster: &Cluster) {
    for request in [
        "--gres=shard:10",
        "--gres=gpu:g1:1",
        "--gres=shard:g1:10",
        "--gpus-per-socket=1",
        "--gpus=3",
    ] {
        let mut sbatch = cluster.by(ANN, "sbatch");
        sbatch.args([request, "--sockets-per-node=1", "-o", "/dev/null", "--wrap", "true"]);
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
