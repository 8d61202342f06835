//! Jobs wait for a licence that runs out with the daemon, and a place that Slurm does not give is given back.

use crate::cluster::{ANN, BEN, Cluster, PATIENCE, Shape, executions, recording_script, until};

/// A field of a job, in the words of squeue on every version.
fn shown(cluster: &Cluster, job: u64, field: &str) -> String {
    let mut squeue = cluster.program("squeue");
    squeue.args(["-h", "-t", "all", "-o", field, "-j", &job.to_string()]);
    cluster.ok(&mut squeue).trim().to_owned()
}

fn state(cluster: &Cluster, job: u64) -> String {
    shown(cluster, job, "%T")
}

fn until_state(cluster: &Cluster, job: u64, wanted: &str) {
    let is_there = until(PATIENCE, || state(cluster, job) == wanted);
    assert!(is_there, "job {job} is {}, not {wanted}; {}", state(cluster, job), cluster.log());
}

#[test]
fn slurm_starts_what_waits_when_the_daemon_is_away() {
    for version in [Some("24.11"), Some("26.05")] {
        let shape = Shape { version, nodes: 1, gpus: 2, ..Shape::default() };
        let Some(mut cluster) = Cluster::shaped(&shape) else { continue };
        cluster.start_daemon_with(&["slurm.reservation_s=12"]);
        let all = cluster.sbatch(BEN, &["--gres=gpu:2"], "sleep 600");
        until_state(&cluster, all, "RUNNING");
        let file = cluster.shared_file("plain");
        let script = recording_script(&file, 1.0, 0);
        let forms: [&[&str]; 4] = [
            &["--gres=gpu:1"],
            &["--gpus=2"],
            &["--gres=gpu:1", "--cpus-per-gpu=2", "--no-requeue"],
            &["-n1", "--gpus-per-task=1"],
        ];
        let waiting = forms.map(|form| cluster.sbatch(ANN, form, &script));
        let held = cluster.sbatch(ANN, &["--gres=gpu:1", "-H"], "true");
        for job in waiting {
            let record = cluster.record(job);
            assert_eq!(record["licenses"], "tandem_gate:1", "{record}");
            assert_eq!(state(&cluster, job), "PENDING");
        }
        cluster.kill_daemon();
        cluster.ok(cluster.program("scancel").arg(all.to_string()));
        for job in waiting {
            until_state(&cluster, job, "COMPLETED");
        }
        let mut gpus: Vec<usize> =
            executions(&file).iter().map(|execution| execution.gpus.len()).collect();
        gpus.sort_unstable();
        assert_eq!(gpus, [1, 1, 1, 2]);
        assert_eq!(state(&cluster, held), "PENDING", "its user holds it");
        // New jobs are plain as well.
        let plain = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
        until_state(&cluster, plain, "COMPLETED");
        // It takes over, also the job that is held.
        cluster.start_daemon_with(&["slurm.reservation_s=12"]);
        let is_reserved = || cluster.scontrol(&["show", "reservation"]).contains("State=ACTIVE");
        assert!(until(PATIENCE, is_reserved), "{}", cluster.log());
        let shared = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
        cluster.ok(cluster.by(ANN, "scontrol").args(["release", &held.to_string()]));
        for job in [shared, held] {
            until_state(&cluster, job, "COMPLETED");
            let request = shown(&cluster, job, "%b");
            assert!(request.contains("shard"), "{request}");
        }
        let over = || cluster.jobs().values().all(|job| job["end_time"].is_string());
        assert!(until(PATIENCE, over), "{:?}", cluster.jobs());
    }
}
