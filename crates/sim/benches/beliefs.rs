//! Speed of asking for, and of correcting, a believed pair rate. `cargo bench -p tandem-sim --bench beliefs`

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use tandem_core::{ClosedForm, GpuTypeId, Interference, Learner, Observation, Profile, Ratio};
use tandem_sim::interference::{Learning, ModelFile, trace_beliefs};
use tandem_sim::trace::{GenerateOptions, generate};

fn beliefs(criterion: &mut Criterion) {
    let trace = generate(&GenerateOptions { jobs: 2000, gpus: 64, load: 0.9, seed: 1 });
    let profile = |job: usize| Profile {
        class: trace.jobs[job].class,
        gpu_util: trace.jobs[job].gpu_util,
        ..Profile::default()
    };
    let (job, beside) = (profile(0), profile(1));
    assert!(job.class.is_some() && beside.class.is_some(), "generated jobs have classes");
    let shipped = ModelFile::shipped();
    let model = shipped.for_gpu(None, "the shipped model").expect("it has one");
    let learning = Learning { train_pairs: 1.0, seed: 1, online: true };
    let mut beliefs =
        trace_beliefs(&trace, Arc::new(ClosedForm), None, None, Some(model), learning)
            .expect("a model is enough");
    let gpu = GpuTypeId(0);
    let mut group = criterion.benchmark_group("beliefs");
    let ask = || beliefs.pair_rate(black_box(&job), black_box(&beside), gpu);
    group.bench_function("rate of a pair", |bencher| bencher.iter(ask));
    let (rate, noise) = (Ratio::from_f64(0.8), Ratio::from_f64(0.02));
    let observation = Observation { job, beside: vec![vec![beside]], gpu, rate, noise };
    group.bench_function("observation", |bencher| bencher.iter(|| beliefs.observe(&observation)));
    group.finish();
}

criterion_group!(benches, beliefs);
criterion_main!(benches);
