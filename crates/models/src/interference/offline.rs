//! The offline predictor: rates of pairs that have never run together, from solo profiles and from the
//! pairs that have.
//!
//! Two processes share the work. For classes that were measured beside others, one whose scales were
//! tuned on the table itself; for a class that was not, one with fixed scales that puts little trust in
//! what single classes do. Each knows how far off it is on pairs that it was not shown.

use super::gaussian::{Point, Process, Rate, Scales, held_out_errors, likeness, tune};
use super::profile::{ClassProfile, MeasuredPair, Standard};
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Scales are tuned, and errors measured, on this many pairs: the cost grows with their cube.
const TUNING_PAIRS: usize = 180;
/// A table of more classes than this would take minutes and gigabytes.
const CLASSES_MAX: usize = 400;

/// Why a table gives no predictor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FitError {
    /// Nothing to learn from.
    #[error("{pairs} measured pairs are too few to learn from; measure more pairs")]
    TooFewPairs {
        /// How many there are.
        pairs: usize,
    },
    /// More than can be handled.
    #[error("{classes} classes are more than the {CLASSES_MAX} that a predictor can be fitted to")]
    TooManyClasses {
        /// How many there are.
        classes: usize,
    },
}

/// Variance of what a class adds to the predictor's errors: the same beside every other class, or the
/// same beside classes that are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Effect {
    constant: f64,
    varying: f64,
}

impl Effect {
    /// Covariance beside two classes of this likeness.
    pub(super) fn covariance(&self, likeness: f64) -> f64 {
        self.constant + self.varying * likeness
    }

    pub(super) fn variance(&self) -> f64 {
        self.covariance(1.0)
    }

    fn scaled(self, factor: f64) -> Self {
        Self { constant: factor * self.constant, varying: factor * self.varying }
    }
}

/// Variances of the predictor's errors at unit [`load`]: how much belongs to the subject, to the partner
/// and to the pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Errors {
    pub(super) sensitivity: Effect,
    pub(super) pressure: Effect,
    pub(super) pair: f64,
}

/// A predicted rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected rate.
    pub rate: f64,
    /// Root mean square error to expect of it.
    pub rmse: f64,
    /// Both classes were measured beside others.
    pub familiar: bool,
}

/// A fitted predictor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offline {
    /// Classes that were measured, by name.
    classes: Vec<String>,
    points: Vec<Point>,
    standard: Standard,
    mean: f64,
    spread: f64,
    familiar: Process,
    stranger: Process,
    familiar_errors: Errors,
    stranger_errors: Errors,
}

impl Offline {
    /// Learns from `pairs` of classes in `profiles`. The order of both, and which of a pair comes
    /// first, does not matter; `seed` chooses the pairs that the scales are tuned on.
    pub fn fit(
        profiles: &[ClassProfile],
        pairs: &[MeasuredPair],
        seed: u64,
    ) -> Result<Self, FitError> {
        if pairs.len() < 3 {
            return Err(FitError::TooFewPairs { pairs: pairs.len() });
        }
        let table = Table::new(profiles, pairs);
        if table.profiles.len() > CLASSES_MAX {
            return Err(FitError::TooManyClasses { classes: table.profiles.len() });
        }
        let standard = Standard::of(&table.profiles);
        let points: Vec<Point> =
            table.profiles.iter().map(|profile| point(&standard, profile)).collect();
        let all = table.pairs.iter().flat_map(|pair| [pair.rate_a, pair.rate_b]);
        let count = (2 * table.pairs.len()) as f64;
        let mean = all.clone().sum::<f64>() / count;
        let variance = all.map(|rate| (rate - mean).powi(2)).sum::<f64>() / count;
        let spread = variance.sqrt().max(1e-6);
        let rates = |pairs: &[MeasuredPair]| -> Vec<Rate> {
            let both = |pair: &MeasuredPair| {
                let rate = |a, b, rate: f64| Rate { a, b, value: (rate - mean) / spread };
                [rate(pair.a, pair.b, pair.rate_a), rate(pair.b, pair.a, pair.rate_b)]
            };
            pairs.iter().flat_map(both).collect()
        };

        let mut chosen = table.pairs.clone();
        chosen.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        chosen.truncate(TUNING_PAIRS);
        let sample = rates(&chosen);
        let by_pair: Vec<Vec<usize>> =
            (0..chosen.len()).map(|at| vec![2 * at, 2 * at + 1]).collect();
        let tuned = tune(&points, &sample, &by_pair);
        let by_model = groups_by_model(&points, &sample);

        let everything = rates(&table.pairs);
        let errors = |scales: &Scales, groups: &[Vec<usize>], left_out: LeftOut<'_>| {
            let mut errors = held_out_errors(scales, &points, &sample, groups).unwrap_or_default();
            for (group, errors) in groups.iter().zip(&mut errors) {
                for (&at, error) in group.iter().zip(errors) {
                    let predicted = mean + spread * (sample[at].value + *error);
                    *error *= spread / load(predicted);
                }
            }
            Errors::of(&points, &sample, groups, &errors, left_out)
        };
        let everywhere = |_: usize, _: usize| true;
        let is_of = |group: usize, class: usize| points[class].model == by_model[group].0;
        let groups: Vec<Vec<usize>> = by_model.iter().map(|(_, group)| group.clone()).collect();
        Ok(Self {
            familiar: Process::fit(tuned, &points, &everything),
            stranger: Process::fit(Scales::STRANGER, &points, &everything),
            familiar_errors: errors(&tuned, &by_pair, &everywhere),
            stranger_errors: errors(&Scales::STRANGER, &groups, &is_of),
            classes: table.profiles.into_iter().map(|profile| profile.name).collect(),
            points,
            standard,
            mean,
            spread,
        })
    }

    /// The rate of `a` beside `b`.
    pub fn predict(&self, a: &ClassProfile, b: &ClassProfile) -> Prediction {
        let (known_a, known_b) = (self.find(a), self.find(b));
        let familiar = known_a.is_some() && known_b.is_some();
        let process = if familiar { &self.familiar } else { &self.stranger };
        let (point_a, point_b) = (point(&self.standard, a), point(&self.standard, b));
        let value = process.predict(&self.points, (&point_a, known_a), (&point_b, known_b));
        let rate = (self.mean + self.spread * value).clamp(RATE_MIN, RATE_MAX);
        let sensitivity = self.errors(known_a.is_some()).sensitivity.variance();
        let pressure = self.errors(known_b.is_some()).pressure.variance();
        let rmse = load(rate) * (sensitivity + pressure + self.errors(familiar).pair).sqrt();
        Prediction { rate, rmse, familiar }
    }

    /// Whether the class was measured beside others.
    pub fn knows(&self, class: &ClassProfile) -> bool {
        self.find(class).is_some()
    }

    fn find(&self, class: &ClassProfile) -> Option<usize> {
        self.classes.binary_search(&class.name).ok()
    }

    /// How alike two classes are to a third that runs beside them, 0 to 1.
    pub(super) fn likeness(&self, one: &ClassProfile, other: &ClassProfile) -> f64 {
        likeness(&point(&self.standard, one), &point(&self.standard, other))
    }

    pub(super) fn errors(&self, familiar: bool) -> Errors {
        if familiar { self.familiar_errors } else { self.stranger_errors }
    }
}

/// How large errors are, relatively, where this rate is predicted: a pair that hardly interferes is
/// easy to predict, and where the partner presses hard, small differences between classes show.
pub(super) fn load(predicted: f64) -> f64 {
    const LEAST: f64 = 0.1;
    (LEAST + (1.0 - predicted).abs()).sqrt()
}

fn point(standard: &Standard, profile: &ClassProfile) -> Point {
    Point { features: standard.apply(profile), model: profile.model.clone() }
}

/// Classes that occur in a pair, by name, and pairs in an order that does not depend on the input's.
struct Table {
    profiles: Vec<ClassProfile>,
    pairs: Vec<MeasuredPair>,
}

impl Table {
    fn new(profiles: &[ClassProfile], pairs: &[MeasuredPair]) -> Self {
        let mut used: Vec<usize> = pairs.iter().flat_map(|pair| [pair.a, pair.b]).collect();
        used.sort_by(|&one, &other| profiles[one].name.cmp(&profiles[other].name));
        used.dedup();
        let mut place = vec![0; profiles.len()];
        used.iter().enumerate().for_each(|(at, &class)| place[class] = at);
        let ordered = |pair: &MeasuredPair| {
            let (a, b) = (place[pair.a], place[pair.b]);
            let [rate_a, rate_b] =
                [pair.rate_a, pair.rate_b].map(|rate| rate.clamp(0.0, MEASURED_MAX));
            let keep = (a, rate_a) <= (b, rate_b);
            match keep {
                true => MeasuredPair { a, b, rate_a, rate_b },
                false => MeasuredPair { a: b, b: a, rate_a: rate_b, rate_b: rate_a },
            }
        };
        let mut pairs: Vec<MeasuredPair> = pairs.iter().map(ordered).collect();
        let rates = |pair: &MeasuredPair| (pair.rate_a, pair.rate_b);
        pairs.sort_by(|one, other| {
            let by_class = (one.a, one.b).cmp(&(other.a, other.b));
            let by_rate = || {
                let ((a, b), (c, d)) = (rates(one), rates(other));
                a.total_cmp(&c).then(b.total_cmp(&d))
            };
            by_class.then_with(by_rate)
        });
        Self { profiles: used.iter().map(|&class| profiles[class].clone()).collect(), pairs }
    }
}

/// For each model, the rates in which it takes part; none for a model that takes part in nearly all,
/// since without those there is nothing left to learn from.
fn groups_by_model(points: &[Point], rates: &[Rate]) -> Vec<(String, Vec<usize>)> {
    let mut groups: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, rate) in rates.iter().enumerate() {
        let (a, b) = (points[rate.a].model.as_str(), points[rate.b].model.as_str());
        groups.entry(a).or_default().push(at);
        if a != b {
            groups.entry(b).or_default().push(at);
        }
    }
    let some_remain = |group: &Vec<usize>| group.len() * 10 <= rates.len() * 8;
    groups
        .into_iter()
        .filter(|(_, group)| some_remain(group))
        .map(|(model, group)| (model.to_owned(), group))
        .collect()
}

/// Whether a class was unknown when a group was held out.
type LeftOut<'a> = &'a dyn Fn(usize, usize) -> bool;

impl Errors {
    /// Splits held-out errors into what a subject has in common over its partners, what a partner has
    /// in common over its subjects, and the rest: covariances of errors that share a class.
    fn of(
        points: &[Point],
        rates: &[Rate],
        groups: &[Vec<usize>],
        errors: &[Vec<f64>],
        left_out: LeftOut<'_>,
    ) -> Self {
        let (mut squares, mut count) = (0.0, 0.0);
        let (mut as_subject, mut as_partner) = (Shared::default(), Shared::default());
        for (number, (group, errors)) in groups.iter().zip(errors).enumerate() {
            for (&at, &error) in group.iter().zip(errors) {
                let Rate { a, b, .. } = rates[at];
                squares += error * error;
                count += 1.0;
                if left_out(number, a) {
                    as_subject.add(a, b, error);
                }
                if left_out(number, b) {
                    as_partner.add(b, a, error);
                }
            }
        }
        // Without a single held-out error nothing is known; as wrong as the slow-down itself.
        let total = if count > 0.0 { squares / count } else { 1.0 };
        let (sensitivity, pressure) = (as_subject.effect(points), as_partner.effect(points));
        // A class that was not left out added nothing to the error.
        let added =
            |effect: &Effect, errors: &Shared| effect.variance() * errors.count() / count.max(1.0);
        let shared = added(&sensitivity, &as_subject) + added(&pressure, &as_partner);
        // Some of it is always the pair's own, or one observation would be taken to tell all.
        let fit = (0.8 * total / shared.max(1e-12)).min(1.0);
        // No table is free of noise.
        let at_least = |variance: f64| variance.max(1e-6);
        let effect = |effect: Effect| {
            let effect = effect.scaled(fit);
            Effect { constant: at_least(effect.constant), ..effect }
        };
        Self {
            sensitivity: effect(sensitivity),
            pressure: effect(pressure),
            pair: at_least(total - fit * shared),
        }
    }
}

/// Errors by the class that they share, with the other class of each.
#[derive(Default)]
struct Shared {
    by_class: BTreeMap<usize, Vec<(usize, f64)>>,
}

impl Shared {
    fn add(&mut self, class: usize, beside: usize, error: f64) {
        self.by_class.entry(class).or_default().push((beside, error));
    }

    fn count(&self) -> f64 {
        self.by_class.values().map(|errors| errors.len() as f64).sum()
    }

    /// The covariance that comes nearest to the products of two different errors of one class.
    fn effect(&self, points: &[Point]) -> Effect {
        // Least squares of the products on one and on likeness, neither with a negative factor.
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
                return Effect { constant, varying };
            }
        }
        let alone = |product: f64, square: f64| {
            if square > 0.0 { (product / square).max(0.0) } else { 0.0 }
        };
        let (constant, varying) = (alone(y, count), alone(xy, xx));
        match constant * y >= varying * xy {
            true => Effect { constant, varying: 0.0 },
            false => Effect { constant: 0.0, varying },
        }
    }
}
