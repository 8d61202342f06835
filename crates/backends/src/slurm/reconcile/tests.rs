//! Two nodes with two GPUs each: n0 has devices 0 and 1, n1 has 2 and 3. Three jobs share a GPU.

use super::super::testing::{JobBuilder, list};
use super::*;
use crate::cluster::ClusterJob;
use crate::op::Owner;
use crate::providers::DeviceSample;

mod any;
mod constraints;
mod patience;
mod placement;
mod recovery;

const NOW_S: u64 = 1_000_000;

fn node(name: &str) -> SlurmNode {
    SlurmNode {
        name: name.to_owned(),
        partitions: vec!["tandem".to_owned()],
        gpu_types: vec!["g0".to_owned(), "g1".to_owned()],
        shards: vec![100, 100],
        free_cpus: 64,
        free_memory_mib: 64_000,
        features: Vec::new(),
        is_idle: true,
        unavailable: None,
        fault: None,
    }
}

fn options() -> ReconcilerOptions {
    let patience = Patience { start_within_s: 30, tries_max: 3 };
    let (tenants_max, gres_update_replaces, priority_window) = (3, false, 0.1);
    ReconcilerOptions { tenants_max, gres_update_replaces, patience, priority_window }
}

/// Of Slurm 22.05.
fn reconciler() -> Reconciler {
    Reconciler::new("tandem".to_owned(), vec![node("n0"), node("n1")], options())
}

/// Of a version that replaces the request of GPUs.
fn newer() -> Reconciler {
    let options = ReconcilerOptions { gres_update_replaces: true, ..options() };
    Reconciler::new("tandem".to_owned(), vec![node("n0"), node("n1")], options)
}

fn run(job: u64) -> RunId {
    RunId { job, run: 1 }
}

/// The events without samples.
fn events(result: Reconciled) -> Vec<BackendEvent> {
    let is_sample = |event: &BackendEvent| matches!(event, BackendEvent::Sampled(_));
    result.events.into_iter().filter(|event| !is_sample(event)).collect()
}

/// The requests, as an operator would type them.
fn requests(result: &Reconciled) -> Vec<String> {
    let line = |request: &SlurmRequest| match request {
        SlurmRequest::Control(line) => line.clone(),
        SlurmRequest::Cancel(job) => format!("scancel {job}"),
    };
    result.requests.iter().map(line).collect()
}

fn imported(result: Reconciled) -> Vec<String> {
    let external = |event| match event {
        BackendEvent::Imported(job) => Some(job.external),
        _ => None,
    };
    result.events.into_iter().filter_map(external).collect()
}

/// Ids of the foreign jobs on each device.
fn foreign(result: &Reconciled) -> Vec<Vec<u32>> {
    let Some(BackendEvent::Sampled(sample)) = result.events.last() else { panic!("no sample") };
    let numbers = |device: &DeviceSample| device.processes.iter().map(|of| of.0).collect();
    sample.devices.iter().map(numbers).collect()
}

fn desired(op: OpId, run: RunId, devices: Vec<u32>) -> DesiredRun {
    DesiredRun::new(run, op, devices)
}

/// Job 5 running on device 0.
fn runs() -> JobBuilder {
    JobBuilder::new(5)
        .placed("n0", "gres:shard:g0:33")
        .state(SlurmState::Running)
        .on("n0", "shard:33(IDX:0)")
}

fn started(op: u64, of: u64, job: u64) -> BackendEvent {
    let (op, run, enforcement) = (OpId(op), run(of), Enforcement::None);
    let handle = RunHandle::ClusterJob(job);
    BackendEvent::Started { op, run, handle, enforcement }
}

/// Job 5 was imported, started on device 0 by operation 1, and runs.
fn running() -> Reconciler {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert_eq!(events(result), [started(1, 1, 5)]);
    reconciler
}

fn over(over: SlurmEnd) -> JobBuilder {
    JobBuilder::new(5).placed("n0", "gres:shard:g0:33").state(SlurmState::Ended(over))
}

#[test]
fn a_job_is_imported_once() {
    let mut reconciler = reconciler();
    let job = || {
        JobBuilder::new(5).gpus(1, 2).with(|record| {
            record.comment = "hint".to_owned();
            record.limit_min = Some(10);
            record.is_batch = false;
        })
    };
    let result = reconciler.reconcile(&list([job()]), NOW_S);
    assert!(result.requests.is_empty());
    let expected = ClusterJob {
        external: "5#a".to_owned(),
        owner: Owner { uid: 1000, gid: 1000 },
        user: "ann".to_owned(),
        name: "job".to_owned(),
        gpus: 2,
        limit_s: Some(600.0),
        hints: "hint".to_owned(),
        exclusive: true,
        submit_unix_us: 500_000_000,
        waits: None,
    };
    assert_eq!(events(result), [BackendEvent::Imported(Box::new(expected))]);
    assert_eq!(events(reconciler.reconcile(&list([job()]), NOW_S)), []);
}

#[test]
fn jobs_that_must_not_be_placed_are_not_imported() {
    let mut reconciler = reconciler();
    let result = reconciler.reconcile(
        &list([
            JobBuilder::new(1).unmanaged(),
            JobBuilder::new(2).with(|record| record.partition = "plain".to_owned()),
            JobBuilder::new(3).admitted("Resources"),
            JobBuilder::new(4).with(|record| record.eligible_s = NOW_S + 1),
            JobBuilder::new(5).state(SlurmState::Other),
            JobBuilder::new(6)
                .with(|record| record.dependency = "afterok:1(unfulfilled)".to_owned()),
            JobBuilder::new(7).with(|record| record.is_held = true),
            JobBuilder::new(8).with(|record| record.dependency = "afterok:5(failed)".to_owned()),
        ]),
        NOW_S,
    );
    assert!(result.requests.is_empty());
    assert_eq!(events(result), []);
}

#[test]
fn an_array_limit_is_kept() {
    let mut reconciler = reconciler();
    let array = |waiting: &[u32]| {
        JobBuilder::new(20).array(waiting).with(|record| record.array_limit = Some(2))
    };
    let task = |id, task, state| {
        let job = JobBuilder::new(id).task(20, task).state(state);
        job.with(|record| record.array_limit = Some(2))
    };
    let result = reconciler.reconcile(&list([array(&[0, 1, 2, 3])]), NOW_S);
    assert_eq!(imported(result), ["20_0#a", "20_1#a"]);
    assert!(imported(reconciler.reconcile(&list([array(&[0, 1, 2, 3])]), NOW_S)).is_empty());
    reconciler.jobs().start("20_0#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([array(&[0, 1, 2, 3])]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=20_0 Gres=shard:g0:33 ReqNodeList=n0"]);
    let running = list([task(21, 0, SlurmState::Running), array(&[1, 2, 3])]);
    assert!(imported(reconciler.reconcile(&running, NOW_S)).is_empty());
    // The next task is imported when one has ended.
    let done = list([task(21, 0, SlurmState::Ended(SlurmEnd::Completed)), array(&[1, 2, 3])]);
    assert_eq!(imported(reconciler.reconcile(&done, NOW_S)), ["20_2#a"]);
}

#[test]
fn tasks_that_slurm_started_count_in_the_array_limit() {
    let limit = |job: JobBuilder| job.with(|record| record.array_limit = Some(2));
    let result = reconciler().reconcile(
        &list([
            limit(JobBuilder::new(21).task(20, 0).state(SlurmState::Running)),
            limit(JobBuilder::new(20).array(&[1, 2, 3])),
        ]),
        NOW_S,
    );
    assert_eq!(imported(result), ["20_1#a"]);
}

#[test]
fn the_last_task_of_an_array_is_addressed_as_a_task() {
    let mut reconciler = reconciler();
    let result = reconciler.reconcile(&list([JobBuilder::new(20).task(20, 3)]), NOW_S);
    assert_eq!(imported(result), ["20_3#a"]);
    reconciler.jobs().start("20_3#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([JobBuilder::new(20).task(20, 3)]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=20_3 Gres=shard:g0:33 ReqNodeList=n0"]);
}

#[test]
fn pauses_and_resumes() {
    let mut reconciler = running();
    assert!(reconciler.jobs().pause(OpId(2), run(1), true));
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert_eq!(requests(&result), ["suspend 5"]);
    assert_eq!(events(result), []);
    let paused = || runs().state(SlurmState::Suspended);
    let result = reconciler.reconcile(&list([paused()]), NOW_S);
    assert!(result.requests.is_empty());
    let (op, took_us) = (OpId(2), 0);
    assert_eq!(events(result), [BackendEvent::Paused { op, run: run(1), took_us }]);
    assert!(reconciler.jobs().pause(OpId(3), run(1), false));
    let result = reconciler.reconcile(&list([paused()]), NOW_S);
    assert_eq!(requests(&result), ["resume 5"]);
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert!(result.requests.is_empty());
    assert_eq!(events(result), [BackendEvent::Resumed { op: OpId(3), run: run(1) }]);
    assert!(!reconciler.jobs().pause(OpId(4), run(9), true));
}

#[test]
fn a_run_that_was_suspended_between_two_lists_has_started() {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([runs().state(SlurmState::Suspended)]), NOW_S);
    assert!(result.requests.is_empty());
    assert_eq!(events(result), [started(1, 1, 5)]);
}

#[test]
fn an_operator_may_suspend_a_job() {
    let mut reconciler = running();
    let suspended = || list([runs().state(SlurmState::Suspended)]);
    for _ in 0..3 {
        let result = reconciler.reconcile(&suspended(), NOW_S);
        assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    }
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    // Paused by the daemon, and resumed before a list showed it.
    reconciler.jobs().pause(OpId(2), run(1), true);
    assert_eq!(requests(&reconciler.reconcile(&list([runs()]), NOW_S)), ["suspend 5"]);
    reconciler.jobs().pause(OpId(3), run(1), false);
    assert_eq!(requests(&reconciler.reconcile(&suspended(), NOW_S)), ["resume 5"]);
}

#[test]
fn exits_have_status_and_cause() {
    let exited = |job: JobBuilder| {
        let mut reconciler = running();
        let result = reconciler.reconcile(&list([job.with(|record| record.end_s = 7)]), NOW_S);
        assert!(result.requests.is_empty());
        let [BackendEvent::Exited { run: of, exit }] = &events(result)[..] else {
            panic!("no exit")
        };
        assert_eq!((*of, exit.at_unix_us), (run(1), 7_000_000));
        // Reported once.
        assert_eq!(events(reconciler.reconcile(&list([over(SlurmEnd::Failed)]), NOW_S)), []);
        (exit.status, exit.cause, exit.oom)
    };
    assert_eq!(exited(over(SlurmEnd::Completed)), (ExitStatus::Code(0), None, false));
    assert_eq!(exited(over(SlurmEnd::Failed).exit(42, 0)), (ExitStatus::Code(42), None, false));
    assert_eq!(exited(over(SlurmEnd::Failed).exit(0, 9)), (ExitStatus::Signal(9), None, false));
    // Its program never started and has no exit code.
    assert_eq!(exited(over(SlurmEnd::Failed)), (ExitStatus::Code(1), None, false));
    let cancelled = over(SlurmEnd::Cancelled).exit(0, 15);
    assert_eq!(exited(cancelled), (ExitStatus::Signal(15), Some(ExitCause::Cancelled), false));
    let (late, big) = (over(SlurmEnd::TimedOut), over(SlurmEnd::OutOfMemory));
    assert_eq!(exited(late), (ExitStatus::Code(0), Some(ExitCause::TimedOut), false));
    assert_eq!(exited(big), (ExitStatus::Code(0), Some(ExitCause::OutOfMemory), true));
}

#[test]
fn a_run_whose_node_failed_is_lost() {
    let result = running().reconcile(&list([over(SlurmEnd::NodeFailed)]), NOW_S);
    let reason = NODE_FAILED.to_owned();
    assert_eq!(events(result), [BackendEvent::Lost { run: run(1), reason }]);
}

#[test]
fn a_cancel_request_is_repeated() {
    let mut reconciler = running();
    assert!(reconciler.jobs().end(OpId(2), run(1)));
    assert_eq!(requests(&reconciler.reconcile(&list([runs()]), NOW_S)), ["scancel 5"]);
    assert!(reconciler.reconcile(&list([runs()]), NOW_S + 4).requests.is_empty());
    // A second operation does not repeat the request earlier.
    assert!(reconciler.jobs().end(OpId(3), run(1)));
    assert!(reconciler.reconcile(&list([runs()]), NOW_S + 4).requests.is_empty());
    assert_eq!(requests(&reconciler.reconcile(&list([runs()]), NOW_S + 5)), ["scancel 5"]);
    let result = reconciler.reconcile(&list([runs().state(SlurmState::Other)]), NOW_S + 6);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    let result = reconciler.reconcile(&list([over(SlurmEnd::Cancelled)]), NOW_S + 7);
    assert!(matches!(events(result)[..], [BackendEvent::Exited { .. }]));
    assert!(!reconciler.jobs().end(OpId(4), run(9)));
}

#[test]
fn a_job_that_was_not_admitted_yet_can_be_ended() {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    reconciler.jobs().end(OpId(2), run(1));
    assert_eq!(requests(&reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S)), ["scancel 5"]);
}

#[test]
fn a_job_in_transition_is_left_alone() {
    let mut reconciler = running();
    reconciler.jobs().pause(OpId(2), run(1), true);
    let result = reconciler.reconcile(&list([runs().state(SlurmState::Other)]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
}

#[test]
fn a_pending_job_is_withdrawn_when_slurm_ends_or_starts_it() {
    let withdrawn = |job: JobBuilder| {
        let mut reconciler = reconciler();
        reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
        let result = reconciler.reconcile(&list([job]), NOW_S);
        assert!(result.requests.is_empty());
        let [BackendEvent::Withdrawn { external, reason }] = &events(result)[..] else {
            panic!("not withdrawn")
        };
        assert_eq!(external, "5#a");
        assert_eq!(events(reconciler.reconcile(&list([runs()]), NOW_S)), []);
        assert!(reconciler.jobs.is_empty());
        reason.clone()
    };
    assert_eq!(withdrawn(over(SlurmEnd::Cancelled)), "cancelled in Slurm");
    assert_eq!(withdrawn(over(SlurmEnd::Failed)), "it has ended in Slurm");
    assert_eq!(withdrawn(JobBuilder::new(5).admitted("None")), "Slurm starts it itself");
    assert_eq!(withdrawn(runs()), "Slurm starts it itself");
}

#[test]
fn a_job_that_slurm_started_is_foreign() {
    let mut reconciler = reconciler();
    reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    let result = reconciler.reconcile(&list([runs()]), NOW_S);
    assert_eq!(foreign(&result), [vec![5], vec![], vec![], vec![]]);
}

#[test]
fn forgets_runs_that_have_ended() {
    let mut reconciler = running();
    reconciler.reconcile(&list([over(SlurmEnd::Completed)]), NOW_S);
    reconciler.jobs().forget(run(1));
    assert!(reconciler.jobs.is_empty());
    let result = reconciler.reconcile(&list([over(SlurmEnd::Completed)]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    reconciler.jobs().forget(run(1));
}
