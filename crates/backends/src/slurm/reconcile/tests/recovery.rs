//! Jobs that come and go behind our back, and what an earlier daemon knew.

use super::*;

fn known(external: &str, has_run: bool) -> KnownJob {
    let external = Some(external.to_owned());
    KnownJob { run: run(1), has_run, devices: vec![0], external }
}

fn found(job: JobBuilder) -> (Reconciler, RecoveredRun) {
    let mut book = book();
    let (mut found, forgotten) = book.recover(&[known("5#a", true)], &list([job]));
    assert_eq!(forgotten, []);
    let (of, told) = found.pop().unwrap();
    assert_eq!((of, found), (run(1), vec![]));
    (book, told)
}

#[test]
fn a_run_is_gone_when_two_lists_do_not_have_it() {
    let mut book = running();
    let turn = book.turn(&list([]), NOW_S);
    assert_eq!((turn.forgotten.len(), events(turn)), (0, vec![]));
    // One list in between has it: counted anew.
    book.turn(&list([runs()]), NOW_S);
    assert_eq!(book.turn(&list([]), NOW_S).forgotten, []);
    let turn = book.turn(&list([]), NOW_S);
    assert_eq!(turn.forgotten, [MissingRun { run: run(1), id: 5, submit_s: 500 }]);
    assert_eq!(events(turn), []);
    assert_eq!(book.turn(&list([]), NOW_S).forgotten, []);
}

#[test]
fn a_job_that_waits_is_gone_when_two_lists_do_not_have_it() {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(events(book.turn(&list([]), NOW_S)), []);
    let (external, reason) = ("5#a".to_owned(), "Slurm does not know it any more".to_owned());
    let turn = book.turn(&list([]), NOW_S);
    assert_eq!(events(turn), [BackendEvent::Withdrawn { external, reason }]);
    assert_eq!(events(book.turn(&list([]), NOW_S)), []);
}

#[test]
fn another_job_under_the_same_id_is_not_touched() {
    let mut book = running();
    book.end(OpId(2), run(1));
    let other = || runs().tag("b");
    let turn = book.turn(&list([other()]), NOW_S);
    assert_eq!((asks(&turn).len(), turn.forgotten.len()), (0, 0));
    assert_eq!(strangers(&turn), [vec![5], vec![], vec![], vec![]]);
    let turn = book.turn(&list([other()]), NOW_S);
    assert!(turn.requests.is_empty());
    // What is on record under its id would be the other's.
    assert_eq!(turn.forgotten, [MissingRun { run: run(1), id: 0, submit_s: 500 }]);
}

#[test]
fn another_job_that_waits_under_the_same_id_is_offered_by_itself() {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    let turn = book.turn(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    assert!(turn.requests.is_empty());
    assert_eq!(offered(turn), ["5#b"]);
    // One that only waited is withdrawn.
    let mut book = super::book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    book.turn(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    let turn = book.turn(&list([JobBuilder::new(5).tag("b")]), NOW_S);
    let told = events(turn);
    assert!(
        matches!(&told[..], [BackendEvent::Withdrawn { external, .. }] if external == "5#a"),
        "{told:?}"
    );
}

#[test]
fn runs_are_found_as_they_are() {
    let enforcement = Enforcement::None;
    let (mut book, told) = found(runs());
    assert_eq!(told, RecoveredRun::Running { pid: 5, paused: false, enforcement });
    let turn = book.turn(&list([runs()]), NOW_S);
    assert!(strangers(&turn).iter().all(Vec::is_empty));
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
    assert!(book.end(OpId(1), run(1)));

    let (mut book, told) = found(runs().state(SlurmState::Suspended));
    assert_eq!(told, RecoveredRun::Running { pid: 5, paused: true, enforcement });
    let turn = book.turn(&list([runs().state(SlurmState::Suspended)]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
}

#[test]
fn runs_that_were_on_the_way_go_on() {
    // Neither step was taken, the first one, both.
    let placed = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33");
    let (mut book, told) = found(JobBuilder::new(5));
    assert_eq!(told, RecoveredRun::Starting);
    let turn = book.turn(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
    assert_eq!(events(turn), []);

    let (mut book, told) = found(placed());
    assert_eq!(told, RecoveredRun::Starting);
    assert_eq!(asks(&book.turn(&list([placed()]), NOW_S)), ["release 5"]);

    let (mut book, told) = found(placed().free("None"));
    assert_eq!(told, RecoveredRun::Starting);
    assert!(book.turn(&list([placed().free("None")]), NOW_S).requests.is_empty());

    let (mut book, told) = found(runs().state(SlurmState::Other));
    assert_eq!(told, RecoveredRun::Starting);
    assert_eq!(events(book.turn(&list([runs()]), NOW_S)), [started(0, 1, 5)]);
}

#[test]
fn runs_that_ended_meanwhile_say_how() {
    let (mut book, told) = found(over(SlurmEnd::Failed).exit(42, 0));
    assert!(matches!(
        told,
        RecoveredRun::Exited(Exit { status: ExitStatus::Code(42), cause: None, .. })
    ));
    // ReportedState once.
    assert_eq!(events(book.turn(&list([over(SlurmEnd::Failed)]), NOW_S)), []);
    let (_, told) = found(over(SlurmEnd::Cancelled));
    assert!(matches!(told, RecoveredRun::Exited(Exit { cause: Some(ExitCause::Cancelled), .. })));
    // Its exit code is 0, and yet it did not go well.
    let (_, told) = found(over(SlurmEnd::NodeFailed));
    assert_eq!(told, RecoveredRun::Lost { reason: NODE_FAILED.to_owned() });
}

#[test]
fn runs_that_slurm_forgot_are_looked_up_under_their_own_id() {
    let forgotten = |external: &str, listing: &JobList| {
        let mut book = book();
        let (found, forgotten) = book.recover(&[known(external, true)], listing);
        assert!(found.is_empty());
        assert_eq!(events(book.turn(listing, NOW_S)), events(super::book().turn(listing, NOW_S)));
        forgotten.into_iter().map(|of| of.id).collect::<Vec<_>>()
    };
    assert_eq!(forgotten("5#a", &list([])), [5]);
    // The number of an array is that of its last task.
    assert_eq!(forgotten("5_1#a", &list([])), [0]);
    assert_eq!(forgotten("5#a", &list([runs().tag("b")])), [0]);
}

#[test]
fn jobs_that_waited_are_not_offered_again() {
    let mut book = book();
    let (found, forgotten) = book.recover(&[known("5#a", false)], &list([JobBuilder::new(5)]));
    assert!(found.is_empty() && forgotten.is_empty());
    assert_eq!(events(book.turn(&list([JobBuilder::new(5)]), NOW_S)), []);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    assert_eq!(asks(&book.turn(&list([JobBuilder::new(5)]), NOW_S)).len(), 1);
    // Cancelled while nobody watched.
    let mut book = super::book();
    book.recover(&[known("5#a", false)], &list([over(SlurmEnd::Cancelled)]));
    let turn = book.turn(&list([over(SlurmEnd::Cancelled)]), NOW_S);
    assert!(matches!(events(turn)[..], [BackendEvent::Withdrawn { .. }]));
}

#[test]
fn runs_that_are_none_of_slurms_are_passed_over() {
    let (found, forgotten) = book().recover(&[KnownJob::from(run(1))], &list([runs()]));
    assert!(found.is_empty() && forgotten.is_empty());
}

#[test]
fn a_second_run_takes_the_place_of_the_first() {
    let mut book = running();
    book.turn(&list([over(SlurmEnd::Failed)]), NOW_S);
    let second = RunId { job: 1, run: 2 };
    book.start(OpId(2), "5#a", second, vec![0], false);
    // What is said about the first one changes nothing.
    assert!(!book.end(OpId(3), run(1)));
    book.forget(run(1));
    assert!(book.pause(OpId(4), second, false));
    // The same operation again is the same run.
    book.start(OpId(5), "5#a", second, vec![1], false);
    let turn = book.turn(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
}
