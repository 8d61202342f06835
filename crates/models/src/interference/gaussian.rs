//! A Gaussian process over ordered pairs of classes, for rates of `a` beside `b`:
//!
//! rate(a | b) = mean + f(a, b) + sensitivity of a, as it varies with b + pressure of b, as it varies
//! with a + noise
//!
//! f is smooth in the solo features of both; sensitivity and pressure belong to a class and, in part, to its
//! model. All terms are products of a kernel between subjects and one between partners. The process therefore
//! lives on the grid of classes × classes, and products with its covariance cost C³ instead of the C⁴ of one
//! row per pair.

use super::profile::FEATURES;
use crate::linalg::{Inverse, Square, conjugate_gradients};
use serde::{Deserialize, Serialize};

/// Length scales of the features, and the variance of each term as a share of the variance of all rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Scales {
    /// Factors on the length scales of the subject's features, the partner's, and those in sensitivity and
    /// pressure.
    pub(super) reach: [f64; 3],
    /// Variance of f, of its terms that depend on the subject and on the partner alone, of a class's own
    /// sensitivity and pressure, of its model's, and of the noise.
    pub(super) variance: [f64; 6],
}

/// Length scale of each feature in standard deviations, in the order of `ClassProfile::features`. The
/// sensitivity of a job depends on fine differences in its utilisation; its pressure is a smooth function.
const REACH: [[f64; FEATURES]; 3] = [
    [0.5, 0.5, 2.5, 4.0, 1.0, 1.5],
    [3.0, 3.0, 3.0, 3.0, 2.0, 3.0],
    [2.0, 2.0, 8.0, 1.0, 2.0, 8.0],
];

impl Scales {
    /// For classes with a solo profile only: small variance of single classes.
    pub(super) const UNSEEN: Scales =
        Scales { reach: [1.0, 1.0, 1.0], variance: [0.5, 0.5, 0.05, 0.03, 0.03, 0.06] };

    /// For classes that were measured beside others: the starting point of tuning.
    const FAMILIAR: Scales =
        Scales { reach: [1.0, 1.0, 1.0], variance: [0.5, 0.5, 0.05, 0.1, 0.1, 0.06] };

    const COUNT: usize = 9;

    /// The same with one of its numbers multiplied.
    fn scaled(mut self, which: usize, factor: f64) -> Self {
        match which.checked_sub(3) {
            None => self.reach[which] *= factor,
            Some(which) => self.variance[which] *= factor,
        }
        self
    }
}

/// A class in the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Point {
    pub(super) features: [f64; FEATURES],
    pub(super) model: String,
}

/// Similarity of two classes in a role with this factor on the length scale, 0 to 1.
fn closeness(role: usize, stretch: f64, one: &Point, other: &Point) -> f64 {
    let reach = REACH[role].map(|reach| reach * stretch);
    let square = |feature: usize| {
        let distance = one.features[feature] - other.features[feature];
        (distance / reach[feature]).powi(2)
    };
    (-0.5 * (0..FEATURES).map(square).sum::<f64>()).exp()
}

/// Similarity of two classes to a third that runs beside them, 0 to 1.
pub(super) fn likeness(one: &Point, other: &Point) -> f64 {
    closeness(2, 1.0, one, other)
}

/// Covariances between one class and all classes of the table, in each of its roles.
struct Near {
    subject: Vec<f64>,
    partner: Vec<f64>,
    effect: Vec<f64>,
    /// Covariance of the effects of the two classes.
    kin: Vec<f64>,
}

impl Near {
    /// `known` is the position of the class itself in the table.
    fn new(scales: &Scales, points: &[Point], point: &Point, known: Option<usize>) -> Self {
        let [_, _, _, class, model, _] = scales.variance;
        let near = |role: usize| {
            let closeness = |other: &Point| closeness(role, scales.reach[role], point, other);
            points.iter().map(closeness).collect()
        };
        let kin = |(at, other): (usize, &Point)| {
            let of_class = if known == Some(at) { class } else { 0.0 };
            of_class + if other.model == point.model { model } else { 0.0 }
        };
        Self {
            subject: near(0),
            partner: near(1),
            effect: near(2),
            kin: points.iter().enumerate().map(kin).collect(),
        }
    }
}

/// The covariance of all pairs of classes of a table.
struct Covariance {
    scales: Scales,
    subject: Square,
    partner: Square,
    effect: Square,
    kin: Square,
}

impl Covariance {
    fn new(scales: &Scales, points: &[Point]) -> Self {
        let near: Vec<Near> = points
            .iter()
            .enumerate()
            .map(|(at, point)| Near::new(scales, points, point, Some(at)))
            .collect();
        let square = |values: fn(&Near) -> &[f64]| {
            Square::from_fn(points.len(), |row, column| values(&near[row])[column])
        };
        Self {
            scales: *scales,
            subject: square(|near| &near.subject),
            partner: square(|near| &near.partner),
            effect: square(|near| &near.effect),
            kin: square(|near| &near.kin),
        }
    }

    /// Covariance of the rates of two ordered pairs, without noise.
    fn at(&self, (a, b): (usize, usize), (c, d): (usize, usize)) -> f64 {
        let [both, subject, partner, ..] = self.scales.variance;
        let (of_subject, of_partner) = (self.subject.row(a)[c], self.partner.row(b)[d]);
        both * of_subject * of_partner
            + subject * of_subject
            + partner * of_partner
            + self.kin.row(a)[c] * self.effect.row(b)[d]
            + self.effect.row(a)[c] * self.kin.row(b)[d]
    }

    /// The covariance times a vector on the grid.
    fn times(&self, grid: &Square) -> Square {
        let [both, subject, partner, ..] = self.scales.variance;
        let mut inner = Square::zeros(grid.size);
        let beside = grid.times(&self.partner);
        inner.add(both, &beside);
        for row in 0..grid.size {
            let sum = subject * grid.row(row).iter().sum::<f64>();
            inner.row_mut(row).iter_mut().for_each(|value| *value += sum);
        }
        let mut product = self.subject.times(&inner);
        for column in 0..grid.size {
            let sum: f64 = (0..grid.size).map(|row| beside.row(row)[column]).sum();
            (0..grid.size).for_each(|row| product.row_mut(row)[column] += partner * sum);
        }
        product.add(1.0, &self.kin.times(&grid.times(&self.effect)));
        product.add(1.0, &self.effect.times(&grid.times(&self.kin)));
        product
    }

    /// The weights that, multiplied by the covariance, give the posterior mean after `rates`: one weight per
    /// ordered pair of classes.
    fn weights(&self, rates: &[Rate], tolerance: f64) -> Square {
        let size = self.kin.size;
        let (mut sums, mut counts) = (Square::zeros(size), Square::zeros(size));
        for rate in rates {
            sums.row_mut(rate.a)[rate.b] += rate.value;
            counts.row_mut(rate.a)[rate.b] += 1.0;
        }
        let noise = self.scales.variance[5];
        let seen: Vec<usize> = (0..size * size).filter(|&at| counts.values[at] > 0.0).collect();
        let means: Vec<f64> = seen.iter().map(|&at| sums.values[at] / counts.values[at]).collect();
        let weights = conjugate_gradients(&means, tolerance, 400, |vector| {
            let mut grid = Square::zeros(size);
            seen.iter().zip(vector).for_each(|(&at, &value)| grid.values[at] = value);
            let image = self.times(&grid);
            let with_noise = |(&at, &value): (&usize, &f64)| {
                image.values[at] + noise / counts.values[at] * value
            };
            seen.iter().zip(vector).map(with_noise).collect()
        });
        let mut grid = Square::zeros(size);
        seen.iter().zip(weights).for_each(|(&at, weight)| grid.values[at] = weight);
        grid
    }
}

/// A directed rate: of `a` beside `b`, standardised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) value: f64,
}

/// A process conditioned on measured rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Process {
    scales: Scales,
    /// One weight per ordered pair of classes, row by row.
    weights: Vec<f64>,
}

impl Process {
    pub(super) fn fit(scales: Scales, points: &[Point], rates: &[Rate]) -> Self {
        let covariance = Covariance::new(&scales, points);
        Self { scales, weights: covariance.weights(rates, 1e-6).values }
    }

    /// Posterior mean of the standardised rate of one class beside another; each may be in the table.
    pub(super) fn predict(
        &self,
        points: &[Point],
        (a, known_a): (&Point, Option<usize>),
        (b, known_b): (&Point, Option<usize>),
    ) -> f64 {
        let [both, subject, partner, ..] = self.scales.variance;
        let near_a = Near::new(&self.scales, points, a, known_a);
        let near_b = Near::new(&self.scales, points, b, known_b);
        let mut sum = 0.0;
        for (at, weights) in self.weights.chunks(points.len()).enumerate() {
            let of_subject = near_a.subject[at];
            for (&weight, other) in weights.iter().zip(0..) {
                let of_partner = near_b.partner[other];
                sum += weight
                    * (both * of_subject * of_partner
                        + subject * of_subject
                        + partner * of_partner
                        + near_a.kin[at] * near_b.effect[other]
                        + near_a.effect[at] * near_b.kin[other]);
            }
        }
        sum
    }
}

/// Leave-group-out errors: the prediction of each rate without the rates of its group, minus its value.
/// Groups are lists of positions in `rates`; `None` if the scales give no valid process.
pub(super) fn held_out_errors(
    scales: &Scales,
    points: &[Point],
    rates: &[Rate],
    groups: &[Vec<usize>],
) -> Option<Vec<Vec<f64>>> {
    let covariance = Covariance::new(scales, points);
    let noise = scales.variance[5];
    let matrix = Square::from_fn(rates.len(), |row, column| {
        let (one, other) = (&rates[row], &rates[column]);
        let noise = if row == column { noise } else { 0.0 };
        covariance.at((one.a, one.b), (other.a, other.b)) + noise
    });
    let inverse = Inverse::of(&matrix)?;
    let values: Vec<f64> = rates.iter().map(|rate| rate.value).collect();
    let weights = inverse.times(&values);
    // Value minus prediction without the group is [K⁻¹]_gg⁻¹ · [K⁻¹·y]_g.
    let errors_of = |group: &Vec<usize>| {
        let block =
            Square::from_fn(group.len(), |row, column| inverse.at(group[row], group[column]));
        let own: Vec<f64> = group.iter().map(|&at| weights[at]).collect();
        Some(Inverse::of(&block)?.times(&own).iter().map(|error| -error).collect())
    };
    groups.iter().map(errors_of).collect()
}

/// For each group of classes, leave-group-out errors of the rates between one of them and another class:
/// positions in `rates`, and errors. Groups with nearly all rates are skipped.
pub(super) fn errors_on_unseen(
    scales: &Scales,
    points: &[Point],
    rates: &[Rate],
    group_of: &[usize],
) -> Vec<Vec<(usize, f64)>> {
    /// More rates than this share give much larger errors.
    const TOLERANCE: f64 = 1e-3;
    let covariance = Covariance::new(scales, points);
    let groups = group_of.iter().max().map_or(0, |last| last + 1);
    let errors = |group: usize| {
        let is_of = |class: usize| group_of[class] == group;
        let shown: Vec<Rate> =
            rates.iter().filter(|rate| !is_of(rate.a) && !is_of(rate.b)).copied().collect();
        if shown.len() * 10 < rates.len() * 2 {
            return Vec::new();
        }
        let expected = covariance.times(&covariance.weights(&shown, TOLERANCE));
        let asked = rates.iter().enumerate().filter(|(_, rate)| is_of(rate.a) != is_of(rate.b));
        asked.map(|(at, rate)| (at, expected.row(rate.a)[rate.b] - rate.value)).collect()
    };
    (0..groups).map(errors).collect()
}

/// The scales with the smallest leave-one-out error, by coordinate descent in a fixed order.
pub(super) fn tune(points: &[Point], rates: &[Rate], pairs: &[Vec<usize>]) -> Scales {
    const ROUNDS: usize = 3;
    let loss = |scales: &Scales| {
        let errors = held_out_errors(scales, points, rates, pairs)?;
        Some(errors.iter().flatten().map(|error| error.abs()).sum::<f64>())
    };
    let mut best = Scales::FAMILIAR;
    let Some(mut least) = loss(&best) else { return best };
    let mut steps = [2.0_f64; Scales::COUNT];
    for _ in 0..ROUNDS {
        for (which, step) in steps.iter_mut().enumerate() {
            let tried = [*step, 1.0 / *step].map(|factor| (factor, best.scaled(which, factor)));
            let better = tried.into_iter().find_map(|(factor, scales)| {
                loss(&scales).filter(|&loss| loss < least).map(|loss| (factor, scales, loss))
            });
            match better {
                Some((factor, scales, loss)) => {
                    (best, least) = (scales, loss);
                    *step = factor.powf(1.5);
                }
                None => *step = step.sqrt(),
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        let point = |n: usize| Point {
            features: std::array::from_fn(|feature| ((n * (feature + 3)) % 5) as f64 / 2.0 - 1.0),
            model: format!("m{}", n / 2),
        };
        (0..6).map(point).collect()
    }

    fn rates() -> Vec<Rate> {
        let all = (0..6).flat_map(|a| (0..6).map(move |b| (a, b)));
        let seen = all.filter(|(a, b)| (a * 7 + b * 3) % 4 != 0);
        seen.map(|(a, b)| Rate { a, b, value: (a as f64 - b as f64) / 3.0 }).collect()
    }

    #[test]
    fn the_grid_and_the_dense_process_agree() {
        let (points, rates) = (points(), rates());
        let held_out = 5;
        let rest: Vec<Rate> =
            rates.iter().enumerate().filter(|(at, _)| *at != held_out).map(|(_, r)| *r).collect();
        let process = Process::fit(Scales::UNSEEN, &points, &rest);
        let Rate { a, b, value } = rates[held_out];
        let predicted = process.predict(&points, (&points[a], Some(a)), (&points[b], Some(b)));
        let errors = held_out_errors(&Scales::UNSEEN, &points, &rates, &[vec![held_out]]).unwrap();
        assert!((predicted - value - errors[0][0]).abs() < 1e-4);
    }

    #[test]
    fn unseen_classes_are_predicted_as_if_their_group_had_been_held_out() {
        let (points, rates) = (points(), rates());
        let group_of = [0, 0, 1, 1, 2, 2];
        let found = errors_on_unseen(&Scales::UNSEEN, &points, &rates, &group_of);
        assert_eq!(found.len(), 3);
        for (group, found) in found.iter().enumerate() {
            let is_of = |class: usize| group_of[class] == group;
            let held_out: Vec<usize> =
                (0..rates.len()).filter(|&at| is_of(rates[at].a) || is_of(rates[at].b)).collect();
            let exact =
                held_out_errors(&Scales::UNSEEN, &points, &rates, std::slice::from_ref(&held_out))
                    .unwrap();
            assert!(!found.is_empty());
            for &(at, error) in found {
                let place = held_out.iter().position(|&held_out| held_out == at).unwrap();
                assert!((error - exact[0][place]).abs() < 0.01, "{error} {}", exact[0][place]);
            }
        }
    }

    #[test]
    fn tuning_never_makes_the_held_out_error_larger() {
        let (points, rates) = (points(), rates());
        let groups: Vec<Vec<usize>> = (0..rates.len()).map(|at| vec![at]).collect();
        let loss = |scales: &Scales| {
            let errors = held_out_errors(scales, &points, &rates, &groups).unwrap();
            errors.iter().flatten().map(|error| error.abs()).sum::<f64>()
        };
        assert!(loss(&tune(&points, &rates, &groups)) < loss(&Scales::FAMILIAR));
    }
}
