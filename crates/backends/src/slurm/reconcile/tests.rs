//! Two nodes with two GPUs each: n0 has devices 0 and 1, n1 has 2 and 3. Three jobs share a GPU.

use super::super::testing::{JobBuilder, list};
use super::*;
use crate::cluster::ClusterJob;
use crate::op::Owner;
use crate::providers::DeviceSample;

mod any;
mod places;
mod recovery;

const NOW_S: u64 = 1_000_000;

fn node(name: &str) -> SlurmNode {
    SlurmNode {
        name: name.to_owned(),
        partitions: vec!["tandem".to_owned()],
        types: vec!["g0".to_owned(), "g1".to_owned()],
        shards: vec![100, 100],
        closed: None,
        fault: None,
    }
}

/// A book of Slurm 22.05.
fn book() -> Reconciler {
    Reconciler::new("tandem".to_owned(), vec![node("n0"), node("n1")], 3, false)
}

fn run(job: u64) -> RunId {
    RunId { job, run: 1 }
}

/// What happened, but for samples.
fn events(turn: Reconciled) -> Vec<BackendEvent> {
    let is_news = |event: &BackendEvent| !matches!(event, BackendEvent::Sampled(_));
    turn.events.into_iter().filter(is_news).collect()
}

/// What is asked for, as it would be typed.
fn asks(turn: &Reconciled) -> Vec<String> {
    let ask = |request: &SlurmRequest| match request {
        SlurmRequest::Control(line) => line.clone(),
        SlurmRequest::Cancel(job) => format!("scancel {job}"),
    };
    turn.requests.iter().map(ask).collect()
}

fn offered(turn: Reconciled) -> Vec<String> {
    let external = |event| match event {
        BackendEvent::Imported(offer) => Some(offer.external),
        _ => None,
    };
    turn.events.into_iter().filter_map(external).collect()
}

/// Numbers of the jobs of others on each device.
fn strangers(turn: &Reconciled) -> Vec<Vec<u32>> {
    let Some(BackendEvent::Sampled(sample)) = turn.events.last() else { panic!("no sample") };
    let numbers = |device: &DeviceSample| device.processes.iter().map(|of| of.0).collect();
    sample.devices.iter().map(numbers).collect()
}

/// JobBuilder 5 on device 0 as it is when Slurm runs it.
fn runs() -> JobBuilder {
    JobBuilder::new(5)
        .aimed("n0", "gres:shard:g0:33")
        .state(SlurmState::Running)
        .on("n0", "shard:33(IDX:0)")
}

fn started(op: u64, of: u64, pid: u32) -> BackendEvent {
    let (op, run, enforcement) = (OpId(op), run(of), Enforcement::None);
    BackendEvent::Started { op, run, pid, enforcement }
}

/// A book in which job 5 was offered, started on device 0 by operation 1, and seen to run.
fn running() -> Reconciler {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    let turn = book.turn(&list([runs()]), NOW_S);
    assert_eq!(events(turn), [started(1, 1, 5)]);
    book
}

fn over(over: SlurmEnd) -> JobBuilder {
    JobBuilder::new(5).aimed("n0", "gres:shard:g0:33").state(SlurmState::Ended(over))
}

#[test]
fn a_job_is_offered_once() {
    let mut book = book();
    let job = || {
        JobBuilder::new(5).gpus(1, 2).with(|record| {
            record.comment = "hint".to_owned();
            record.limit_min = Some(10);
            record.is_batch = false;
        })
    };
    let turn = book.turn(&list([job()]), NOW_S);
    assert!(turn.requests.is_empty());
    let offer = ClusterJob {
        external: "5#a".to_owned(),
        owner: Owner { uid: 1000, gid: 1000 },
        user: "ann".to_owned(),
        name: "job".to_owned(),
        gpus: 2,
        limit_s: Some(600.0),
        hints: "hint".to_owned(),
        exclusive: true,
        submit_unix_us: 500_000_000,
    };
    assert_eq!(events(turn), [BackendEvent::Imported(Box::new(offer))]);
    assert_eq!(events(book.turn(&list([job()]), NOW_S)), []);
}

#[test]
fn jobs_that_are_not_ours_to_place_are_not_offered() {
    let mut book = book();
    let turn = book.turn(
        &list([
            JobBuilder::new(1).plain(),
            JobBuilder::new(2).with(|record| record.partition = "plain".to_owned()),
            JobBuilder::new(3).free("Resources"),
            JobBuilder::new(4).with(|record| record.eligible_s = NOW_S + 1),
            JobBuilder::new(5).state(SlurmState::Other),
            JobBuilder::new(6)
                .with(|record| record.dependency = "afterok:1(unfulfilled)".to_owned()),
        ]),
        NOW_S,
    );
    assert!(turn.requests.is_empty());
    assert_eq!(events(turn), []);
}

#[test]
fn a_job_on_several_nodes_has_them_to_itself() {
    let mut book = book();
    let turn = book.turn(&list([JobBuilder::new(5).gpus(2, 1)]), NOW_S);
    let [BackendEvent::Imported(offer)] = &events(turn)[..] else { panic!("no offer") };
    assert_eq!(offer.gpus, 4);
}

#[test]
fn a_dependency_that_can_never_be_met_is_given_back_to_slurm() {
    let mut book = book();
    let waits =
        || JobBuilder::new(6).with(|record| record.dependency = "afterok:5(failed)".to_owned());
    let turn = book.turn(&list([waits()]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=6 TresPerNode=gres:gpu:1", "release 6"]);
    assert_eq!(events(turn), []);
    let turn = book.turn(&list([waits().free("DependencyNeverSatisfied")]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
}

#[test]
fn an_array_keeps_to_its_limit() {
    let mut book = book();
    let array = |waiting: &[u32]| {
        JobBuilder::new(20).array(waiting).with(|record| record.at_a_time = Some(2))
    };
    let task = |id, task, state| {
        let job = JobBuilder::new(id).task(20, task).state(state);
        job.with(|record| record.at_a_time = Some(2))
    };
    let turn = book.turn(&list([array(&[0, 1, 2, 3])]), NOW_S);
    assert_eq!(offered(turn), ["20_0#a", "20_1#a"]);
    assert!(offered(book.turn(&list([array(&[0, 1, 2, 3])]), NOW_S)).is_empty());
    book.start(OpId(1), "20_0#a", run(1), vec![0], false);
    let turn = book.turn(&list([array(&[0, 1, 2, 3])]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=20_0 Gres=shard:g0:33 ReqNodeList=n0"]);
    let running = list([task(21, 0, SlurmState::Running), array(&[1, 2, 3])]);
    assert!(offered(book.turn(&running, NOW_S)).is_empty());
    // The next one when one is over.
    let done = list([task(21, 0, SlurmState::Ended(SlurmEnd::Completed)), array(&[1, 2, 3])]);
    assert_eq!(offered(book.turn(&done, NOW_S)), ["20_2#a"]);
}

#[test]
fn tasks_that_run_unknown_to_us_count_in_the_limit() {
    let limit = |job: JobBuilder| job.with(|record| record.at_a_time = Some(2));
    let turn = book().turn(
        &list([
            limit(JobBuilder::new(21).task(20, 0).state(SlurmState::Running)),
            limit(JobBuilder::new(20).array(&[1, 2, 3])),
        ]),
        NOW_S,
    );
    assert_eq!(offered(turn), ["20_1#a"]);
}

#[test]
fn the_last_task_of_an_array_is_that_task_only() {
    let mut book = book();
    let turn = book.turn(&list([JobBuilder::new(20).task(20, 3)]), NOW_S);
    assert_eq!(offered(turn), ["20_3#a"]);
    book.start(OpId(1), "20_3#a", run(1), vec![0], false);
    let turn = book.turn(&list([JobBuilder::new(20).task(20, 3)]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=20_3 Gres=shard:g0:33 ReqNodeList=n0"]);
}

#[test]
fn pauses_and_goes_on() {
    let mut book = running();
    assert!(book.pause(OpId(2), run(1), true));
    let turn = book.turn(&list([runs()]), NOW_S);
    assert_eq!(asks(&turn), ["suspend 5"]);
    assert_eq!(events(turn), []);
    let paused = || runs().state(SlurmState::Suspended);
    let turn = book.turn(&list([paused()]), NOW_S);
    assert!(turn.requests.is_empty());
    let (op, took_us) = (OpId(2), 0);
    assert_eq!(events(turn), [BackendEvent::Paused { op, run: run(1), took_us }]);
    assert!(book.pause(OpId(3), run(1), false));
    let turn = book.turn(&list([paused()]), NOW_S);
    assert_eq!(asks(&turn), ["resume 5"]);
    let turn = book.turn(&list([runs()]), NOW_S);
    assert!(turn.requests.is_empty());
    assert_eq!(events(turn), [BackendEvent::Resumed { op: OpId(3), run: run(1) }]);
    assert!(!book.pause(OpId(4), run(9), true));
}

#[test]
fn what_began_and_was_paused_between_two_lists_has_begun() {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    let turn = book.turn(&list([runs().state(SlurmState::Suspended)]), NOW_S);
    assert_eq!(asks(&turn), ["resume 5"]);
    let (op, took_us) = (OpId(1), 0);
    let paused = BackendEvent::Paused { op, run: run(1), took_us };
    assert_eq!(events(turn), [started(1, 1, 5), paused]);
}

#[test]
fn ends_say_how() {
    let exited = |job: JobBuilder| {
        let mut book = running();
        let turn = book.turn(&list([job.with(|record| record.end_s = 7)]), NOW_S);
        assert!(turn.requests.is_empty());
        let [BackendEvent::Exited { run: of, exit }] = &events(turn)[..] else { panic!("no exit") };
        assert_eq!((*of, exit.at_unix_us), (run(1), 7_000_000));
        // ReportedState once.
        assert_eq!(events(book.turn(&list([over(SlurmEnd::Failed)]), NOW_S)), []);
        (exit.status, exit.cause, exit.oom)
    };
    assert_eq!(exited(over(SlurmEnd::Completed)), (ExitStatus::Code(0), None, false));
    assert_eq!(exited(over(SlurmEnd::Failed).exit(42, 0)), (ExitStatus::Code(42), None, false));
    assert_eq!(exited(over(SlurmEnd::Failed).exit(0, 9)), (ExitStatus::Signal(9), None, false));
    // It never got as far as a code of its own.
    assert_eq!(exited(over(SlurmEnd::Failed)), (ExitStatus::Code(1), None, false));
    let cancelled = over(SlurmEnd::Cancelled).exit(0, 15);
    assert_eq!(exited(cancelled), (ExitStatus::Signal(15), Some(ExitCause::Cancelled), false));
    let (late, big) = (over(SlurmEnd::TimedOut), over(SlurmEnd::OutOfMemory));
    assert_eq!(exited(late), (ExitStatus::Code(0), Some(ExitCause::TimedOut), false));
    assert_eq!(exited(big), (ExitStatus::Code(0), Some(ExitCause::OutOfMemory), true));
}

#[test]
fn a_run_whose_node_failed_is_lost() {
    let turn = running().turn(&list([over(SlurmEnd::NodeFailed)]), NOW_S);
    let reason = NODE_FAILED.to_owned();
    assert_eq!(events(turn), [BackendEvent::Lost { run: run(1), reason }]);
}

#[test]
fn an_end_is_asked_for_again_after_a_while() {
    let mut book = running();
    assert!(book.end(OpId(2), run(1)));
    assert_eq!(asks(&book.turn(&list([runs()]), NOW_S)), ["scancel 5"]);
    assert!(book.turn(&list([runs()]), NOW_S + 4).requests.is_empty());
    // Asking for it once more does not hurry it.
    assert!(book.end(OpId(3), run(1)));
    assert!(book.turn(&list([runs()]), NOW_S + 4).requests.is_empty());
    assert_eq!(asks(&book.turn(&list([runs()]), NOW_S + 5)), ["scancel 5"]);
    let turn = book.turn(&list([runs().state(SlurmState::Other)]), NOW_S + 6);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
    let turn = book.turn(&list([over(SlurmEnd::Cancelled)]), NOW_S + 7);
    assert!(matches!(events(turn)[..], [BackendEvent::Exited { .. }]));
    assert!(!book.end(OpId(4), run(9)));
}

#[test]
fn what_was_never_released_can_be_ended() {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    book.end(OpId(2), run(1));
    assert_eq!(asks(&book.turn(&list([JobBuilder::new(5)]), NOW_S)), ["scancel 5"]);
}

#[test]
fn a_state_in_between_is_left_alone() {
    let mut book = running();
    book.pause(OpId(2), run(1), true);
    let turn = book.turn(&list([runs().state(SlurmState::Other)]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
}

#[test]
fn a_job_that_waits_is_withdrawn_when_somebody_acts_on_it() {
    let withdrawn = |job: JobBuilder| {
        let mut book = book();
        book.turn(&list([JobBuilder::new(5)]), NOW_S);
        let turn = book.turn(&list([job]), NOW_S);
        assert!(turn.requests.is_empty());
        let [BackendEvent::Withdrawn { external, reason }] = &events(turn)[..] else {
            panic!("not withdrawn")
        };
        assert_eq!(external, "5#a");
        assert_eq!(events(book.turn(&list([runs()]), NOW_S)), []);
        reason.clone()
    };
    assert_eq!(withdrawn(over(SlurmEnd::Cancelled)), "cancelled in Slurm");
    assert_eq!(withdrawn(over(SlurmEnd::Failed)), "it is over in Slurm");
    assert_eq!(withdrawn(JobBuilder::new(5).free("None")), "released by somebody else");
    assert_eq!(withdrawn(runs()), "released by somebody else");
}

#[test]
fn what_somebody_else_released_is_a_stranger_on_its_gpu() {
    let mut book = book();
    book.turn(&list([JobBuilder::new(5)]), NOW_S);
    let turn = book.turn(&list([runs()]), NOW_S);
    assert_eq!(strangers(&turn), [vec![5], vec![], vec![], vec![]]);
}

#[test]
fn forgets_what_is_over() {
    let mut book = running();
    book.turn(&list([over(SlurmEnd::Completed)]), NOW_S);
    book.forget(run(1));
    assert!(book.jobs.is_empty() && book.keys.is_empty());
    let turn = book.turn(&list([over(SlurmEnd::Completed)]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
    book.forget(run(1));
}
