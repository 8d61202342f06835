//! Speed of reading a trace and of simulating it. `cargo bench -p tandem-sim`

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{ClosedForm, Cluster, Interference};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::trace::{GenerateOptions, ReadOptions, TraceFormat, generate, parse, write};
use tandem_sim::{RunOptions, Workload, WorkloadOptions, clusters, run};

const JOBS: usize = 10_000;
const NODES: u32 = 64;

fn options() -> GenerateOptions {
    GenerateOptions { jobs: JOBS, gpus: NODES * 8, load: 0.9, seed: 1 }
}

fn reading(criterion: &mut Criterion) {
    let mut csv = Vec::new();
    write(&generate(&options()), TraceFormat::Tandem, &mut csv).expect("memory takes everything");
    let mut group = criterion.benchmark_group("trace");
    group.throughput(Throughput::Bytes(csv.len() as u64));
    let read = || parse(black_box(&csv), "trace.csv", &ReadOptions::default()).expect("our own");
    group.bench_function("read", |bencher| bencher.iter(read));
    group.bench_function("generate", |bencher| bencher.iter(|| generate(&options())));
    group.finish();
}

fn policies(criterion: &mut Criterion) {
    let cluster = Arc::new(Cluster::uniform(NODES, 8, clusters::DEFAULT_MEMORY));
    let workload =
        Workload::new(generate(&options()), cluster, "generated", &WorkloadOptions::default())
            .expect("a generated trace fits its cluster");
    let truth: Arc<dyn Interference> = Arc::new(ClosedForm);
    let mut group = criterion.benchmark_group("simulate");
    group.throughput(Throughput::Elements(JOBS as u64)).sample_size(10);
    for policy in REGISTRY.iter().map(PolicySpec::of) {
        let simulate =
            || run(&workload, &policy, &truth, &RunOptions::default(), &AtomicU64::new(0));
        group.bench_function(&policy.text, |bencher| bencher.iter(simulate));
    }
    group.finish();
}

criterion_group!(benches, reading, policies);
criterion_main!(benches);
