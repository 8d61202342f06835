//! What people are told: why a job waits, what becomes of it, where the daemon is. Real processes under a real
//! daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options, until};
use common::finish;
use common::server::isolated;
use tandem_daemon::request::JobRequest;

fn reason(daemon: &Daemon, id: u64) -> String {
    daemon.job(id).line.reason.unwrap_or_default()
}

/// A job with an estimate, so that its end can be foreseen.
fn sleeper(daemon: &Daemon, seconds: f64) -> JobRequest {
    JobRequest { estimate_s: Some(seconds), exclusive: true, ..daemon.shell("sleep 600") }
}

#[test]
fn reasons_name_what_is_in_the_way() {
    let daemon = Daemon::start(Options::fake(2).and(&["--policy", "fifo"]));
    let first = daemon.submit(&sleeper(&daemon, 240.0));
    let second = daemon.submit(&sleeper(&daemon, 7200.0));
    daemon.await_pid(first);
    daemon.await_pid(second);
    let third = daemon.submit(&sleeper(&daemon, 60.0));
    let text = reason(&daemon, third);
    assert_eq!(text, format!("2 of 2 GPUs busy; job {first} ends in about 4 min"));
    let explained = daemon.ok(&["explain", &third.to_string()]).stdout;
    assert!(explained.contains("2 of 2 GPUs busy"), "{explained}");
    let after = JobRequest { dependency: Some(format!("afterok:{first}")), ..daemon.shell("true") };
    let after = daemon.submit(&after);
    assert_eq!(reason(&daemon, after), format!("waits for job {first}"));
    let explained = daemon.ok(&["explain", &after.to_string()]).stdout;
    assert!(!explained.contains("foreseen"), "{explained}");
    let begin = JobRequest { begin_unix_s: Some(4e9), ..daemon.shell("true") };
    let begin = daemon.submit(&begin);
    assert!(
        reason(&daemon, begin).starts_with("begins at 2096-10-0"),
        "{}",
        reason(&daemon, begin)
    );
    let info = daemon.ok(&["info", &begin.to_string()]).stdout;
    assert!(info.contains("  begins       2096-10-0"), "{info}");
    let explained = daemon.ok(&["explain", &begin.to_string()]).stdout;
    assert!(explained.contains("begins at 2096") && !explained.contains("foreseen"), "{explained}");
    let gang = daemon.submit(&JobRequest { gpus: 2.0, ..daemon.shell("true") });
    assert!(
        reason(&daemon, gang).contains("needs 2 GPUs, 0 of 2 free"),
        "{}",
        reason(&daemon, gang)
    );
}

#[test]
fn a_drained_device_is_named_with_its_reason_also_after_a_restart() {
    let mut daemon = Daemon::start(Options::fake(1));
    daemon.ok(&["gpus", "drain", "0", "--reason", "fan"]);
    let ran = daemon.ok(&["submit", "--", "true"]);
    assert_eq!(ran.stdout, "submitted job 1: GPU 0 is drained (fan)\n");
    daemon.kill();
    daemon.restart();
    assert_eq!(reason(&daemon, 1), "GPU 0 is drained (fan)");
    let explained = daemon.ok(&["explain", "1"]).stdout;
    assert!(explained.contains("GPU 0: is drained (fan)"), "{explained}");
    daemon.ok(&["gpus", "undrain", "0"]);
    daemon.await_state(1, "completed");
}

#[test]
fn a_device_that_is_drained_for_a_time_is_named_and_undrained() {
    let daemon = Daemon::start(Options::fake(2));
    daemon.ok(&["gpus", "drain", "0-1", "--until", "now+2h", "--reason", "fan"]);
    let shown = daemon.ok(&["gpus"]).stdout;
    let drained = shown.lines().filter(|line| line.contains("drained: until 20"));
    assert_eq!(drained.filter(|line| line.contains("(fan)")).count(), 2, "{shown}");
    let waits = daemon.submit(&daemon.shell("exit 0"));
    let why = reason(&daemon, waits);
    assert!(why.contains("GPU 0 is drained until 20") && why.contains("(fan)"), "{why}");
    let explained = daemon.ok(&["explain", &waits.to_string()]).stdout;
    assert!(explained.contains("GPUs 0-1: is drained until 20"), "{explained}");
    daemon.ok(&["gpus", "undrain", "0"]);
    daemon.await_state(waits, "completed");
    let left = daemon.ok(&["reserve", "list", "--json"]).json();
    assert_eq!(left["reservations"][0]["devices"], serde_json::json!([1]), "{left}");
    daemon.ok(&["gpus", "undrain", "1"]);
    let left = daemon.ok(&["reserve", "list", "--json"]).json();
    assert_eq!(left["reservations"], serde_json::json!([]), "{left}");
}

/// A job that the policy paused is told of others, not of itself.
#[test]
fn a_paused_job_is_not_in_its_own_way() {
    let options = Options::fake(1).and(&["--policy", "srtf"]);
    let daemon = Daemon::start(options);
    let long = daemon.submit(&sleeper(&daemon, 7200.0));
    daemon.await_pid(long);
    let short = daemon.submit(&sleeper(&daemon, 60.0));
    daemon.await_state(long, "paused");
    daemon.await_pid(short);
    until("the reason is that of a paused job", || {
        reason(&daemon, long).starts_with("paused for other jobs: 1 of 1 GPU busy")
    });
    assert!(!reason(&daemon, long).contains(&format!("job {long}")));
    let explained = daemon.ok(&["explain", &long.to_string()]).stdout;
    assert!(!explained.contains(&format!("job {long} is there")), "{explained}");
}

#[test]
fn submit_says_what_will_happen() {
    let daemon = Daemon::start(Options::fake(1).and(&["--policy", "fifo"]));
    let ran = daemon.ok(&["submit", "--exclusive", "--estimate", "4", "--", "sleep", "600"]);
    assert_eq!(ran.stdout, "submitted job 1: starts now on GPU 0\n");
    daemon.await_pid(1);
    let ran = daemon.ok(&["submit", "--", "true"]);
    assert!(
        ran.stdout.starts_with("submitted job 2: 1 of 1 GPU busy; job 1 ends in about "),
        "{ran:?}"
    );
    let ran = daemon.ok(&["submit", "-H", "--", "true"]);
    assert_eq!(ran.stdout, "submitted job 3: held until tandem release\n");
    let ran = daemon.ok(&["submit", "-a", "1-3", "--", "true"]);
    assert!(ran.stdout.starts_with("submitted jobs 4-6: all wait: "), "{ran:?}");
    // What programs read is as it was, with one field more.
    assert_eq!(daemon.ok(&["submit", "--parsable", "--", "true"]).stdout, "7\n");
    let answer = daemon.ok(&["submit", "--json", "--", "true"]).json();
    assert_eq!((&answer["ids"][0], &answer["outlook"]["starts_now"]), (&8.into(), &0.into()));
}

#[test]
fn a_script_for_slurm_finds_its_variables() {
    let daemon = Daemon::start(Options::fake(1));
    let script = "#!/bin/sh\n#SBATCH --job-name=prep -a 3-7:2\n#SBATCH --cpus-per-task=4\nenv | grep -E '^SLURM_' | sort\n";
    std::fs::write(daemon.dir.path().join("prep.sh"), script).unwrap();
    daemon.ok(&["submit", "-W", "prep.sh"]);
    let text = std::fs::read_to_string(daemon.dir.path().join("tandem-2.out")).unwrap();
    let dir = daemon.dir.path().canonicalize().unwrap();
    let dir = format!("SLURM_SUBMIT_DIR={}", dir.display());
    for line in [
        "SLURM_JOB_ID=2",
        "SLURM_JOBID=2",
        "SLURM_ARRAY_JOB_ID=1",
        "SLURM_ARRAY_TASK_ID=5",
        "SLURM_ARRAY_TASK_COUNT=3",
        "SLURM_ARRAY_TASK_MIN=3",
        "SLURM_ARRAY_TASK_MAX=7",
        "SLURM_ARRAY_TASK_STEP=2",
        "SLURM_CPUS_PER_TASK=4",
        "SLURM_PROCID=0",
        "SLURM_JOB_NAME=prep",
        "SLURM_RESTART_COUNT=0",
        &dir,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing: {text}");
    }
    assert!(!text.contains("SLURM_NTASKS"), "frameworks would take it for srun: {text}");
    // Other scripts do not get them.
    std::fs::write(
        daemon.dir.path().join("plain.sh"),
        script.replace("#SBATCH --cpus-per-task=4\n", "").replace("#SBATCH", "#TANDEM"),
    )
    .unwrap();
    daemon.ok(&["submit", "-W", "-o", "plain.out", "plain.sh"]);
    let text = std::fs::read_to_string(daemon.dir.path().join("plain.out")).unwrap();
    assert!(!text.contains("SLURM_JOB_ID"), "{text}");
}

#[test]
fn a_device_with_a_process_is_not_called_free() {
    let daemon = Daemon::start(Options::fake(1));
    let stays = JobRequest {
        kill_grace_s: Some(600.0),
        ..daemon.shell("trap '' TERM; while :; do sleep 0.1; done")
    };
    let stays = daemon.submit(&stays);
    daemon.await_pid(stays);
    daemon.ok(&["requeue", &stays.to_string()]);
    let explained = daemon.ok(&["explain", &stays.to_string()]).stdout;
    assert!(explained.contains("GPU 0: its own process is still there"), "{explained}");
    assert!(!explained.contains("is free"), "{explained}");
}

#[test]
fn who_waits_for_a_job_is_told_how_it_ended() {
    let daemon = Daemon::start(Options::fake(1));
    let ran = daemon.tandem(&["submit", "-W", "-J", "bad", "--", "sh", "-c", "exit 3"]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(3), 1), "{ran:?}");
    assert_eq!(ran.stderr, "tandem: job 1 (bad) failed, exit code 3\n");
    let ran = daemon.ok(&["submit", "-W", "--", "true"]);
    assert_eq!(ran.stderr, "");
    // Its output cannot be read: no file was made.
    let ran = daemon.tandem(&["run", "-D", "/nowhere", "-J", "lost", "--", "true"]);
    assert!(ran.stderr.contains("tandem: job 3 (lost) failed"), "{ran:?}");
    let info = daemon.ok(&["info", "1"]).stdout;
    assert!(!info.contains("enforcement") && !info.contains(" 0 variables"), "{info}");
}

#[test]
fn run_does_not_show_the_output_of_an_earlier_run() {
    let daemon = Daemon::start(Options::fake(1));
    let ran = daemon.ok(&["run", "-o", "same.log", "--", "echo", "first"]);
    assert_eq!(ran.stdout, "first\n");
    // The device is busy for a while, so that the job waits with a file of the same name there.
    daemon.ok(&["submit", "--exclusive", "--", "sleep", "2"]);
    let ran = daemon.ok(&["run", "-o", "same.log", "--", "echo", "second"]);
    assert_eq!(ran.stdout, "second\n");
}

#[test]
fn info_shows_parameters_retries_and_the_memory_peak_of_an_ended_job() {
    let daemon = Daemon::start(Options::with(&[
        "--provider",
        "cpu",
        "--devices",
        "1",
        "--set",
        "learning.sample_s=0.2",
    ]));
    let args = ["submit", "-W", "--retries", "3", "--param", "lr=0.1", "--"];
    daemon.tandem(&[&args[..], &["sh", "-c", "sleep 1.5; exit $(( {lr} > 0 ))"]].concat());
    let args = [
        "submit",
        "-W",
        "--param",
        "lr=0.1",
        "--retries",
        "2",
        "--",
        "sh",
        "-c",
        ": {lr}; sleep 1.5",
    ];
    daemon.ok(&args);
    let info = daemon.ok(&["info", "2"]).stdout;
    assert!(info.contains("parameters   lr=0.1"), "{info}");
    assert!(info.contains("1, 0 after failures, 2 retries left"), "{info}");
    assert!(daemon.job(2).memory_peak_bytes > 0, "{info}");
}

#[test]
fn the_daemon_is_started_and_stopped_by_command() {
    let dir = common::folder();
    let socket = dir.path().join("t.sock");
    let state = dir.path().join("state");
    let tandem = |args: &[&str]| finish(&mut isolated(dir.path(), args, &socket));
    let gone = tandem(&["daemon", "status"]);
    assert_eq!(gone.code, Some(3), "{gone:?}");
    let flags = [
        "--fake-gpus",
        "1",
        "--state",
        state.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let started = tandem(&[&["daemon", "start"], &flags[..]].concat());
    assert_eq!(started.code, Some(0), "{started:?}");
    let again = tandem(&[&["daemon", "start"], &flags[..]].concat());
    assert!(again.code == Some(0) && again.stderr.contains("runs already"), "{again:?}");
    assert!(!again.stderr.contains("no effect"), "{again:?}");
    let other = tandem(&["daemon", "start", "--policy", "fifo"]).stderr;
    assert!(
        other.contains("no effect: daemon.policy=fifo") && other.contains("daemon restart"),
        "{other}"
    );
    let status = tandem(&["daemon", "status", "--json"]).json();
    let pid = status["pid"].as_u64().unwrap();
    assert_eq!((&status["provider"], &status["devices"]), (&"fake".into(), &1.into()));
    assert!(tandem(&["daemon", "status"]).stdout.contains(&format!("process {pid}, up ")));
    assert_eq!(tandem(&["submit", "--", "sleep", "600"]).code, Some(0));
    let restarted = tandem(&["daemon", "restart"]);
    assert_eq!(restarted.code, Some(0), "{restarted:?}");
    let status = tandem(&["daemon", "status", "--json"]).json();
    assert_ne!(status["pid"].as_u64().unwrap(), pid);
    assert_eq!((&status["provider"], &status["devices"]), (&"fake".into(), &1.into()));
    // The job outlived the restart; its log has no escape sequences.
    assert_eq!(tandem(&["cancel", "1"]).code, Some(0));
    assert_eq!(tandem(&["wait", "1"]).code, Some(1));
    let log = std::fs::read_to_string(state.join("daemon.log")).unwrap();
    assert!(!log.is_empty() && !log.contains('\u{1b}'), "{log}");
    let stopped = tandem(&["daemon", "stop"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(tandem(&["daemon", "stop"]).code, Some(3));
    let bad = tandem(&["daemon", "start", "--policy", "nonsense"]);
    assert_eq!(bad.code, Some(1), "{bad:?}");
    assert!(bad.stderr.contains("nonsense") && bad.stderr.lines().count() == 1, "{bad:?}");
    let unit = tandem(&["daemon", "unit", "--policy", "fifo"]).stdout;
    assert!(
        unit.contains("tandem daemon --set daemon.policy=fifo\n")
            && unit.contains("KillMode=process"),
        "{unit}"
    );
}

#[test]
fn stop_waits_for_cancelled_jobs_and_counts_those_that_go_on() {
    let dir = common::folder();
    let socket = dir.path().join("t.sock");
    let state = dir.path().join("state");
    let tandem = |args: &[&str]| finish(&mut isolated(dir.path(), args, &socket));
    let start = ["daemon", "start", "--fake-gpus", "1", "--state", state.to_str().unwrap()];
    let start = [&start[..], &["--socket", socket.to_str().unwrap()]].concat();
    let runs = || tandem(&["daemon", "status", "--json"]).json()["jobs"]["running"] == 1;
    for is_cancelled in [true, false] {
        assert_eq!(tandem(&start).code, Some(0));
        assert_eq!(tandem(&["submit", "--", "sleep", "600"]).code, Some(0));
        until("the job runs", runs);
        if is_cancelled {
            assert_eq!(tandem(&["cancel", "all"]).code, Some(0));
        }
        let stopped = tandem(&["daemon", "stop"]);
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        let says = stopped.stderr.trim_end().split_once("; ").map(|(_, jobs)| jobs);
        assert_eq!(says, (!is_cancelled).then_some("1 job goes on without it"), "{stopped:?}");
    }
    assert_eq!(tandem(&start).code, Some(0));
    assert_eq!(tandem(&["cancel", "all"]).code, Some(0));
    assert_eq!(tandem(&["daemon", "stop"]).code, Some(0));
}
