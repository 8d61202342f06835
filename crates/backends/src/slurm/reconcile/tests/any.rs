//! Lists as Slurm made them, and lists of any kind.

use super::super::super::jobs;
use super::*;
use proptest::prelude::*;

#[test]
fn a_recorded_list_is_taken_in() {
    let recorded = jobs::read(include_bytes!("../../fixtures/squeue-22.05.json")).unwrap();
    let mut book = book();
    let turn = book.turn(&recorded, 1_794_822_680);
    assert!(turn.requests.is_empty());
    // What runs was placed by somebody else: jobs 3, 7 and 11 share, 4 is a gang.
    assert_eq!(strangers(&turn), [vec![3], vec![7, 11], vec![4], vec![4]]);
    // Of the array one task runs and two may. JobBuilder 8 waits for job 1.
    let names: Vec<String> =
        offered(turn).iter().map(|external| short_id(external).to_owned()).collect();
    assert_eq!(names, ["1", "2_0", "9"]);
}

#[test]
fn a_recorded_list_shows_runs_as_they_are() {
    let recorded = jobs::read(include_bytes!("../../fixtures/squeue-22.05.json")).unwrap();
    let of = |job, external: &str, devices: &[u32]| {
        let (external, devices) = (Some(external.to_owned()), devices.to_vec());
        KnownJob { run: run(job), has_run: true, devices, external }
    };
    let known = [
        of(3, "3#ad6b50f5695516c2", &[0]),
        of(4, "4#9ec8b44d0ad11b99", &[2, 3]),
        of(5, "5#1fd98a0aa794240c", &[0]),
        of(6, "6#4dc3a842ba651c41", &[0]),
        of(7, "7#a82a91dd9b5a9939", &[1]),
        of(11, "2_1#b96ad7e72a4c5666", &[1]),
    ];
    let mut book = book();
    let (found, forgotten) = book.recover(&known, &recorded);
    assert_eq!(forgotten, []);
    let shape = |found: &RecoveredRun| match found {
        RecoveredRun::Running { pid, paused, .. } => format!("{pid} {paused}"),
        RecoveredRun::Exited(exit) => format!("{:?} {:?}", exit.status, exit.cause),
        other => format!("{other:?}"),
    };
    let shapes: Vec<String> = found.iter().map(|(_, found)| shape(found)).collect();
    let wished =
        ["3 false", "4 false", "Code(42) None", "Signal(15) Some(Cancelled)", "7 true", "11 false"];
    assert_eq!(shapes, wished);
    let turn = book.turn(&recorded, 1_794_822_680);
    assert!(turn.requests.is_empty());
    assert!(strangers(&turn).iter().all(Vec::is_empty));
}

/// One of two jobs, under one of two ids, in any state.
fn job() -> impl Strategy<Value = JobRecord> {
    let state = prop_oneof![
        Just(SlurmState::Pending),
        Just(SlurmState::Running),
        Just(SlurmState::Suspended),
        Just(SlurmState::Other),
        Just(SlurmState::Ended(SlurmEnd::Completed)),
        Just(SlurmState::Ended(SlurmEnd::NodeFailed)),
    ];
    let gres = prop_oneof![Just(""), Just("gres:shard:g0:33"), Just("gres:gpu:g1:1")];
    let node = prop_oneof![Just(""), Just("n0"), Just("n[0-1]"), Just("n9")];
    let reason = prop_oneof![Just("None"), Just("BeginTime"), Just("Resources")];
    let bits = (any::<bool>(), any::<bool>(), any::<bool>());
    (5u64..7, state, gres, node, reason, bits, 0u64..3).prop_map(
        |(id, state, gres, node, reason, (is_held, is_batch, is_first), restarts)| {
            let tag = if is_first { "a" } else { "b" };
            let job =
                JobBuilder::new(id).tag(tag).state(state).aimed(node, gres).restarts(restarts);
            let made = |record: &mut JobRecord| {
                (record.is_held, record.is_batch) = (is_held, is_batch);
                record.reason = reason.to_owned();
            };
            job.on(node, gres).with(made).made()
        },
    )
}

/// What the daemon may ask for.
#[derive(Clone, Debug)]
enum Ask {
    Start(&'static str, u64, Vec<u32>),
    Pause(u64, bool),
    End(u64),
    Forget(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    let key = prop_oneof![Just("5#a"), Just("5#b"), Just("6#a"), Just("7#a")];
    let devices = prop::collection::vec(0u32..5, 0..3);
    prop_oneof![
        (key, 1u64..4, devices).prop_map(|(key, run, devices)| Ask::Start(key, run, devices)),
        (1u64..4, any::<bool>()).prop_map(|(run, paused)| Ask::Pause(run, paused)),
        (1u64..4).prop_map(Ask::End),
        (1u64..4).prop_map(Ask::Forget),
    ]
}

proptest! {
    #[test]
    fn no_list_makes_us_touch_a_job_wrongly(
        turns in prop::collection::vec(
            (prop::collection::vec(ask(), 0..3), prop::collection::vec(job(), 0..3)),
            1..12,
        ),
    ) {
        let mut book = book();
        let mut now_s = NOW_S;
        for (asked, records) in turns {
            for ask in asked {
                match ask {
                    Ask::Start(key, job, devices) => book.start(OpId(1), key, run(job), devices, false),
                    Ask::Pause(job, paused) => drop(book.pause(OpId(2), run(job), paused)),
                    Ask::End(job) => drop(book.end(OpId(3), run(job))),
                    Ask::Forget(job) => book.forget(run(job)),
                }
            }
            // An id is there once.
            let mut records = records;
            records.sort_by_key(|record| record.id);
            records.dedup_by_key(|record| record.id);
            let listing = JobList { version: None, records };
            now_s += 7;
            let turn = book.turn(&listing, now_s);
            for line in asks(&turn).iter().filter(|line| *line != "reconfigure") {
                let of = |record: &&JobRecord| {
                    line.split([' ', '=']).any(|word| word == record.id.to_string())
                };
                let record = listing.records.iter().find(of);
                prop_assert!(record.is_some(), "nobody is called that: {}", line);
                let record = record.unwrap();
                let key = format!("{}#{}", record.id, record.note.as_ref().unwrap().tag);
                let is_wanted = book.jobs.get(&key).is_some_and(|ours| ours.wanted.is_some());
                prop_assert!(is_wanted, "{} is for a job that nobody wanted", line);
                prop_assert!(!matches!(record.state, SlurmState::Ended(_)), "{} comes too late", line);
                if line.contains("Gres=") {
                    prop_assert_eq!(&record.asked, "", "{} is a second choice", line);
                }
                if line.starts_with("release") {
                    prop_assert!(record.asked.contains("g0") || record.asked.contains("g1"));
                    prop_assert!(!record.required_nodes.is_empty());
                }
            }
        }
    }
}
