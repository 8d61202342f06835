//! What a user can size does not stop the daemon, and the store can be looked after without one.

mod common;

use common::daemon::{Daemon, Options};
use std::time::{Duration, Instant};
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
        command: [vec!["true".to_owned()], vec!["xxxxxxxxx".to_owned(); 100_000]].concat(),
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
