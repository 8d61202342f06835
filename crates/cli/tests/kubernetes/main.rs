//! Tandem on a real Kubernetes on this machine, with fake GPUs. Needs root, a build with the feature `kubernetes` and
//! what `scripts/kube-cluster packages` fetches; otherwise the test says that it is skipped.

mod cluster;
#[path = "../common/mod.rs"]
mod common;

use cluster::{Cluster, NODES, PATIENCE, until};
use common::Dice;
use std::collections::BTreeSet;

/// The most pods on a GPU under the policy.
const TENANTS_MAX: usize = 3;

#[test]
fn pods_share_gpus_and_nothing_is_lost() {
    if cfg!(not(feature = "kubernetes")) {
        let output = common::tandem(&["kube", "doctor"]).output().expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("--features kubernetes"), "{message}");
        common::skipped(
            "this build has no Kubernetes; give cargo --features tandem-cli/kubernetes",
        );
        return;
    }
    let Some(mut cluster) = Cluster::up() else { return };
    cluster.start_daemon();
    shares(&cluster);
    is_drawn_by_nodes(&cluster);
    survives_kills(&mut cluster);
    is_released_when_the_daemon_is_away(&mut cluster);
}

/// Unchanged Jobs of two namespaces run together on a GPU, which each of them sees.
fn shares(cluster: &Cluster) {
    for number in 0..4 {
        for namespace in ["ann", "ben"] {
            cluster.submit(namespace, &format!("s{number}"), "echo gpu=$TANDEM_GPUS; sleep 4", 0);
        }
    }
    let (mut most, mut has_mixed) = (0, false);
    let is_over = until(PATIENCE, || {
        for tenants in cluster.tenants().values() {
            most = most.max(tenants.len());
            let namespaces: BTreeSet<&String> = tenants.iter().map(|(space, _)| space).collect();
            has_mixed |= namespaces.len() > 1;
        }
        cluster.ended("s").len() == 8
    });
    assert!(is_over, "{:?}\n{}", cluster.ended("s"), cluster.state());
    assert!(cluster.ended("s").values().all(|codes| *codes == [0]), "{:?}", cluster.ended("s"));
    assert!(most <= TENANTS_MAX, "{most} pods on a GPU");
    assert!(has_mixed, "pods of two namespaces never shared a GPU; at most {most} pods on one");
    for namespace in ["ann", "ben"] {
        let log = cluster.kubectl(&["logs", "-n", namespace, "job/s0"]);
        assert_eq!(log.trim(), "gpu=gpu0");
    }
}

/// The dashboard is told of the nodes, and which pods were on the GPU of which, beside which others.
fn is_drawn_by_nodes(cluster: &Cluster) {
    let devices = cluster.get("/v1/devices")["devices"].clone();
    let devices = devices.as_array().expect("devices");
    let nodes: Vec<&str> = devices.iter().filter_map(|one| one["node"].as_str()).collect();
    assert_eq!(BTreeSet::from_iter(&nodes), BTreeSet::from_iter(&NODES));
    let timeline = cluster.get("/v1/timeline");
    let placements = timeline["placements"].as_array().expect("placements");
    let device = |one: &serde_json::Value| one["devices"][0].as_u64().expect("a device") as usize;
    let used: BTreeSet<&str> = placements.iter().map(|one| nodes[device(one)]).collect();
    assert_eq!(used, BTreeSet::from_iter(NODES), "{timeline}");
    let is_beside = |one: &serde_json::Value| !one["beside"].as_array().expect("jobs").is_empty();
    assert!(placements.iter().any(is_beside), "{timeline}");
}

/// The daemon is killed at random points, a gated pod is deleted: every Job ends once, with its own exit code.
fn survives_kills(cluster: &mut Cluster) {
    let mut dice = Dice(24);
    for number in 0..10 {
        let code = if number % 4 == 3 { 3 } else { 0 };
        cluster.submit("ann", &format!("k{number}"), "sleep 2", code);
    }
    cluster.submit("ben", "deleted", "sleep 1", 0);
    cluster.kubectl(&["delete", "job", "-n", "ben", "deleted", "--wait=false"]);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(dice.between(50, 2500)));
        cluster.kill_daemon();
        cluster.start_daemon();
    }
    let is_over = until(PATIENCE, || cluster.ended("k").len() == 10);
    assert!(is_over, "{:?}\n{}", cluster.ended("k"), cluster.state());
    for (name, codes) in cluster.ended("k") {
        let number: u32 = name.rsplit('k').next().and_then(|n| n.parse().ok()).expect("a number");
        assert_eq!(codes, [if number % 4 == 3 { 3 } else { 0 }], "{name} ended otherwise or twice");
    }
}

/// Pods wait for a daemon that is away, until the watchdog releases them as plain pods.
fn is_released_when_the_daemon_is_away(cluster: &mut Cluster) {
    cluster.kill_daemon();
    cluster.submit("ann", "w", "sleep 1", 0);
    let is_gated = until(PATIENCE, || {
        cluster.kubectl(&["get", "pods", "-n", "ann"]).contains("SchedulingGated")
    });
    assert!(is_gated, "{}", cluster.state());
    let early = cluster.tandem(&["kube", "release", "--if-away", "3600"]);
    assert!(early.contains("nothing was released"), "{early}");
    let late = cluster.tandem(&["kube", "release", "--if-away", "0"]);
    assert!(late.starts_with("1 pods were released"), "{late}");
    assert!(until(PATIENCE, || cluster.ended("w").len() == 1), "{}", cluster.state());
    cluster.tandem(&["kube", "uninstall"]);
    let policies = ["get", "mutatingadmissionpolicies", "-o", "name"];
    assert_eq!(cluster.kubectl(&policies), "");
}
