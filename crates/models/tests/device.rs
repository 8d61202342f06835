//! The allocator against exhaustive search, and the summary against the event-driven evaluation, on random
//! tenants. Failure messages name the seed.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod cases;

use cases::{goal, grid, random_tenants, score};
use tandem_core::Ppm;
use tandem_models::device::{
    BudgetAllocation, BudgetEvaluator, DeviceGpu, DeviceSharing, DeviceTenant, Effort, Measurement,
    Mode, Objective, Operators, Summary, Unallocated, allocate, compare, decide,
};

/// Relative loss of the allocator against the best vector of the grid.
fn behind<T: BudgetEvaluator>(mut source: T, objective: Objective, effort: Effort) -> f64
where
    T::Error: std::fmt::Debug,
{
    let tenants = source.tenants();
    let goal = goal(objective, tenants);
    let BudgetAllocation { measured, .. } = allocate(&mut source, &goal, effort).unwrap();
    let found = score(objective, &goal, &measured.y);
    let scores = grid(tenants)
        .into_iter()
        .map(|budgets| score(objective, &goal, &source.measure(&budgets).unwrap().y));
    1.0 - found / scores.fold(0.0, f64::max)
}

/// Grid search over `seeds` with both objectives; no vector may be more than 1 % better.
fn nothing_ahead(
    seeds: std::ops::Range<u64>,
    count: usize,
    behind_best: impl Fn(&[DeviceTenant], Objective) -> f64,
) {
    for seed in seeds {
        let tenants = random_tenants(seed, count);
        for objective in [Objective::Nash, Objective::Stp] {
            let behind = behind_best(&tenants, objective);
            assert!(behind < 0.01, "seed {seed}, {count} tenants, {objective:?}: {behind}");
        }
    }
}

#[test]
fn found_from_operators_is_within_a_percent_of_exhaustive_search() {
    let gpu = DeviceGpu::known("v100").unwrap();
    let behind_best = |tenants: &[DeviceTenant], objective| {
        behind(Operators::new(&gpu, tenants, 1).unwrap(), objective, Effort::THOROUGH)
    };
    nothing_ahead(0..8, 2, behind_best);
    nothing_ahead(0..2, 3, behind_best);
}

#[test]
fn decided_is_within_a_percent_of_exhaustive_search_with_operators() {
    let gpu = DeviceGpu::known("v100").unwrap();
    for (seeds, count) in [(0..40, 2), (0..16, 3)] {
        for seed in seeds {
            let tenants = random_tenants(seed, count);
            let mut device = Operators::new(&gpu, &tenants, 1).unwrap();
            let all: Vec<Vec<f64>> =
                grid(count).iter().map(|budgets| device.measure(budgets).unwrap().y).collect();
            for objective in [Objective::Nash, Objective::Stp] {
                let goal = goal(objective, count);
                let decision = decide(&mut device, &goal).unwrap();
                let found = device.measure(&decision.budgets).unwrap().y;
                let best = all.iter().map(|y| score(objective, &goal, y)).fold(0.0, f64::max);
                let behind = 1.0 - score(objective, &goal, &found) / best;
                assert!(behind < 0.01, "seed {seed}, {count} tenants, {objective:?}: {behind}");
            }
        }
    }
}

#[test]
fn a_search_is_never_below_a_fixed_mode_and_a_decision_hardly_ever() {
    let gpu = DeviceGpu::known("v100").unwrap();
    for (seed, count) in (0..24).flat_map(|seed| [2, 3, 4, 5, 8].map(|count| (300 + seed, count))) {
        let tenants = random_tenants(seed, count);
        let mut device = Operators::new(&gpu, &tenants, 1).unwrap();
        for objective in [Objective::Nash, Objective::Stp] {
            let goal = goal(objective, count);
            let mut reached = |mode: &Mode| {
                score(objective, &goal, &compare(&mut device, mode, &goal).unwrap().measured.y)
            };
            let fixed = [Mode::Equal, Mode::Double, Mode::Uncapped].map(|mode| reached(&mode));
            let best = fixed.into_iter().fold(0.0, f64::max);
            let case = format!("seed {seed}, {count} tenants, {objective:?}");
            assert!(reached(&Mode::Search) >= best, "{case}");
            let decision = decide(&mut device, &goal).unwrap();
            let decided = score(objective, &goal, &device.measure(&decision.budgets).unwrap().y);
            assert!(decided >= 0.997 * best, "{case}: {decided} and {best}");
        }
    }
}

#[test]
fn decisions_keep_promises_and_repeat_themselves() {
    let gpu = DeviceGpu::known("v100").unwrap();
    let (mut kept, mut refused) = (0, 0);
    for seed in 0..24 {
        let tenants = random_tenants(seed, 2 + seed as usize % 2);
        let mut wanted = goal(Objective::Stp, tenants.len());
        wanted.guarantees[0].floor = [0.5, 0.7, 0.9, 0.99][seed as usize / 2 % 4];
        let mut device = Operators::new(&gpu, &tenants, 1).unwrap();
        match decide(&mut device, &wanted) {
            Ok(decision) => {
                let measured = device.evaluate(DeviceSharing::Budgets(&decision.budgets)).unwrap();
                assert!(wanted.failing(&measured).is_empty(), "seed {seed}: {measured:?}");
                assert_eq!(decide(&mut device, &wanted), Ok(decision), "seed {seed}");
                kept += 1;
            }
            // Nothing is refused that a thorough search could satisfy.
            Err(Unallocated::Guarantees { tenants, .. }) => {
                assert_eq!(tenants, [0], "seed {seed}");
                assert!(allocate(&mut device, &wanted, Effort::THOROUGH).is_err(), "seed {seed}");
                refused += 1;
            }
            Err(other) => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
}

#[test]
fn found_from_summaries_is_within_a_percent_of_exhaustive_search() {
    let gpu = DeviceGpu::known("v100").unwrap();
    let behind_best = |tenants: &[DeviceTenant], objective| {
        behind(Summary::new(&gpu, tenants).unwrap(), objective, Effort::QUICK)
    };
    nothing_ahead(0..40, 2, behind_best);
    nothing_ahead(0..40, 3, behind_best);
}

#[test]
fn summaries_come_near_the_operators_and_so_do_the_budgets_found_with_them() {
    let gpu = DeviceGpu::known("v100").unwrap();
    let (mut errors, mut losses) = (Vec::new(), Vec::new());
    for seed in 100..106 {
        let tenants = random_tenants(seed, 3);
        let mut exact = Operators::new(&gpu, &tenants, 1).unwrap();
        let mut summary = Summary::new(&gpu, &tenants).unwrap();
        for budget in [333_333, 666_667, 1_000_000] {
            let budgets = [Ppm(budget); 3];
            let (found, truth) =
                (summary.measure(&budgets).unwrap(), exact.measure(&budgets).unwrap());
            errors.push((found.stp() / truth.stp() - 1.0).abs());
        }
        let goal = goal(Objective::Nash, 3);
        let quick = allocate(&mut summary, &goal, Effort::QUICK).unwrap();
        let thorough = allocate(&mut exact, &goal, Effort::THOROUGH).unwrap();
        let achieved = exact.measure(&quick.budgets).unwrap();
        losses.push(
            1.0 - score(Objective::Nash, &goal, &achieved.y)
                / score(Objective::Nash, &goal, &thorough.measured.y),
        );
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    assert!(mean(&errors) < 0.10, "{errors:?}");
    assert!(mean(&losses) < 0.03, "{losses:?}");
}

#[test]
fn alone_every_evaluation_gives_one_and_repeats_itself() {
    let gpu = DeviceGpu::known("a100").unwrap();
    for seed in 0..20 {
        let tenants = random_tenants(seed, 1);
        let mut exact = Operators::new(&gpu, &tenants, 1).unwrap();
        let mut summary = Summary::new(&gpu, &tenants).unwrap();
        assert_eq!(exact.measure(&[Ppm::ONE]).unwrap().y, [1.0], "seed {seed}");
        assert!((summary.measure(&[Ppm::ONE]).unwrap().y[0] - 1.0).abs() < 1e-9, "seed {seed}");
    }
    let tenants = random_tenants(3, 3);
    let search = || {
        let mut exact = Operators::new(&gpu, &tenants, 1).unwrap();
        allocate(&mut exact, &goal(Objective::Nash, 3), Effort::LIVE).unwrap()
    };
    assert_eq!(search(), search());
}

/// A GPU with y = v, less what the others take beyond the whole.
struct Live {
    tenants: usize,
    /// Added to every second window.
    wobble: f64,
    asked: usize,
}

impl BudgetEvaluator for Live {
    type Error = ();

    fn tenants(&self) -> usize {
        self.tenants
    }

    fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, ()> {
        self.asked += 1;
        let v: Vec<f64> = budgets.iter().map(|budget| f64::from(budget.0) / 1e6).collect();
        let over = (v.iter().sum::<f64>() - 1.0).max(0.0);
        let y: Vec<f64> = v.iter().map(|v| v / (1.0 + over)).collect();
        let window = |sign: f64| y.iter().map(|y| y * (1.0 + sign * self.wobble)).collect();
        let parts = vec![window(1.0), window(-1.0)];
        Ok(Measurement { parts, y, ..Measurement::default() })
    }
}

#[test]
fn guarantees_are_kept_or_reported() {
    let mut live = Live { tenants: 2, wobble: 0.0, asked: 0 };
    let mut wanted = goal(Objective::Nash, 2);
    wanted.guarantees[1].floor = 0.8;
    let found = allocate(&mut live, &wanted, Effort::LIVE).unwrap();
    assert!(found.measured.y[1] >= 0.8, "{found:?}");
    assert!(found.measured.y[0] >= 0.099, "{found:?}");
    wanted.guarantees[0].floor = 0.5;
    match allocate(&mut live, &wanted, Effort::THOROUGH) {
        Err(Unallocated::Guarantees { tenants, .. }) => assert!(!tenants.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn weights_decide_who_gets_more() {
    let mut live = Live { tenants: 2, wobble: 0.0, asked: 0 };
    let mut wanted = goal(Objective::Nash, 2);
    wanted.guarantees[0].weight = 4.0;
    let found = allocate(&mut live, &wanted, Effort::LIVE).unwrap();
    assert!(found.measured.y[0] > 2.0 * found.measured.y[1], "{found:?}");
}

#[test]
fn equal_vectors_go_to_the_smaller_sum() {
    /// Budgets do not matter at all.
    struct Same;
    impl BudgetEvaluator for Same {
        type Error = ();
        fn tenants(&self) -> usize {
            3
        }
        fn measure(&mut self, _: &[Ppm]) -> Result<Measurement, ()> {
            Ok(Measurement { y: vec![0.5; 3], ..Measurement::default() })
        }
    }
    let found = allocate(&mut Same, &goal(Objective::Stp, 3), Effort::LIVE).unwrap();
    assert_eq!(found.budgets, [Ppm(100_000); 3]);
}

#[test]
fn gains_within_the_noise_are_not_followed_and_measurements_are_not_repeated() {
    /// A larger first budget seems slightly better, differently in each window.
    struct Noisy(usize);
    impl BudgetEvaluator for Noisy {
        type Error = ();
        fn tenants(&self) -> usize {
            2
        }
        fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, ()> {
            self.0 += 1;
            let seems = f64::from(budgets[0].0) / 1e6 * 0.01;
            let parts = vec![vec![0.5 + 3.0 * seems, 0.5], vec![0.5 - seems, 0.5]];
            Ok(Measurement { y: vec![0.5 + seems, 0.5], parts, ..Measurement::default() })
        }
    }
    let mut noisy = Noisy(0);
    let found = allocate(&mut noisy, &goal(Objective::Stp, 2), Effort::LIVE).unwrap();
    assert_eq!(found.budgets, [Ppm::ONE, Ppm(100_000)], "a start, and ties to the smaller sum");
    assert_eq!(found.evaluations, noisy.0);
    let mut live = Live { tenants: 8, wobble: 0.0, asked: 0 };
    let effort = Effort { starts: 9, evaluations: 37, best_seen: true };
    let found = allocate(&mut live, &goal(Objective::Nash, 8), effort).unwrap();
    assert!(found.evaluations <= 37 && live.asked == found.evaluations, "{found:?}");
}
