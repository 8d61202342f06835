//! Places that Slurm does not give.

use super::*;

/// Job 5 of 24.11 with a place on device 0.
fn placed() -> Reconciler {
    let mut reconciler = newer();
    reconciler.reconcile(&list([JobBuilder::new(5).share()]), NOW_S);
    place(&mut reconciler, 1);
    reconciler
}

fn place(reconciler: &mut Reconciler, number: u32) {
    let run = RunId { job: 1, run: number };
    reconciler.jobs().start("5#a", desired(OpId(1), run, vec![0]));
}

fn admitted(reason: &str) -> JobBuilder {
    JobBuilder::new(5).share().placed("n0", "gres/shard:g0:33").admitted(reason)
}

const GATE: &str = "update jobid=5 Licenses=tandem_gate:1 Gres=gpu:1 ReqNodeList=";
const PLAIN: &str = "update jobid=5 Gres=gpu:1 ReqNodeList= Licenses= Nice=1000000";

/// Why the place was given back; `None` if it was not.
fn given_back(result: &Reconciled) -> Option<String> {
    result.events.iter().find_map(|event| match event {
        BackendEvent::NotStarted { reason, transient: true, .. } => Some(reason.clone()),
        _ => None,
    })
}

#[test]
fn a_refused_request_gives_the_place_back() {
    let mut reconciler = placed();
    let waits = || list([JobBuilder::new(5).share()]);
    for _ in 0..2 {
        let result = reconciler.reconcile(&waits(), NOW_S);
        assert_eq!((requests(&result).len(), given_back(&result)), (1, None));
        reconciler.hear(&["Invalid generic resource (gres) specification for job 5".to_owned()]);
    }
    let result = reconciler.reconcile(&waits(), NOW_S);
    // Nothing is to be undone.
    assert!(result.requests.is_empty(), "{:?}", requests(&result));
    let reason = given_back(&result).expect("it was given back");
    assert!(reason.contains("Invalid generic resource"), "{reason}");
    let reported = events(result);
    let [BackendEvent::Waits { external, reason: Some(told) }, _] = &reported[..] else {
        panic!("{reported:?}")
    };
    assert_eq!((external.as_str(), told), ("5#a", &reason));
    // It may be placed again after a while.
    reconciler.jobs().forget(run(1));
    assert_eq!(events(reconciler.reconcile(&waits(), NOW_S + 4)), []);
    let (external, reason) = ("5#a".to_owned(), None);
    let result = reconciler.reconcile(&waits(), NOW_S + 5);
    assert_eq!(events(result), [BackendEvent::Waits { external, reason }]);
}

#[test]
fn a_job_that_slurm_considered_and_refused_gives_its_place_back() {
    let mut reconciler = placed();
    let refused = |at: u64| list([admitted("Resources").with(|record| record.evaluated_s = at)]);
    // Slurm has not considered it since it was admitted.
    for later in 0..10 {
        let result = reconciler.reconcile(&refused(7), NOW_S + later);
        assert_eq!((requests(&result).len(), given_back(&result)), (0, None), "{later}");
    }
    for later in 10..13 {
        assert_eq!(given_back(&reconciler.reconcile(&refused(8), NOW_S + later)), None, "{later}");
    }
    let result = reconciler.reconcile(&refused(8), NOW_S + 13);
    assert_eq!(requests(&result), [GATE]);
    assert_eq!(
        given_back(&result).as_deref(),
        Some("Slurm did not start it within 13 s (Resources)")
    );
}

#[test]
fn a_job_behind_others_has_the_set_time() {
    for reason in ["Priority", "None"] {
        let mut reconciler = placed();
        let waits = |at: u64| list([admitted(reason).with(|record| record.evaluated_s = at)]);
        for later in 0..30 {
            let result = reconciler.reconcile(&waits(later), NOW_S + later);
            assert_eq!(given_back(&result), None, "{reason} {later}");
        }
        let result = reconciler.reconcile(&waits(30), NOW_S + 30);
        assert!(given_back(&result).is_some(), "{reason}");
    }
}

#[test]
fn after_some_tries_it_goes_on_as_a_plain_job() {
    let mut reconciler = placed();
    let mut now_s = NOW_S;
    for (number, delay_s) in [(1, 5), (2, 10)] {
        reconciler.reconcile(&list([admitted("None")]), now_s);
        let result = reconciler.reconcile(&list([admitted("None")]), now_s + 30);
        assert_eq!(requests(&result), [GATE], "{number}");
        reconciler.jobs().forget(RunId { job: 1, run: number });
        let waits = || list([JobBuilder::new(5).share()]);
        assert_eq!(events(reconciler.reconcile(&waits(), now_s + 30 + delay_s - 1)), []);
        let result = reconciler.reconcile(&waits(), now_s + 30 + delay_s);
        assert!(matches!(events(result)[..], [BackendEvent::Waits { reason: None, .. }]));
        place(&mut reconciler, number + 1);
        now_s += 30 + delay_s;
    }
    reconciler.reconcile(&list([admitted("None")]), now_s);
    let result = reconciler.reconcile(&list([admitted("None")]), now_s + 30);
    assert_eq!(requests(&result), [PLAIN]);
    let reported = events(result);
    let [BackendEvent::NotStarted { .. }, BackendEvent::Withdrawn { reason, .. }] = &reported[..]
    else {
        panic!("{reported:?}")
    };
    assert!(reason.ends_with("it goes on as a plain Slurm job"), "{reason}");
    // Started by Slurm, it is another's job on its GPU.
    let runs = JobBuilder::new(5).share().state(SlurmState::Running).on("n0", "gpu:g0:1(IDX:0)");
    let result = reconciler.reconcile(&list([runs]), now_s + 31);
    assert_eq!(foreign(&result), [vec![5], vec![], vec![], vec![]]);
}

#[test]
fn a_limit_of_slurm_gives_the_place_back_and_counts_as_no_try() {
    let mut reconciler = placed();
    for number in 1..6 {
        let now_s = NOW_S + u64::from(number) * 1000;
        let limited = admitted("QOSMaxGRESPerUser");
        let result = reconciler.reconcile(&list([limited]), now_s);
        assert_eq!(requests(&result), [GATE]);
        assert_eq!(given_back(&result).as_deref(), Some("Slurm: QOSMaxGRESPerUser"));
        reconciler.jobs().forget(RunId { job: 1, run: number });
        reconciler.reconcile(&list([JobBuilder::new(5).share()]), now_s + 999);
        place(&mut reconciler, number + 1);
    }
}

#[test]
fn a_run_that_is_ended_after_its_place_was_given_back_is_cancelled() {
    let mut reconciler = placed();
    reconciler.reconcile(&list([admitted("AssocGrpGRES")]), NOW_S);
    // The daemon did not know yet.
    assert!(reconciler.jobs().end(OpId(2), run(1)));
    let result = reconciler.reconcile(&list([JobBuilder::new(5).share()]), NOW_S);
    assert_eq!(requests(&result), ["scancel 5"]);
}

#[test]
fn slurm_may_start_a_job_on_other_gpus() {
    let mut reconciler = placed();
    let runs = JobBuilder::new(5).share().state(SlurmState::Running).on("n1", "gpu:g1:1(IDX:1)");
    let result = reconciler.reconcile(&list([runs]), NOW_S);
    let devices = vec![3];
    assert_eq!(events(result), [BackendEvent::Placed { run: run(1), devices }, started(1, 1, 5)]);
}

#[test]
fn a_job_of_a_lost_node_waits_for_another_place() {
    let mut reconciler = placed();
    let down = SlurmNode { unavailable: Some("down".to_owned()), ..node("n0") };
    reconciler.update_nodes(&[down, node("n1")]);
    for later in 0..100 {
        let job = admitted("ReqNodeNotAvail").with(|record| record.evaluated_s = later);
        let result = reconciler.reconcile(&list([job]), NOW_S + later);
        assert_eq!((requests(&result).len(), given_back(&result)), (0, None), "{later}");
    }
}
