//! What the dashboard is told of a cluster: nodes and the partition are levels of the same picture.

use crate::cluster::{ANN, Cluster, PATIENCE, until};

#[test]
fn nodes_and_the_partition_are_levels_of_the_picture() {
    let Some(mut cluster) = Cluster::up(2, 2) else { return };
    cluster.start_daemon();
    let job = cluster.sbatch(ANN, &["--gres=gpu:1"], "sleep 300").to_string();
    let runs = || cluster.jobs().get(&job).is_some_and(|job| job["state"] == "running");
    assert!(until(PATIENCE, runs), "{:?} {}", cluster.jobs(), cluster.log());
    let get = |path: &str| cluster.daemon.get(path);
    assert_eq!(get("/v1/info")["partition"], "tandem");
    let devices = get("/v1/devices")["devices"].clone();
    let nodes: Vec<&str> = devices
        .as_array()
        .expect("devices")
        .iter()
        .filter_map(|one| one["node"].as_str())
        .collect();
    assert_eq!(nodes, ["n0", "n0", "n1", "n1"]);
    // The job is on a GPU of a node, now and in the forecast.
    let is_recorded = || get("/v1/timeline")["placements"][0]["devices"][0].is_u64();
    assert!(until(PATIENCE, is_recorded), "{}", get("/v1/timeline"));
    let timeline = get("/v1/timeline");
    let placed = &timeline["placements"][0];
    let device = placed["devices"][0].as_u64().expect("a device");
    assert!((device as usize) < nodes.len() && placed["to"].is_null(), "{timeline}");
    let jobs = get("/v1/jobs?state=active");
    assert_eq!(jobs["jobs"][0]["devices"], placed["devices"]);
    assert!(get("/v1/forecast")["placements"].as_array().is_some_and(|all| !all.is_empty()));
    cluster.ok(cluster.by(ANN, "scancel").arg(&job));
    let ended = || get("/v1/timeline")["placements"][0]["to"].is_string();
    assert!(until(PATIENCE, ended), "{}", get("/v1/timeline"));
}
