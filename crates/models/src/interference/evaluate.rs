//! Errors of predictor and beliefs on held-out pairs.

use super::offline::{FitError, Offline};
use super::online::Online;
use super::profile::{ClassProfile, MeasuredPair};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::collections::{BTreeMap, BTreeSet};

/// A table of measured pairs.
#[derive(Clone, Debug, Default)]
pub struct PairData {
    /// The classes.
    pub profiles: Vec<ClassProfile>,
    /// Pairs of them, by position.
    pub pairs: Vec<MeasuredPair>,
}

/// What is held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A fifth of the pairs, both directions, five times (5-fold).
    FiveFold,
    /// All pairs with a class of one model, for each model.
    LeaveModelOut,
}

/// A held-out rate.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldOut {
    /// The model that was held out, or the subject's.
    pub model: String,
    /// Position of the subject.
    pub a: usize,
    /// Position of the partner.
    pub b: usize,
    /// The measured rate.
    pub measured: f64,
    /// The predicted rate.
    pub predicted: f64,
}

/// Errors over some held-out rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Number of rates.
    pub rates: usize,
    /// Share of the variance that is explained.
    pub r2: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// Root mean square error.
    pub rmse: f64,
}

impl Scores {
    /// Scores pairs of measured and predicted values.
    pub fn of(values: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        let rates = values.clone().count();
        let count = rates.max(1) as f64;
        let mean = values.clone().map(|(measured, _)| measured).sum::<f64>() / count;
        let total: f64 = values.clone().map(|(measured, _)| (measured - mean).powi(2)).sum();
        let squares: f64 = values.clone().map(|(m, p)| (m - p).powi(2)).sum();
        let absolute: f64 = values.map(|(m, p)| (m - p).abs()).sum();
        // Equal rates have no variance to explain; smaller sums are rounding.
        let r2 = if total > 1e-12 { 1.0 - squares / total } else { 0.0 };
        Self { rates, r2, mae: absolute / count, rmse: (squares / count).sqrt() }
    }
}

/// Scores of held-out rates, all and by model.
pub fn scores(held_out: &[HeldOut]) -> (Scores, BTreeMap<&str, Scores>) {
    let of = |model: Option<&str>| {
        let chosen =
            held_out.iter().filter(move |rate| model.is_none_or(|model| rate.model == model));
        Scores::of(chosen.map(|rate| (rate.measured, rate.predicted)))
    };
    let models: BTreeSet<&str> = held_out.iter().map(|rate| rate.model.as_str()).collect();
    (of(None), models.into_iter().map(|model| (model, of(Some(model)))).collect())
}

/// The folds: the held-out model, if any, and positions of pairs.
pub fn parts(data: &PairData, protocol: Protocol, seed: u64) -> Vec<(Option<String>, Vec<usize>)> {
    match protocol {
        Protocol::FiveFold => {
            const FOLDS: usize = 5;
            let mut order: Vec<usize> = (0..data.pairs.len()).collect();
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
            let fold = |fold: usize| {
                let mut part: Vec<usize> =
                    order.iter().skip(fold).step_by(FOLDS).copied().collect();
                part.sort_unstable();
                (None, part)
            };
            (0..FOLDS).map(fold).collect()
        }
        Protocol::LeaveModelOut => {
            let model = |class: usize| data.profiles[class].model.as_str();
            let used = data.pairs.iter().flat_map(|pair| [model(pair.a), model(pair.b)]);
            let models: BTreeSet<&str> = used.collect();
            let of = |held: &str| {
                let has = |at: &usize| {
                    let pair = &data.pairs[*at];
                    model(pair.a) == held || model(pair.b) == held
                };
                (Some(held.to_owned()), (0..data.pairs.len()).filter(has).collect())
            };
            models.into_iter().map(of).collect()
        }
    }
}

/// A predictor fitted to everything but one fold.
pub fn fit_without(data: &PairData, part: &[usize], seed: u64) -> Result<Offline, FitError> {
    let held: BTreeSet<usize> = part.iter().copied().collect();
    let rest: Vec<MeasuredPair> =
        (0..data.pairs.len()).filter(|at| !held.contains(at)).map(|at| data.pairs[at]).collect();
    Offline::fit(&data.profiles, &rest, seed)
}

/// Predicts the rates of a fold, both directions of each pair.
pub fn predict_part(
    data: &PairData,
    (model, part): &(Option<String>, Vec<usize>),
    offline: &Offline,
) -> Vec<HeldOut> {
    let directions = directions(data, part);
    let predict = |(a, b, measured): (usize, usize, f64)| {
        let predicted = offline.predict(&data.profiles[a], &data.profiles[b]).rate;
        let model = model.clone().unwrap_or_else(|| data.profiles[a].model.clone());
        HeldOut { model, a, b, measured, predicted }
    };
    directions.into_iter().map(predict).collect()
}

fn directions(data: &PairData, part: &[usize]) -> Vec<(usize, usize, f64)> {
    let both = |&at: &usize| {
        let MeasuredPair { a, b, rate_a, rate_b } = data.pairs[at];
        [(a, b, rate_a), (b, a, rate_b)]
    };
    part.iter().flat_map(both).collect()
}

/// Noise of simulated observations.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    /// Standard deviation.
    pub deviation: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Normal draws, seeded.
struct Draws {
    rng: ChaCha8Rng,
    deviation: f64,
}

impl Draws {
    fn new(noise: Noise) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(noise.seed), deviation: noise.deviation }
    }

    fn around(&mut self, truth: f64) -> f64 {
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        truth + self.deviation * normal
    }
}

/// Mean absolute error after 0, 1, 2, … observations of each held-out pair (5-fold); all pairs of a fold are
/// observed in turn. If `drift` is given, the true rates move by that much after the last round and as many
/// rounds follow.
pub fn learning_curve(
    data: &PairData,
    observations: usize,
    noise: Noise,
    drift: Option<f64>,
) -> Result<Vec<f64>, FitError> {
    let rounds = if drift.is_some() { 2 * observations + 1 } else { observations };
    let mut sums = vec![0.0; rounds + 1];
    let mut count = 0.0;
    let mut draws = Draws::new(noise);
    for (_, part) in parts(data, Protocol::FiveFold, noise.seed) {
        let mut online = Online::new(fit_without(data, &part, noise.seed)?);
        // A class beside itself is one belief, so its two measured rates count as their mean.
        let mean = |a: usize, b: usize, rate: f64, at: usize| {
            let pair = &data.pairs[part[at / 2]];
            if a == b { f64::midpoint(pair.rate_a, pair.rate_b) } else { rate }
        };
        let truths: Vec<(u32, u32, f64)> = directions(data, &part)
            .into_iter()
            .enumerate()
            .map(|(at, (a, b, rate))| {
                let [of_a, of_b] = [a, b].map(|class| online.class(&data.profiles[class]));
                (of_a, of_b, mean(a, b, rate, at))
            })
            .collect();
        count += truths.len() as f64;
        let mut moved = 0.0;
        for (round, sum) in sums.iter_mut().enumerate() {
            if round > observations {
                moved = drift.unwrap_or(0.0);
            }
            // Round 0, and the round right after the drift, give the error before an observation.
            if round != 0 && round != observations + 1 {
                for &(a, b, truth) in &truths {
                    online.observe(a, b, draws.around(truth + moved), noise.deviation);
                }
            }
            let error = |&(a, b, truth): &(u32, u32, f64)| {
                (online.belief(a, b).rate - (truth + moved)).abs()
            };
            *sum += truths.iter().map(error).sum::<f64>();
        }
    }
    Ok(sums.into_iter().map(|sum| sum / count).collect())
}

/// Errors beside a fourth partner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FourthPartner {
    /// After three partners drawn at random.
    pub drawn: AfterThree,
    /// After the three most informative ones.
    pub informative: AfterThree,
}

/// Mean absolute errors beside a fourth partner.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AfterThree {
    /// Of the predictor alone, which has not seen the class's model.
    pub offline_mae: f64,
    /// After the class was observed beside three others, once each.
    pub once_mae: f64,
    /// After repeated observations beside them.
    pub repeated_mae: f64,
    /// Number of predicted rates.
    pub rates: usize,
}

impl AfterThree {
    /// By which share an error is smaller than the predictor's; zero if there is nothing to gain.
    pub fn gain(&self, mae: f64) -> f64 {
        if self.offline_mae > 0.0 { 1.0 - mae / self.offline_mae } else { 0.0 }
    }

    /// Observes the first three pairs of a class, up to `observations` times each, predicts the fourth, both
    /// directions, and adds up the errors.
    fn add(
        &mut self,
        mut online: Online,
        data: &PairData,
        pairs: &[usize],
        observations: usize,
        draws: &mut Draws,
    ) {
        let mut numbered = |pairs: &[usize]| -> Vec<(u32, u32, f64)> {
            let number = |(a, b, truth): (usize, usize, f64)| {
                let [a, b] = [a, b].map(|class| online.class(&data.profiles[class]));
                (a, b, truth)
            };
            directions(data, pairs).into_iter().map(number).collect()
        };
        let (shown, asked) = (numbered(&pairs[..3]), numbered(&pairs[3..4]));
        let errors = |online: &Online| -> f64 {
            asked.iter().map(|&(a, b, truth)| (online.belief(a, b).rate - truth).abs()).sum()
        };
        // Before any observation, beliefs are the predictor's.
        self.offline_mae += errors(&online);
        for round in 0..observations.max(1) {
            for &(a, b, truth) in &shown {
                online.observe(a, b, draws.around(truth), draws.deviation);
            }
            if round == 0 {
                self.once_mae += errors(&online);
            }
        }
        self.repeated_mae += errors(&online);
        self.rates += asked.len();
    }

    /// Means instead of sums.
    fn averaged(self) -> Self {
        let mean = |sum: f64| sum / self.rates.max(1) as f64;
        Self {
            offline_mae: mean(self.offline_mae),
            once_mae: mean(self.once_mae),
            repeated_mae: mean(self.repeated_mae),
            ..self
        }
    }
}

/// Observes every class, its model held out, beside three partners, up to `observations` times each, and
/// predicts a fourth, both directions: `repeats` times with four random partners, and as often with a random
/// fourth after the three most informative ones.
pub fn fourth_partner(
    data: &PairData,
    repeats: usize,
    observations: usize,
    noise: Noise,
) -> Result<FourthPartner, FitError> {
    let mut draws = Draws::new(noise);
    let mut order = ChaCha8Rng::seed_from_u64(noise.seed);
    let (mut drawn, mut informative) = (AfterThree::default(), AfterThree::default());
    for (model, part) in parts(data, Protocol::LeaveModelOut, noise.seed) {
        let mut start = match fit_without(data, &part, noise.seed) {
            Ok(offline) => Online::new(offline),
            // Without this model there are no training pairs left.
            Err(FitError::TooFewPairs { .. }) => continue,
            Err(error) => return Err(error),
        };
        let model = model.expect("this protocol names the model");
        // Pairs with another model, and the partner in each.
        let mut by_class: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
        for &at in &part {
            let MeasuredPair { a, b, .. } = data.pairs[at];
            let (class, partner) = match [a, b].map(|class| data.profiles[class].model == model) {
                [true, false] => (a, b),
                [false, true] => (b, a),
                _ => continue,
            };
            by_class.entry(class).or_default().push((at, start.class(&data.profiles[partner])));
        }
        for (class, mut pairs) in by_class.into_iter().filter(|(_, pairs)| pairs.len() >= 4) {
            let mut online = start.clone();
            let class = online.class(&data.profiles[class]);
            let candidates: Vec<u32> = pairs.iter().map(|&(_, partner)| partner).collect();
            let mut show = |pairs: &[(usize, u32)], errors: &mut AfterThree| {
                let pairs: Vec<usize> = pairs.iter().map(|&(at, _)| at).collect();
                errors.add(online.clone(), data, &pairs, observations, &mut draws);
            };
            for _ in 0..repeats {
                pairs.shuffle(&mut order);
                show(&pairs, &mut drawn);
            }
            let best = online.next_experiments(class, &candidates, 3, noise.deviation).partners;
            pairs.sort_by_key(|(_, partner)| {
                best.iter().position(|best| best == partner).unwrap_or(best.len())
            });
            for _ in 0..repeats {
                pairs[3..].shuffle(&mut order);
                show(&pairs, &mut informative);
            }
        }
    }
    Ok(FourthPartner { drawn: drawn.averaged(), informative: informative.averaged() })
}
