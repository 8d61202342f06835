//! What a user can size does not stop the daemon, and the store can be looked after without one.

mod common;

use common::daemon::{Daemon, Options, until};
use common::processes::pid;
use rustix::process::{Signal, kill_process};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::DeviceInfo;
use tandem_daemon::request::{JobRequest, Param};

/// Far beyond what anything here takes on a busy machine, and far below what it took.
const SOON: Duration = Duration::from_secs(60);

fn held(daemon: &Daemon, array: &str) -> JobRequest {
    let array = Some(array.to_owned());
    JobRequest { hold: true, array, ..daemon.shell("exit 0") }
}

#[test]
fn large_requests_do_not_keep_the_daemon_from_starting_again() {
    let mut daemon = Daemon::start(Options::fake(2));
    let other = daemon.submit(&daemon.shell("exit 0"));
    daemon.await_state(other, "completed");
    let large = JobRequest {
        command: vec!["true".to_owned(), "x".repeat(1_000_000)],
        ..held(&daemon, "0-1099")
    };
    let first = daemon.submit(&large);
    let many = daemon.submit(&held(&daemon, "0-19999"));
    daemon.restart();
    assert_eq!(daemon.job(first + 1099).line.state.name(), "held");
    assert_eq!(daemon.job(many + 19_999).line.state.name(), "held");
    // The command is journalled once for each start, not once for each task.
    let journal = rusqlite::Connection::open(daemon.state.join("state.db")).expect("it opens");
    let bytes = "SELECT sum(length(body)) FROM journal";
    let bytes: i64 = journal.query_row(bytes, [], |row| row.get(0)).expect("a sum");
    assert!(bytes < 10_000_000, "{bytes}");
    let replayed = daemon.state.join("state.db");
    daemon.stop();
    daemon.ok(&["replay", replayed.to_str().expect("a plain path")]);
}

#[test]
fn what_a_user_sizes_is_refused_or_cheap() {
    let daemon = Daemon::start(Options::fake(2));
    let mut client = daemon.client();
    let param = Param { name: "a".to_owned(), values: vec![String::new()] };
    let params = JobRequest { params: vec![param; 330], ..held(&daemon, "0-99999") };
    let refusal = client.submit(&params).expect_err("too many").to_string();
    assert!(refusal.contains("params") && refusal.lines().count() == 1, "{refusal}");
    let grace = JobRequest { kill_grace_s: Some(1e10), ..daemon.shell("exit 0") };
    assert!(client.submit(&grace).expect_err("too long").to_string().contains("kill_grace_s"));
    // The same job with a large command a thousand times, and one that does not exist.
    let large = JobRequest {
        command: [vec!["true".to_owned()], vec!["x".repeat(19); 50_000]].concat(),
        ..daemon.shell("")
    };
    let id = daemon.submit(&large);
    daemon.await_state(id, "completed");
    let dependency = format!("afterany{}:99999999", format!(":{id}").repeat(1000));
    let begin = Instant::now();
    let depends = JobRequest { dependency: Some(dependency), ..daemon.shell("exit 0") };
    assert!(client.submit(&depends).expect_err("no such job").to_string().contains("99999999"));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    // Its environment is not kept.
    let env = rusqlite::Connection::open(daemon.state.join("state.db")).expect("it opens");
    let select = format!("SELECT env FROM requests WHERE id = {id}");
    let env: String = env.query_row(&select, [], |row| row.get(0)).expect("it is there");
    assert_eq!(env, "{}");
}

#[test]
fn limits_on_all_jobs_are_refused_with_the_limit() {
    let daemon = Daemon::start(Options::fake(1).and(&["--set", "limits.jobs=10"]));
    daemon.submit(&held(&daemon, "0-9"));
    let ran = daemon.tandem(&["submit", "--", "true"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("limits.jobs = 10") && ran.stderr.lines().count() == 1, "{ran:?}");
}

#[test]
fn damaged_records_are_set_aside_and_the_store_is_mended_without_a_daemon() {
    let mut daemon = Daemon::start(Options::fake(1));
    let ids: Vec<u64> = (0..3).map(|_| daemon.submit(&held(&daemon, "0"))).collect();
    daemon.stop();
    let state = daemon.state.to_str().expect("a plain path").to_owned();
    let copy = daemon.dir.path().join("copy.db");
    let copy = copy.to_str().expect("a plain path").to_owned();
    daemon.ok(&["store", "check", "--state", &state]);
    daemon.ok(&["store", "backup", &copy, "--state", &state]);
    let change = |sql: &str| {
        let store = rusqlite::Connection::open(daemon.state.join("state.db")).expect("it opens");
        store.execute(sql, []).expect("it changes");
    };
    change(&format!("UPDATE jobs SET record = '{{broken' WHERE id = {}", ids[0]));
    change(&format!("UPDATE requests SET body = '{{\"gpus\":\"x\"}}' WHERE id = {}", ids[1]));
    daemon.restart();
    assert_eq!(daemon.job(ids[0]).line.state.name(), "unknown");
    assert_eq!(daemon.job(ids[1]).line.state.name(), "unknown");
    assert_eq!(daemon.job(ids[2]).line.state.name(), "held");
    // While a daemon runs, nothing changes its store.
    assert_eq!(daemon.tandem(&["store", "drop", "1", "--state", &state]).code, Some(1));
    daemon.stop();
    let checked = daemon.tandem(&["store", "check", "--state", &state]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.stdout.contains("was set aside"), "{checked:?}");
    for id in &ids[..2] {
        daemon.ok(&["store", "drop", &id.to_string(), "--state", &state]);
    }
    daemon.ok(&["store", "check", "--state", &state]);
    assert_eq!(daemon.tandem(&["store", "drop", "1", "--state", &state]).code, Some(4));
    daemon.ok(&["store", "restore", &copy, "--state", &state]);
    daemon.restart();
    let states: Vec<_> = ids.iter().map(|&id| daemon.job(id).line.state.name()).collect();
    assert_eq!(states, ["held"; 3]);
    // Numbers are not given twice.
    assert!(daemon.submit(&daemon.shell("exit 0")) > ids[2]);
}

#[test]
fn the_state_of_another_machine_is_refused() {
    let mut daemon = Daemon::start(Options::fake(1));
    daemon.stop();
    let store = rusqlite::Connection::open(daemon.state.join("state.db")).expect("it opens");
    store.execute("UPDATE meta SET value = 'other' WHERE key = 'machine'", []).expect("changed");
    drop(store);
    daemon.relaunch();
    assert!(!daemon.wait().success());
    assert!(daemon.log().contains("another machine (other)"), "{}", daemon.log());
    let state = daemon.state.to_str().expect("a plain path").to_owned();
    daemon.ok(&["store", "adopt", "--state", &state]);
    let begin = Instant::now();
    daemon.restart();
    assert!(begin.elapsed() < SOON);
}

fn device(daemon: &Daemon, index: usize) -> DeviceInfo {
    daemon.client().devices().expect("devices").value.devices[index].clone()
}

/// A device is held by a run that belongs to no job, as long as its process lives.
fn holds_its_device_until_it_ends(daemon: &Daemon, job: u64, process: u32) {
    let text = format!("process {process} of job {job}");
    let held = device(daemon, 0);
    let reason = held.reason.unwrap_or_default();
    assert!(held.state == "closed" && reason.contains(&text), "{} {reason}", held.state);
    assert!(reason.contains(&format!("kill {process}")), "{reason}");
    let log = daemon.log();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    let folder = format!("runs/{job}.1");
    let names = |line: &&str| line.contains(&text) && line.contains(&folder);
    assert_eq!(errors.iter().filter(|line| names(line)).count(), 1, "{log}");
    assert!(daemon.tandem(&["doctor"]).stdout.contains(&text));
    assert!(daemon.ok(&["gpus"]).stdout.contains(&text));
    let waits = daemon.submit(&daemon.shell("exit 0"));
    assert!(waits > job, "a number is not given twice");
    let why = daemon.job(waits).line.reason.unwrap_or_default();
    assert!(why.contains(&text), "{why}");
    kill_process(pid(process), Signal::KILL).expect("it is there");
    until("the device takes jobs again", || device(daemon, 0).state == "up");
    daemon.await_state(waits, "completed");
    until("no supervisor is left", || daemon.processes().is_empty());
}

#[test]
fn a_run_without_a_store_keeps_its_device() {
    let mut daemon = Daemon::start(Options::fake(1));
    let job = daemon.submit(&daemon.shell("exec sleep 1000"));
    let process = daemon.await_pid(job);
    daemon.kill();
    let file = daemon.state.join("state.db");
    // An emptied store is no new one, and neither is one of which only the log is left.
    std::fs::write(&file, "").expect("it is emptied");
    daemon.relaunch();
    assert!(!daemon.wait().success());
    assert!(daemon.log().contains("state.db: is not a store of Tandem: it is empty"));
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(daemon.state.join(name));
    }
    daemon.restart();
    holds_its_device_until_it_ends(&daemon, job, process);
}

#[test]
fn a_run_whose_record_is_damaged_keeps_its_device() {
    let mut daemon = Daemon::start(Options::fake(1));
    let job = daemon.submit(&daemon.shell("exec sleep 1000"));
    let process = daemon.await_pid(job);
    daemon.stop();
    let store = rusqlite::Connection::open(daemon.state.join("state.db")).expect("it opens");
    store.execute("UPDATE jobs SET record = '{broken'", []).expect("it changes");
    drop(store);
    daemon.restart();
    assert_eq!(daemon.job(job).line.state.name(), "unknown");
    let info = daemon.ok(&["info", &job.to_string()]).stdout;
    assert!(!info.contains("1970"), "{info}");
    holds_its_device_until_it_ends(&daemon, job, process);
}

#[test]
fn a_store_that_was_put_back_takes_over_what_runs() {
    let mut daemon = Daemon::start(Options::fake(2));
    daemon.ok(&["gpus", "drain", "0,1"]);
    let job = daemon.submit(&daemon.shell("while [ ! -e gate ]; do sleep 0.02; done; exit 5"));
    let copy = daemon.dir.path().join("copy.db");
    let copy = copy.to_str().expect("a plain path").to_owned();
    let state = daemon.state.to_str().expect("a plain path").to_owned();
    daemon.ok(&["store", "backup", &copy, "--state", &state]);
    daemon.ok(&["gpus", "undrain", "1"]);
    let process = daemon.await_pid(job);
    daemon.stop();
    daemon.ok(&["store", "restore", &copy, "--state", &state]);
    daemon.restart();
    let found = daemon.job(job);
    assert_eq!((found.line.state.name(), found.pid, found.runs), ("running", Some(process), 1));
    assert_eq!(device(&daemon, 1).jobs, [job]);
    daemon.stop();
    daemon.restart();
    assert_eq!(daemon.job(job).pid, Some(process));
    std::fs::write(daemon.dir.path().join("gate"), "").expect("a file can be written");
    let ended = daemon.await_state(job, "failed");
    assert_eq!((ended.line.exit_code, ended.runs), (Some(5), 1));
}

#[test]
fn the_tools_say_what_is_wrong_in_one_line() {
    let mut daemon = Daemon::start(Options::fake(1));
    daemon.stop();
    let state = daemon.state.to_str().expect("a plain path").to_owned();
    let refused = |args: &[&str], code: i32, says: &str| {
        let ran = daemon.tandem(&[&["store"], args, &["--state", &state]].concat());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains(says) && ran.stderr.lines().count() == 1, "{ran:?}");
    };
    let empty = daemon.dir.path().join("empty.db");
    std::fs::write(&empty, "").expect("a file can be written");
    let empty = empty.to_str().expect("a plain path").to_owned();
    refused(&["restore", &empty], 2, "empty.db: is not a store of Tandem: it is empty");
    refused(&["backup", &empty], 2, "empty.db: exists already");
    refused(&["drop", "xx"], 2, "give the number of one job");
    let file = daemon.state.join("state.db");
    std::fs::write(&file, "no database").expect("a file can be written");
    refused(&["check"], 1, "tandem store restore FILE");
    refused(&["drop", "1"], 1, "tandem store restore FILE");
    // What cannot be looked at is not said to be absent.
    std::fs::remove_file(&file).expect("it is there");
    std::os::unix::fs::symlink("state.db", &file).expect("a link to itself can be made");
    let ran = daemon.tandem(&["store", "check", "--state", &state]);
    assert!(ran.code == Some(1) && !ran.stderr.contains("there is no store"), "{ran:?}");
}
