//! The offline predictor: rates of pairs that were never measured, from solo profiles and measured pairs.
//!
//! It has two processes. Classes that were measured beside others use one whose scales are tuned on the
//! table; unseen classes use one with fixed scales and small variances of single classes. Each knows its own
//! error on held-out pairs.

use super::gaussian::{Point, Process, Rate, Scales, errors_on_unseen, held_out_errors, tune};
use super::held_out::{Beside, HeldOutError, HeldOutErrors, InCommon};
use super::profile::{ClassProfile, MeasuredPair, Standard};
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Scales are tuned, and errors measured, on at most this many pairs: the cost grows with their cube.
const TUNING_PAIRS: usize = 180;
/// More classes would take minutes and gigabytes.
const CLASSES_MAX: usize = 400;

/// Why a table gives no predictor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FitError {
    /// There are too few pairs.
    #[error("{pairs} measured pairs are too few to learn from; measure more pairs")]
    TooFewPairs {
        /// Number of pairs.
        pairs: usize,
    },
    /// There are too many classes.
    #[error("{classes} classes are more than the {CLASSES_MAX} that a predictor can be fitted to")]
    TooManyClasses {
        /// Number of classes.
        classes: usize,
    },
}

/// A predicted rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected rate.
    pub rate: f64,
    /// Its expected root mean square error.
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
    #[serde(rename = "stranger")]
    unseen: Process,
    familiar_errors: HeldOutErrors,
    #[serde(rename = "stranger_errors")]
    unseen_errors: HeldOutErrors,
}

impl Offline {
    /// Fits the predictor to `pairs` of classes in `profiles`. The order of both, and of the classes of a
    /// pair, does not matter; `seed` chooses the pairs on which the scales are tuned.
    pub fn fit(
        profiles: &[ClassProfile],
        pairs: &[MeasuredPair],
        seed: u64,
    ) -> Result<Self, FitError> {
        if pairs.len() < 3 {
            return Err(FitError::TooFewPairs { pairs: pairs.len() });
        }
        let table = TrainingTable::new(profiles, pairs);
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
        let of_groups = errors_on_unseen(&Scales::UNSEEN, &points, &everything, &group_of);
        let of_unseen: Vec<HeldOutError> = (of_groups.iter().enumerate())
            .flat_map(|(group, errors)| errors.iter().map(move |error| (group, error)))
            .map(|(group, &(at, error))| {
                let rate = everything[at];
                let [without_a, without_b] = [rate.a, rate.b].map(|class| group_of[class] == group);
                held_out(rate, error, without_a, without_b)
            })
            .collect();
        Ok(Self {
            familiar: Process::fit(tuned, &points, &everything),
            unseen: Process::fit(Scales::UNSEEN, &points, &everything),
            familiar_errors: HeldOutErrors::of(&points, &of_pairs),
            unseen_errors: HeldOutErrors::of(&points, &of_unseen).learned(&points, &of_unseen),
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
        let process = if familiar { &self.familiar } else { &self.unseen };
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

    /// A class as the predictor can judge it. It knows nothing beyond the classes that it was trained on: far
    /// from all of them it would predict the average, so each value counts as the nearest that occurs there.
    pub(super) fn within_training(&self, class: &ClassProfile) -> ClassProfile {
        let range = std::array::from_fn(|feature| {
            let values = self.points.iter().map(|point| point.features[feature]);
            let least = values.clone().fold(f64::INFINITY, f64::min);
            (least, values.fold(least, f64::max))
        });
        self.standard.within(class, &range)
    }

    /// Whether the class was measured beside others.
    pub fn knows(&self, class: &ClassProfile) -> bool {
        self.find(class).is_some()
    }

    fn find(&self, class: &ClassProfile) -> Option<usize> {
        self.classes.binary_search(&class.name).ok()
    }

    /// Covariance of the effects of a third class beside one class and beside another.
    pub(super) fn in_common(&self, one: &ClassProfile, other: &ClassProfile) -> InCommon {
        let same = one.name == other.name;
        let [one, other] = [one, other]
            .map(|class| Beside::new(&self.points, point(&self.standard, class), self.find(class)));
        InCommon {
            familiar: self.familiar_errors.covariances(&one, &other, same),
            unseen: self.unseen_errors.covariances(&one, &other, same),
        }
    }

    /// Variance of the effect of a pair.
    pub(super) fn pair_variance(&self, familiar: bool) -> f64 {
        self.errors(familiar).pair
    }

    fn errors(&self, familiar: bool) -> &HeldOutErrors {
        if familiar { &self.familiar_errors } else { &self.unseen_errors }
    }
}

/// Whether the uncertainty about a class counts beside another, by whether each was measured. The uncertainty
/// about an unseen class was determined beside measured classes and includes theirs.
pub(super) fn adds_doubt(class: bool, beside: bool) -> bool {
    !class || beside
}

/// Relative size of errors at a predicted rate: a pair that hardly interferes is easy to predict, and at a
/// large slow-down, small differences between classes matter.
pub(super) fn load(predicted: f64) -> f64 {
    const LEAST: f64 = 0.1;
    (LEAST + (1.0 - predicted).abs()).sqrt()
}

fn point(standard: &Standard, profile: &ClassProfile) -> Point {
    Point { features: standard.apply(profile), model: profile.model.clone() }
}

/// Classes that occur in a pair, by name, and pairs in an order that does not depend on the input's.
struct TrainingTable {
    profiles: Vec<ClassProfile>,
    pairs: Vec<MeasuredPair>,
}

impl TrainingTable {
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

/// Classes of one model form one group: held out alone, a class would be known from the others. With many
/// models, several share a group.
fn groups_by_model(points: &[Point]) -> Vec<usize> {
    const GROUPS_MAX: usize = 12;
    let models: BTreeSet<&str> = points.iter().map(|point| point.model.as_str()).collect();
    let groups: BTreeMap<&str, usize> = models.into_iter().zip((0..GROUPS_MAX).cycle()).collect();
    points.iter().map(|point| groups[point.model.as_str()]).collect()
}
