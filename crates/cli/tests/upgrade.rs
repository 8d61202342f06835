//! A store of the previous release opens after an upgrade with everything in it; a store of a later one is
//! refused in one line and stays as it is.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options};
use common::{finish, tandem};
use rusqlite::Connection;
use std::path::Path;

/// What the daemon of 0.1.0 left behind: two completed jobs, a failed one, a held one.
const STORE: &str = include_str!("fixtures/state-0.1.0.sql");

/// Makes the store of 0.1.0 in a state folder.
fn old_store(state: &Path) {
    let file = state.join("state.db");
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        let _ = std::fs::remove_file(state.join(name));
    }
    Connection::open(&file).unwrap().execute_batch(STORE).unwrap();
}

fn version(state: &Path) -> i64 {
    let store = Connection::open(state.join("state.db")).unwrap();
    store.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_store_of_the_previous_release_opens_with_all_jobs() {
    let mut daemon = Daemon::start(Options::fake(2));
    daemon.stop();
    let current = version(&daemon.state);
    old_store(&daemon.state);
    assert_eq!(version(&daemon.state), 2);
    daemon.restart();
    let states: Vec<(u64, String, String)> = daemon
        .jobs()
        .into_iter()
        .map(|job| (job.id, job.name, job.state.name().to_owned()))
        .collect();
    let expected = [
        (1, "done1", "completed"),
        (2, "done2", "completed"),
        (3, "bad", "failed"),
        (4, "kept", "held"),
    ];
    let expected = expected.map(|(id, name, state)| (id, name.to_owned(), state.to_owned()));
    assert_eq!(states, expected);
    assert_eq!(daemon.job(3).line.exit_code, Some(3));
    // Work goes on with the next number.
    let next = daemon.submit(&daemon.shell("true"));
    assert_eq!(next, 5);
    daemon.await_state(next, "completed");
    daemon.stop();
    assert_eq!(version(&daemon.state), current);
}

#[test]
fn a_store_of_a_later_release_is_refused_in_one_line_and_untouched() {
    let mut daemon = Daemon::start(Options::fake(1));
    let job = daemon.submit(&daemon.shell("true"));
    daemon.await_state(job, "completed");
    daemon.stop();
    let later = version(&daemon.state) + 1;
    let store = Connection::open(daemon.state.join("state.db")).unwrap();
    store.pragma_update(None, "user_version", later).unwrap();
    drop(store);
    let mut command = tandem(&["daemon", "--fake-gpus", "1", "--state"]);
    command.arg(&daemon.state).arg("--socket").arg(daemon.dir.path().join("other"));
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.starts_with("tandem: ")).collect();
    assert_eq!(said.len(), 1, "{}", ran.stderr);
    assert!(said[0].contains("newer") && said[0].contains("upgrade"), "{}", said[0]);
    assert_eq!(version(&daemon.state), later);
}
