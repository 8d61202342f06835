//! Recorded lists of Slurm, and random lists.

use super::super::super::jobs;
use super::*;
use proptest::prelude::*;

#[test]
fn a_recorded_list_is_imported() {
    let recorded = jobs::read(include_bytes!("../../fixtures/squeue-22.05.json")).unwrap();
    let mut reconciler = reconciler();
    let result = reconciler.reconcile(&recorded, 1_794_822_680);
    assert!(result.requests.is_empty());
    // The running jobs were not placed by this daemon: jobs 3, 7 and 11 share, 4 is a gang.
    assert_eq!(foreign(&result), [vec![3], vec![7, 11], vec![4], vec![4]]);
    // One task of the array runs and two may run. Job 8 depends on job 1.
    let names: Vec<String> =
        imported(result).iter().map(|external| short_id(external).to_owned()).collect();
    assert_eq!(names, ["1", "2_0", "9"]);
}

#[test]
fn runs_of_a_recorded_list_are_recovered() {
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
    let mut reconciler = reconciler();
    let (found, missing) = reconciler.recover(&known, &recorded);
    assert_eq!(missing, []);
    let shape = |found: &RecoveredRun| match found {
        RecoveredRun::Running { handle: RunHandle::ClusterJob(job), paused, .. } => {
            format!("{job} {paused}")
        }
        RecoveredRun::Exited(exit) => format!("{:?} {:?}", exit.status, exit.cause),
        other => format!("{other:?}"),
    };
    let shapes: Vec<String> = found.iter().map(|(_, found)| shape(found)).collect();
    let expected =
        ["3 false", "4 false", "Code(42) None", "Signal(15) Some(Cancelled)", "7 true", "11 false"];
    assert_eq!(shapes, expected);
    let result = reconciler.reconcile(&recorded, 1_794_822_680);
    assert!(result.requests.is_empty());
    assert!(foreign(&result).iter().all(Vec::is_empty));
}

/// One of two jobs, under one of two ids, in a random state.
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
    let bits = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (5u64..7, state, gres, node, reason, bits, 0u64..3).prop_map(
        |(id, state, gres, node, reason, (is_gated, is_held, is_batch, is_first), restarts)| {
            let tag = if is_first { "a" } else { "b" };
            let job =
                JobBuilder::new(id).tag(tag).state(state).placed(node, gres).restarts(restarts);
            let change = |record: &mut JobRecord| {
                (record.is_held, record.is_batch) = (is_held, is_batch);
                record.licenses = if is_gated { "tandem_stripped:1" } else { "" }.to_owned();
                record.reason = reason.to_owned();
            };
            job.on(node, gres).with(change).build()
        },
    )
}

/// An operation of the daemon.
#[derive(Clone, Debug)]
enum TestOp {
    Start(&'static str, u64, Vec<u32>),
    Pause(u64, bool),
    End(u64),
    Forget(u64),
}

fn test_op() -> impl Strategy<Value = TestOp> {
    let key = prop_oneof![Just("5#a"), Just("5#b"), Just("6#a"), Just("7#a")];
    let devices = prop::collection::vec(0u32..5, 0..3);
    prop_oneof![
        (key, 1u64..4, devices).prop_map(|(key, run, devices)| TestOp::Start(key, run, devices)),
        (1u64..4, any::<bool>()).prop_map(|(run, paused)| TestOp::Pause(run, paused)),
        (1u64..4).prop_map(TestOp::End),
        (1u64..4).prop_map(TestOp::Forget),
    ]
}

proptest! {
    #[test]
    fn no_list_leads_to_a_request_for_the_wrong_job(
        turns in prop::collection::vec(
            (prop::collection::vec(test_op(), 0..3), prop::collection::vec(job(), 0..3)),
            1..12,
        ),
    ) {
        let mut reconciler = reconciler();
        let mut now_s = NOW_S;
        for (ops, records) in turns {
            for op in ops {
                match op {
                    TestOp::Start(key, job, devices) => reconciler.jobs().start(key, desired(OpId(1), run(job), devices)),
                    TestOp::Pause(job, paused) => drop(reconciler.jobs().pause(OpId(2), run(job), paused)),
                    TestOp::End(job) => drop(reconciler.jobs().end(OpId(3), run(job))),
                    TestOp::Forget(job) => reconciler.jobs().forget(run(job)),
                }
            }
            // An id occurs once.
            let mut records = records;
            records.sort_by_key(|record| record.id);
            records.dedup_by_key(|record| record.id);
            let listing = JobList { version: None, records };
            now_s += 7;
            let result = reconciler.reconcile(&listing, now_s);
            for line in requests(&result).iter().filter(|line| *line != "reconfigure") {
                let of = |record: &&JobRecord| {
                    line.split([' ', '=']).any(|word| word == record.id.to_string())
                };
                let record = listing.records.iter().find(of);
                prop_assert!(record.is_some(), "no such job: {}", line);
                let record = record.unwrap();
                prop_assert!(!matches!(record.state, SlurmState::Ended(_)), "{} is for a job that has ended", line);
                let key = format!("{}#{}", record.id, record.admin_comment.as_ref().unwrap().tag);
                let job = reconciler.jobs.jobs.get(&key);
                let is_withdrawn = job.is_some_and(|job| job.withdraw_requested_s.is_some());
                if is_withdrawn && line.starts_with("scancel") {
                    continue;
                }
                if job.is_none_or(|job| job.run.is_none()) {
                    // It gives its place back, for now or for good.
                    prop_assert!(record.state == SlurmState::Pending, "{} is for a job without a run", line);
                    let is_given_back = line.contains("Licenses=tandem_stripped:1") || line.ends_with(" Licenses= Nice=1000000");
                    prop_assert!(is_given_back || line.ends_with(" ReqNodeList="), "{}", line);
                    continue;
                }
                if line.contains("Gres=") {
                    prop_assert_eq!(&record.requested_gres, "", "{} is a second Gres", line);
                }
                if line.contains("Licenses=") {
                    prop_assert!(record.requested_gres.contains("g0") || record.requested_gres.contains("g1"));
                    prop_assert!(!record.required_nodes.is_empty());
                    prop_assert!(!record.is_held);
                }
            }
        }
    }
}
