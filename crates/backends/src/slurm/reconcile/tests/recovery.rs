//! Jobs that disappear or whose ids are reused, and recovery after a restart of the daemon.

use super::*;

fn known(external: &str, has_run: bool) -> KnownJob {
    let external = Some(external.to_owned());
    KnownJob { run: run(1), has_run, devices: vec![0], external }
}

fn found(job: JobBuilder) -> (Reconciler, RecoveredRun) {
    let mut reconciler = reconciler();
    let (mut found, missing) = reconciler.recover(&[known("5#a", true)], &list([job]));
    assert_eq!(missing, []);
    let (of, recovered) = found.pop().unwrap();
    assert_eq!((of, found), (run(1), vec![]));
    (reconciler, recovered)
}

#[test]
fn a_run_is_missing_after_two_lists_without_it() {
    let mut reconciler = running();
    let result = reconciler.reconcile(&list([]), NOW_S);
    assert_eq!((result.missing.len(), events(result)), (0, vec![]));
    // A list with it resets the count.
    reconciler.reconcile(&list([runs()]), NOW_S);
    assert_eq!(reconciler.reconcile(&list([]), NOW_S).missing, []);
    let result = reconciler.reconcile(&list([]), NOW_S);
    assert_eq!(result.missing, [MissingRun { run: run(1), id: 5 }]);
    assert_eq!(events(result), []);
    assert_eq!(reconciler.reconcile(&list([]), NOW_S).missing, []);
}

#[test]
fn a_pending_job_is_withdrawn_after_two_lists_without_it() {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(events(reconciler.reconcile(&list([]), NOW_S)), []);
    let (external, reason) = ("5#a".to_owned(), "Slurm no longer lists it".to_owned());
    let result = reconciler.reconcile(&list([]), NOW_S);
    assert_eq!(events(result), [BackendEvent::Withdrawn { external, reason }]);
    assert_eq!(events(reconciler.reconcile(&list([]), NOW_S)), []);
}

#[test]
fn another_job_under_the_same_id_is_not_touched() {
    let mut reconciler = running();
    reconciler.jobs().end(OpId(2), run(1));
    let other = || runs().tag("b");
    let result = reconciler.reconcile(&list([other()]), NOW_S);
    assert_eq!((requests(&result).len(), result.missing.len()), (0, 0));
    assert_eq!(foreign(&result), [vec![5], vec![], vec![], vec![]]);
    let result = reconciler.reconcile(&list([other()]), NOW_S);
    assert!(result.requests.is_empty());
    // Records under its id would belong to the other job.
    assert_eq!(result.missing, [MissingRun { run: run(1), id: 0 }]);
}

#[test]
fn another_pending_job_under_the_same_id_is_imported_separately() {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    assert!(result.requests.is_empty());
    assert_eq!(imported(result), ["5#b"]);
    // A job without a run is withdrawn.
    let mut reconciler = super::reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    reconciler.reconcile(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    let result = reconciler.reconcile(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    let recovered = events(result);
    assert!(
        matches!(&recovered[..], [BackendEvent::Withdrawn { external, .. }] if external == "5#a"),
        "{recovered:?}"
    );
}

#[test]
fn running_and_paused_runs_are_recovered() {
    let (handle, enforcement) = (RunHandle::ClusterJob(5), Enforcement::None);
    let (mut reconciler, recovered) = found(runs());
    assert_eq!(recovered, RecoveredRun::Running { handle, paused: false, enforcement });
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert!(foreign(&result).iter().all(Vec::is_empty));
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    assert!(reconciler.jobs().end(OpId(1), run(1)));

    let (mut reconciler, recovered) = found(runs().state(SlurmState::Suspended));
    assert_eq!(recovered, RecoveredRun::Running { handle, paused: true, enforcement });
    let result = reconciler.reconcile(&list([runs().state(SlurmState::Suspended)]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
}

#[test]
fn a_run_that_started_elsewhere_meanwhile_is_found_there() {
    let elsewhere =
        || JobBuilder::new(5).odd(1).state(SlurmState::Running).on("n1", "gpu:g1:1(IDX:1)");
    let (mut reconciler, recovered) = found(elsewhere());
    assert_eq!(recovered, RecoveredRun::Starting);
    let devices = vec![3];
    let result = reconciler.reconcile(&list([elsewhere()]), NOW_S);
    assert_eq!(events(result), [BackendEvent::Placed { run: run(1), devices }, started(0, 1, 5)]);
}

#[test]
fn runs_that_were_about_to_start_are_recovered() {
    // After neither step of the placement, after the first, after both.
    let placed = || JobBuilder::new(5).placed("n0", "gres:shard:g0:33");
    let (mut reconciler, recovered) = found(JobBuilder::new(5));
    assert_eq!(recovered, RecoveredRun::Starting);
    let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
    assert_eq!(events(result), []);

    let (mut reconciler, recovered) = found(placed());
    assert_eq!(recovered, RecoveredRun::Starting);
    assert_eq!(
        requests(&reconciler.reconcile(&list([placed()]), NOW_S)),
        ["update jobid=5 Licenses="]
    );

    let (mut reconciler, recovered) = found(placed().admitted("None"));
    assert_eq!(recovered, RecoveredRun::Starting);
    assert!(reconciler.reconcile(&list([placed().admitted("None")]), NOW_S).requests.is_empty());

    let (mut reconciler, recovered) = found(runs().state(SlurmState::Other));
    assert_eq!(recovered, RecoveredRun::Starting);
    assert_eq!(events(reconciler.reconcile(&list([runs()]), NOW_S)), [started(0, 1, 5)]);
}

#[test]
fn runs_that_ended_meanwhile_have_an_exit() {
    let (mut reconciler, recovered) = found(over(SlurmEnd::Failed).exit(42, 0));
    assert!(matches!(
        recovered,
        RecoveredRun::Exited(Exit { status: ExitStatus::Code(42), cause: None, .. })
    ));
    // Reported once.
    assert_eq!(events(reconciler.reconcile(&list([over(SlurmEnd::Failed)]), NOW_S)), []);
    let (_, recovered) = found(over(SlurmEnd::Cancelled));
    assert!(matches!(
        recovered,
        RecoveredRun::Exited(Exit { cause: Some(ExitCause::Cancelled), .. })
    ));
    // Its exit code is 0, but it did not succeed.
    let (_, recovered) = found(over(SlurmEnd::NodeFailed));
    assert_eq!(recovered, RecoveredRun::Lost { reason: NODE_FAILED.to_owned() });
}

#[test]
fn missing_runs_are_looked_up_under_their_own_id() {
    let missing = |external: &str, listing: &JobList| {
        let mut reconciler = reconciler();
        let (found, missing) = reconciler.recover(&[known(external, true)], listing);
        assert!(found.is_empty());
        assert_eq!(
            events(reconciler.reconcile(listing, NOW_S)),
            events(super::reconciler().reconcile(listing, NOW_S))
        );
        missing.into_iter().map(|of| of.id).collect::<Vec<_>>()
    };
    assert_eq!(missing("5#a", &list([])), [5]);
    // The id of an array is that of its last task.
    assert_eq!(missing("5_1#a", &list([])), [0]);
    assert_eq!(missing("5#a", &list([runs().tag("b")])), [0]);
}

#[test]
fn known_pending_jobs_are_not_imported_again() {
    let mut reconciler = reconciler();
    let (found, missing) = reconciler.recover(&[known("5#a", false)], &list([JobBuilder::new(5)]));
    assert!(found.is_empty() && missing.is_empty());
    assert_eq!(events(reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S)), []);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    assert_eq!(requests(&reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S)).len(), 1);
    // Cancelled while no daemon ran.
    let mut reconciler = super::reconciler();
    reconciler.recover(&[known("5#a", false)], &list([over(SlurmEnd::Cancelled)]));
    let result = reconciler.reconcile(&list([over(SlurmEnd::Cancelled)]), NOW_S);
    assert!(matches!(events(result)[..], [BackendEvent::Withdrawn { .. }]));
}

#[test]
fn jobs_without_a_cluster_id_are_skipped() {
    let (found, missing) = reconciler().recover(&[KnownJob::from(run(1))], &list([runs()]));
    assert!(found.is_empty() && missing.is_empty());
}

#[test]
fn a_second_run_replaces_the_first() {
    let mut reconciler = running();
    reconciler.reconcile(&list([over(SlurmEnd::Failed)]), NOW_S);
    let second = RunId { job: 1, run: 2 };
    reconciler.jobs().start("5#a", desired(OpId(2), second, vec![0]));
    // Operations on the first run change nothing.
    assert!(!reconciler.jobs().end(OpId(3), run(1)));
    reconciler.jobs().forget(run(1));
    assert!(reconciler.jobs().pause(OpId(4), second, false));
    // A repeated start is the same run.
    reconciler.jobs().start("5#a", desired(OpId(5), second, vec![1]));
    let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
}
