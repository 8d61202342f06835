//! The daemon's loop and the simulator decide alike: on the same trace, with a world that plays the part
//! of the machine and a clock that is moved by hand, their actions are the same, instant by instant.

#![allow(clippy::unwrap_used)]

mod world;

use rusqlite::Connection;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use tandem_core::{Learner, Observation, Time};
use tandem_daemon::journal::{action_texts, beliefs, replay};
use tandem_policies::PolicySpec;
use tandem_sim::{RunOptions, run};
use world::{Case, case, daemon};

type Acts = Vec<(Time, Vec<String>)>;

/// The actions of the simulator, and the observations that it learned from; with beliefs, or with the truth.
fn simulated(case: &Case, policy: &PolicySpec, learns: bool) -> (Acts, Vec<(Time, Observation)>) {
    let beliefs = learns.then(|| case.beliefs.clone());
    let options = RunOptions { log_actions: true, beliefs, ..RunOptions::default() };
    let run = run(case.workload, policy, &case.truth, &options, &AtomicU64::new(0)).unwrap();
    let acts = run.actions.iter().map(|(at, actions)| (*at, action_texts(actions))).collect();
    (acts, run.observations)
}

fn assert_equal(simulated: &Acts, live: &Acts, of: &str) {
    for (index, (sim, live)) in simulated.iter().zip(live).enumerate() {
        assert_eq!(sim, live, "{of}: actions {index}");
    }
    assert_eq!(simulated.len(), live.len(), "{of}");
    assert!(live.len() > 25, "{of}: too little happened");
}

#[test]
fn the_daemon_decides_as_the_simulator_does() {
    for text in
        ["fifo", "sjf", "srtf", "tiresias", "sjf-ffs", "sjf-bsbf", "gshare", "lucid", "tandem"]
    {
        for seed in 1..=4 {
            let case = case(seed, 60);
            let policy = PolicySpec::parse(text).unwrap();
            let (expected, _) = simulated(&case, &policy, false);
            let state = tempfile::tempdir().unwrap();
            let truth = Box::new(case.truth.clone());
            let live = daemon(&policy, &case, truth, &[], state.path());
            assert_equal(&expected, &live, &format!("{text}, seed {seed}"));
        }
    }
}

#[test]
fn the_daemon_learns_as_the_simulator_does() {
    let mut changed = 0;
    for text in ["sjf-ffs", "sjf-bsbf", "gshare", "tandem"] {
        for seed in 1..=4 {
            let case = case(seed, 60);
            let policy = PolicySpec::parse(text).unwrap();
            let (expected, observations) = simulated(&case, &policy, true);
            assert!(observations.len() > 10, "{text}, seed {seed}: too little was observed");
            let state = tempfile::tempdir().unwrap();
            let live = |observations: &[(Time, Observation)], state: &Path| {
                let beliefs = Box::new(case.beliefs.clone());
                daemon(&policy, &case, beliefs, observations, state)
            };
            let learned = live(&observations, state.path());
            assert_equal(&expected, &learned, &format!("{text}, seed {seed}"));
            let state = tempfile::tempdir().unwrap();
            changed += usize::from(live(&[], state.path()) != learned);
        }
    }
    assert!(changed > 0, "what was observed made no difference");
}

/// The store of a daemon that learned from what a simulation observed.
fn learned_store(state: &Path) -> std::path::PathBuf {
    let case = case(7, 60);
    let policy = PolicySpec::parse("tandem").unwrap();
    let (_, observations) = simulated(&case, &policy, true);
    let beliefs: Box<dyn Learner> = Box::new(beliefs());
    daemon(&policy, &case, beliefs, &observations, state);
    state.join("state.db")
}

#[test]
fn the_journal_of_a_daemon_replays() {
    let case = case(7, 40);
    let policy = PolicySpec::parse("sjf").unwrap();
    let state = tempfile::tempdir().unwrap();
    daemon(&policy, &case, Box::new(case.truth.clone()), &[], state.path());
    let replay = replay(&state.path().join("state.db")).unwrap();
    assert!(replay.cycles > 80 && replay.actions >= 40, "{replay:?}");
    assert_eq!(replay.differences, []);
}

#[test]
fn what_a_daemon_learned_replays() {
    let state = tempfile::tempdir().unwrap();
    let store = learned_store(state.path());
    assert_eq!(replay(&store).unwrap().differences, []);
    // Without the observations it goes another way.
    let journal = Connection::open(&store).unwrap();
    let observed = "kind = 'input' AND body LIKE '%\"observed\"%'";
    let removed = journal.execute(&format!("DELETE FROM journal WHERE {observed}"), []).unwrap();
    assert!(removed > 10, "{removed}");
    assert_ne!(replay(&store).unwrap().differences, []);
}

#[test]
fn a_journal_of_an_earlier_version_is_identical_or_refused_in_one_line() {
    let state = tempfile::tempdir().unwrap();
    let store = learned_store(state.path());
    let journal = Connection::open(&store).unwrap();
    // As an earlier version wrote it: without a version, and pairs instead of observations.
    let changed = journal
        .execute(
            "UPDATE journal SET body = json_remove(body, '$.version') WHERE kind = 'start'",
            [],
        )
        .unwrap();
    assert_eq!(changed, 1);
    let pairs = "UPDATE journal SET body = json_object('fact', json_object('pair', json_object(
            'class', json_extract(body, '$.fact.observed.class'),
            'beside', json_extract(body, '$.fact.observed.beside[0][0]'),
            'rate', json_extract(body, '$.fact.observed.rate'),
            'noise', json_extract(body, '$.fact.observed.noise'))))
        WHERE kind = 'input' AND json_array_length(body, '$.fact.observed.beside') = 1
            AND json_array_length(body, '$.fact.observed.beside[0]') = 1";
    assert!(journal.execute(pairs, []).unwrap() > 10);
    assert_eq!(replay(&store).unwrap().differences, []);
    journal.execute("UPDATE journal SET body = '[]' WHERE kind = 'actions'", []).unwrap();
    let refusal = replay(&store).unwrap_err().to_string();
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
    assert!(refusal.contains("has version 1, this program replays version 2"), "{refusal}");
    // A later version is refused before anything is decided.
    let later = "UPDATE journal SET body = json_set(body, '$.version', 99) WHERE kind = 'start'";
    journal.execute(later, []).unwrap();
    let refusal = replay(&store).unwrap_err().to_string();
    assert!(refusal.contains("version 99") && refusal.lines().count() == 1, "{refusal}");
}
