//! Random tenants, all vectors of a grid, and their objective values, for the tests of the allocator and the
//! figures of docs/device.md.
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    dead_code,
    reason = "shared by tests, benchmarks and examples that may panic, of which not all need everything"
)]

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tandem_core::Ppm;
use tandem_models::device::{DeviceTenant, Goal, Guarantee, Objective, Operator, OperatorKind};

const STEPS: [u32; 8] = [100_000, 200_000, 300_000, 400_000, 500_000, 600_000, 800_000, 1_000_000];

/// A tenant of 5 to 60 operators, from narrow and quick to wide and slow.
fn random_tenant(rng: &mut ChaCha8Rng, index: usize) -> DeviceTenant {
    let (wide, long) = (rng.random_range(2.0..5.5_f64), rng.random_range(2.0..5.0_f64));
    let operators = (0..rng.random_range(5..60))
        .map(|_| Operator {
            sms: (wide + rng.random_range(-1.5..1.5_f64)).exp().ceil(),
            duration_ns: (long + rng.random_range(-1.0..1.0_f64)).exp() * 1e3,
            kind: [OperatorKind::Compute, OperatorKind::Memory, OperatorKind::Unknown]
                [rng.random_range(0..3)],
        })
        .collect();
    let mut tenant = DeviceTenant::new(&format!("tenant {index}"), operators).unwrap();
    tenant.launch_ns = [2e3, 1e4, 2.8e4][rng.random_range(0..3)];
    tenant.host_ns = rng.random_range(1e4..5e5);
    tenant
}

/// Tenants of a seed.
pub fn random_tenants(seed: u64, count: usize) -> Vec<DeviceTenant> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|index| random_tenant(&mut rng, index)).collect()
}

/// No guarantees.
pub fn goal(objective: Objective, tenants: usize) -> Goal {
    let guarantee = Guarantee { weight: 1.0, floor: 0.0, p99_ns: None };
    Goal { objective, guarantees: vec![guarantee; tenants] }
}

/// All vectors of steps.
pub fn grid(tenants: usize) -> Vec<Vec<Ppm>> {
    let mut vectors = vec![Vec::new()];
    for _ in 0..tenants {
        vectors = vectors
            .iter()
            .flat_map(|vector: &Vec<Ppm>| {
                STEPS.map(|step| [vector.as_slice(), &[Ppm(step)]].concat())
            })
            .collect();
    }
    vectors
}

/// The compared value: the sum of speeds, or their geometric mean.
pub fn score(objective: Objective, goal: &Goal, y: &[f64]) -> f64 {
    match objective {
        Objective::Stp => goal.value(y),
        Objective::Nash => (goal.value(y) / y.len() as f64).exp(),
    }
}
