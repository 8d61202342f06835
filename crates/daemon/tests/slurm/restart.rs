//! What a restarted daemon does with the jobs of a cluster.

use super::*;

#[test]
fn a_cancellation_continues_after_a_restart() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let job = cluster.import(1);
    cluster.cancel(job);
    assert_eq!(cluster.phase(job), Phase::Ending);
    let found = vec![kept(cluster.job(job), Some(RecoveredRun::Starting))];
    let mut cluster = cluster.restart(found);
    assert_eq!(cluster.ops, [Op::End { run: cluster.run(job), grace_ms: 1000 }]);
    cluster.ended(job, Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) });
    assert_eq!(cluster.job(job).reason.as_deref(), Some("cancelled by ann"));
    cluster.assert_idle();
}

#[test]
fn a_restart_recovers_every_job() {
    let mut cluster = TestCluster::new(2, 2, "fifo");
    let jobs: Vec<u64> = (0..6).map(|_| cluster.import(1)).collect();
    for &job in &jobs[1..4] {
        cluster.started(job);
    }
    cluster.step(&[Input::Hold { job: jobs[5] }]);
    let handle = RunHandle::ClusterJob(jobs[1]);
    let running = RecoveredRun::Running { handle, paused: false, enforcement: Default::default() };
    let done = RecoveredRun::Exited(exit(ExitStatus::Code(3)));
    let cancelled = RecoveredRun::Exited(Exit {
        cause: Some(ExitCause::Cancelled),
        ..exit(ExitStatus::Code(0))
    });
    let found =
        [Some(RecoveredRun::Starting), Some(running), Some(done), Some(cancelled), None, None];
    let kept = jobs.iter().zip(found).map(|(&job, found)| kept(cluster.job(job), found)).collect();
    let mut cluster = cluster.restart(kept);
    assert_eq!((cluster.phase(jobs[0]), cluster.devices(jobs[0])), (Phase::Starting, vec![0]));
    assert_eq!((cluster.phase(jobs[1]), cluster.devices(jobs[1])), (Phase::Running, vec![1]));
    assert_eq!(cluster.state(jobs[2]), JobState::Failed);
    assert_eq!(cluster.state(jobs[3]), JobState::Cancelled);
    // Pending jobs get the devices that are free now, or stay held.
    assert_eq!((cluster.phase(jobs[4]), cluster.devices(jobs[4])), (Phase::Starting, vec![2]));
    assert_eq!(cluster.state(jobs[5]), JobState::Held);
    // Jobs are found by the cluster's id.
    cluster.withdraw(jobs[5]);
    assert_eq!(cluster.state(jobs[5]), JobState::Cancelled);
    for job in [jobs[0], jobs[4]] {
        cluster.started(job);
    }
    for job in [jobs[0], jobs[1], jobs[4]] {
        cluster.finish(job);
        assert_eq!(cluster.state(job), JobState::Completed);
    }
    cluster.assert_idle();
}

#[test]
fn a_run_that_was_requeued_during_a_restart_has_lost_its_progress() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let job = cluster.import(1);
    cluster.started(job);
    cluster.pass(100);
    cluster.step(&[Input::Fact(Fact::Hello { job, accum: true, stop: true })]);
    assert!(cluster.job(job).done_us >= 100_000_000);
    let found = vec![kept(cluster.job(job), Some(RecoveredRun::Starting))];
    let mut cluster = cluster.restart(found);
    assert_eq!(
        (cluster.phase(job), cluster.active(job).done_us(cluster.now.time())),
        (Phase::Starting, 0)
    );
    assert!(!cluster.active(job).job.caps.stop, "it has not said hello yet");
    cluster.started(job);
    cluster.finish(job);
    assert_eq!(cluster.job(job).done_us / 1_000_000, 1);
}

#[test]
fn a_restart_places_no_job_on_an_unavailable_device() {
    let mut cluster = TestCluster::new(3, 1, "fifo");
    let jobs: Vec<u64> = (0..4).map(|_| cluster.import(1)).collect();
    cluster.started(jobs[1]);
    cluster.started(jobs[2]);
    let found = [
        // Requeued by the cluster, because its node was lost.
        Some(RecoveredRun::Starting),
        Some(RecoveredRun::Running {
            handle: RunHandle::ClusterJob(2),
            paused: false,
            enforcement: Default::default(),
        }),
        Some(RecoveredRun::Exited(exit(ExitStatus::Code(0)))),
        None,
    ];
    let kept = jobs.iter().zip(found).map(|(&job, found)| kept(cluster.job(job), found)).collect();
    let mut cluster = cluster.restart_without(kept, &[0, 1]);
    assert_eq!(cluster.phase(jobs[1]), Phase::Running, "its end was not reported");
    cluster.again();
    assert_eq!((cluster.phase(jobs[0]), cluster.devices(jobs[0])), (Phase::Starting, vec![2]));
    assert_eq!(cluster.phase(jobs[3]), Phase::Absent);
    assert_eq!(cluster.scheduler.closed(0), Some("down"));
    cluster.open(0);
    assert_eq!(cluster.devices(jobs[3]), [0]);
}
