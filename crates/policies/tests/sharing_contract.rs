//! What holds whenever jobs share GPUs, for every registered policy: checked against the recorded history,
//! independently of the engine's own checks, on mixed clusters with failures and pairs that do not fit.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../sim/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{
    Cluster, ClusterBuilder, GpuId, GpuTypeId, Interference, Memory, Profile, Ratio, SubBatch,
    SubBatches,
};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::trace::{GenerateOptions, generate};
use tandem_sim::{FaultOptions, RunOptions, SimRun, Stay, Workload, WorkloadOptions, run};

const CONTEXT: Memory = Memory::from_mib(300);

/// Rates by class, different in either direction; one pair in eight does not fit.
struct Awkward;

impl Interference for Awkward {
    fn pair_rate(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Option<Ratio> {
        let (a, b) = (u64::from(job.class?.0), u64::from(beside.class?.0));
        let pair = (a.min(b) * 31 + a.max(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let side = (a * 57 + b).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        (!pair.is_multiple_of(8)).then(|| Ratio::new(300 + side % 701, 1000))
    }
}

/// Nodes of several sizes, with two GPU types and two memory sizes.
fn cluster() -> Arc<Cluster> {
    let mut builder = ClusterBuilder::default();
    let (fast, slow) =
        (builder.gpu_type("fast", Ratio::ONE), builder.gpu_type("slow", Ratio::new(1, 2)));
    builder.partition("all");
    for (gpus, kind, mib) in
        [(8, fast, 24_576), (8, slow, 40_960), (4, fast, 40_960), (2, slow, 24_576)]
    {
        builder.node(gpus, kind, Memory::from_mib(mib));
    }
    Arc::new(builder.taking_every_job().build())
}

/// Jobs that can halve their memory at a slow-down of 10 % and quarter it at one of 30 %.
fn workload(jobs: usize, seed: u64) -> Workload {
    let trace = generate(&GenerateOptions { jobs, gpus: 16, load: 1.3, seed });
    let options =
        WorkloadOptions { context: CONTEXT, skip_bad: true, ..WorkloadOptions::default() };
    let mut workload = Workload::new(trace, cluster(), "generated", &options).unwrap();
    workload.offer_sub_batches(|spec| {
        let part = |count: u32, tenths| SubBatch {
            count,
            slowdown: Ratio::new(tenths, 10),
            memory: Memory(spec.profile.memory.0 / u64::from(count)),
        };
        SubBatches::new([part(2, 11), part(4, 13)])
    });
    workload
}

fn simulate(workload: &Workload, policy: &PolicySpec, faults: Option<&str>, seed: u64) -> SimRun {
    let options = RunOptions {
        context: CONTEXT,
        faults: faults.map(|faults| FaultOptions::parse(faults).unwrap()),
        seed,
        record: true,
        verify: true,
        ..RunOptions::default()
    };
    let truth: Arc<dyn Interference> = Arc::new(Awkward);
    run(workload, policy, &truth, &options, &AtomicU64::new(0)).unwrap()
}

/// Gangs are complete, tenants and memory within limits, pairs fit, and no job is lost.
fn assert_sound(workload: &Workload, policy: &PolicySpec, run: &SimRun) {
    let name = &policy.text;
    let stays = &run.record.as_ref().unwrap().stays;
    let mut by_gpu: Vec<Vec<&Stay>> = vec![Vec::new(); workload.cluster.gpus().len()];
    for stay in stays {
        let mut gpus = stay.gpus.to_vec();
        gpus.sort_unstable();
        gpus.dedup();
        assert_eq!(gpus.len(), workload.spec(stay.job).gpus as usize, "{name}: {stay:?}");
        gpus.iter().for_each(|gpu| by_gpu[gpu.index()].push(stay));
    }
    for (gpu, stays) in (0..).map(GpuId).zip(&mut by_gpu) {
        let described = workload.cluster.gpu(gpu);
        stays.sort_by_key(|stay| stay.from);
        let mut tenants: Vec<&Stay> = Vec::new();
        for starting in stays.chunk_by(|one, other| one.from == other.from) {
            let now = starting[0].from;
            tenants.retain(|stay| now < stay.to);
            tenants.extend(starting.iter().filter(|stay| now < stay.to));
            assert!(tenants.len() <= policy.entry.tenants_max, "{name}: {gpu:?} {tenants:?}");
            let memory = |stay: &&Stay| {
                (workload.spec(stay.job).sub_batch_option(stay.sub_batches).unwrap().memory
                    + CONTEXT)
                    .0
            };
            let used = Memory(tenants.iter().map(memory).sum());
            assert!(used <= described.memory, "{name}: {gpu:?} needs {used}: {tenants:?}");
            for first in starting {
                for other in tenants.iter().filter(|stay| stay.job != first.job) {
                    let profile = |stay: &Stay| workload.spec(stay.job).profile;
                    let rate = Awkward.pair_rate(&profile(first), &profile(other), described.kind);
                    assert!(rate.is_some(), "{name}: {first:?} beside {other:?}");
                }
            }
        }
    }
    for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
        let (start, end) = (outcome.start.unwrap(), outcome.end.unwrap());
        assert!(job.spec.submit <= start, "{name}: starts before it is submitted");
        assert!(end.since(start) >= job.duration, "{name}: faster than alone");
    }
    if policy.entry.tenants_max == 1 {
        assert_eq!(run.metrics.shared_gpu_time, 0.0, "{name}");
    } else {
        assert!(run.metrics.shared_gpu_time > 0.0, "{name}: this test is about sharing");
    }
    assert!(!run.has_three_tenants || policy.entry.tenants_max > 2, "{name}");
}

#[test]
fn every_policy_shares_soundly_with_and_without_failures() {
    for seed in 1..=3 {
        let workload = workload(200, seed);
        let by_type = PolicySpec::parse("gavel:types=true").unwrap();
        for policy in REGISTRY.iter().map(PolicySpec::of).chain([by_type]) {
            for faults in [None, Some("mtbf_h=60,repair_h=2,checkpoint_min=10")] {
                let run = simulate(&workload, &policy, faults, seed);
                assert_sound(&workload, &policy, &run);
            }
        }
    }
}

#[test]
fn a_long_run_with_many_failures_loses_no_job() {
    let workload = workload(300, 11);
    for policy in REGISTRY.iter().filter(|entry| entry.tenants_max > 1).map(PolicySpec::of) {
        let run = simulate(&workload, &policy, Some("mtbf_h=30,repair_h=1,checkpoint_min=5"), 3);
        assert_sound(&workload, &policy, &run);
        let interruptions: u32 = run.outcomes.iter().map(|outcome| outcome.interruptions).sum();
        assert!(interruptions > 100, "{}: {interruptions} interruptions", policy.text);
    }
}

/// The options of the sharing policies, alone and together.
#[test]
fn every_setting_shares_soundly() {
    let workload = workload(150, 4);
    let mut in_parts = 0;
    for accumulate in [true, false] {
        for consolidate in [true, false] {
            for more in ["sjf-ffs:", "sjf-bsbf:order=tcon,", "sjf-bsbf:order=benefit,"] {
                let text = format!("{more}accumulate={accumulate},consolidate={consolidate}");
                let policy = PolicySpec::parse(&text).unwrap();
                let run = simulate(&workload, &policy, None, 1);
                assert_sound(&workload, &policy, &run);
                let stays = &run.record.as_ref().unwrap().stays;
                let parts = stays.iter().filter(|stay| stay.sub_batches > 1).count();
                assert!(accumulate || parts == 0, "{text}");
                in_parts += parts;
                if consolidate {
                    assert_fewest_nodes(&workload, &text, stays);
                }
            }
        }
    }
    assert!(in_parts > 0, "some jobs ran in sub-batches");
}

/// A shared gang uses no more nodes than an exclusive one of its size: nodes of the largest size and a part
/// of one more.
fn assert_fewest_nodes(workload: &Workload, policy: &str, stays: &[Stay]) {
    let size = workload.cluster.partitions()[0].node_size_max();
    for stay in stays {
        let mut nodes: Vec<_> =
            stay.gpus.iter().map(|&gpu| workload.cluster.gpu(gpu).node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let fewest = workload.spec(stay.job).gpus.div_ceil(size) as usize;
        assert_eq!(nodes.len(), fewest, "{policy}: {stay:?}");
    }
}
