//! Jobs on nodes report to the daemon and receive its settings.

use crate::cluster::{ANN, BEN, Cluster, PATIENCE, RELAYS, until};
use crate::common::sample_job;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

#[test]
fn jobs_on_nodes_report_and_receive_settings() {
    let Some(mut cluster) = Cluster::up(1, 1) else { return };
    cluster.start_daemon();
    let tandem = env!("CARGO_BIN_EXE_tandem");
    // A real training job, whose number of sub-batches is set from here.
    let script = format!("{} --steps 100000 > /dev/null", sample_job());
    let job = cluster.sbatch(ANN, &["--gres=gpu:1", "--array=7"], &script).to_string() + "_7";
    let reports = || {
        let jobs = cluster.jobs();
        jobs.get(&job).is_some_and(|job| job["rate_measured"] == true)
    };
    assert!(until(PATIENCE, reports), "{:?} {}", cluster.jobs(), cluster.log());
    let number = cluster.jobs()[&job]["id"].to_string();
    cluster.ok(cluster.program(tandem).args(["accum", &number, "4"]));
    let parts = || {
        let info = cluster.ok(cluster.program(tandem).args(["info", &number, "--json"]));
        info.contains("\"sub_batches\":4")
    };
    assert!(until(PATIENCE, parts), "{}", cluster.log());
    // Without the secret a connection is closed.
    for answer in ["", "nonsense\n", "{\"job\":1,\"uid\":0,\"mac\":\"00\"}\n"] {
        let mut stream = TcpStream::connect(RELAYS.as_str()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
        let mut challenge = String::new();
        reader.read_line(&mut challenge).expect("a challenge");
        assert!(challenge.contains("nonce"), "{challenge}");
        stream.write_all(answer.as_bytes()).expect("it listens");
        let mut rest = String::new();
        let read = reader.read_line(&mut rest).unwrap_or(0);
        assert_eq!(read, 0, "{answer}: {rest}");
    }
    // Only the job's user may connect to the job's socket.
    let task = cluster.records().into_iter().find(|record| record["array_task_id"] == 7);
    let id = task.and_then(|task| task["job_id"].as_u64()).expect("its number");
    let socket = std::path::Path::new("/run/tandem/slurm").join(format!("{id}.sock"));
    assert!(socket.exists(), "{}", socket.display());
    let connect = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({:?}); print('in')",
        socket.display().to_string()
    );
    let output = cluster.output(cluster.by(BEN, "python3").args(["-c", &connect]));
    assert!(!output.status.success(), "another user got in");
    cluster.ok(cluster.by(ANN, "scancel").arg(&job));
    let gone = || !socket.exists();
    assert!(until(PATIENCE, gone), "the relay outlives the job");
}
