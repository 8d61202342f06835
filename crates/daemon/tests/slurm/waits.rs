//! Jobs that the cluster would not start, and runs that it starts elsewhere.

use super::*;

pub(super) fn waits(job: u64, reason: Option<&str>) -> Input {
    let (external, reason) = (format!("{job}#tag"), reason.map(str::to_owned));
    Input::Backend(BackendEvent::Waits { external, reason })
}

pub(super) fn not_started(cluster: &TestCluster, job: u64) -> Input {
    let (op, run) = (OpId(0), cluster.run(job));
    let reason = "Slurm did not start it".to_owned();
    Input::Backend(BackendEvent::NotStarted { op, run, reason, transient: true })
}

#[test]
fn a_job_that_the_cluster_would_not_start_leaves_its_gpu_to_others() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let first = cluster.import(1);
    let second = cluster.import(1);
    assert_eq!((cluster.phase(first), cluster.phase(second)), (Phase::Starting, Phase::Absent));
    let given_back = [waits(first, Some("Slurm did not start it")), not_started(&cluster, first)];
    cluster.step(&given_back);
    cluster.again();
    assert_eq!((cluster.phase(first), cluster.phase(second)), (Phase::Absent, Phase::Starting));
    assert_eq!(cluster.state(first), JobState::Pending);
    assert_eq!(cluster.job(first).reason.as_deref(), Some("Slurm did not start it"));
    assert_eq!(cluster.job(first).start_us, None);
    cluster.started(second);
    cluster.finish(second);
    assert_eq!(cluster.phase(first), Phase::Absent);
    // It comes back as soon as the cluster would start it.
    cluster.step(&[waits(first, None)]);
    assert_eq!(cluster.phase(first), Phase::Starting);
    cluster.started(first);
    cluster.finish(first);
    cluster.assert_idle();
}

#[test]
fn a_job_may_wait_from_the_start() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let first = cluster.submit(|submission| submission.waits = Some("held in Slurm".to_owned()));
    let second = cluster.import(1);
    assert_eq!((cluster.phase(first), cluster.phase(second)), (Phase::Absent, Phase::Starting));
    assert_eq!(cluster.job(first).reason.as_deref(), Some("held in Slurm"));
    // It keeps its place in the queue: an older job comes first.
    let third = cluster.import(1);
    cluster.step(&[waits(first, None)]);
    cluster.started(second);
    cluster.step(&[waits(third, Some("held in Slurm")), waits(77, None)]);
    cluster.finish(second);
    assert_eq!(cluster.phase(first), Phase::Starting);
    cluster.withdraw(third);
    assert_eq!(cluster.state(third), JobState::Cancelled);
    cluster.started(first);
    // A run is not affected.
    cluster.step(&[waits(first, Some("held in Slurm"))]);
    assert_eq!(cluster.phase(first), Phase::Running);
    cluster.finish(first);
    cluster.assert_idle();
}

#[test]
fn a_job_that_is_cancelled_while_its_place_is_given_back_ends() {
    let mut cluster = TestCluster::new(1, 1, "fifo");
    let job = cluster.import(1);
    cluster.cancel(job);
    let given_back = [waits(job, Some("a limit")), not_started(&cluster, job)];
    cluster.step(&given_back);
    assert_eq!(cluster.state(job), JobState::Cancelled);
    cluster.assert_idle();
}

#[test]
fn a_run_that_the_cluster_starts_elsewhere_uses_those_devices() {
    let mut cluster = TestCluster::new(2, 2, "fifo");
    let job = cluster.import(1);
    assert_eq!(cluster.devices(job), [0]);
    let placed = |cluster: &TestCluster, job, devices: &[u32]| {
        let (run, devices) = (cluster.run(job), devices.to_vec());
        Input::Backend(BackendEvent::Placed { run, devices })
    };
    // Unknown devices and other runs change nothing.
    let nonsense = [placed(&cluster, job, &[9]), placed(&cluster, job, &[])];
    cluster.step(&nonsense);
    assert_eq!(cluster.devices(job), [0]);
    let elsewhere = [placed(&cluster, job, &[3])];
    cluster.step(&elsewhere);
    cluster.started(job);
    assert_eq!((cluster.devices(job), &cluster.job(job).devices[..]), (vec![3], &[3][..]));
    assert_eq!(cluster.scheduler.tenants(3).collect::<Vec<_>>(), [job]);
    assert_eq!(cluster.scheduler.tenants(0).count(), 0);
    // More than it asked for, as with a whole node.
    let second = cluster.import(1);
    let node = [placed(&cluster, second, &[0, 1])];
    cluster.step(&node);
    cluster.started(second);
    assert_eq!(cluster.devices(second), [0, 1]);
    let third = cluster.import(1);
    assert_eq!(cluster.devices(third), [2]);
    cluster.started(third);
    for job in [job, second, third] {
        cluster.finish(job);
    }
    cluster.assert_idle();
}
