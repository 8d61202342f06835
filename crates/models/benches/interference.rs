//! Speed of training the predictor and of taking in what is observed. `cargo bench -p tandem-models`

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tandem_models::interference::evaluate::PairData;
use tandem_models::interference::{ClassProfile, MeasuredPair, Offline, Online};

const CLASSES: usize = 60;
const PAIRS: usize = 1500;

/// Classes that press and suffer by their utilisation.
fn table() -> PairData {
    let util = |class: usize| 0.1 + 0.85 * ((class * 37) % CLASSES) as f64 / CLASSES as f64;
    let profile = |class: usize| ClassProfile {
        name: format!("class {class:02}"),
        model: format!("model {}", class / 4),
        gpu_util: Some(util(class)),
        bandwidth_util: Some(util((class * 7) % CLASSES) * 0.6),
        memory_mib: Some(2000.0 + 300.0 * class as f64),
        amp: class.is_multiple_of(2),
        ..ClassProfile::default()
    };
    let rate = |a: usize, b: usize| 1.0 - 0.5 * util(a) * util(b);
    let pair =
        |(a, b): (usize, usize)| MeasuredPair { a, b, rate_a: rate(a, b), rate_b: rate(b, a) };
    let all = (0..CLASSES).flat_map(|a| (a..CLASSES).map(move |b| (a, b)));
    let pairs: Vec<MeasuredPair> = all.map(pair).take(PAIRS).collect();
    assert_eq!(pairs.len(), PAIRS);
    PairData { profiles: (0..CLASSES).map(profile).collect(), pairs }
}

fn training(criterion: &mut Criterion) {
    let PairData { profiles, pairs } = table();
    let mut group = criterion.benchmark_group("interference");
    group.sample_size(10);
    let fit = || Offline::fit(black_box(&profiles), &pairs, 1).expect("a good table");
    group.bench_function("train on 60 classes, 1500 pairs", |bencher| bencher.iter(fit));
    group.finish();
}

fn observing(criterion: &mut Criterion) {
    let PairData { profiles, pairs } = table();
    let mut online = Online::new(Offline::fit(&profiles, &pairs, 1).expect("a good table"));
    let classes: Vec<u32> = profiles.iter().map(|profile| online.class(profile)).collect();
    // Every class has been seen beside every other: the most that an observation has to weigh.
    for &a in &classes {
        for &b in &classes {
            online.observe(a, b, 0.9, 0.02);
        }
    }
    let mut group = criterion.benchmark_group("interference");
    let observe = |mut online: Online| {
        online.observe(black_box(3), 17, 0.85, 0.02);
        online
    };
    group.bench_function("observe", |bencher| {
        bencher.iter_batched(|| online.clone(), observe, BatchSize::LargeInput);
    });
    let believe = || online.belief(black_box(3), black_box(17));
    group.bench_function("believe", |bencher| bencher.iter(believe));
    group.finish();
}

criterion_group!(benches, training, observing);
criterion_main!(benches);
