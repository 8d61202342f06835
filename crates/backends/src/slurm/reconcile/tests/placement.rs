//! Placement of jobs, and what prevents it.

use super::*;

/// Job 5 was imported and should run on these devices.
fn placing(
    mut reconciler: Reconciler,
    job: JobBuilder,
    devices: &[u32],
) -> (Reconciler, Reconciled) {
    let record = job.build();
    let pending = JobList { version: None, records: vec![record] };
    assert_eq!(imported(reconciler.reconcile(&pending, NOW_S)), ["5#a"]);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), devices.to_vec()));
    let result = reconciler.reconcile(&pending, NOW_S);
    (reconciler, result)
}

#[test]
fn a_job_without_its_request_is_admitted_when_the_list_shows_its_gpu() {
    let (mut reconciler, result) = placing(reconciler(), JobBuilder::new(5), &[3]);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g1:33 ReqNodeList=n1"]);
    assert_eq!(events(result), []);
    // The request was lost and is repeated.
    let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g1:33 ReqNodeList=n1"]);
    // Slurm accepted half of it.
    let result =
        reconciler.reconcile(&list([JobBuilder::new(5).placed("", "gres:shard:g1:33")]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n1"]);
    let placed = || JobBuilder::new(5).placed("n1", "gres:shard:g1:33");
    assert_eq!(
        requests(&reconciler.reconcile(&list([placed()]), NOW_S)),
        ["update jobid=5 Licenses="]
    );
    let result = reconciler.reconcile(&list([placed().admitted("None")]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    let runs = placed().state(SlurmState::Running).on("n1", "shard:33(IDX:1)");
    let result = reconciler.reconcile(&list([runs]), NOW_S);
    assert!(foreign(&result).iter().all(Vec::is_empty));
    assert_eq!(events(result), [started(1, 1, 5)]);
}

#[test]
fn a_job_with_its_request_is_admitted_in_one_call() {
    let (mut reconciler, result) = placing(newer(), JobBuilder::new(5).share(), &[3]);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g1:33 ReqNodeList=n1 Licenses="]);
    let placed = || JobBuilder::new(5).share().placed("n1", "gres/shard:g1:33");
    let result = reconciler.reconcile(&list([placed().admitted("None")]), NOW_S);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    // The licences of its user are kept.
    let licensed = JobBuilder::new(5)
        .share()
        .with(|record| record.licenses = "matlab:1,tandem_gate:1".to_owned());
    let (_, result) = placing(newer(), licensed, &[0]);
    let line = "update jobid=5 Gres=shard:g0:33 ReqNodeList=n0 Licenses=matlab:1";
    assert_eq!(requests(&result), [line]);
}

#[test]
fn jobs_that_cannot_share_get_whole_gpus() {
    let (_, result) = placing(newer(), JobBuilder::new(5).gpus(1, 2), &[2, 3]);
    let line = "update jobid=5 Gres=gpu:g0:1,gpu:g1:1 ReqNodeList=n1 Licenses=";
    assert_eq!(requests(&result), [line]);
    // On several nodes Slurm chooses the GPUs: it would take the same on each. So it does where it would merge
    // two requests.
    for of in [newer(), reconciler()] {
        let (_, result) = placing(of, JobBuilder::new(5).gpus(2, 1), &[0, 3]);
        assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n0,n1 Licenses="]);
    }
    let (_, result) = placing(reconciler(), JobBuilder::new(5).gpus(1, 2), &[2, 3]);
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n1 Licenses="]);
    // GPUs that do not have the form of the request.
    let (_, result) = placing(newer(), JobBuilder::new(5).gpus(2, 1), &[0, 1]);
    assert_eq!(requests(&result), ["update jobid=5 Licenses="]);
    // A job that only Slurm understands.
    let (_, result) = placing(newer(), JobBuilder::new(5).odd(2), &[0, 1]);
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n0 Licenses="]);
    // An interactive job, also if only its record says so.
    let interactive = JobBuilder::new(5).share().with(|record| record.is_batch = false);
    let (_, result) = placing(newer(), interactive, &[0]);
    assert_eq!(requests(&result), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0 Licenses="]);
    let mut reconciler = reconciler();
    reconciler
        .jobs()
        .start("5#a", DesiredRun { is_exclusive: true, ..desired(OpId(1), run(1), vec![0]) });
    let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0"]);
}

#[test]
fn node_lists_are_compared_as_sets() {
    let gang = || JobBuilder::new(5).gpus(2, 2);
    let (mut reconciler, _) = placing(reconciler(), gang(), &[0, 1, 2, 3]);
    let placed = gang().placed("n[0-1]", "gres:gpu:2");
    assert_eq!(
        requests(&reconciler.reconcile(&list([placed]), NOW_S)),
        ["update jobid=5 Licenses="]
    );
}

#[test]
fn gres_is_not_changed_where_slurm_would_merge_it() {
    let chosen = || JobBuilder::new(5).placed("n0", "gres:shard:g0:33");
    let (mut reconciler, result) = placing(reconciler(), chosen(), &[1]);
    // It goes on as a plain job with the GPU that it has.
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList= Licenses= Nice=1000000"]);
    let reported = events(result);
    let [
        BackendEvent::NotStarted { op, run: of, reason, transient: true },
        BackendEvent::Withdrawn { external, .. },
    ] = &reported[..]
    else {
        panic!("{reported:?}")
    };
    assert_eq!((*op, *of, external.as_str()), (OpId(1), run(1), "5#a"));
    assert!(reason.contains("shard:g1:33"), "{reason}");
    // It is not imported again, and a lost request is made again.
    reconciler.jobs().forget(run(1));
    let result = reconciler.reconcile(&list([chosen()]), NOW_S + 1);
    assert_eq!((requests(&result).len(), events(result)), (0, vec![]));
    let result = reconciler.reconcile(&list([chosen()]), NOW_S + 5);
    assert_eq!((requests(&result).len(), events(result)), (1, vec![]));
    assert_eq!(events(reconciler.reconcile(&list([runs()]), NOW_S + 6)), []);
    assert!(reconciler.jobs.is_empty() && reconciler.attempts.is_empty());
}

#[test]
fn gres_is_changed_where_slurm_replaces_it() {
    let chosen = JobBuilder::new(5).share().placed("n0", "gres/shard:g0:33");
    let (_, result) = placing(newer(), chosen, &[1]);
    assert_eq!(requests(&result), ["update jobid=5 Gres=shard:g1:33 Licenses="]);
}

#[test]
fn gpus_that_no_longer_exist_are_not_requested() {
    for devices in [vec![0, 4], vec![]] {
        let mut reconciler = reconciler();
        reconciler.jobs().start("5#a", desired(OpId(1), run(1), devices));
        let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
        assert!(result.requests.is_empty());
        assert!(matches!(
            events(result)[..],
            [BackendEvent::Waits { .. }, BackendEvent::NotStarted { transient: true, .. }]
        ));
    }
    // Nor do they matter while the job waits for resources.
    let mut reconciler = reconciler();
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![9]));
    reconciler.reconcile(&list([JobBuilder::new(5).state(SlurmState::Other)]), NOW_S);
    for later in [0, 20] {
        reconciler.reconcile(&list([JobBuilder::new(5).admitted("Resources")]), NOW_S + later);
    }
}

#[test]
fn starts_again_after_a_requeue() {
    let mut reconciler = running();
    let pending = || JobBuilder::new(5).placed("n0", "gres:shard:g0:33").restarts(1);
    // Slurm would delay it by two minutes. Started at once it would fail.
    let requeued = || pending().admitted("BeginTime").submitted(NOW_S);
    let result = reconciler.reconcile(&list([requeued()]), NOW_S);
    assert!(result.requests.is_empty());
    assert_eq!(events(result), [BackendEvent::Requeued { run: run(1) }]);
    for later_s in [1, 2] {
        let result = reconciler.reconcile(&list([requeued()]), NOW_S + later_s);
        assert_eq!((requests(&result).len(), events(result)), (0, vec![]), "{later_s}");
    }
    let result = reconciler.reconcile(&list([requeued()]), NOW_S + 3);
    assert_eq!(requests(&result), ["update jobid=5 StartTime=now"]);
    assert_eq!(events(result), []);
    let result = reconciler.reconcile(&list([runs().restarts(1)]), NOW_S);
    assert_eq!(events(result), [started(1, 1, 5)]);
    // Requeued and started again between two lists.
    let result = reconciler.reconcile(&list([runs().restarts(2)]), NOW_S);
    assert_eq!(events(result), [BackendEvent::Requeued { run: run(1) }, started(1, 1, 5)]);
}

#[test]
fn a_requeued_job_that_is_held_gives_its_gpu_back() {
    let mut reconciler = running();
    let held = JobBuilder::new(5)
        .placed("n0", "gres:shard:g0:33")
        .restarts(1)
        .admitted("JobHeldUser")
        .with(|record| record.is_held = true);
    let result = reconciler.reconcile(&list([held]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 Licenses=tandem_stripped:1 ReqNodeList="]);
    let reported = events(result);
    assert!(
        matches!(
            &reported[..],
            [
                BackendEvent::Requeued { .. },
                BackendEvent::Waits { reason: Some(_), .. },
                BackendEvent::NotStarted { .. }
            ]
        ),
        "{reported:?}"
    );
}

#[test]
fn moves_to_another_node_after_a_requeue() {
    let mut reconciler = reconciler();
    reconciler.jobs().start("5#a", desired(OpId(2), run(1), vec![2]));
    let pending =
        JobBuilder::new(5).placed("n0", "gres:shard:g0:33").restarts(1).admitted("BeginTime");
    let result = reconciler.reconcile(&list([pending]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n1 StartTime=now"]);
    // It was requeued before this run: no progress of this run was lost.
    assert_eq!(events(result), []);
}

#[test]
fn the_begin_time_of_a_user_is_kept() {
    let mut reconciler = reconciler();
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    let pending = JobBuilder::new(5).placed("n0", "gres:shard:g0:33").admitted("BeginTime");
    assert!(reconciler.reconcile(&list([pending]), NOW_S).requests.is_empty());
}

#[test]
fn foreign_jobs_are_seen_on_their_gpus() {
    let mut reconciler = reconciler();
    let running = |id| JobBuilder::new(id).unmanaged().state(SlurmState::Running);
    let result = reconciler.reconcile(
        &list([
            running(1).on("n0", "gpu:g1:1(IDX:1)"),
            running(2).on("n1", "shard:40(IDX:0)").state(SlurmState::Suspended),
            running(3).on("n1", "shard:20(0/100,20/100)").state(SlurmState::Other),
            running(4).on("n0", "gpu:2(IDX:0-1)"),
            running(5).on("elsewhere", "gpu:2(IDX:0-1)"),
            running(6).on("n0", "gpu:g0:0(IDX:),shard:5(IDX:7)"),
            running(7).on("n0", "gpu:g0:1(IDX:0)").state(SlurmState::Ended(SlurmEnd::Completed)),
            running(8).on("n0", "").on("n1", "gpu:g1:1(IDX:1),gpu:g0:1(IDX:0)"),
        ]),
        NOW_S,
    );
    let mut seen = foreign(&result);
    seen.iter_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(seen, [vec![4], vec![1, 4], vec![2, 8], vec![3, 8]]);
}

#[test]
fn unavailable_nodes_are_reported_once() {
    let mut reconciler = reconciler();
    assert_eq!(reconciler.update_nodes(&[node("n0"), node("n1")]), []);
    let drained = || SlurmNode { unavailable: Some("drain: disk".to_owned()), ..node("n1") };
    let device = |device, reason: Option<&str>| {
        let unavailable = reason.map(str::to_owned);
        BackendEvent::Device { device, unavailable }
    };
    let why = Some("drain: disk");
    assert_eq!(reconciler.update_nodes(&[node("n0"), drained()]), [device(2, why), device(3, why)]);
    assert_eq!(reconciler.update_nodes(&[drained(), node("n0")]), []);
    assert_eq!(
        reconciler.update_nodes(&[node("n0"), node("n1")]),
        [device(2, None), device(3, None)]
    );
    let gone = Some("Slurm no longer lists it");
    assert_eq!(reconciler.update_nodes(&[node("n1")]), [device(0, gone), device(1, gone)]);
}

#[test]
fn a_node_that_lost_shares_gives_whole_gpus() {
    let mut reconciler = reconciler();
    let lost = SlurmNode { shards: vec![0, 100], ..node("n0") };
    assert_eq!(reconciler.update_nodes(&[lost, node("n1")]), []);
    let place = |reconciler: &mut Reconciler, device| {
        reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![device]));
        let asked = requests(&reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S));
        reconciler.jobs().forget(run(1));
        asked
    };
    // Also its other GPU: shards of it come without a GPU.
    assert_eq!(place(&mut reconciler, 0), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0"]);
    assert_eq!(place(&mut reconciler, 1), ["update jobid=5 Gres=gpu:g1:1 ReqNodeList=n0"]);
    assert_eq!(place(&mut reconciler, 2), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n1"]);
    reconciler.update_nodes(&[node("n0"), node("n1")]);
    assert_eq!(place(&mut reconciler, 0), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
}

/// A reconciler that waits for Slurm for a day.
fn patient() -> Reconciler {
    let patience = Patience { start_within_s: 86_400, tries_max: 3 };
    Reconciler { patience, ..reconciler() }
}

#[test]
fn shard_leaks_are_repaired_once_a_minute_at_most() {
    let mut reconciler = patient();
    let pending = |id, kind: &str| {
        JobBuilder::new(id).placed("n0", &format!("gres:shard:{kind}:33")).admitted("Resources")
    };
    let both = || list([pending(5, "g0"), pending(6, "g1")]);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    reconciler.jobs().start("6#a", desired(OpId(2), run(2), vec![1]));
    let mut asked = Vec::new();
    for later in 0..200 {
        let result = reconciler.reconcile(&both(), NOW_S + later);
        asked.extend(requests(&result).into_iter().map(|line| (later, line)));
    }
    // Once for each job.
    let line = "reconfigure".to_owned();
    assert_eq!(asked, [(2, line.clone()), (62, line)]);
}

#[test]
fn a_job_that_waits_for_another_reason_is_no_shard_leak() {
    let pending = || JobBuilder::new(5).placed("n0", "gres:shard:g0:33").admitted("Resources");
    let count = |reconciler: &mut Reconciler, listing: &dyn Fn() -> JobList| {
        reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
        let turns =
            (0..30).map(|later| reconciler.reconcile(&listing(), NOW_S + later).requests.len());
        turns.sum::<usize>()
    };
    assert_eq!(count(&mut patient(), &|| list([pending()])), 1);
    // Another job is on its GPU.
    let other =
        || JobBuilder::new(9).unmanaged().state(SlurmState::Running).on("n0", "gpu:g0:1(IDX:0)");
    assert_eq!(count(&mut patient(), &|| list([pending(), other()])), 0);
    // Its node is unavailable.
    let mut drained = patient();
    drained.update_nodes(&[
        SlurmNode { unavailable: Some("down".to_owned()), ..node("n0") },
        node("n1"),
    ]);
    assert_eq!(count(&mut drained, &|| list([pending()])), 0);
    // Slurm has another reason.
    assert_eq!(count(&mut patient(), &|| list([pending().admitted("Licenses")])), 0);
}
