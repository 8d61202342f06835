//! The linear program of Gavel.

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};

/// What total throughput counts beside the least one.
const THROUGHPUT_WEIGHT: f64 = 1e-3;

/// A job or a pair that runs on the same GPUs.
pub(super) struct Combination {
    /// GPU types by position, and the number of GPUs of each.
    pub(super) gpus: Vec<(usize, f64)>,
    /// Jobs by position, and their rates on these GPUs.
    pub(super) members: Vec<(usize, f64)>,
}

/// Fractions of time for combinations such that every job runs at most all the time and the GPUs suffice.
pub(super) struct Program {
    /// GPUs of each type.
    pub(super) capacities: Vec<f64>,
    /// What a job's throughput counts, by position.
    pub(super) values: Vec<f64>,
    /// Maximise the least value × throughput instead of their sum.
    pub(super) maximises_least: bool,
    pub(super) combinations: Vec<Combination>,
}

impl Program {
    /// The fraction of each combination; all zero if the solver fails, which leaves the round to the order of
    /// submission.
    pub(super) fn solve(&self) -> Vec<f64> {
        let mut problem = Problem::new(OptimizationDirection::Maximize);
        let scale = self.values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let value = |job: usize| self.values[job] / scale;
        let small = THROUGHPUT_WEIGHT / self.values.len().max(1) as f64;
        let weight = if self.maximises_least { small } else { 1.0 };
        let add = |combination: &Combination| {
            let gain: f64 = combination.members.iter().map(|&(job, rate)| value(job) * rate).sum();
            problem.add_var(gain * weight, (0.0, 1.0))
        };
        let fractions: Vec<Variable> = self.combinations.iter().map(add).collect();
        let mut of_job: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); self.values.len()];
        for (combination, &fraction) in self.combinations.iter().zip(&fractions) {
            for &(job, rate) in &combination.members {
                of_job[job].push((fraction, rate));
            }
        }
        for (kind, &capacity) in self.capacities.iter().enumerate() {
            let combinations = self.combinations.iter().zip(&fractions);
            let gpus: Vec<(Variable, f64)> = combinations
                .flat_map(|(combination, &fraction)| {
                    let of_kind = combination.gpus.iter().filter(move |(of, _)| *of == kind);
                    of_kind.map(move |&(_, gpus)| (fraction, gpus))
                })
                .collect();
            problem.add_constraint(gpus, ComparisonOp::Le, capacity);
        }
        for terms in &of_job {
            let time: Vec<(Variable, f64)> = terms.iter().map(|&(term, _)| (term, 1.0)).collect();
            problem.add_constraint(time, ComparisonOp::Le, 1.0);
        }
        if self.maximises_least {
            let least = problem.add_var(1.0, (0.0, f64::INFINITY));
            for (job, terms) in of_job.iter().enumerate() {
                let mut row: Vec<(Variable, f64)> =
                    terms.iter().map(|&(term, rate)| (term, rate * value(job))).collect();
                row.push((least, -1.0));
                problem.add_constraint(row, ComparisonOp::Ge, 0.0);
            }
        }
        match problem.solve().ok().and_then(|outcome| outcome.into_solution().ok()) {
            Some(solution) => fractions.iter().map(|&term| solution.var_value(term)).collect(),
            None => vec![0.0; fractions.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(job: usize, gpus: f64) -> Combination {
        Combination { gpus: vec![(0, gpus)], members: vec![(job, 1.0)] }
    }

    fn close(one: &[f64], other: &[f64]) -> bool {
        one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6)
    }

    #[test]
    fn max_min_fairness_divides_the_time_equally() {
        let combinations = vec![alone(0, 1.0), alone(1, 1.0)];
        let program = Program {
            capacities: vec![1.0],
            values: vec![1.0; 2],
            maximises_least: true,
            combinations,
        };
        assert!(close(&program.solve(), &[0.5, 0.5]));
    }

    #[test]
    fn a_pair_is_preferred_if_both_get_more_than_half() {
        let pair = Combination { gpus: vec![(0, 1.0)], members: vec![(0, 0.8), (1, 0.7)] };
        let combinations = vec![alone(0, 1.0), alone(1, 1.0), pair];
        let program = Program {
            capacities: vec![1.0],
            values: vec![1.0; 2],
            maximises_least: true,
            combinations,
        };
        // Pair x, second job alone y: 0.8 x = 0.7 x + y and x + y = 1, so x = 10/11.
        assert!(close(&program.solve(), &[0.0, 1.0 / 11.0, 10.0 / 11.0]));
    }

    #[test]
    fn the_sum_goes_to_the_most_valuable_job_for_its_gpus() {
        let combinations = vec![alone(0, 4.0), alone(1, 1.0)];
        let program = Program {
            capacities: vec![4.0],
            values: vec![1.0, 0.5],
            maximises_least: false,
            combinations,
        };
        assert!(close(&program.solve(), &[0.75, 1.0]));
    }

    #[test]
    fn both_jobs_get_the_fast_gpu_for_half_of_the_time() {
        // A GPU of full and one of half speed; jobs by position, on each.
        let on = |job: usize, kind: usize, rate: f64| Combination {
            gpus: vec![(kind, 1.0)],
            members: vec![(job, rate)],
        };
        let combinations = vec![on(0, 0, 1.0), on(0, 1, 0.5), on(1, 0, 1.0), on(1, 1, 0.5)];
        let (values, capacities) = (vec![1.0; 2], vec![1.0; 2]);
        let program = Program { capacities, values, maximises_least: true, combinations };
        assert!(close(&program.solve(), &[0.5; 4]));
        // The more valuable job has it all the time.
        let program = Program { values: vec![0.5, 1.0], maximises_least: false, ..program };
        assert!(close(&program.solve(), &[0.0, 1.0, 1.0, 0.0]));
    }
}
