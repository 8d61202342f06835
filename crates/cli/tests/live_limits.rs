//! Limits that are kept: jobs on cores in control groups of their own. Where this system lets nobody make
//! one, each test says so in one line.

mod common;

use common::daemon::{Daemon, Options, until};
use std::path::PathBuf;
use tandem_backends::local::Cgroups;
use tandem_daemon::request::JobRequest;

const MIB: u64 = 1 << 20;
/// Needs 300 MiB for a moment.
const LARGE: &str = "exec dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null";

/// A daemon on one core.
fn daemon(test: &str) -> Option<Daemon> {
    let groups = Cgroups::find();
    if !groups.are_complete() {
        println!("skipped {test}: control groups: {groups}");
        return None;
    }
    let settings = ["--provider", "cpu", "--devices", "1", "--set", "learning.settle_s=0.1"];
    Some(Daemon::start(Options::with(&settings)))
}

/// The control group of the first run of a job, as it is recorded.
fn group(daemon: &Daemon, id: u64) -> PathBuf {
    let spec = std::fs::read(daemon.state.join(format!("runs/{id}.1/spec.json")));
    let spec: serde_json::Value =
        serde_json::from_slice(&spec.expect("it is recorded")).expect("a record");
    spec["group"]["memory"]["dir"].as_str().expect("it has a group").into()
}

#[test]
fn over_its_memory_is_out_of_memory_and_tried_again_alone() {
    let test = "over_its_memory_is_out_of_memory_and_tried_again_alone";
    let Some(daemon) = daemon(test) else { return };
    let request =
        |line: &str| JobRequest { gpu_memory_bytes: Some(100 * MIB), ..daemon.shell(line) };
    // Alone it may have all that its device has.
    let id = daemon.submit(&request(LARGE));
    let job = daemon.await_state(id, "completed");
    assert_eq!(job.runs, 2, "{job:?}");
    // Within its limit.
    let id = daemon.submit(&request(&LARGE.replace("300M", "50M")));
    assert_eq!(daemon.await_state(id, "completed").runs, 1);
    // Nothing was declared, so nothing is limited.
    let id = daemon.submit(&daemon.shell(LARGE));
    assert_eq!(daemon.await_state(id, "completed").runs, 1);
    daemon.ok(&["replay", &daemon.state.join("state.db").to_string_lossy()]);
}

#[test]
fn a_group_outlives_the_daemon_and_not_its_run() {
    let Some(mut daemon) = daemon("a_group_outlives_the_daemon_and_not_its_run") else { return };
    let info = daemon.client().info().expect("it answers").value;
    assert!(info.cgroups.starts_with('v'), "{info:?}");
    let checks = daemon.ok(&["doctor", "--json"]).json()["checks"].clone();
    let check = checks.as_array().expect("a list").iter().find(|one| one["check"] == "cgroups");
    let check = check.expect("doctor looks at them");
    assert_eq!((&check["status"], &check["found"]), (&"ok".into(), &info.cgroups.into()));

    let line = "while [ ! -e gate ]; do sleep 0.02; done";
    let request = JobRequest { gpu_memory_bytes: Some(100 * MIB), ..daemon.shell(line) };
    let id = daemon.submit(&request);
    let pid = daemon.await_pid(id);
    assert_eq!(daemon.await_state(id, "running").enforcement, "cgroup");
    let group = group(&daemon, id);
    let inside = || std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    assert!(inside().lines().any(|one| one == pid.to_string()), "{group:?}: {}", inside());
    daemon.restart();
    let job = daemon.await_state(id, "running");
    assert_eq!((job.enforcement.as_str(), job.pid), ("cgroup", Some(pid)), "found again");
    std::fs::write(daemon.dir.path().join("gate"), "").expect("a file can be written");
    daemon.await_state(id, "completed");
    until("the group is gone", || !group.exists());

    daemon.options = daemon.options.clone().and(&["--set", "daemon.cgroups=off"]);
    daemon.restart();
    let id = daemon.submit(&daemon.shell("exec sleep 1000"));
    daemon.await_pid(id);
    assert_eq!(daemon.await_state(id, "running").enforcement, "advisory");
    assert_eq!(daemon.client().info().expect("it answers").cgroups, "none: switched off");
}
