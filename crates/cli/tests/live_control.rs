//! How jobs are ended, stopped and queued again, and how they wait for each other: real processes under a real
//! daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options, until};
use std::path::PathBuf;
use tandem_daemon::request::JobRequest;

/// Speaks the job protocol: steps until it is asked to stop, then notes how far it came in `saved` and exits.
/// Run again, it continues from there.
const TRAINER: &str = r#"
import json, os, socket, sys, time
want = int(sys.argv[1])
done = int(open("saved").read()) if os.path.exists("saved") else 0
sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["TANDEM_SOCK"])
sock.setblocking(False)
def say(**line):
    try:
        sock.send((json.dumps(line) + "\n").encode())
    except OSError:
        pass  # The daemon is gone; a job goes on without it.
say(op="hello", v=1, pid=os.getpid(), caps=["stop"])
while done < want:
    done += 1
    say(op="step", n=done)
    open("steps", "a").write(f"{done}\n")
    time.sleep(0.02)
    try:
        heard = sock.recv(4096)
    except OSError:
        continue
    if b"stop" in heard:
        open("saved", "w").write(str(done))
        say(op="bye", done=False)
        time.sleep(0.1)
        sys.exit(0)
say(op="bye", done=True)
"#;

fn file(daemon: &Daemon, name: &str) -> PathBuf {
    daemon.dir.path().join(name)
}

fn read(daemon: &Daemon, name: &str) -> String {
    std::fs::read_to_string(file(daemon, name)).unwrap_or_default()
}

fn steps(daemon: &Daemon) -> usize {
    read(daemon, "steps").lines().count()
}

/// A job that can save a checkpoint when it is asked to.
fn trainer(daemon: &Daemon, steps: u32) -> JobRequest {
    std::fs::write(file(daemon, "trainer.py"), TRAINER).unwrap();
    daemon.shell(&format!("exec python3 trainer.py {steps}"))
}

fn saves_on(signal: &str) -> String {
    format!(
        "import os, signal, sys, time\n\
         def save(*_):\n    open('saved', 'a').write('saved\\n'); sys.exit(0)\n\
         signal.signal(signal.{signal}, save)\n\
         open('ready', 'w').close()\n\
         if os.path.exists('saved'): sys.exit(0)\n\
         while True: time.sleep(0.05)\n"
    )
}

#[test]
fn a_cancelled_job_saves_a_checkpoint_first() {
    let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    let job = daemon.submit(&trainer(&daemon, 100_000));
    until("it makes steps", || steps(&daemon) > 5);
    daemon.ok(&["cancel", &job.to_string()]);
    let ended = daemon.await_state(job, "cancelled");
    assert!(ended.line.reason.unwrap().starts_with("cancelled by "));
    let saved: usize = read(&daemon, "saved").parse().expect("it saved its state");
    assert!(saved > 5, "{saved}");
}

#[test]
fn a_paused_job_that_is_cancelled_saves_a_checkpoint_too() {
    let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    let job = daemon.submit(&trainer(&daemon, 100_000));
    until("it makes steps", || steps(&daemon) > 5);
    daemon.ok(&["pause", &job.to_string()]);
    daemon.await_state(job, "paused");
    daemon.ok(&["cancel", &job.to_string()]);
    daemon.await_state(job, "cancelled");
    assert_ne!(read(&daemon, "saved"), "");
}

#[test]
fn a_job_at_its_time_limit_saves_a_checkpoint_first() {
    let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    // Enough for an interpreter to start and make a step on a busy machine.
    let request = JobRequest { time_limit_s: Some(10.0), ..trainer(&daemon, 100_000) };
    let job = daemon.submit(&request);
    daemon.await_state(job, "timeout");
    assert_ne!(read(&daemon, "saved"), "");
}

/// A job that does not react to `stop` within the grace gets SIGTERM, and after that SIGKILL.
#[test]
fn a_job_that_does_not_stop_is_ended_by_force() {
    let options = Options::with(&["--provider", "cpu", "--devices", "1"]);
    let daemon = Daemon::start(options.and(&["--set", "daemon.stop_grace_s=0.3"]));
    let deaf = TRAINER.replace("if b\"stop\" in heard:", "if False:").replace(
        "want = int",
        "import signal\n\
         signal.signal(signal.SIGTERM, lambda *_: open('term', 'w').close())\nwant = int",
    );
    std::fs::write(file(&daemon, "deaf.py"), deaf).unwrap();
    let request = daemon.shell("exec python3 deaf.py 100000");
    let job = daemon.submit(&JobRequest { kill_grace_s: Some(0.3), ..request });
    until("it makes steps", || steps(&daemon) > 5);
    daemon.ok(&["cancel", &job.to_string()]);
    let queue = daemon.ok(&["queue"]).stdout;
    assert!(queue.contains(" CG "), "a job that is ending shows it: {queue}");
    let ended = daemon.await_state(job, "cancelled");
    assert_eq!((ended.signal, file(&daemon, "term").exists()), (Some(9), true));
}

/// The second `cancel` does not wait for a checkpoint.
#[test]
fn a_second_cancel_is_impatient() {
    let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    let deaf = TRAINER.replace("if b\"stop\" in heard:", "if False:");
    std::fs::write(file(&daemon, "deaf.py"), deaf).unwrap();
    let job = daemon.submit(&daemon.shell("exec python3 deaf.py 100000"));
    until("it makes steps", || steps(&daemon) > 5);
    daemon.ok(&["cancel", &job.to_string()]);
    daemon.await_state(job, "completing");
    daemon.ok(&["cancel", &job.to_string()]);
    assert_eq!(daemon.await_state(job, "cancelled").signal, Some(15));
}

#[test]
fn a_job_that_saves_on_a_signal_is_stopped_by_it() {
    for (signal, wrapped) in [("SIGUSR1", false), ("SIGTERM", true)] {
        let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
        std::fs::write(file(&daemon, "save.py"), saves_on(signal)).unwrap();
        // The shell that waits for the program must not fall to the signal.
        let line = if wrapped { "python3 save.py; true" } else { "exec python3 save.py" };
        let request = JobRequest { stop_signal: Some(signal.to_owned()), ..daemon.shell(line) };
        let job = daemon.submit(&request);
        until("it handles the signal", || file(&daemon, "ready").exists());
        daemon.ok(&["requeue", &job.to_string()]);
        let ended = daemon.await_state(job, "completed");
        assert_eq!((ended.runs, read(&daemon, "saved").as_str()), (2, "saved\n"), "{signal}");
    }
}

#[test]
fn a_requeued_job_continues_from_its_checkpoint() {
    let mut daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    let job = daemon.submit(&trainer(&daemon, 150));
    until("it makes steps", || steps(&daemon) > 20);
    daemon.ok(&["requeue", &job.to_string()]);
    until("it runs again", || daemon.job(job).runs == 2);
    until("it has gone on", || steps(&daemon) > 60);
    // As well after a restart of the daemon.
    daemon.kill();
    daemon.restart();
    until("it reports to the new daemon or is over", || {
        daemon.job(job).line.state.name() != "pending"
    });
    let ended = daemon.await_state(job, "completed");
    assert_eq!(ended.runs, 2);
    let all: Vec<usize> =
        read(&daemon, "steps").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(all, (1..=150).collect::<Vec<_>>(), "no step is lost or repeated");
    let replayed = daemon.tandem(&["replay", daemon.state.join("state.db").to_str().unwrap()]);
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
}

#[test]
fn a_job_that_cannot_save_begins_again_when_it_is_requeued() {
    let daemon = Daemon::start(Options::fake(1));
    let job =
        daemon.submit(&daemon.shell("echo run >> steps; [ $(wc -l < steps) = 2 ] || sleep 600"));
    until("it runs", || steps(&daemon) == 1);
    daemon.ok(&["requeue", &job.to_string()]);
    let ended = daemon.await_state(job, "completed");
    assert_eq!((ended.runs, ended.line.exit_code), (2, Some(0)));
    let over = daemon.tandem(&["requeue", &job.to_string()]);
    assert_eq!(over.code, Some(2), "{over:?}");
    assert!(over.stderr.contains("is over: completed"), "{over:?}");
}

/// `-d afterok:ARRAY` waits for every task, and a task that fails keeps the dependent from starting.
#[test]
fn a_dependency_on_an_array_is_one_on_all_of_its_tasks() {
    let daemon = Daemon::start(Options::fake(4));
    let task = "case $TANDEM_ARRAY_TASK_ID in 3) until [ -e go ]; do sleep 0.05; done; exit $(cat go);; esac";
    for (code, expected) in [("0", "completed"), ("1", "cancelled")] {
        let _ = std::fs::remove_file(file(&daemon, "go"));
        let array = JobRequest { array: Some("1-3".to_owned()), ..daemon.shell(task) };
        let first = daemon.submit(&array);
        let waits = |text: String| JobRequest { dependency: Some(text), ..daemon.shell("true") };
        let all = daemon.submit(&waits(format!("afterok:{first}")));
        let star = daemon.submit(&waits(format!("afterok:{first}_*")));
        let any = daemon.submit(&waits(format!("afterany:{first}")));
        let not = daemon.submit(&waits(format!("afternotok:{first}")));
        let two = daemon.submit(&waits(format!("afterok:{first}_1:{first}_[2]")));
        // Tasks 1 and 2 are over, so this one is; the others wait for task 3.
        daemon.await_state(two, "completed");
        for id in [all, star, any, not] {
            let job = daemon.job(id);
            let reason = job.line.reason.unwrap_or_default();
            let found = (job.line.state.name(), reason);
            assert_eq!(found, ("pending", format!("waits for array {first}")));
        }
        std::fs::write(file(&daemon, "go"), code).unwrap();
        daemon.await_state(all, expected);
        daemon.await_state(star, expected);
        daemon.await_state(any, "completed");
        daemon.await_state(not, if code == "0" { "cancelled" } else { "completed" });
        // Submitted after the array has ended.
        let late = daemon.submit(&waits(format!("afterok:{first}_1-3")));
        daemon.await_state(late, expected);
        let late = daemon.submit(&waits(format!("afterok:{first}")));
        daemon.await_state(late, expected);
    }
}

/// As in Slurm `after` waits for a start, not for an end.
#[test]
fn a_job_can_wait_for_the_start_of_others() {
    let mut daemon = Daemon::start(Options::fake(3));
    let waits = |text: String| JobRequest { dependency: Some(text), ..daemon.shell("true") };
    let first = daemon.submit(&JobRequest { hold: true, ..daemon.shell("sleep 600") });
    let array = JobRequest { array: Some("1-2%1".to_owned()), ..daemon.shell("sleep 600") };
    let array = daemon.submit(&array);
    let one = daemon.submit(&waits(format!("after:{first}")));
    let all = daemon.submit(&waits(format!("after:{array}")));
    let task = daemon.submit(&waits(format!("after:{array}_1")));
    daemon.await_state(task, "completed");
    let reason = |id: u64| daemon.job(id).line.reason.unwrap_or_default();
    assert_eq!(reason(one), format!("waits for the start of job {first}"));
    assert_eq!(reason(all), format!("waits for the start of array {array}"));
    daemon.ok(&["release", &first.to_string()]);
    daemon.await_state(one, "completed");
    assert_eq!(daemon.job(first).line.state.name(), "running");
    // It has started already.
    let late = daemon.submit(&waits(format!("after:{first}")));
    daemon.await_state(late, "completed");
    // Also after a restart; a task that ends without a start does not keep others waiting.
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.job(all).line.state.name(), "pending");
    daemon.ok(&["cancel", &format!("{array}_2")]);
    daemon.await_state(all, "completed");
}

#[test]
fn dependencies_take_last_and_refuse_what_is_not_there() {
    let mut daemon = Daemon::start(Options::fake(2));
    daemon.ok(&["submit", "-a", "1-2", "--", "sh", "-c", "until [ -e go ]; do sleep 0.05; done"]);
    daemon.ok(&["submit", "-d", "afterok:last", "-J", "second", "--", "true"]);
    let second = daemon.job(3).line;
    assert_eq!(second.reason.as_deref(), Some("waits for array 1"));
    for (name, problem) in [
        ("afterok:9", "there is no job 9"),
        ("afterok:1_7", "there is no task 1_7"),
        ("afterok:x", "is not of the form"),
        ("afterok:all", "is not of the form"),
    ] {
        let ran = daemon.tandem(&["submit", "-d", name, "--", "true"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(problem), "{ran:?}");
    }
    // What is waited for survives a restart.
    daemon.kill();
    daemon.restart();
    assert_eq!(daemon.job(3).line.reason.as_deref(), Some("waits for array 1"));
    std::fs::write(file(&daemon, "go"), "").unwrap();
    daemon.await_state(3, "completed");
}

#[test]
fn an_array_is_changed_as_a_whole() {
    let daemon = Daemon::start(Options::fake(1));
    daemon.ok(&["submit", "-a", "1-20", "--", "sleep", "600"]);
    let other = daemon.submit(&daemon.shell("sleep 600"));
    let states = |name: &str| daemon.jobs().iter().filter(|job| job.state.name() == name).count();
    daemon.await_state(1, "running");
    // Tasks that have started are not held, the others are.
    daemon.ok(&["hold", "1"]);
    assert_eq!(states("held"), 19);
    daemon.ok(&["release", "1_5-9"]);
    assert_eq!(states("held"), 14);
    daemon.ok(&["release", "1_*"]);
    daemon.ok(&["cancel", "1_2"]);
    assert_eq!((states("cancelled"), daemon.job(2).line.state.name()), (1, "cancelled"));
    let ran = daemon.ok(&["cancel", "1", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer["done"].as_array().unwrap().len(), 19);
    until("the array is over", || states("cancelled") == 20);
    assert!(!daemon.job(other).line.state.is_over());
    let none = daemon.tandem(&["cancel", "1_*"]);
    assert_eq!(none.code, Some(4), "{none:?}");
    let over = daemon.tandem(&["cancel", "1"]);
    assert_eq!(over.code, Some(2), "{over:?}");
}

#[test]
fn bad_stop_signals_are_refused() {
    let daemon = Daemon::start(Options::fake(1));
    for signal in ["KILL", "9", "NOPE", ""] {
        let ran = daemon.tandem(&["submit", "--stop-signal", signal, "--", "true"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("--stop-signal") && ran.stderr.contains("USR1"), "{ran:?}");
    }
}
