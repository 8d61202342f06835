//! The figures of docs/device.md on random tenants: how good decisions and thorough searches are by the
//! operators, and how good the summary is. Takes minutes.
//!
//! `cargo run --release -p tandem-models --example device_figures [FROM TO [TENANTS]]`
//!
//! With seeds FROM to TO, decisions only, against exhaustive search, for TENANTS (2 or 3) or both.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints, and stops where anything is wrong"
)]

#[path = "../tests/cases/mod.rs"]
mod cases;

use cases::{goal, grid, random_tenants, score};
use std::ops::Range;
use tandem_core::Ppm;
use tandem_models::device::{
    BudgetEvaluator, DeviceGpu, Effort, Objective, Operators, Summary, allocate, decide,
};

const SEEDS: Range<u64> = 200..216;
/// For decisions, which miss the limit of 1 % seldom.
const MANY_SEEDS: Range<u64> = 200..300;
/// From one start only.
const ONE_CLIMB: Effort = Effort { starts: 1, ..Effort::THOROUGH };

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn percent(values: &[f64]) -> String {
    format!("{:.2} % on average, {:.2} % at most", 100.0 * mean(values), 100.0 * most(values))
}

fn main() {
    let gpu = DeviceGpu::known("v100").unwrap();
    let args: Vec<u64> = std::env::args().skip(1).map(|arg| arg.parse().unwrap()).collect();
    if let [from, to, ref tenants @ ..] = args[..] {
        let counts = tenants.first().map_or(vec![2, 3], |&count| vec![count as usize]);
        counts.into_iter().for_each(|count| exhaustive(&gpu, count, from..to, 0..0));
        return;
    }
    for count in [2, 3] {
        exhaustive(&gpu, count, MANY_SEEDS, SEEDS);
    }
    for count in [2, 3, 5, 8] {
        summaries(&gpu, count);
    }
}

/// What is lost against the best vector of the grid; less than nothing is a gain.
fn exhaustive(gpu: &DeviceGpu, count: usize, seeds: Range<u64>, searched: Range<u64>) {
    let objectives = [Objective::Nash, Objective::Stp];
    let mut losses = vec![Vec::new(); 6];
    for seed in seeds {
        let tenants = random_tenants(seed, count);
        let mut exact = Operators::new(gpu, &tenants, 1).unwrap();
        let all: Vec<Vec<f64>> =
            grid(count).iter().map(|budgets| exact.measure(budgets).unwrap().y).collect();
        for (which, objective) in objectives.into_iter().enumerate() {
            let goal = goal(objective, count);
            let score = |y: &[f64]| score(objective, &goal, y);
            let best = most(&all.iter().map(|y| score(y)).collect::<Vec<f64>>());
            let mut found = vec![decide(&mut exact, &goal).unwrap().budgets];
            if searched.contains(&seed) {
                for effort in [Effort::THOROUGH, ONE_CLIMB] {
                    found.push(allocate(&mut exact, &goal, effort).unwrap().budgets);
                }
            }
            for (how, budgets) in found.iter().enumerate() {
                let found = score(&exact.measure(budgets).unwrap().y);
                losses[2 * how + which].push(1.0 - found / best);
            }
        }
    }
    for (how, name) in ["decision", "thorough search", "one climb"].into_iter().enumerate() {
        for (which, objective) in objectives.into_iter().enumerate() {
            let losses = &losses[2 * how + which];
            if losses.is_empty() {
                continue;
            }
            let beyond = losses.iter().filter(|loss| **loss > 0.01).count();
            println!(
                "{count} tenants, {objective:?}: {name} behind exhaustive search: {}, beyond 1 %: {beyond} of {}",
                percent(losses),
                losses.len()
            );
        }
    }
}

/// How far the summary is off, and what its budgets and decisions lose against climbs with operators.
fn summaries(gpu: &DeviceGpu, count: usize) {
    let (mut errors, mut uncapped) = (Vec::new(), Vec::new());
    let (mut by_summary, mut decided) = (Vec::new(), Vec::new());
    for seed in SEEDS {
        let tenants = random_tenants(seed, count);
        let mut exact = Operators::new(gpu, &tenants, 1).unwrap();
        let mut summary = Summary::new(gpu, &tenants).unwrap();
        let mut off = |budget: usize| {
            let budget = u32::try_from(budget.clamp(100_000, 1_000_000)).unwrap();
            let budgets = vec![Ppm(budget); count];
            let (found, truth) =
                (summary.measure(&budgets).unwrap(), exact.measure(&budgets).unwrap());
            (found.stp() / truth.stp() - 1.0).abs()
        };
        errors.extend([1, 2, 3].map(|times| off(times * 1_000_000 / count)));
        uncapped.push(off(1_000_000));
        let goal = goal(Objective::Nash, count);
        let effort = if count <= 3 { Effort::THOROUGH } else { ONE_CLIMB };
        let best = allocate(&mut exact, &goal, effort).unwrap();
        let best = score(Objective::Nash, &goal, &best.measured.y);
        let mut lost = |budgets: &[Ppm]| {
            1.0 - score(Objective::Nash, &goal, &exact.measure(budgets).unwrap().y) / best
        };
        by_summary.push(lost(&allocate(&mut summary, &goal, Effort::QUICK).unwrap().budgets));
        let decision = decide(&mut Operators::new(gpu, &tenants, 1).unwrap(), &goal).unwrap();
        decided.push(lost(&decision.budgets));
    }
    println!("{count} tenants: STP of the summary off by {}", percent(&errors));
    println!("{count} tenants: the same without caps {}", percent(&uncapped));
    println!("{count} tenants: its budgets lose {}", percent(&by_summary));
    println!("{count} tenants: decisions lose {}", percent(&decided));
}
