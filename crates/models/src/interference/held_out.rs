//! The structure of the predictor's errors on held-out rates.
//!
//! An error is the sum of an effect of the subject, one of the partner and one of the pair. The effect of a
//! class beside one class says something about its effect beside another: this is a covariance over the other
//! classes. It starts as a simple one, equal for all classes and larger for similar profiles, and is then
//! learned from the errors of the table's classes when each of them was held out.

use super::gaussian::{Point, Rate, likeness};
use crate::linalg::{Inverse, Square, dot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A held-out error, and whether each class of its pair was held out.
#[derive(Clone, Copy)]
pub(super) struct HeldOutError {
    pub(super) rate: Rate,
    pub(super) error: f64,
    pub(super) without_a: bool,
    pub(super) without_b: bool,
}

/// The other class of a pair, as the covariance needs it.
pub(super) struct Beside {
    /// Its similarity to each class of the table.
    likeness: Vec<f64>,
    /// Its position in the table, if any.
    known: Option<usize>,
    point: Point,
}

impl Beside {
    pub(super) fn new(points: &[Point], point: Point, known: Option<usize>) -> Self {
        let likeness = points.iter().map(|other| likeness(&point, other)).collect();
        Self { likeness, known, point }
    }
}

/// Covariance of the effect of a class beside one class and beside another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Effect {
    /// Common to all other classes.
    constant: f64,
    /// Common to similar other classes.
    varying: f64,
    /// Of one other class only.
    single: f64,
    /// What was learned from the table's classes: k + kᵀ·L·k, where k are the covariances of the above with
    /// each class of the table. L row by row; empty if nothing was learned.
    learned: Vec<f64>,
}

impl Effect {
    /// Covariance beside two classes, which may be the `same`.
    pub(super) fn covariance(&self, one: &Beside, other: &Beside, same: bool) -> f64 {
        let assumed = self.assumed(likeness(&one.point, &other.point), same);
        if self.learned.is_empty() {
            return assumed;
        }
        let [one, other] = [one, other].map(|beside| self.with_table(beside));
        let rows = self.learned.chunks(one.len());
        assumed + one.iter().zip(rows).map(|(value, row)| value * dot(row, &other)).sum::<f64>()
    }

    /// Variance beside a class.
    pub(super) fn variance(&self, beside: &Beside) -> f64 {
        self.covariance(beside, beside, true).max(LEAST)
    }

    fn assumed(&self, likeness: f64, same: bool) -> f64 {
        self.constant + self.varying * likeness + if same { self.single } else { 0.0 }
    }

    /// Covariances with each class of the table, before learning.
    fn with_table(&self, beside: &Beside) -> Vec<f64> {
        let of = |(at, &likeness)| self.assumed(likeness, beside.known == Some(at));
        beside.likeness.iter().enumerate().map(of).collect()
    }

    /// Learns from the held-out `errors` by expectation-maximisation, with `noise` variance besides. The
    /// prior counts as `ASSUMED` classes.
    fn learn(&mut self, points: &[Point], errors: &SharedPart, noise: f64) {
        const ASSUMED: f64 = 20.0;
        const ROUNDS: usize = 4;
        /// At most this many classes: the cost grows with their number, and more add little.
        const WITNESSES_MAX: usize = 64;
        let size = points.len();
        let before = Square::from_fn(size, |row, column| {
            self.assumed(likeness(&points[row], &points[column]), row == column)
        });
        let every = errors.by_class.len().div_ceil(WITNESSES_MAX).max(1);
        let witnesses: Vec<Witness> =
            errors.by_class.values().step_by(every).map(Witness::new).collect();
        let count = witnesses.len() as f64;
        let mut learned = Square::zeros(size);
        for _ in 0..ROUNDS {
            // K = B + B·L·B = B·(1 + L·B); each round adds a term of the form K·news·K.
            let mut turn = learned.times(&before);
            (0..size).for_each(|at| turn.row_mut(at)[at] += 1.0);
            let covariance = before.times(&turn);
            let mut news = Square::zeros(size);
            for witness in &witnesses {
                witness.tell(&covariance, noise, &mut news);
            }
            let mut next = turn.times(&news).times(&turn.transposed());
            next.add(count, &learned);
            next.scale(1.0 / (ASSUMED + count));
            learned = next;
        }
        self.learned = learned.values;
    }
}

/// Errors of one class beside others.
struct Witness {
    beside: Vec<usize>,
    errors: Vec<f64>,
}

impl Witness {
    /// Several errors beside the same class count as their mean.
    fn new(errors: &Vec<(usize, f64)>) -> Self {
        let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
        for &(beside, error) in errors {
            let (sum, count) = sums.entry(beside).or_default();
            *sum += error;
            *count += 1.0;
        }
        let errors = sums.values().map(|(sum, count)| sum / count).collect();
        Self { beside: sums.into_keys().collect(), errors }
    }

    /// With W the inverse of the covariance of the observations, W·y·yᵀ·W − W: the difference between the
    /// posterior second moment of the effect and `covariance`.
    fn tell(&self, covariance: &Square, noise: f64, news: &mut Square) {
        let shown = Square::from_fn(self.beside.len(), |row, column| {
            let noise = if row == column { noise } else { 0.0 };
            covariance.row(self.beside[row])[self.beside[column]] + noise
        });
        let Some(inverse) = Inverse::of(&shown) else { return };
        let weights = inverse.times(&self.errors);
        for (row, &one) in self.beside.iter().enumerate() {
            for (column, &other) in self.beside.iter().enumerate() {
                news.row_mut(one)[other] +=
                    weights[row] * weights[column] - inverse.at(row, column);
            }
        }
    }
}

/// One of the two roles of a class in a pair.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Subject,
    Partner,
}

impl Role {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Subject => Self::Partner,
            Self::Partner => Self::Subject,
        }
    }

    /// The ordered pair of a class in this role and one beside it.
    pub(super) fn pair<T>(self, class: T, beside: T) -> (T, T) {
        match self {
            Self::Subject => (class, beside),
            Self::Partner => (beside, class),
        }
    }
}

/// Covariances of the effects of a class, by its role.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Covariances {
    sensitivity: f64,
    pressure: f64,
}

/// The covariance of the effects of a class beside two others, for a measured and for an unseen class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct InCommon {
    pub(super) familiar: Covariances,
    #[serde(rename = "stranger")]
    pub(super) unseen: Covariances,
}

impl InCommon {
    pub(super) fn of(&self, role: Role, familiar: bool) -> f64 {
        let covariances = if familiar { self.familiar } else { self.unseen };
        match role {
            Role::Subject => covariances.sensitivity,
            Role::Partner => covariances.pressure,
        }
    }
}

/// The smallest noise: no table is free of it.
const LEAST: f64 = 1e-6;

/// Variances of the predictor's errors at unit load: shares of the subject, of the partner and of the pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldOutErrors {
    pub(super) sensitivity: Effect,
    pub(super) pressure: Effect,
    pub(super) pair: f64,
}

impl HeldOutErrors {
    /// Splits held-out errors into an effect of the subject, an effect of the partner and the rest, by the
    /// covariances of errors that share a class.
    pub(super) fn of(points: &[Point], held_out: &[HeldOutError]) -> Self {
        let [as_subject, as_partner] = by_role(held_out);
        let count = held_out.len() as f64;
        let squares: f64 = held_out.iter().map(|held_out| held_out.error.powi(2)).sum();
        // Without a held-out error nothing is known: assume errors as large as the slow-down itself.
        let total = if count > 0.0 { squares / count } else { 1.0 };
        let (sensitivity, pressure) = (as_subject.effect(points), as_partner.effect(points));
        // A class that was not held out adds nothing to the error.
        let added = |effect: &Effect, errors: &SharedPart| {
            effect.assumed(1.0, true) * errors.count() / count.max(1.0)
        };
        let shared = added(&sensitivity, &as_subject) + added(&pressure, &as_partner);
        // Some variance always belongs to the pair, or one observation would decide everything.
        let fit = (0.8 * total / shared.max(1e-12)).min(1.0);
        let effect = |effect: Effect| Effect {
            constant: (fit * effect.constant).max(LEAST),
            varying: fit * effect.varying,
            ..effect
        };
        Self {
            sensitivity: effect(sensitivity),
            pressure: effect(pressure),
            pair: (total - fit * shared).max(LEAST),
        }
    }

    /// The same with effects that repeat beside single classes, and with the learned covariance.
    pub(super) fn learned(mut self, points: &[Point], held_out: &[HeldOutError]) -> Self {
        const SINGLE: f64 = 0.8;
        let single = SINGLE * self.pair;
        self.pair -= single;
        let [as_subject, as_partner] = by_role(held_out);
        for (effect, errors) in
            [(&mut self.sensitivity, as_subject), (&mut self.pressure, as_partner)]
        {
            effect.single = single;
            effect.learn(points, &errors, self.pair);
        }
        self
    }

    pub(super) fn covariances(&self, one: &Beside, other: &Beside, same: bool) -> Covariances {
        let of = |effect: &Effect| effect.covariance(one, other, same);
        Covariances { sensitivity: of(&self.sensitivity), pressure: of(&self.pressure) }
    }
}

/// Errors by their subjects and by their partners, if those were held out.
fn by_role(held_out: &[HeldOutError]) -> [SharedPart; 2] {
    let (mut as_subject, mut as_partner) = (SharedPart::default(), SharedPart::default());
    for &HeldOutError { rate: Rate { a, b, .. }, error, without_a, without_b } in held_out {
        if without_a {
            as_subject.add(a, b, error);
        }
        if without_b {
            as_partner.add(b, a, error);
        }
    }
    [as_subject, as_partner]
}

/// Errors by the class that they share, with the other class of each.
#[derive(Default)]
struct SharedPart {
    by_class: BTreeMap<usize, Vec<(usize, f64)>>,
}

impl SharedPart {
    fn add(&mut self, class: usize, beside: usize, error: f64) {
        self.by_class.entry(class).or_default().push((beside, error));
    }

    fn count(&self) -> f64 {
        self.by_class.values().map(|errors| errors.len() as f64).sum()
    }

    /// The covariance that fits the products of two different errors of one class best.
    fn effect(&self, points: &[Point]) -> Effect {
        // Least squares of the products on one and on similarity, with non-negative coefficients.
        let (mut count, mut x, mut xx, mut y, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for errors in self.by_class.values() {
            for (at, &(one, error)) in errors.iter().enumerate() {
                for &(other, other_error) in &errors[..at] {
                    let (likeness, product) =
                        (likeness(&points[one], &points[other]), error * other_error);
                    count += 1.0;
                    x += likeness;
                    xx += likeness * likeness;
                    y += product;
                    xy += likeness * product;
                }
            }
        }
        let determinant = count * xx - x * x;
        if determinant > 1e-9 * count * xx {
            let constant = (xx * y - x * xy) / determinant;
            let varying = (count * xy - x * y) / determinant;
            if constant >= 0.0 && varying >= 0.0 {
                return Effect { constant, varying, ..Effect::default() };
            }
        }
        let alone = |product: f64, square: f64| {
            if square > 0.0 { (product / square).max(0.0) } else { 0.0 }
        };
        let (constant, varying) = (alone(y, count), alone(xy, xx));
        match constant * y >= varying * xy {
            true => Effect { constant, ..Effect::default() },
            false => Effect { varying, ..Effect::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors are equal beside classes of equal parity, which no profile shows.
    fn effect(points: &[Point]) -> Effect {
        let error = |class: usize, beside: usize| {
            let sign = if (class + beside).is_multiple_of(3) { 1.0 } else { -1.0 };
            let of_parity = [(class as f64 * 1.7).sin(), (class as f64 * 2.9).cos()][beside % 2];
            of_parity + 0.05 * sign
        };
        let mut errors = SharedPart::default();
        for class in 0..points.len() {
            for beside in (0..points.len()).filter(|&beside| beside != class) {
                errors.add(class, beside, error(class, beside));
            }
        }
        let mut effect = Effect { constant: 0.2, single: 0.3, ..Effect::default() };
        effect.learn(points, &errors, 0.01);
        effect
    }

    #[test]
    fn the_covariance_of_effects_is_learned_from_errors() {
        let point = Point { features: [0.0; 6], model: String::new() };
        let points = vec![point.clone(); 24];
        let effect = effect(&points);
        let beside: Vec<Beside> =
            (0..24).map(|at| Beside::new(&points, point.clone(), Some(at))).collect();
        let correlation = |one: usize, other: usize| {
            let [one, other] = [&beside[one], &beside[other]];
            effect.covariance(one, other, false)
                / (effect.variance(one) * effect.variance(other)).sqrt()
        };
        assert!(correlation(2, 8) > 0.7 && correlation(3, 9) > 0.7, "{}", correlation(2, 8));
        assert!(correlation(2, 9).abs() < 0.5, "{}", correlation(2, 9));
        // A class outside the table is similar to all of them.
        let outside = Beside::new(&points, point, None);
        let with_even = effect.covariance(&outside, &beside[2], false);
        assert!(with_even > 0.0 && with_even < effect.variance(&beside[2]), "{with_even}");
    }
}
