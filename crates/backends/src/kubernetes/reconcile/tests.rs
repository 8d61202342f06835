use super::*;

const NOW_S: u64 = 1_000;
const KEY: &str = "ann/a#01234567-89ab-4def-8123-456789abcdef";

fn gpu(node: &str, device: &str) -> PublishedGpu {
    PublishedGpu { node: node.into(), pool: node.into(), device: device.into(), memory_bytes: 16 }
}

/// Two nodes with a GPU each, and a pod in this state with its claim.
fn list(state: PodState, claim: ResourceClaim) -> KubeList {
    let (namespace, uid) = KEY.split_once("/a#").unwrap();
    let pod = Pod {
        namespace: namespace.into(),
        name: "a".into(),
        uid: uid.into(),
        state,
        gpus: 1,
        claim: Some("c".into()),
        title: "train".into(),
        hints: String::new(),
        reason: "waits until Tandem places it".into(),
        created_unix_us: 7,
    };
    KubeList {
        pods: [(KEY.to_owned(), pod)].into(),
        claims: [(("ann".to_owned(), "c".to_owned()), claim)].into(),
        nodes: [("n0".to_owned(), None), ("n1".to_owned(), None)].into(),
        gpus: vec![gpu("n0", "gpu0"), gpu("n1", "gpu0")],
    }
}

fn allocated(node: &str) -> ResourceClaim {
    ResourceClaim {
        allocated: Some([(node.to_owned(), "gpu0".to_owned())].into()),
        ..ResourceClaim::default()
    }
}

/// A reconciler that was told to place the pod on the second GPU.
fn placing(list: &KubeList) -> KubeReconciler {
    let mut reconciler = KubeReconciler::new(list, 2);
    reconciler.reconcile(list, NOW_S);
    reconciler.jobs().start(KEY, DesiredRun::new(RunId { job: 1, run: 1 }, OpId(5), vec![1]));
    reconciler
}

#[test]
fn a_gated_pod_is_imported_once() {
    let list = list(PodState::Gated(0), ResourceClaim::default());
    let mut reconciler = KubeReconciler::new(&list, 2);
    let imported = |result: &KubeReconciled| {
        result.events.iter().filter(|event| matches!(event, BackendEvent::Imported(_))).count()
    };
    assert_eq!(imported(&reconciler.reconcile(&list, NOW_S)), 1);
    assert_eq!(imported(&reconciler.reconcile(&list, NOW_S)), 0);
}

#[test]
fn the_gate_goes_only_when_the_list_shows_the_planned_gpu() {
    let before = list(PodState::Gated(0), ResourceClaim::default());
    let mut reconciler = placing(&before);
    let requests = reconciler.reconcile(&before, NOW_S).requests;
    let [KubeRequest::Allocate { allocation: Some(allocation), .. }] = &requests[..] else {
        panic!("{requests:?}")
    };
    let result = allocation.pointer("/devices/results/0").unwrap();
    assert_eq!(
        (&result["pool"], &result["consumedCapacity"]["memory"]),
        (&json!("n1"), &json!("8"))
    );
    assert!(allocation["allocationTimestamp"].is_string());
    // Another GPU than planned is taken back first.
    let requests = reconciler.reconcile(&list(PodState::Gated(0), allocated("n0")), NOW_S).requests;
    assert!(
        matches!(&requests[..], [KubeRequest::Allocate { allocation: None, .. }]),
        "{requests:?}"
    );
    let requests = reconciler.reconcile(&list(PodState::Gated(0), allocated("n1")), NOW_S).requests;
    assert!(matches!(&requests[..], [KubeRequest::Ungate { gate: 0, .. }]), "{requests:?}");
}

#[test]
fn start_and_end_are_reported_once() {
    let mut reconciler = placing(&list(PodState::Gated(0), ResourceClaim::default()));
    let mut events = |state: PodState| {
        let all = reconciler.reconcile(&list(state, allocated("n1")), NOW_S).events;
        all.into_iter()
            .filter(|event| !matches!(event, BackendEvent::Sampled(_)))
            .collect::<Vec<_>>()
    };
    assert!(matches!(events(PodState::Running)[..], [BackendEvent::Started { op: OpId(5), .. }]));
    assert!(events(PodState::Running).is_empty());
    let ended = PodState::Ended { code: 3, oom: false, at_unix_us: 9 };
    let exit = events(ended.clone());
    assert!(matches!(&exit[..], [BackendEvent::Exited { exit, .. }] if exit.status.code() == 3));
    assert!(events(ended).is_empty());
}

#[test]
fn a_refused_pod_gives_its_gpu_back() {
    let waiting = PodState::Waiting(Some("no CPU".to_owned()));
    let mut reconciler = placing(&list(PodState::Gated(0), ResourceClaim::default()));
    let refused = list(waiting.clone(), allocated("n1"));
    assert!(reconciler.reconcile(&refused, NOW_S).requests.is_empty());
    let requests = reconciler.reconcile(&refused, NOW_S + REFUSED_S).requests;
    assert!(
        matches!(&requests[..], [KubeRequest::Allocate { allocation: None, .. }]),
        "{requests:?}"
    );
    let after = reconciler.reconcile(&list(waiting, ResourceClaim::default()), NOW_S + REFUSED_S);
    let is_refusal =
        |event: &BackendEvent| matches!(event, BackendEvent::NotStarted { transient: false, .. });
    assert!(after.events.iter().any(is_refusal), "{:?}", after.events);
}

#[test]
fn recovery_finds_running_and_deleted_pods() {
    let running = list(PodState::Running, allocated("n1"));
    let run = RunId { job: 1, run: 1 };
    let known =
        KnownJob { devices: vec![1], external: Some(KEY.to_owned()), ..KnownJob::from(run) };
    let recovered =
        KubeReconciler::new(&running, 2).recover(std::slice::from_ref(&known), &running);
    assert!(matches!(recovered[..], [(_, RecoveredRun::Running { .. })]));
    let recovered = KubeReconciler::new(&running, 2).recover(&[known], &KubeList::default());
    assert!(
        matches!(&recovered[..], [(_, RecoveredRun::Exited(exit))] if exit.cause == Some(ExitCause::Cancelled))
    );
}
