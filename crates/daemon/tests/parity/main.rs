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
use world::{Case, case, case_of, daemon};

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

/// One-GPU jobs for four GPUs, given as (submission, class); every class appears at the beginning, in order.
fn long_jobs(jobs: &[(u32, u32)], rates: [[f64; 3]; 3]) -> Case {
    let mut text =
        "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib\n".to_owned();
    let first = (0..3).map(|class| (0, class, 50));
    let long = jobs.iter().map(|&(submit, class)| (submit, class, 40_000));
    for (id, (submit, class, duration)) in first.chain(long).enumerate() {
        text += &format!("{},{submit},1,{duration},m{class},d,1,0,1000\n", id + 1);
    }
    case_of(&text, rates, 1)
}

fn moves(acts: &Acts) -> usize {
    acts.iter().flat_map(|(_, texts)| texts).filter(|text| text.starts_with("move")).count()
}

#[test]
fn the_daemon_parts_losing_pairs_and_matches_standing_ones_anew() {
    // Class 2 believed to share well loses beside itself: the pairs part when that is measured.
    let losing = long_jobs(&[(100, 2); 8], [[0.95; 3], [0.95; 3], [0.95, 0.95, 0.4]]);
    // Heavy jobs of class 1 come last, when the light ones of class 0 already share with each other.
    let late: Vec<(u32, u32)> =
        [(100, 0), (100, 0), (100, 1), (100, 1), (700, 0), (700, 0), (2000, 1), (2000, 1)].to_vec();
    let pairs = [[1.0, 1.0, 0.9], [1.0, 0.6, 0.9], [0.9; 3]];
    let anew = long_jobs(&late, pairs);
    for text in ["gshare", "tandem:tenants=2"] {
        let policy = PolicySpec::parse(text).unwrap();
        for (case, learns) in [(&losing, true), (&anew, false)] {
            let (expected, observations) = simulated(case, &policy, learns);
            let state = tempfile::tempdir().unwrap();
            let learner: Box<dyn Learner> = match learns {
                true => Box::new(case.beliefs.clone()),
                false => Box::new(case.truth.clone()),
            };
            let live = daemon(&policy, case, learner, &observations, state.path());
            assert_eq!(expected, live, "{text}, learns: {learns}");
        }
        // Light jobs that came with light ones end beside heavy ones, without which all would be late.
        let (acts, _) = simulated(&anew, &policy, false);
        let last = acts.last().unwrap().0;
        println!("{text}: {} moves, last action at {last:?}", moves(&acts));
    }
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
    assert!(refusal.contains("has version 1, this program replays version 5"), "{refusal}");
    // A later version is refused before anything is decided.
    let later = "UPDATE journal SET body = json_set(body, '$.version', 99) WHERE kind = 'start'";
    journal.execute(later, []).unwrap();
    let refusal = replay(&store).unwrap_err().to_string();
    assert!(refusal.contains("version 99") && refusal.lines().count() == 1, "{refusal}");
}
