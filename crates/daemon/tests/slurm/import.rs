//! Imports through the daemon's loop, its store and its journal.

use super::*;
use tandem_daemon::scheduler::Kept;

#[test]
fn an_imported_job_has_its_hints() {
    let mut cluster = TestDaemon::new(1, 1, "fifo");
    let hints = "tandem:mem=2G,class=resnet,estimate=2h,slowdown=1.5,colour=red".to_owned();
    cluster.turn(vec![BackendEvent::Imported(Box::new(ClusterJob { hints, ..job(17) }))]);
    cluster.turn(Vec::new());
    let (jobs, _) = cluster.cycle.store.active(|_| {}).unwrap();
    let [Kept { job, .. }] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((job.id, job.external.as_deref()), (1, Some("17#tag")));
    assert_eq!((job.uid, job.gid, job.user.as_str()), (1001, 1002, "ann"));
    assert_eq!((job.class.as_str(), job.submit_us), ("resnet", 7));
    let request = &job.request;
    assert_eq!(request.gpu_memory_bytes, Some(2 << 30));
    assert_eq!((request.estimate_s, request.max_slowdown), (Some(7200.0), Some(1.5)));
    assert_eq!((request.time_limit_s, request.name.as_deref()), (Some(3600.0), Some("train17")));
    let ops = cluster.ops.lock().unwrap();
    let [Op::Place { external, devices, .. }] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!((external.as_str(), devices), ("17#tag", &vec![0]));
    assert_eq!((request.command.len(), cluster.cycle.scheduler.job(1).unwrap().pid()), (0, None));
}

#[test]
fn imports_wait_for_the_store_and_happen_once() {
    // Inputs, or decisions, cannot be written.
    for kind in ["input", "actions"] {
        let mut cluster = TestDaemon::new(1, 1, "fifo");
        cluster.refuse(kind);
        cluster.turn(vec![imported(1), imported(2)]);
        cluster.turn(vec![imported(3)]);
        cluster.turn(Vec::new());
        assert!(cluster.ops.lock().unwrap().is_empty(), "{kind}: no operation before it is stored");
        assert!(cluster.kept().is_empty(), "{kind}: jobs are written with what was decided");
        cluster.accept();
        cluster.turn(Vec::new());
        cluster.turn(Vec::new());
        assert_eq!(cluster.kept(), ["1#tag", "2#tag", "3#tag"], "{kind}");
        assert_eq!(cluster.ops.lock().unwrap().len(), 1, "{kind}");
        assert_eq!(cluster.cycle.scheduler.jobs().count(), 3);
        assert_eq!(replay(&cluster.database()).unwrap().differences, [], "{kind}");
    }
}

#[test]
fn an_import_that_is_withdrawn_before_it_is_stored_is_dropped() {
    let mut cluster = TestDaemon::new(1, 1, "fifo");
    let withdrawn = |number: u32| BackendEvent::Withdrawn {
        external: format!("{number}#tag"),
        reason: "scancel".to_owned(),
    };
    cluster.turn(vec![imported(1), imported(2), withdrawn(1)]);
    cluster.refuse("input");
    cluster.turn(vec![imported(3), imported(4)]);
    cluster.turn(vec![withdrawn(3)]);
    cluster.accept();
    cluster.turn(Vec::new());
    assert_eq!(cluster.kept(), ["2#tag", "4#tag"]);
    cluster.turn(vec![withdrawn(4)]);
    assert_eq!(cluster.kept(), ["2#tag"]);
    assert_eq!(replay(&cluster.database()).unwrap().differences, []);
}

#[test]
fn the_journal_of_cluster_jobs_replays() {
    let mut cluster = TestDaemon::new(3, 2, "sjf-ffs");
    let hints = |number, hints: &str| {
        BackendEvent::Imported(Box::new(ClusterJob { hints: hints.to_owned(), ..job(number) }))
    };
    let run = |job, run| RunId { job, run };
    let started = |job, number| BackendEvent::Started {
        op: OpId(0),
        run: run(job, number),
        handle: RunHandle::ClusterJob(1),
        enforcement: Default::default(),
    };
    let closed = |node: u32, closed: bool| {
        let closed = closed.then(|| "down".to_owned());
        (node * 2..node * 2 + 2)
            .map(move |device| BackendEvent::Device { device, unavailable: closed.clone() })
    };
    let ended = |job, number, cause| BackendEvent::Exited {
        run: run(job, number),
        exit: Exit { cause, ..exit(ExitStatus::Code(0)) },
    };
    let gang = BackendEvent::Imported(Box::new(ClusterJob { gpus: 2, ..job(9) }));
    cluster.turn(vec![imported(1), hints(2, "tandem:mem=1G"), hints(3, "tandem:mem=1G"), gang]);
    cluster.turn((4..9).map(imported).collect());
    let sits = |cluster: &TestDaemon, job| {
        cluster.cycle.scheduler.job(job).unwrap().allocation.clone().unwrap().devices
    };
    let starting: Vec<u64> = cluster
        .cycle
        .scheduler
        .jobs()
        .filter(|active| active.phase == Phase::Starting)
        .map(|active| active.job.id)
        .collect();
    assert!(starting.len() >= 4, "{starting:?}");
    cluster.turn(starting.iter().map(|&job| started(job, 1)).collect());
    // The node of the first job is lost; its jobs are requeued.
    let node = sits(&cluster, 1)[0] / 2;
    let lost: Vec<u64> =
        starting.iter().copied().filter(|&job| sits(&cluster, job)[0] / 2 == node).collect();
    let mut events: Vec<BackendEvent> =
        lost.iter().map(|&job| BackendEvent::Requeued { run: run(job, 1) }).collect();
    events.extend(closed(node, true));
    cluster.turn(events);
    for &job in starting.iter().filter(|job| !lost.contains(job)) {
        cluster.turn(vec![ended(job, 1, Some(ExitCause::TimedOut))]);
        cluster.turn(Vec::new());
    }
    cluster.turn(Vec::new());
    let moved = sits(&cluster, 1)[0];
    assert_ne!(moved / 2, node, "the first job starts elsewhere");
    let withdrawn = "8#tag".to_owned();
    cluster.turn(vec![
        started(1, 2),
        BackendEvent::Withdrawn { external: withdrawn, reason: "scancel".to_owned() },
    ]);
    cluster.turn(closed(node, false).collect());
    cluster.turn(vec![ended(1, 2, None)]);
    let replay = replay(&cluster.database()).unwrap();
    assert!(replay.cycles > 8 && replay.inputs > 15 && replay.actions > 6, "{replay:?}");
    assert_eq!(replay.differences, []);
}
