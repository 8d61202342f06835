//! Jobs whose node is lost begin elsewhere.

use super::*;

/// A site of `nodes` nodes of two, on which a job sits at the second place of the first node.
fn at_second_place(nodes: u32) -> (Site, u64) {
    let mut site = Site::new(nodes, 2, "fifo");
    let (first, job) = (site.offer(1), site.offer(1));
    assert_eq!(site.devices(job), [1]);
    site.started(first);
    site.started(job);
    site.finish(first);
    (site, job)
}

/// Two nodes with a job each, of which the first was lost and its job queued again: it has nowhere to go.
fn stranded() -> (Site, u64, u64) {
    let mut site = Site::new(2, 1, "fifo");
    let (job, other) = (site.offer(1), site.offer(1));
    site.started(job);
    site.started(other);
    site.requeue(job);
    site.close(0);
    (site, job, other)
}

#[test]
fn a_job_of_a_lost_node_begins_at_the_same_place_of_another() {
    for is_closed_first in [true, false] {
        let (mut site, job) = at_second_place(2);
        let requeue = site.requeued(job);
        if is_closed_first {
            site.close(0);
            assert_eq!(site.devices(job), [1], "it runs as far as is known");
            site.step(&[requeue]);
        } else {
            site.step(&[requeue]);
            site.close(0);
        }
        assert_eq!((site.devices(job), site.active(job).job.runs), (vec![3], 2));
        assert_eq!(site.phase(job), Phase::Starting);
        let Op::Start(launch) = site.ops.last().unwrap() else { panic!("{:?}", site.ops) };
        assert_eq!((launch.run.run, &launch.allocation.devices), (2, &vec![3]));
        assert_eq!(launch.external, site.active(job).job.external);
        // Events of the run that is no more do nothing.
        site.step(&[Input::Backend(BackendEvent::Exited {
            run: RunId { job, run: 1 },
            exit: exit(ExitStatus::Code(0)),
        })]);
        assert_eq!(site.phase(job), Phase::Starting);
        site.started(job);
        site.open(0);
        // The plan has it where it is: three more fit beside it, the fourth waits.
        let more: Vec<u64> = (0..4).map(|_| site.offer(1)).collect();
        let mut sits: Vec<u32> = more[..3].iter().map(|&job| site.devices(job)[0]).collect();
        sits.sort_unstable();
        assert_eq!(sits, [0, 1, 2]);
        assert_eq!(site.phase(more[3]), Phase::Absent);
        site.finish(job);
        assert_eq!(site.devices(more[3]), [3]);
    }
}

#[test]
fn a_job_that_has_not_begun_yet_leaves_a_lost_node_too() {
    let mut site = Site::new(2, 1, "fifo");
    let job = site.offer(1);
    assert_eq!((site.phase(job), site.devices(job)), (Phase::Starting, vec![0]));
    site.close(0);
    assert_eq!((site.devices(job), site.active(job).job.runs), (vec![1], 2));
    site.started(job);
    site.finish(job);
    site.open(0);
    site.is_idle();
}

#[test]
fn a_stranded_job_waits_for_a_busy_place_and_comes_next() {
    let mut site = Site::new(2, 1, "fifo");
    let (job, other) = (site.offer(1), site.offer(1));
    site.started(job);
    site.started(other);
    let queued = site.offer(1);
    site.requeue(job);
    site.close(0);
    for _ in 0..3 {
        site.again();
        assert_eq!(site.devices(job), [0]);
    }
    site.finish(other);
    site.again();
    assert_eq!((site.phase(job), site.devices(job)), (Phase::Starting, vec![1]));
    assert_eq!(site.phase(queued), Phase::Absent, "it is alone there");
    site.started(job);
    site.finish(job);
    assert_eq!(site.devices(queued), [1]);
    site.started(queued);
    site.finish(queued);
    site.open(0);
    site.is_idle();
}

#[test]
fn a_node_that_comes_back_keeps_its_jobs() {
    let (mut site, job, other) = stranded();
    site.again();
    assert!(site.scheduler.is_shut(1), "it is kept");
    site.open(0);
    assert!(!site.scheduler.is_shut(0) && !site.scheduler.is_shut(1));
    assert_eq!((site.devices(job), site.active(job).job.runs), (vec![0], 1));
    site.finish(other);
    site.again();
    assert_eq!(site.devices(job), [0]);
    let next = site.offer(1);
    assert_eq!(site.devices(next), [1]);
    site.started(job);
    site.started(next);
    site.finish(job);
    site.finish(next);
    site.is_idle();
}

#[test]
fn several_stranded_jobs_get_places_of_their_own() {
    let mut site = Site::new(4, 2, "fifo");
    let jobs: Vec<u64> = (0..8).map(|_| site.offer(1)).collect();
    for &job in &jobs {
        site.started(job);
    }
    // The last node is busy at its first place, the third is free.
    for &job in [&jobs[4], &jobs[5], &jobs[7]] {
        site.finish(job);
    }
    let mut inputs: Vec<Input> = jobs[..4].iter().map(|&job| site.requeued(job)).collect();
    inputs.extend(site.closing(0, true));
    inputs.extend(site.closing(1, true));
    site.step(&inputs);
    site.again();
    let sits: Vec<u32> = jobs[..4].iter().map(|&job| site.devices(job)[0]).collect();
    // Two of the first places and two of the second; one of the first is taken.
    assert_eq!(sits, [4, 5, 2, 7]);
    site.finish(jobs[6]);
    site.again();
    assert_eq!(site.devices(jobs[2]), [6]);
    for &job in &jobs[..4] {
        site.started(job);
        site.finish(job);
    }
    site.open(0);
    site.open(1);
    site.is_idle();
}

#[test]
fn jobs_of_one_place_begin_elsewhere_at_once() {
    let mut site = Site::new(4, 1, "fifo");
    let jobs = [site.offer(1), site.offer(1)];
    for job in jobs {
        site.started(job);
    }
    let mut inputs: Vec<Input> = jobs.iter().map(|&job| site.requeued(job)).collect();
    inputs.extend(site.closing(0, true));
    inputs.extend(site.closing(1, true));
    site.step(&inputs);
    assert_eq!(jobs.map(|job| site.devices(job)[0]), [2, 3]);
}

#[test]
fn a_stranded_job_takes_what_becomes_free_first() {
    let mut site = Site::new(4, 1, "fifo");
    let jobs: Vec<u64> = (0..4).map(|_| site.offer(1)).collect();
    for &job in &jobs {
        site.started(job);
    }
    site.requeue(jobs[0]);
    site.close(0);
    assert!(site.scheduler.is_shut(1), "the first of three that are alike");
    // Nobody else may come where somebody said so, whoever waits for it.
    site.step(&[Input::Drain { device: 1 }]);
    site.finish(jobs[1]);
    site.again();
    assert_eq!(site.devices(jobs[0]), [0]);
    assert!(site.scheduler.is_shut(2) && !site.scheduler.is_shut(3));
    site.finish(jobs[3]);
    site.again();
    assert_eq!(site.devices(jobs[0]), [3]);
    assert!(!site.scheduler.is_shut(2));
    site.step(&[Input::Undrain { device: 1 }]);
    site.open(0);
    site.started(jobs[0]);
    site.finish(jobs[0]);
    site.finish(jobs[2]);
    site.is_idle();
}

#[test]
fn a_job_on_several_nodes_keeps_those_that_are_left() {
    let mut site = Site::new(3, 2, "fifo");
    let gang = site.offer(4);
    assert_eq!(site.devices(gang), [0, 1, 2, 3]);
    let small = site.offer(1);
    site.started(gang);
    site.started(small);
    assert_eq!(site.devices(small), [4]);
    let mut inputs = vec![site.requeued(gang)];
    inputs.extend(site.closing(0, true));
    site.step(&inputs);
    site.again();
    assert_eq!(site.devices(gang), [0, 1, 2, 3]);
    let queued = site.offer(1);
    assert_eq!(site.phase(queued), Phase::Absent, "all that is left is kept");
    site.finish(small);
    site.again();
    assert_eq!((site.devices(gang), site.run(gang).run), (vec![2, 3, 4, 5], 2));
    site.started(gang);
    site.open(0);
    assert_eq!(site.devices(queued), [0]);
    site.started(queued);
    site.finish(gang);
    site.finish(queued);
    site.is_idle();
}

#[test]
fn a_job_that_fits_nowhere_else_waits_and_leaves_nothing() {
    let mut site = Site::new(1, 2, "fifo");
    let job = site.offer(2);
    site.started(job);
    site.requeue(job);
    site.close(0);
    for _ in 0..3 {
        site.again();
        assert_eq!((site.phase(job), site.active(job).job.runs), (Phase::Starting, 1));
    }
    assert_eq!(site.outcome.wake, None, "there is nothing to look for until something happens");
    // Cancelled in the engine, it ends; nobody thinks of it any more.
    let exit = Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) };
    site.ended(job, exit);
    assert_eq!(site.state(job), JobState::Cancelled);
    site.open(0);
    site.is_idle();
}

#[test]
fn a_stranded_job_that_is_cancelled_leaves_nothing() {
    let (mut site, job, other) = stranded();
    assert!(site.scheduler.is_shut(1));
    site.cancel(job);
    site.again();
    assert!(!site.scheduler.is_shut(1), "nothing is kept for it");
    site.ended(job, exit(ExitStatus::Signal(15)));
    assert_eq!(site.state(job), JobState::Cancelled);
    site.finish(other);
    site.open(0);
    site.is_idle();
}
