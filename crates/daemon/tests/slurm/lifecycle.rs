//! From import to end: placement, pause, requeue, cancellation.

use super::*;

#[test]
fn a_pending_job_that_is_withdrawn_is_cancelled() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let first = cluster.import(1);
    let second = cluster.import(1);
    assert_eq!((cluster.phase(first), cluster.phase(second)), (Phase::Starting, Phase::Absent));
    cluster.withdraw(second);
    assert_eq!(cluster.state(second), JobState::Cancelled);
    assert_eq!(cluster.job(second).reason.as_deref(), Some("scancel"));
    // A second event, or one of an unknown job, changes nothing.
    cluster.withdraw(second);
    cluster.step(&[withdrawn("77#gone")]);
    // A job with a run ends with its run.
    cluster.withdraw(first);
    assert_eq!(cluster.phase(first), Phase::Starting);
    cluster.started(first);
    cluster.withdraw(first);
    assert_eq!(cluster.phase(first), Phase::Running);
    cluster.finish(first);
    assert_eq!(cluster.state(first), JobState::Completed);
    cluster.assert_idle();
}

fn withdrawn(external: &str) -> Input {
    let (external, reason) = (external.to_owned(), "scancel".to_owned());
    Input::Backend(BackendEvent::Withdrawn { external, reason })
}

#[test]
fn a_held_job_can_be_withdrawn_and_released() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let first = cluster.import(1);
    let (second, third) = (cluster.import(1), cluster.import(1));
    cluster.step(&[Input::Hold { job: second }, Input::Hold { job: third }]);
    assert_eq!(cluster.state(second), JobState::Held);
    cluster.withdraw(third);
    assert_eq!(cluster.state(third), JobState::Cancelled);
    cluster.started(first);
    cluster.finish(first);
    assert_eq!(cluster.phase(second), Phase::Absent, "it is held");
    cluster.step(&[Input::Release { job: second }]);
    assert_eq!(cluster.phase(second), Phase::Starting);
}

#[test]
fn the_exit_cause_of_a_cluster_is_final() {
    for (cause, state, code) in [
        (ExitCause::Cancelled, JobState::Cancelled, 1),
        (ExitCause::TimedOut, JobState::Timeout, 1),
        (ExitCause::OutOfMemory, JobState::Oom, 253),
    ] {
        let mut cluster = TestCluster::new(1, 1, "fifo");
        // Retries and requeues do not apply.
        let job = cluster.submit(|submission| {
            submission.request.retries = 3;
            submission.request.requeue = true;
        });
        cluster.started(job);
        let oom = cause == ExitCause::OutOfMemory;
        let exit = Exit { cause: Some(cause), oom, ..exit(ExitStatus::Code(1)) };
        cluster.ended(job, exit);
        assert_eq!((cluster.state(job), cluster.job(job).exit_code), (state, Some(code)));
        assert!(cluster.outcome.ops.is_empty(), "{:?}", cluster.outcome);
        assert_eq!(cluster.outcome.forget.len(), 1);
        cluster.assert_idle();
    }
}

#[test]
fn a_requeued_run_loses_its_progress_and_starts_again() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let job = cluster.import(1);
    cluster.started(job);
    cluster.pass(100);
    cluster.step(&[]);
    assert!(cluster.active(job).done_us(cluster.now.time()) >= 100_000_000);
    cluster.requeue(job);
    assert!(cluster.outcome.ops.is_empty(), "the cluster starts it by itself");
    assert_eq!(cluster.phase(job), Phase::Starting);
    assert_eq!(
        (cluster.active(job).job.runs, cluster.active(job).done_us(cluster.now.time())),
        (1, 0)
    );
    cluster.pass(1000);
    cluster.step(&[]);
    assert_eq!(
        cluster.active(job).done_us(cluster.now.time()),
        0,
        "it makes no progress while it is pending"
    );
    cluster.started(job);
    assert_eq!((cluster.phase(job), cluster.active(job).job.runs), (Phase::Running, 1));
    cluster.pass(7);
    cluster.finish(job);
    assert_eq!(
        (cluster.state(job), cluster.job(job).done_us / 1_000_000),
        (JobState::Completed, 8)
    );
    cluster.assert_idle();
}

#[test]
fn an_unavailable_device_takes_no_new_jobs() {
    let mut cluster = TestCluster::new(2, 1, "fifo");
    cluster.close(0);
    let first = cluster.import(1);
    let second = cluster.import(1);
    assert_eq!(cluster.devices(first), [1]);
    assert_eq!(cluster.phase(second), Phase::Absent);
    assert_eq!(cluster.scheduler.closed(0), Some("down"));
    cluster.open(0);
    assert_eq!((cluster.phase(second), cluster.devices(second)), (Phase::Starting, vec![0]));
    // A running job stays.
    cluster.started(second);
    cluster.close(0);
    assert_eq!(cluster.phase(second), Phase::Running);
    cluster.finish(second);
    let third = cluster.import(1);
    assert_eq!(cluster.phase(third), Phase::Absent);
    cluster.open(0);
    assert_eq!(cluster.devices(third), [0]);
    // An event of an unknown device changes nothing.
    let event = BackendEvent::Device { device: 99, unavailable: Some("down".to_owned()) };
    cluster.step(&[Input::Backend(event)]);
}

#[test]
fn a_job_that_is_starting_can_be_cancelled() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let job = cluster.import(1);
    assert_eq!(cluster.phase(job), Phase::Starting);
    cluster.cancel(job);
    assert_eq!((cluster.phase(job), cluster.state(job)), (Phase::Ending, JobState::Completing));
    assert_eq!(cluster.ops.last(), Some(&Op::End { run: cluster.run(job), grace_ms: 1000 }));
    let asked = cluster.ops.len();
    // A second request changes nothing, nor do events that were on their way.
    cluster.cancel(job);
    let (op, run, handle) = (OpId(0), cluster.run(job), RunHandle::ClusterJob(1));
    let enforcement = Default::default();
    cluster.step(&[Input::Backend(BackendEvent::Started { op, run, handle, enforcement })]);
    cluster.requeue(job);
    assert_eq!((cluster.phase(job), cluster.ops.len()), (Phase::Ending, asked));
    // It occupies its device until the cluster reports its end.
    let next = cluster.import(1);
    assert_eq!(cluster.phase(next), Phase::Absent);
    cluster.ended(job, Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) });
    assert_eq!(cluster.state(job), JobState::Cancelled);
    assert_eq!(cluster.job(job).reason.as_deref(), Some("cancelled by ann"));
    assert_eq!(cluster.phase(next), Phase::Starting);
}

#[test]
fn a_pending_job_is_cancelled_in_the_cluster_too() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let first = cluster.import(1);
    let (second, third) = (cluster.import(1), cluster.import(1));
    cluster.step(&[Input::Hold { job: third }]);
    let withdraw =
        |job| Op::Withdraw { run: RunId { job, run: 0 }, external: format!("{job}#tag") };
    for job in [second, third] {
        cluster.cancel(job);
        assert_eq!(cluster.ops.last(), Some(&withdraw(job)));
        assert!(!cluster.state(job).is_over(), "the cluster still has it");
    }
    // It is no longer placed, whatever is requested.
    cluster.step(&[Input::Release { job: third }, Input::Hold { job: second }]);
    cluster.cancel(second);
    cluster.started(first);
    cluster.finish(first);
    assert_eq!((cluster.phase(second), cluster.phase(third)), (Phase::Absent, Phase::Absent));
    // After a restart the request is repeated.
    let asked = cluster.ops.len();
    let waiting = [second, third].map(|job| kept(cluster.job(job), None)).to_vec();
    let mut cluster = cluster.restart(waiting);
    assert_eq!(cluster.ops, [withdraw(second), withdraw(third)]);
    assert_eq!(asked, 3);
    for job in [second, third] {
        cluster.withdraw(job);
        assert_eq!(cluster.state(job), JobState::Cancelled);
        assert_eq!(cluster.job(job).reason.as_deref(), Some("cancelled by ann"));
    }
    cluster.assert_idle();
}

#[test]
fn jobs_on_several_devices_never_share() {
    let mut cluster = TestCluster::new(2, 2, "sjf-ffs");
    let small = cluster.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30));
    let beside = cluster.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30));
    assert_eq!(cluster.phase(small), Phase::Starting);
    assert_eq!(cluster.phase(beside), Phase::Starting);
    let gang = |submission: &mut tandem_daemon::scheduler::Submission| {
        submission.request.gpus = 2.0;
        submission.request.gpu_memory_bytes = Some(1 << 30);
    };
    let (one, two) = (cluster.submit(gang), cluster.submit(gang));
    for job in [small, beside] {
        cluster.started(job);
    }
    let more: Vec<u64> = (0..8)
        .map(|_| cluster.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30)))
        .collect();
    // TestCluster checks that no job shares with a gang; here, that single jobs share.
    let shares =
        |cluster: &TestCluster| (0..4).any(|device| cluster.scheduler.present(device).count() > 1);
    assert!(shares(&cluster), "single jobs share");
    let mut left: Vec<u64> = [small, beside, one, two].into_iter().chain(more).collect();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|&job| {
            if cluster.phase(job) == Phase::Starting {
                cluster.started(job);
                cluster.finish(job);
                return false;
            }
            if cluster.phase(job) == Phase::Running {
                cluster.finish(job);
                return false;
            }
            true
        });
        assert!(left.len() < before, "{left:?} wait forever");
    }
    cluster.assert_idle();
}

#[test]
fn a_run_that_cannot_move_is_never_asked_to_stop() {
    let mut cluster = TestCluster::new(2, 1, "fifo");
    let job = cluster.import(1);
    cluster.started(job);
    cluster.step(&[Input::Fact(Fact::Hello { job, accum: false, stop: true })]);
    // Its device no longer exists.
    let mut gone = kept(cluster.job(job), None);
    gone.job.devices = vec![9];
    gone.found = Some(RecoveredRun::Running {
        handle: RunHandle::ClusterJob(1),
        paused: false,
        enforcement: Default::default(),
    });
    let mut cluster = cluster.restart(vec![gone]);
    cluster.again();
    assert_eq!(cluster.phase(job), Phase::Running);
    assert!(cluster.outcome.messages.is_empty() && cluster.ops.is_empty(), "{:?}", cluster.outcome);
    cluster.finish(job);
    assert_eq!(cluster.state(job), JobState::Completed, "and not requeued");
}

#[test]
fn a_job_that_can_never_run_blocks_no_other() {
    let mut cluster = TestCluster::new(2, 2, "fifo");
    let large = cluster.import(5);
    let hungry = cluster.submit(|submission| submission.request.gpu_memory_bytes = Some(17 << 30));
    let job = cluster.import(1);
    assert_eq!(cluster.phase(job), Phase::Starting);
    assert_eq!(
        (cluster.state(large), cluster.state(hungry)),
        (JobState::Pending, JobState::Pending)
    );
    assert_eq!(cluster.job(large).reason.as_deref(), Some("needs 5 GPUs, there are 4"));
    let reason = "needs 17408 MiB of a GPU, they have 16384 MiB";
    assert_eq!(cluster.job(hungry).reason.as_deref(), Some(reason));
    for job in [large, hungry] {
        cluster.step(&[Input::Hold { job }]);
        cluster.step(&[Input::Release { job }]);
        assert_eq!(cluster.state(job), JobState::Pending);
        cluster.withdraw(job);
        assert_eq!(cluster.state(job), JobState::Cancelled);
    }
}

#[test]
fn jobs_of_several_users_are_kept_apart() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let ann = cluster.import(1);
    let bob = cluster.submit(|submission| {
        submission.uid = 1002;
        submission.user = "bob".to_owned();
    });
    assert_eq!(cluster.active(ann).job.uid, 1001);
    assert_eq!((cluster.active(bob).job.uid, cluster.active(bob).job.user.as_str()), (1002, "bob"));
    assert_eq!(submission(3).external.as_deref(), Some("3#tag"));
}
