//! Installations that are not complete: what `tandem slurm doctor` says, and what works beside a faulty node.

use crate::cluster::{ANN, Cluster, Shape, VERSIONS, text};
use std::fs;
use std::io::Write;

#[test]
fn the_doctor_finds_what_is_missing() {
    for version in VERSIONS {
        let Some(cluster) =
            Cluster::shaped(&Shape { version, nodes: 1, gpus: 1, ..Shape::default() })
        else {
            continue;
        };
        let doctor = || {
            let mut command = cluster.program(env!("CARGO_BIN_EXE_tandem"));
            let output = cluster.output(command.args(["slurm", "doctor"]));
            (output.status.code(), text(&output.stdout))
        };
        let (code, said) = doctor();
        assert_eq!(code, Some(0), "{said}");
        // A line of the site that replaces ours at the next start of slurmctld.
        let conf = cluster.path("slurm/slurm.conf");
        let before = fs::read_to_string(&conf).expect("it is there");
        let mut file = fs::File::options().append(true).open(&conf).expect("it is there");
        writeln!(file, "TaskProlog=/site/prolog").expect("it can be written");
        let (code, said) = doctor();
        let line = before.lines().count() + 1;
        let advice = format!("slurm.conf line {line}: keep TaskProlog=/site/prolog, and run ");
        assert!(code == Some(1) && said.contains(&advice), "{said}");
        fs::write(&conf, before).expect("it can be written");
        fs::remove_file(cluster.path("slurm/cli_filter.lua")).expect("it is there");
        let (code, said) = doctor();
        assert!(code == Some(1) && said.contains("cli_filter.lua does not call Tandem"), "{said}");
        fs::remove_dir_all(cluster.path("slurm/tandem")).expect("it is there");
        let (code, said) = doctor();
        assert!(code == Some(1) && said.contains("has no folder tandem"), "{said}");
    }
}

#[test]
fn a_faulty_node_is_left_out() {
    let lines = "NodeName=bad NodeHostname=localhost NodeAddr=127.0.0.1 Port=9 Gres=gpu:2\n";
    let shape = Shape { nodes: 1, gpus: 1, lines, reports: false, ..Shape::default() };
    let Some(mut cluster) = Cluster::shaped(&shape) else { return };
    cluster.start_daemon();
    let job = cluster.sbatch(ANN, &["--gres=gpu:1"], "true");
    cluster.until_state(job, "COMPLETED");
    let said = "node bad: its GPUs need a Type each";
    assert!(cluster.daemon.log().contains(said), "{}", cluster.daemon.log());
    let mut doctor = cluster.program(env!("CARGO_BIN_EXE_tandem"));
    let output = cluster.output(doctor.args(["slurm", "doctor"]));
    let shown = text(&output.stdout);
    assert!(output.status.code() == Some(1) && shown.contains("left out: bad: "), "{shown}");
}
