//! What Slurm demands of jobs, and the order of their priorities.

use super::*;

/// Why a job waits when it is imported.
fn waits(reconciler: &mut Reconciler, job: JobBuilder) -> Option<String> {
    let result = reconciler.reconcile(&list([job]), NOW_S);
    let [BackendEvent::Imported(job)] = &events(result)[..] else { panic!("not imported") };
    job.waits.clone()
}

/// A job on all of n1.
fn n1_is_full() -> JobBuilder {
    let whole = "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)";
    JobBuilder::new(9).unmanaged().state(SlurmState::Running).on("n1", whole)
}

#[test]
fn a_limit_or_a_hold_keeps_a_job_from_being_placed() {
    let of = |reason: &str| {
        let job = JobBuilder::new(5).with(|record| record.reason = reason.to_owned());
        waits(&mut reconciler(), job)
    };
    for passing in ["None", "Licenses", "Priority", "Resources", "Dependency"] {
        assert_eq!(of(passing), None, "{passing}");
    }
    for limit in ["QOSMaxJobsPerUserLimit", "AssocGrpGRES", "PartitionDown", "BadConstraints"] {
        assert_eq!(of(limit), Some(format!("Slurm: {limit}")));
    }
    // Held after it was imported.
    let mut reconciler = reconciler();
    assert_eq!(waits(&mut reconciler, JobBuilder::new(5)), None);
    let held = || {
        JobBuilder::new(5).with(|record| {
            (record.is_held, record.reason) = (true, "JobHeldAdmin".to_owned());
        })
    };
    let external = || "5#a".to_owned();
    let reason = Some("held by an operator of Slurm".to_owned());
    let result = reconciler.reconcile(&list([held()]), NOW_S);
    assert_eq!(events(result), [BackendEvent::Waits { external: external(), reason }]);
    assert_eq!(events(reconciler.reconcile(&list([held()]), NOW_S)), []);
    let result = reconciler.reconcile(&list([JobBuilder::new(5)]), NOW_S);
    assert_eq!(events(result), [BackendEvent::Waits { external: external(), reason: None }]);
}

#[test]
fn a_job_waits_for_the_nodes_that_it_may_use() {
    let only_n1: [fn(JobBuilder) -> JobBuilder; 3] = [
        |job| job.with(|record| record.excluded_nodes = "n0".to_owned()),
        |job| job.with(|record| record.features = "big".to_owned()),
        |job| job.placed("n1", "gres/gpu:1").comment(|comment| comment.has_nodes = true),
    ];
    for restrict in only_n1 {
        let mut reconciler = newer();
        let big = SlurmNode { features: vec!["big".to_owned()], ..node("n1") };
        reconciler.update_nodes(&[node("n0"), big]);
        let job = || restrict(JobBuilder::new(5).share());
        let result = reconciler.reconcile(&list([job(), n1_is_full()]), NOW_S);
        let [BackendEvent::Imported(imported)] = &events(result)[..] else { panic!("one job") };
        assert!(imported.waits.as_ref().is_some_and(|why| why.contains("no free GPUs")));
        let result = reconciler.reconcile(&list([job()]), NOW_S);
        assert!(matches!(events(result)[..], [BackendEvent::Waits { reason: None, .. }]));
        // The policy chose a GPU of the other node.
        reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
        let result = reconciler.reconcile(&list([job()]), NOW_S);
        let line = &requests(&result)[0];
        assert!(line.contains("Gres=shard:g0:33") && !line.contains("n0"), "{line}");
        let devices = vec![2];
        assert_eq!(events(result), [BackendEvent::Placed { run: run(1), devices }]);
    }
}

#[test]
fn nodes_have_the_cpus_and_the_memory() {
    let big = |id| {
        let job = JobBuilder::new(id).share();
        job.with(|record| (record.cpus, record.memory_mib) = (40, 40_000))
    };
    let mut reconciler = newer();
    reconciler.reconcile(&list([big(5), big(6), big(7)]), NOW_S);
    // All on one node, which has CPUs for one of them.
    for job in 5..8 {
        let key = format!("{job}#a");
        reconciler.jobs().start(&key, desired(OpId(job), run(job), vec![0]));
    }
    let result = reconciler.reconcile(&list([big(5), big(6), big(7)]), NOW_S);
    let asked = requests(&result);
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[0].contains("ReqNodeList=n0") && asked[1].contains("ReqNodeList=n1"));
    let back = |event: &&BackendEvent| matches!(event, BackendEvent::NotStarted { .. });
    assert_eq!(result.events.iter().filter(back).count(), 1);
    // More than any node has free.
    let mut reconciler = newer();
    let huge = big(5).with(|record| record.cpus = 65);
    let why = waits(&mut reconciler, huge).expect("it waits");
    assert_eq!(why, "none of its nodes has 65 CPUs and 40000 MiB free");
}

#[test]
fn a_job_that_needs_a_node_for_itself_is_left_to_slurm_in_the_end() {
    let mut reconciler = newer();
    let busy = || SlurmNode { is_idle: false, ..node("n0") };
    let other = SlurmNode { name: "n1".to_owned(), ..busy() };
    reconciler.update_nodes(&[busy(), other]);
    let alone = || JobBuilder::new(5).odd(1).comment(|comment| comment.is_alone = true);
    let why = waits(&mut reconciler, alone()).expect("it waits");
    assert_eq!(why, "none of its nodes is idle");
    assert!(events(reconciler.reconcile(&list([alone()]), NOW_S + 299)).is_empty());
    let result = reconciler.reconcile(&list([alone()]), NOW_S + 300);
    assert_eq!(requests(&result), ["update jobid=5 Licenses="]);
    assert!(matches!(events(result)[..], [BackendEvent::Withdrawn { .. }]));
    // With an idle node it is placed there.
    let mut reconciler = newer();
    reconciler.update_nodes(&[busy(), node("n1")]);
    assert_eq!(waits(&mut reconciler, alone()), None);
    reconciler.jobs().start("5#a", desired(OpId(1), run(1), vec![0]));
    let result = reconciler.reconcile(&list([alone()]), NOW_S);
    assert_eq!(requests(&result), ["update jobid=5 ReqNodeList=n1 Licenses="]);
}

#[test]
fn gpus_bring_their_cpus_and_memory() {
    let job = |cpus, memory| {
        JobBuilder::new(5).odd(2).with(|record| {
            (record.cpus_per_gpu, record.memory_mib_per_gpu) = (cpus, memory);
        })
    };
    assert_eq!(waits(&mut newer(), job(32, 32_000)), None);
    let why = waits(&mut newer(), job(33, 100)).expect("it waits");
    assert_eq!(why, "none of its nodes has 66 CPUs and 200 MiB free");
    assert!(waits(&mut newer(), job(1, 33_000)).is_some());
}

#[test]
fn priority_comes_first_while_gpus_are_busy() {
    let job = |id, priority| JobBuilder::new(id).with(|record| record.priority = priority);
    let full = || {
        let whole = "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)";
        let job = JobBuilder::new(9).unmanaged().state(SlurmState::Running);
        job.on("n0", whole).on("n1", whole)
    };
    let mut reconciler = reconciler();
    let told = |result: Reconciled| -> Vec<(String, bool)> {
        let told = |event| match event {
            BackendEvent::Waits { external, reason } => Some((external, reason.is_none())),
            _ => None,
        };
        events(result).into_iter().filter_map(told).collect()
    };
    // 95 is within a tenth of 100.
    let jobs = || list([job(1, 100), job(2, 50), job(3, 95), full()]);
    assert_eq!(told(reconciler.reconcile(&jobs(), NOW_S)), [("2#a".to_owned(), false)]);
    assert_eq!(told(reconciler.reconcile(&jobs(), NOW_S + 100)), []);
    // GPUs are idle, but nobody takes them.
    let idle = || list([job(1, 100), job(2, 50), job(3, 95)]);
    assert_eq!(told(reconciler.reconcile(&idle(), NOW_S + 101)), []);
    assert_eq!(told(reconciler.reconcile(&idle(), NOW_S + 104)), [("2#a".to_owned(), true)]);
    assert_eq!(told(reconciler.reconcile(&jobs(), NOW_S + 105)), [("2#a".to_owned(), false)]);
    // Nobody with a higher priority is left.
    let last = || list([job(2, 50), full()]);
    assert_eq!(told(reconciler.reconcile(&last(), NOW_S + 106)), [("2#a".to_owned(), true)]);
}
