//! Where jobs are put, and what is in the way.

use super::*;

/// A book in which job 5 was offered and is to run on these devices.
fn placing(mut book: Reconciler, job: JobBuilder, devices: &[u32]) -> (Reconciler, Reconciled) {
    let record = job.made();
    let waits = JobList { version: None, records: vec![record] };
    assert_eq!(offered(book.turn(&waits, NOW_S)), ["5#a"]);
    book.start(OpId(1), "5#a", run(1), devices.to_vec(), false);
    let turn = book.turn(&waits, NOW_S);
    (book, turn)
}

fn newer() -> Reconciler {
    Reconciler { replaces: true, ..book() }
}

#[test]
fn a_job_is_released_when_the_list_shows_its_gpu() {
    let (mut book, turn) = placing(book(), JobBuilder::new(5), &[3]);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=shard:g1:33 ReqNodeList=n1"]);
    assert_eq!(events(turn), []);
    // Lost on the way: asked for again.
    let turn = book.turn(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=shard:g1:33 ReqNodeList=n1"]);
    // Half of it arrived.
    let turn = book.turn(&list([JobBuilder::new(5).aimed("", "gres:shard:g1:33")]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 ReqNodeList=n1"]);
    let placed = || JobBuilder::new(5).aimed("n1", "gres:shard:g1:33");
    assert_eq!(asks(&book.turn(&list([placed()]), NOW_S)), ["release 5"]);
    let turn = book.turn(&list([placed().free("None")]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
    let runs = placed().state(SlurmState::Running).on("n1", "shard:33(IDX:1)");
    let turn = book.turn(&list([runs]), NOW_S);
    assert!(strangers(&turn).iter().all(Vec::is_empty));
    assert_eq!(events(turn), [started(1, 1, 5)]);
}

#[test]
fn whole_gpus_where_shares_will_not_do() {
    let (_, turn) = placing(book(), JobBuilder::new(5).gpus(1, 2), &[2, 3]);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=gpu:g0:1,gpu:g1:1 ReqNodeList=n1"]);
    // On both nodes the same GPUs are taken; the others of them are shut out.
    let (_, turn) = placing(book(), JobBuilder::new(5).gpus(2, 1), &[0, 1, 2, 3]);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0,n1"]);
    // srun, also if only its record says so.
    let interactive = JobBuilder::new(5).with(|record| record.is_batch = false);
    let (_, turn) = placing(book(), interactive, &[0]);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0"]);
    let mut book = book();
    book.start(OpId(1), "5#a", run(1), vec![0], true);
    let turn = book.turn(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0"]);
}

#[test]
fn nodes_are_told_in_any_way_of_writing() {
    let gang = JobBuilder::new(5).gpus(2, 2);
    let (mut book, _) = placing(book(), gang, &[0, 1, 2, 3]);
    let placed = JobBuilder::new(5).gpus(2, 2).aimed("n[0-1]", "gres:gpu:g1:1,gres:gpu:g0:1");
    assert_eq!(asks(&book.turn(&list([placed]), NOW_S)), ["release 5"]);
}

#[test]
fn gpus_are_not_chosen_twice_where_slurm_would_merge_them() {
    let chosen = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33");
    let (mut book, turn) = placing(book(), chosen(), &[1]);
    assert!(turn.requests.is_empty());
    let told = events(turn);
    let [BackendEvent::NotStarted { op, run: of, reason, transient }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*op, *of, *transient), (OpId(1), run(1), false));
    assert!(reason.contains("shard:g1:33"), "{reason}");
    let turn = book.turn(&list([chosen()]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
}

#[test]
fn what_was_refused_is_not_offered_again() {
    let chosen = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33");
    let (mut book, _) = placing(book(), chosen(), &[1]);
    book.forget(run(1));
    let turn = book.turn(&list([chosen()]), NOW_S);
    assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]));
    // Where it is chosen for, it may still run.
    book.start(OpId(2), "5#a", run(2), vec![2], false);
    assert_eq!(asks(&book.turn(&list([chosen()]), NOW_S)), ["update jobid=5 ReqNodeList=n1"]);
}

#[test]
fn what_was_refused_is_remembered_as_long_as_slurm_has_it() {
    let chosen = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33");
    for end in [list([over(SlurmEnd::Cancelled)]), list([])] {
        let (mut book, _) = placing(book(), chosen(), &[1]);
        book.forget(run(1));
        assert_eq!(events(book.turn(&end, NOW_S)), []);
        assert!(book.jobs.is_empty());
    }
}

#[test]
fn gpus_are_chosen_anew_where_slurm_replaces_them() {
    let chosen = JobBuilder::new(5).aimed("n0", "gres/shard:g0:33");
    let (_, turn) = placing(newer(), chosen, &[1]);
    assert_eq!(asks(&turn), ["update jobid=5 Gres=shard:g1:33"]);
}

#[test]
fn gpus_that_are_gone_are_not_asked_for() {
    for devices in [vec![0, 4], vec![]] {
        let mut book = book();
        book.start(OpId(1), "5#a", run(1), devices, false);
        let turn = book.turn(&list([JobBuilder::new(5)]), NOW_S);
        assert!(turn.requests.is_empty());
        assert!(matches!(events(turn)[..], [BackendEvent::NotStarted { transient: true, .. }]));
    }
    // Nor looked at while it waits for others.
    let mut book = book();
    book.start(OpId(1), "5#a", run(1), vec![9], false);
    book.turn(&list([JobBuilder::new(5).state(SlurmState::Other)]), NOW_S);
    for later in [0, 20] {
        book.turn(&list([JobBuilder::new(5).free("Resources")]), NOW_S + later);
    }
}

#[test]
fn begins_again_after_a_requeue() {
    let mut book = running();
    let waits = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33").restarts(1);
    // It was put back by its operator, and held.
    let turn = book.turn(&list([waits()]), NOW_S);
    assert_eq!(asks(&turn), ["release 5"]);
    assert_eq!(events(turn), [BackendEvent::Requeued { run: run(1) }]);
    // Slurm would have it wait for two minutes. At once it would fail.
    let put_back = || waits().free("BeginTime").submitted(NOW_S);
    for later_s in [0, 1, 2] {
        let turn = book.turn(&list([put_back()]), NOW_S + later_s);
        assert_eq!((asks(&turn).len(), events(turn)), (0, vec![]), "{later_s}");
    }
    let turn = book.turn(&list([put_back()]), NOW_S + 3);
    assert_eq!(asks(&turn), ["update jobid=5 StartTime=now"]);
    assert_eq!(events(turn), []);
    let turn = book.turn(&list([runs().restarts(1)]), NOW_S);
    assert_eq!(events(turn), [started(1, 1, 5)]);
    // Put back and begun again between two lists.
    let turn = book.turn(&list([runs().restarts(2)]), NOW_S);
    assert_eq!(events(turn), [BackendEvent::Requeued { run: run(1) }, started(1, 1, 5)]);
}

#[test]
fn moves_to_another_node_after_a_requeue() {
    let mut book = book();
    book.start(OpId(2), "5#a", run(1), vec![2], false);
    let waits = JobBuilder::new(5).aimed("n0", "gres:shard:g0:33").restarts(1).free("BeginTime");
    let turn = book.turn(&list([waits]), NOW_S);
    assert_eq!(asks(&turn), ["update jobid=5 ReqNodeList=n1 StartTime=now"]);
    // It was put back before we asked for anything: nothing of ours was lost.
    assert_eq!(events(turn), []);
}

#[test]
fn a_begin_of_the_users_own_choice_is_kept() {
    let mut book = book();
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    let waits = JobBuilder::new(5).aimed("n0", "gres:shard:g0:33").free("BeginTime");
    assert!(book.turn(&list([waits]), NOW_S).requests.is_empty());
}

#[test]
fn jobs_of_others_are_seen_on_their_gpus() {
    let mut book = book();
    let running = |id| JobBuilder::new(id).plain().state(SlurmState::Running);
    let turn = book.turn(
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
    let mut seen = strangers(&turn);
    seen.iter_mut().for_each(|numbers| numbers.sort_unstable());
    assert_eq!(seen, [vec![4], vec![1, 4], vec![2, 8], vec![3, 8]]);
}

#[test]
fn nodes_that_close_say_so_once() {
    let mut book = book();
    assert_eq!(book.look_at(&[node("n0"), node("n1")]), []);
    let shut = || SlurmNode { closed: Some("drain: disk".to_owned()), ..node("n1") };
    let device = |device, closed: Option<&str>| {
        let closed = closed.map(str::to_owned);
        BackendEvent::Device { device, unavailable: closed }
    };
    let why = Some("drain: disk");
    assert_eq!(book.look_at(&[node("n0"), shut()]), [device(2, why), device(3, why)]);
    assert_eq!(book.look_at(&[shut(), node("n0")]), []);
    assert_eq!(book.look_at(&[node("n0"), node("n1")]), [device(2, None), device(3, None)]);
    let gone = Some("Slurm does not know it any more");
    assert_eq!(book.look_at(&[node("n1")]), [device(0, gone), device(1, gone)]);
}

#[test]
fn a_node_that_lost_shares_gives_whole_gpus() {
    let mut book = book();
    let lost = SlurmNode { shards: vec![0, 100], ..node("n0") };
    assert_eq!(book.look_at(&[lost, node("n1")]), []);
    let place = |book: &mut Reconciler, device| {
        book.start(OpId(1), "5#a", run(1), vec![device], false);
        let asked = asks(&book.turn(&list([JobBuilder::new(5)]), NOW_S));
        book.forget(run(1));
        asked
    };
    // Either GPU of it: what Slurm still gives of the other comes without a GPU.
    assert_eq!(place(&mut book, 0), ["update jobid=5 Gres=gpu:g0:1 ReqNodeList=n0"]);
    assert_eq!(place(&mut book, 1), ["update jobid=5 Gres=gpu:g1:1 ReqNodeList=n0"]);
    assert_eq!(place(&mut book, 2), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n1"]);
    book.look_at(&[node("n0"), node("n1")]);
    assert_eq!(place(&mut book, 0), ["update jobid=5 Gres=shard:g0:33 ReqNodeList=n0"]);
}

#[test]
fn slurm_counts_again_once_a_minute_at_most() {
    let mut book = book();
    let waits = |id, kind: &str| {
        JobBuilder::new(id).aimed("n0", &format!("gres:shard:{kind}:33")).free("Resources")
    };
    let both = || list([waits(5, "g0"), waits(6, "g1")]);
    book.start(OpId(1), "5#a", run(1), vec![0], false);
    book.start(OpId(2), "6#a", run(2), vec![1], false);
    let mut asked = Vec::new();
    for later in 0..200 {
        let turn = book.turn(&both(), NOW_S + later);
        asked.extend(asks(&turn).into_iter().map(|line| (later, line)));
    }
    // Once for each of them.
    let line = "reconfigure".to_owned();
    assert_eq!(asked, [(10, line.clone()), (70, line)]);
}

#[test]
fn slurm_need_not_count_again_while_there_is_a_reason_to_wait() {
    let waits = || JobBuilder::new(5).aimed("n0", "gres:shard:g0:33").free("Resources");
    let asked = |book: &mut Reconciler, listing: &dyn Fn() -> JobList| {
        book.start(OpId(1), "5#a", run(1), vec![0], false);
        let turns = (0..30).map(|later| book.turn(&listing(), NOW_S + later).requests.len());
        turns.sum::<usize>()
    };
    assert_eq!(asked(&mut book(), &|| list([waits()])), 1);
    // Somebody is there.
    let other =
        || JobBuilder::new(9).plain().state(SlurmState::Running).on("n0", "gpu:g0:1(IDX:0)");
    assert_eq!(asked(&mut book(), &|| list([waits(), other()])), 0);
    // Its node is closed.
    let mut closed = book();
    closed.look_at(&[SlurmNode { closed: Some("down".to_owned()), ..node("n0") }, node("n1")]);
    assert_eq!(asked(&mut closed, &|| list([waits()])), 0);
    // Slurm has another reason.
    assert_eq!(asked(&mut book(), &|| list([waits().free("JobArrayTaskLimit")])), 0);
}
