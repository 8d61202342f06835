//! How long a decision about budgets takes, as `tandem device` makes it, on several random mixes of two to eight
//! tenants, so that the worst can be seen; with a guarantee; beside it a search with the summary only, a thorough one with operators, and one evaluation of each.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that panics has failed")]

use criterion::{Criterion, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::hint::black_box;
use std::time::Duration;
use tandem_core::Ppm;
use tandem_models::device::{
    BudgetEvaluator, DeviceGpu, DeviceSharing, DeviceTenant, Effort, Goal, Objective, Operator,
    OperatorKind, Operators, Summary, allocate, decide,
};

#[path = "../tests/cases/mod.rs"]
mod cases;

/// Seeds of random mixes, for each number of tenants.
const MIXES: std::ops::Range<u64> = 0..4;

/// Tenants of 150 operators each, narrow to wide.
fn tenants(count: usize) -> Vec<DeviceTenant> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut operator = |wide: f64| Operator {
        sms: (wide + rng.random_range(-1.5..1.5_f64)).exp().ceil(),
        duration_ns: rng.random_range(5e3..8e4),
        kind: [OperatorKind::Compute, OperatorKind::Memory, OperatorKind::Unknown]
            [rng.random_range(0..3)],
    };
    let tenant = |index: usize| {
        let wide = 2.0 + 3.0 * index as f64 / count as f64;
        let operators = (0..150).map(|_| operator(wide)).collect();
        DeviceTenant::new(&index.to_string(), operators).unwrap()
    };
    (0..count).map(tenant).collect()
}

fn goal(count: usize) -> Goal {
    cases::goal(Objective::Nash, count)
}

fn mixes(criterion: &mut Criterion) {
    let gpu = DeviceGpu::known("v100").unwrap();
    let mut group = criterion.benchmark_group("random");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    for count in 2..=8 {
        for seed in MIXES {
            let tenants = cases::random_tenants(seed, count);
            let goal = goal(count);
            group.bench_function(format!("decision, {count} tenants, mix {seed}"), |bencher| {
                bencher.iter(|| {
                    let mut exact = Operators::new(&gpu, black_box(&tenants), 1).unwrap();
                    decide(&mut exact, &goal).unwrap()
                });
            });
        }
    }
}

fn device(criterion: &mut Criterion) {
    let gpu = DeviceGpu::known("v100").unwrap();
    for count in [2, 3, 8] {
        let tenants = tenants(count);
        let goal = goal(count);
        let mut promised = goal.clone();
        promised.guarantees[0].floor = 0.2;
        for (name, goal) in [("decision", &goal), ("decision with a guarantee", &promised)] {
            criterion.bench_function(&format!("{name}, {count} tenants"), |bencher| {
                bencher.iter(|| {
                    let mut exact = Operators::new(&gpu, black_box(&tenants), 1).unwrap();
                    decide(&mut exact, goal).unwrap()
                });
            });
        }
        criterion.bench_function(&format!("decision, summary, {count} tenants"), |bencher| {
            bencher.iter(|| {
                // What a decision costs that knows the tenants' operators only.
                let mut summary = Summary::new(&gpu, black_box(&tenants)).unwrap();
                allocate(&mut summary, &goal, Effort::QUICK).unwrap()
            });
        });
        let mut summary = Summary::new(&gpu, &tenants).unwrap();
        let budgets = vec![Ppm(500_000); count];
        criterion.bench_function(&format!("evaluation, summary, {count} tenants"), |bencher| {
            bencher.iter(|| summary.measure(black_box(&budgets)).unwrap());
        });
        let exact = Operators::new(&gpu, &tenants, 1).unwrap();
        criterion.bench_function(&format!("evaluation, operators, {count} tenants"), |bencher| {
            bencher.iter(|| exact.evaluate(DeviceSharing::Budgets(black_box(&budgets))).unwrap());
        });
    }
    let mut slow = criterion.benchmark_group("operators");
    slow.sample_size(10);
    for count in [2, 3] {
        let tenants = tenants(count);
        slow.bench_function(format!("thorough search, {count} tenants"), |bencher| {
            bencher.iter(|| {
                let mut exact = Operators::new(&gpu, black_box(&tenants), 1).unwrap();
                allocate(&mut exact, &goal(count), Effort::THOROUGH).unwrap()
            });
        });
    }
}

criterion_group!(benches, mixes, device);
criterion_main!(benches);
