//! Speed of assignment and matching. `cargo bench -p tandem-matching`

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tandem_matching::{
    AssignOptions, Graph, PairCount, assign, assign_with, instance, maximum_weight_matching,
};

fn assignments(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("assign");
    group.sample_size(10);
    for n in [100, 1000] {
        let (uniform, rank1) = (instance::uniform(n, 1), instance::rank1(n, 1));
        group.bench_function(BenchmarkId::new("uniform", n), |bencher| {
            bencher.iter(|| assign(black_box(&uniform)));
        });
        group.bench_function(BenchmarkId::new("rank1", n), |bencher| {
            bencher.iter(|| assign(black_box(&rank1)));
        });
        let prices = assign(&rank1).duals.columns;
        let options = AssignOptions { prices: Some(&prices), ..AssignOptions::default() };
        group.bench_function(BenchmarkId::new("rank1, warm", n), |bencher| {
            bencher.iter(|| assign_with(black_box(&rank1), &options));
        });
    }
    let sparse = instance::sparse(10_000, 1);
    group.bench_function("sparse/10000", |bencher| bencher.iter(|| assign(black_box(&sparse))));
    group.finish();
}

/// Every vertex with `degree` random edges.
fn random_graph(vertices: u32, degree: u32) -> Graph {
    let mut random = instance::SplitMix64(1);
    let mut below = |end: u32| {
        u32::try_from(random.below(u64::from(end))).expect("it is below a number of 32 bits")
    };
    let mut edges = Vec::new();
    for a in 0..vertices {
        for _ in 0..degree {
            let b = (a + 1 + below(vertices - 1)) % vertices;
            edges.push((a, b, i64::from(below(1_000_000))));
        }
    }
    Graph::new(vertices as usize, edges).expect("no loops and small weights")
}

fn general(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("general");
    group.sample_size(10);
    for vertices in [200, 1000, 5000] {
        let graph = random_graph(vertices, 10);
        for (name, pairs) in [("weight", PairCount::Any), ("cardinality", PairCount::Most)] {
            group.bench_function(BenchmarkId::new(name, vertices), |bencher| {
                bencher.iter(|| maximum_weight_matching(black_box(&graph), pairs));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, assignments, general);
criterion_main!(benches);
