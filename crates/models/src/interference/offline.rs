//! The offline predictor: rates of pairs that have never run together, from solo profiles and from the
//! pairs that have.
//!
//! Two processes share the work. For classes that were measured beside others, one whose scales were
//! tuned on the table itself; for a class that was not, one with fixed scales that puts little trust in
//! what single classes do. Each knows how far off it is on pairs that it was not shown.

use super::gaussian::{Point, Process, Rate, Scales, errors_on_strangers, held_out_errors, tune};
use super::held_out::{Beside, HeldOutError, HeldOutErrors, InCommon};
use super::profile::{ClassProfile, MeasuredPair, Standard};
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
    familiar_errors: HeldOutErrors,
    stranger_errors: HeldOutErrors,
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
        let everything = rates(&table.pairs);
        let held_out = |rate: Rate, error: f64, without_a, without_b| {
            let predicted = mean + spread * (rate.value + error);
            HeldOutError { rate, error: error * spread / load(predicted), without_a, without_b }
        };

        let of_pairs = held_out_errors(&tuned, &points, &sample, &by_pair).unwrap_or_default();
        let of_pairs: Vec<HeldOutError> = (by_pair.iter().zip(&of_pairs))
            .flat_map(|(pair, errors)| pair.iter().zip(errors))
            .map(|(&at, &error)| held_out(sample[at], error, true, true))
            .collect();

        let group_of = groups_by_model(&points);
        let of_groups = errors_on_strangers(&Scales::STRANGER, &points, &everything, &group_of);
        let of_strangers: Vec<HeldOutError> = (of_groups.iter().enumerate())
            .flat_map(|(group, errors)| errors.iter().map(move |error| (group, error)))
            .map(|(group, &(at, error))| {
                let rate = everything[at];
                let [without_a, without_b] = [rate.a, rate.b].map(|class| group_of[class] == group);
                held_out(rate, error, without_a, without_b)
            })
            .collect();
        Ok(Self {
            familiar: Process::fit(tuned, &points, &everything),
            stranger: Process::fit(Scales::STRANGER, &points, &everything),
            familiar_errors: HeldOutErrors::of(&points, &of_pairs),
            stranger_errors: HeldOutErrors::of(&points, &of_strangers)
                .learned(&points, &of_strangers),
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
        let [beside_a, beside_b] = [(point_a, known_a), (point_b, known_b)]
            .map(|(point, known)| Beside::new(&self.points, point, known));
        let [knows_a, knows_b] = [known_a, known_b].map(|known| known.is_some());
        let mut variance = self.errors(familiar).pair;
        if adds_doubt(knows_a, knows_b) {
            variance += self.errors(knows_a).sensitivity.variance(&beside_b);
        }
        if adds_doubt(knows_b, knows_a) {
            variance += self.errors(knows_b).pressure.variance(&beside_a);
        }
        let rmse = load(rate) * variance.sqrt();
        Prediction { rate, rmse, familiar }
    }

    /// Whether the class was measured beside others.
    pub fn knows(&self, class: &ClassProfile) -> bool {
        self.find(class).is_some()
    }

    fn find(&self, class: &ClassProfile) -> Option<usize> {
        self.classes.binary_search(&class.name).ok()
    }

    /// What some third class shows beside one of two classes, and beside the other, has so much in
    /// common.
    pub(super) fn in_common(&self, one: &ClassProfile, other: &ClassProfile) -> InCommon {
        let same = one.name == other.name;
        let [one, other] = [one, other]
            .map(|class| Beside::new(&self.points, point(&self.standard, class), self.find(class)));
        InCommon {
            familiar: self.familiar_errors.covariances(&one, &other, same),
            stranger: self.stranger_errors.covariances(&one, &other, same),
        }
    }

    /// Variance of what is a pair's own.
    pub(super) fn pair_variance(&self, familiar: bool) -> f64 {
        self.errors(familiar).pair
    }

    fn errors(&self, familiar: bool) -> &HeldOutErrors {
        if familiar { &self.familiar_errors } else { &self.stranger_errors }
    }
}

/// Whether what is unknown of a class counts beside another, by whether they are familiar. What is unknown
/// of a stranger was measured beside familiar classes, and what is unknown of these is in it already.
pub(super) fn adds_doubt(class: bool, beside: bool) -> bool {
    !class || beside
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

/// Classes of one model belong to one group: held out alone, a class would be known by the others. Models
/// share groups where there are many.
fn groups_by_model(points: &[Point]) -> Vec<usize> {
    const GROUPS_MAX: usize = 12;
    let models: BTreeSet<&str> = points.iter().map(|point| point.model.as_str()).collect();
    let groups: BTreeMap<&str, usize> = models.into_iter().zip((0..GROUPS_MAX).cycle()).collect();
    points.iter().map(|point| groups[point.model.as_str()]).collect()
}
