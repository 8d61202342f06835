//! Jobs whose node is lost start on another node.

use super::*;

/// A cluster of `nodes` nodes with two GPUs each, with a job on the second GPU of the first node.
fn at_second_gpu(nodes: u32) -> (TestCluster, u64) {
    let mut cluster = TestCluster::new(nodes, 2, "fifo");
    let (first, job) = (cluster.import(1), cluster.import(1));
    assert_eq!(cluster.devices(job), [1]);
    cluster.started(first);
    cluster.started(job);
    cluster.finish(first);
    (cluster, job)
}

/// Two nodes with a job each. The first node was lost and its job requeued, but no other node is free.
fn lost_node() -> (TestCluster, u64, u64) {
    let mut cluster = TestCluster::new(2, 1, "fifo");
    let (job, other) = (cluster.import(1), cluster.import(1));
    cluster.started(job);
    cluster.started(other);
    cluster.requeue(job);
    cluster.close(0);
    (cluster, job, other)
}

#[test]
fn a_job_of_a_lost_node_starts_on_the_same_gpu_index_of_another() {
    for is_closed_first in [true, false] {
        let (mut cluster, job) = at_second_gpu(2);
        let requeue = cluster.requeued(job);
        if is_closed_first {
            cluster.close(0);
            assert_eq!(cluster.devices(job), [1], "it was not reported as requeued yet");
            cluster.step(&[requeue]);
        } else {
            cluster.step(&[requeue]);
            cluster.close(0);
        }
        assert_eq!((cluster.devices(job), cluster.active(job).job.runs), (vec![3], 2));
        assert_eq!(cluster.phase(job), Phase::Starting);
        let Op::Place { run, external, devices, .. } = cluster.ops.last().unwrap() else {
            panic!("{:?}", cluster.ops)
        };
        assert_eq!((run.run, devices), (2, &vec![3]));
        assert_eq!(Some(external), cluster.active(job).job.external.as_ref());
        // Events of the previous run do nothing.
        cluster.step(&[Input::Backend(BackendEvent::Exited {
            run: RunId { job, run: 1 },
            exit: exit(ExitStatus::Code(0)),
        })]);
        assert_eq!(cluster.phase(job), Phase::Starting);
        cluster.started(job);
        cluster.open(0);
        // The plan has it on its new device: three more jobs fit, the fourth waits.
        let more: Vec<u64> = (0..4).map(|_| cluster.import(1)).collect();
        let mut sits: Vec<u32> = more[..3].iter().map(|&job| cluster.devices(job)[0]).collect();
        sits.sort_unstable();
        assert_eq!(sits, [0, 1, 2]);
        assert_eq!(cluster.phase(more[3]), Phase::Absent);
        cluster.finish(job);
        assert_eq!(cluster.devices(more[3]), [3]);
    }
}

#[test]
fn a_job_that_has_not_started_yet_leaves_a_lost_node_too() {
    let mut cluster = TestCluster::new(2, 1, "fifo");
    let job = cluster.import(1);
    assert_eq!((cluster.phase(job), cluster.devices(job)), (Phase::Starting, vec![0]));
    cluster.close(0);
    assert_eq!((cluster.devices(job), cluster.active(job).job.runs), (vec![1], 2));
    cluster.started(job);
    cluster.finish(job);
    cluster.open(0);
    cluster.assert_idle();
}

#[test]
fn a_relocated_job_waits_for_a_busy_gpu_and_comes_next() {
    let mut cluster = TestCluster::new(2, 1, "fifo");
    let (job, other) = (cluster.import(1), cluster.import(1));
    cluster.started(job);
    cluster.started(other);
    let queued = cluster.import(1);
    cluster.requeue(job);
    cluster.close(0);
    for _ in 0..3 {
        cluster.again();
        assert_eq!(cluster.devices(job), [0]);
    }
    cluster.finish(other);
    cluster.again();
    assert_eq!((cluster.phase(job), cluster.devices(job)), (Phase::Starting, vec![1]));
    assert_eq!(cluster.phase(queued), Phase::Absent, "the relocated job has the GPU to itself");
    cluster.started(job);
    cluster.finish(job);
    assert_eq!(cluster.devices(queued), [1]);
    cluster.started(queued);
    cluster.finish(queued);
    cluster.open(0);
    cluster.assert_idle();
}

#[test]
fn a_node_that_comes_back_keeps_its_jobs() {
    let (mut cluster, job, other) = lost_node();
    cluster.again();
    assert!(cluster.scheduler.is_shut(1), "it is reserved");
    cluster.open(0);
    assert!(!cluster.scheduler.is_shut(0) && !cluster.scheduler.is_shut(1));
    assert_eq!((cluster.devices(job), cluster.active(job).job.runs), (vec![0], 1));
    cluster.finish(other);
    cluster.again();
    assert_eq!(cluster.devices(job), [0]);
    let next = cluster.import(1);
    assert_eq!(cluster.devices(next), [1]);
    cluster.started(job);
    cluster.started(next);
    cluster.finish(job);
    cluster.finish(next);
    cluster.assert_idle();
}

#[test]
fn several_relocated_jobs_get_different_gpus() {
    let mut cluster = TestCluster::new(4, 2, "fifo");
    let jobs: Vec<u64> = (0..8).map(|_| cluster.import(1)).collect();
    for &job in &jobs {
        cluster.started(job);
    }
    // The first GPU of the last node is busy, the third node is free.
    for &job in [&jobs[4], &jobs[5], &jobs[7]] {
        cluster.finish(job);
    }
    let mut inputs: Vec<Input> = jobs[..4].iter().map(|&job| cluster.requeued(job)).collect();
    inputs.extend(cluster.closing(0, true));
    inputs.extend(cluster.closing(1, true));
    cluster.step(&inputs);
    cluster.again();
    let sits: Vec<u32> = jobs[..4].iter().map(|&job| cluster.devices(job)[0]).collect();
    // Two jobs need a first GPU and two a second one; one of the first GPUs is taken.
    assert_eq!(sits, [4, 5, 2, 7]);
    cluster.finish(jobs[6]);
    cluster.again();
    assert_eq!(cluster.devices(jobs[2]), [6]);
    for &job in &jobs[..4] {
        cluster.started(job);
        cluster.finish(job);
    }
    cluster.open(0);
    cluster.open(1);
    cluster.assert_idle();
}

#[test]
fn jobs_of_two_lost_nodes_start_elsewhere_at_once() {
    let mut cluster = TestCluster::new(4, 1, "fifo");
    let jobs = [cluster.import(1), cluster.import(1)];
    for job in jobs {
        cluster.started(job);
    }
    let mut inputs: Vec<Input> = jobs.iter().map(|&job| cluster.requeued(job)).collect();
    inputs.extend(cluster.closing(0, true));
    inputs.extend(cluster.closing(1, true));
    cluster.step(&inputs);
    assert_eq!(jobs.map(|job| cluster.devices(job)[0]), [2, 3]);
}

#[test]
fn a_relocated_job_takes_the_first_gpu_that_becomes_free() {
    let mut cluster = TestCluster::new(4, 1, "fifo");
    let jobs: Vec<u64> = (0..4).map(|_| cluster.import(1)).collect();
    for &job in &jobs {
        cluster.started(job);
    }
    cluster.requeue(jobs[0]);
    cluster.close(0);
    assert!(cluster.scheduler.is_shut(1), "the first of three equal choices");
    // A drained device takes no job, not even one for which it is reserved.
    cluster.step(&[Input::Drain { device: 1, reason: None }]);
    cluster.finish(jobs[1]);
    cluster.again();
    assert_eq!(cluster.devices(jobs[0]), [0]);
    assert!(cluster.scheduler.is_shut(2) && !cluster.scheduler.is_shut(3));
    cluster.finish(jobs[3]);
    cluster.again();
    assert_eq!(cluster.devices(jobs[0]), [3]);
    assert!(!cluster.scheduler.is_shut(2));
    cluster.step(&[Input::Undrain { device: 1 }]);
    cluster.open(0);
    cluster.started(jobs[0]);
    cluster.finish(jobs[0]);
    cluster.finish(jobs[2]);
    cluster.assert_idle();
}

#[test]
fn a_job_on_several_nodes_keeps_its_remaining_nodes() {
    let mut cluster = TestCluster::new(3, 2, "fifo");
    let gang = cluster.import(4);
    assert_eq!(cluster.devices(gang), [0, 1, 2, 3]);
    let small = cluster.import(1);
    cluster.started(gang);
    cluster.started(small);
    assert_eq!(cluster.devices(small), [4]);
    let mut inputs = vec![cluster.requeued(gang)];
    inputs.extend(cluster.closing(0, true));
    cluster.step(&inputs);
    cluster.again();
    assert_eq!(cluster.devices(gang), [0, 1, 2, 3]);
    let queued = cluster.import(1);
    assert_eq!(cluster.phase(queued), Phase::Absent, "all remaining devices are reserved");
    cluster.finish(small);
    cluster.again();
    assert_eq!((cluster.devices(gang), cluster.run(gang).run), (vec![2, 3, 4, 5], 2));
    cluster.started(gang);
    cluster.open(0);
    assert_eq!(cluster.devices(queued), [0]);
    cluster.started(queued);
    cluster.finish(gang);
    cluster.finish(queued);
    cluster.assert_idle();
}

#[test]
fn a_job_that_fits_nowhere_else_waits_and_reserves_nothing() {
    let mut cluster = TestCluster::new(1, 2, "fifo");
    let job = cluster.import(2);
    cluster.started(job);
    cluster.requeue(job);
    cluster.close(0);
    for _ in 0..3 {
        cluster.again();
        assert_eq!((cluster.phase(job), cluster.active(job).job.runs), (Phase::Starting, 1));
    }
    assert_eq!(cluster.outcome.wake, None, "no wake-up until an event");
    // Cancelled in the cluster, it ends.
    let exit = Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) };
    cluster.ended(job, exit);
    assert_eq!(cluster.state(job), JobState::Cancelled);
    cluster.open(0);
    cluster.assert_idle();
}

#[test]
fn a_relocated_job_that_is_cancelled_reserves_nothing() {
    let (mut cluster, job, other) = lost_node();
    assert!(cluster.scheduler.is_shut(1));
    cluster.cancel(job);
    cluster.again();
    assert!(!cluster.scheduler.is_shut(1), "nothing is reserved for it");
    cluster.ended(job, exit(ExitStatus::Signal(15)));
    assert_eq!(cluster.state(job), JobState::Cancelled);
    cluster.finish(other);
    cluster.open(0);
    cluster.assert_idle();
}
