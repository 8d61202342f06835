//! What users must not do, and what the plugin leaves alone.

use crate::cluster::{ANN, BEN, Cluster, text};
use serde_json::Value;

#[test]
fn nobody_gets_around_the_hold() {
    let Some(cluster) = Cluster::up(2, 2) else { return };
    // No daemon: whatever starts got around it.
    let job = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
    let id = job.to_string();
    let array = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=1-3"], "true");
    let tries: &[&[&str]] = &[
        &["release", &id],
        &["update", &format!("jobid={id}"), "priority=100"],
        &["update", &format!("jobid={id}"), "gres=gpu:1"],
        &["update", &format!("jobid={id}"), "tresperjob=gres:gpu:1"],
        &["update", &format!("jobid={id}"), "reqnodelist=n1"],
        &["update", &format!("jobid={id}"), "excnodelist=n1"],
        &["update", &format!("jobid={id}"), "partition=plain"],
        &["update", &format!("jobid={id}"), "admincomment=mine"],
        &["update", &format!("jobid={id}"), "numnodes=2"],
        &["release", &format!("{array}_2")],
        &["top", &id],
    ];
    let before = cluster.record(job);
    for user in [ANN, BEN] {
        for arguments in tries {
            let output = cluster.output(cluster.by(user, "scontrol").args(*arguments));
            let said = text(&output.stderr) + &text(&output.stdout);
            assert!(!output.status.success(), "{user}: {arguments:?}: {said}");
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
    // What is theirs to change can still be changed, by its owner only.
    let limit = format!("jobid={id}");
    cluster.ok(cluster.by(ANN, "scontrol").args(["update", &limit, "timelimit=7"]));
    let ben = cluster.output(cluster.by(BEN, "scontrol").args(["update", &limit, "timelimit=9"]));
    assert!(!ben.status.success());
    assert!(!cluster.output(cluster.by(BEN, "scancel").arg(&id)).stderr.is_empty());
    assert_eq!(cluster.state(job), "PENDING");
    // Shares and kinds of GPU cannot be asked for behind our back.
    for wish in [
        "--gres=shard:10",
        "--gres=gpu:g1:1",
        "--gres=shard:g1:10",
        "--gpus-per-socket=1",
        "--gpus=3",
    ] {
        let mut sbatch = cluster.by(ANN, "sbatch");
        sbatch.args([wish, "--sockets-per-node=1", "-o", "/dev/null", "--wrap", "true"]);
        let output = cluster.output(&mut sbatch);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("Tandem:"), "{wish}: {said}");
    }
    // Nor by changing a job that was none of ours into one.
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
    // Other partitions, and jobs without GPUs, are none of our business.
    let elsewhere = cluster.sbatch(ANN, &["-p", "plain", "--gres=gpu:1"], "true");
    let without = cluster.sbatch(ANN, &[], "true");
    cluster.until_state(elsewhere, "COMPLETED");
    cluster.until_state(without, "COMPLETED");
    assert_eq!(cluster.record(elsewhere)["admin_comment"], Value::from(""));
}
