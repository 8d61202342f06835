//! Beliefs about pairs that follow observations.
//!
//! rate(a | b) = prediction + load · (sensitivity of a + pressure of b + effect of the pair), all Gaussian,
//! with variances from the predictor's held-out errors; the load is larger at a larger predicted slow-down.
//! Sensitivity and pressure vary with the other class of the pair, similarly for similar classes.
//! Observations of a pair itself are weighed exactly; observations of other pairs reach it through the shared
//! sensitivity and pressure.

use super::held_out::{InCommon, Role};
use super::offline::{Offline, adds_doubt, load};
use super::profile::ClassProfile;
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use crate::linalg::{Inverse, Square, dot};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The believed distribution of a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Expected rate.
    pub rate: f64,
    /// Its standard deviation.
    pub deviation: f64,
}

impl Belief {
    /// The rate `deviations` standard deviations below the expected one.
    pub fn cautious(&self, deviations: f64) -> f64 {
        (self.rate - deviations * self.deviation).clamp(RATE_MIN, RATE_MAX)
    }
}

/// Observations of one ordered pair: weighted mean and precision (1 / variance).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Evidence {
    mean: f64,
    precision: f64,
}

impl Evidence {
    fn add(&mut self, rate: f64, precision: f64) {
        self.precision += precision;
        self.mean += (rate - self.mean) * precision / self.precision;
    }
}

/// Detects drift in one direction: a one-sided cumulative sum (CUSUM) of surprises, and the observations
/// since it began to grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Watch {
    sum: f64,
    since: Evidence,
}

impl Watch {
    /// Surprises below this many standard deviations count as noise.
    const SLACK: f64 = 0.5;
    /// A sum above this is a drift.
    const ALARM: f64 = 5.0;

    fn add(&mut self, surprise: f64, rate: f64, precision: f64) -> bool {
        self.sum += surprise - Self::SLACK;
        if self.sum <= 0.0 {
            *self = Self::default();
            return false;
        }
        self.since.add(rate, precision);
        self.sum > Self::ALARM
    }
}

/// An ordered pair of classes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct PairState {
    evidence: Evidence,
    /// Variance added by drifts.
    drifted: f64,
    falling: Watch,
    rising: Watch,
}

/// The posterior effect of a class beside another, as sensitivity or as pressure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct RoleEffect {
    mean: f64,
    variance: f64,
}

/// The effect of a class is inferred from at most this many others, the first: the cost grows with their
/// cube, and more add little.
const SHOWN_MAX: usize = 64;

/// What one pair says about an effect.
#[derive(Clone, Copy)]
struct Shown {
    /// The other class of the pair.
    beside: u32,
    value: f64,
    variance: f64,
}

/// A class and what was learned about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClassState {
    profile: ClassProfile,
    /// Whether the predictor was trained on pairs of it.
    familiar: bool,
    /// Its predicted rate beside each class, by position: predictions are slow, and they never change.
    predicted: Vec<f64>,
    /// Covariances of effects beside it and beside each class, by position.
    in_common: Vec<InCommon>,
    /// By position of the partner.
    sensitivity: Vec<RoleEffect>,
    /// By position of the subject.
    pressure: Vec<RoleEffect>,
    /// Its observed pairs, by position of the partner.
    pairs: Vec<Option<PairState>>,
    /// Classes beside which it was observed, by position.
    partners: Vec<u32>,
    /// Classes that were observed beside it.
    subjects: Vec<u32>,
}

/// What two jobs leave of a device to each other that run on it one at a time.
fn left_by_use(a: &ClassProfile, b: &ClassProfile) -> Option<f64> {
    Some(1.0 / (a.gpu_util? + b.gpu_util?).max(1.0))
}

/// Beliefs about all pairs of classes on one GPU type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Online {
    offline: Offline,
    classes: Vec<ClassState>,
    /// Jobs take turns on the device: where their use of it is known, so is what is left for each.
    #[serde(default)]
    takes_turns: bool,
}

impl Online {
    /// Starts from a predictor.
    pub fn new(offline: Offline) -> Self {
        Self { offline, classes: Vec::new(), takes_turns: false }
    }

    /// For devices that run one job at a time and switch between them, such as cores.
    pub fn taking_turns(mut self) -> Self {
        self.takes_turns = true;
        self
    }

    /// The predicted rate of `a` beside `b`.
    fn predict(&self, a: &ClassProfile, b: &ClassProfile) -> f64 {
        match left_by_use(a, b).filter(|_| self.takes_turns) {
            Some(left) => left.clamp(RATE_MIN, RATE_MAX),
            None => {
                let [a, b] = [a, b].map(|class| self.offline.within_training(class));
                self.offline.predict(&a, &b).rate
            }
        }
    }

    /// The rate of the first class beside the second if jobs only took turns on the device; `None` where the
    /// use of it is not known of both.
    pub(super) fn left_by_use(&self, (a, b): (u32, u32)) -> Option<f64> {
        left_by_use(&self.classes[a as usize].profile, &self.classes[b as usize].profile)
    }

    /// The predictor that it started from.
    pub fn offline(&self) -> &Offline {
        &self.offline
    }

    /// The number of a class, which is added if its name is new.
    pub fn class(&mut self, profile: &ClassProfile) -> u32 {
        let known = self.classes.iter().position(|class| class.profile.name == profile.name);
        let number = known.unwrap_or_else(|| self.add(profile));
        u32::try_from(number).expect("classes are counted in u32")
    }

    fn add(&mut self, profile: &ClassProfile) -> usize {
        let offline = &self.offline;
        for class in &mut self.classes {
            class.predicted.push(offline.predict(&class.profile, profile).rate);
            class.in_common.push(offline.in_common(&class.profile, profile));
            class.pairs.push(None);
        }
        let others = self.classes.iter().map(|class| &class.profile).chain([profile]);
        let predicted = others.clone().map(|other| offline.predict(profile, other).rate).collect();
        let in_common = others.map(|other| offline.in_common(profile, other)).collect();
        let (number, familiar) = (self.classes.len(), offline.knows(profile));
        self.classes.push(ClassState {
            profile: profile.clone(),
            familiar,
            predicted,
            in_common,
            sensitivity: Vec::new(),
            pressure: Vec::new(),
            pairs: vec![None; number + 1],
            partners: Vec::new(),
            subjects: Vec::new(),
        });
        for class in 0..=number {
            let unknown = self.classes[class].sensitivity.len()..number + 1;
            let sensitivity = self.shares(Role::Subject, class as u32, unknown.clone());
            let pressure = self.shares(Role::Partner, class as u32, unknown);
            self.classes[class].sensitivity.extend(sensitivity);
            self.classes[class].pressure.extend(pressure);
        }
        number
    }

    /// A class showed what it does alone: predictions of its pairs start from that.
    pub(super) fn describe(
        &mut self,
        class: u32,
        gpu_util: Option<f64>,
        memory_mib: Option<f64>,
        steps_per_s: Option<f64>,
    ) {
        let at = class as usize;
        let profile = &mut self.classes[at].profile;
        (profile.gpu_util, profile.memory_mib, profile.steps_per_s) =
            (gpu_util, memory_mib, steps_per_s);
        let profile = profile.clone();
        for other in 0..self.classes.len() {
            let beside = self.classes[other].profile.clone();
            let (own, theirs) = (self.predict(&profile, &beside), self.predict(&beside, &profile));
            let [one, two] = [&profile, &beside].map(|class| self.offline.within_training(class));
            let in_common = self.offline.in_common(&one, &two);
            self.classes[other].predicted[at] = theirs;
            self.classes[other].in_common[at] = in_common;
            self.classes[at].predicted[other] = own;
            self.classes[at].in_common[other] = in_common;
        }
        let all = 0..self.classes.len();
        self.classes[at].sensitivity = self.shares(Role::Subject, class, all.clone());
        self.classes[at].pressure = self.shares(Role::Partner, class, all);
    }

    /// Adds a rate of `a` beside `b`; `noise` is the standard deviation of the measurement.
    pub fn observe(&mut self, a: u32, b: u32, rate: f64, noise: f64) {
        let before = self.belief(a, b);
        let rate = rate.clamp(-MEASURED_MAX, MEASURED_MAX);
        let noise = noise.clamp(1e-4, MEASURED_MAX);
        let precision = 1.0 / noise.powi(2);
        if self.pair((a, b)).is_none() {
            self.classes[a as usize].partners.push(b);
            self.classes[b as usize].subjects.push(a);
        }
        let pair = self.classes[a as usize].pairs[b as usize].get_or_insert(PairState {
            evidence: Evidence::default(),
            drifted: 0.0,
            falling: Watch::default(),
            rising: Watch::default(),
        });
        pair.evidence.add(rate, precision);
        let deviation = (before.deviation.powi(2) + noise.powi(2)).sqrt();
        let surprise = (rate - before.rate) / deviation;
        let falls = pair.falling.add(-surprise, rate, precision);
        let rises = pair.rising.add(surprise, rate, precision);
        if falls || rises {
            // Observations from before the drift no longer count.
            pair.evidence = if falls { pair.falling.since } else { pair.rising.since };
            pair.drifted += (pair.evidence.mean - before.rate).powi(2);
            (pair.falling, pair.rising) = (Watch::default(), Watch::default());
        }
        let all = 0..self.classes.len();
        self.classes[a as usize].sensitivity = self.shares(Role::Subject, a, all.clone());
        self.classes[b as usize].pressure = self.shares(Role::Partner, b, all);
    }

    /// The believed rate of `a` beside `b`.
    pub fn belief(&self, a: u32, b: u32) -> Belief {
        let own = self.pair((a, b));
        let predicted = self.predicted((a, b));
        let load = load(predicted);
        let sensitivity = self.share(Role::Subject, a, b);
        let pressure = self.share(Role::Partner, b, a);
        let expected = predicted + load * (sensitivity.mean + pressure.mean);
        let shared = sensitivity.variance + pressure.variance;
        let variance = load.powi(2) * (shared + self.pair_variance((a, b)))
            + own.map_or(0.0, |pair| pair.drifted);
        let evidence = own.map_or_else(Evidence::default, |pair| pair.evidence);
        let precision = 1.0 / variance + evidence.precision;
        let rate = (expected / variance + evidence.mean * evidence.precision) / precision;
        Belief { rate: rate.clamp(RATE_MIN, RATE_MAX), deviation: (1.0 / precision).sqrt() }
    }

    /// Number of classes.
    pub(super) fn count(&self) -> usize {
        self.classes.len()
    }

    /// Whether a pair was observed.
    pub(super) fn is_measured(&self, pair: (u32, u32)) -> bool {
        self.pair(pair).is_some()
    }

    /// Number of classes beside which a class was observed.
    pub(super) fn partners(&self, class: u32) -> usize {
        self.classes[class as usize].partners.len()
    }

    fn pair(&self, (a, b): (u32, u32)) -> Option<&PairState> {
        self.classes[a as usize].pairs[b as usize].as_ref()
    }

    pub(super) fn predicted(&self, (a, b): (u32, u32)) -> f64 {
        self.classes[a as usize].predicted[b as usize]
    }

    fn knows(&self, class: u32) -> bool {
        self.classes[class as usize].familiar
    }

    fn pair_variance(&self, (a, b): (u32, u32)) -> f64 {
        self.offline.pair_variance(self.knows(a) && self.knows(b))
    }

    /// The effect of `class` in its role on the rate of its pair with `beside`.
    fn share(&self, role: Role, class: u32, beside: u32) -> RoleEffect {
        let ClassState { sensitivity, pressure, familiar, .. } = &self.classes[class as usize];
        let share = match role {
            Role::Subject => sensitivity[beside as usize],
            Role::Partner => pressure[beside as usize],
        };
        let counts = adds_doubt(*familiar, self.knows(beside));
        RoleEffect { variance: if counts { share.variance } else { 0.0 }, ..share }
    }

    /// Variance of the rate of a pair without this role of `class`.
    pub(super) fn variance_besides(&self, role: Role, class: u32, beside: u32) -> f64 {
        self.pair_variance(role.pair(class, beside))
            + self.share(role.other(), beside, class).variance
    }

    /// Variance of the observations of a pair around its rate; `None` without observations.
    pub(super) fn noise_variance(&self, pair: (u32, u32)) -> Option<f64> {
        self.pair(pair).map(|pair| pair.drifted + 1.0 / pair.evidence.precision)
    }

    /// Covariance of the effects of `class` in its role beside two others.
    pub(super) fn in_common(&self, role: Role, class: u32, beside: [u32; 2]) -> f64 {
        let [one, other] = beside.map(|class| class as usize);
        self.classes[one].in_common[other].of(role, self.knows(class))
    }

    /// What a pair says about the effect of `class` in its role, given the other class's effect elsewhere.
    fn shown(&self, role: Role, class: u32, beside: u32) -> Option<Shown> {
        let pair = role.pair(class, beside);
        let (mean, noise) = (self.pair(pair)?.evidence.mean, self.noise_variance(pair)?);
        let predicted = self.predicted(pair);
        let load = load(predicted);
        Some(Shown {
            beside,
            value: (mean - predicted) / load - self.share(role.other(), beside, class).mean,
            variance: self.variance_besides(role, class, beside) + noise / load.powi(2),
        })
    }

    /// The effects of `class` in its role beside each of `asked`: a Gaussian process over the other classes,
    /// conditioned on the observations. For an observed pair, without that pair, whose own observations must
    /// not count twice.
    fn shares(&self, role: Role, class: u32, asked: Range<usize>) -> Vec<RoleEffect> {
        let ClassState { partners, subjects, .. } = &self.classes[class as usize];
        let observed = match role {
            Role::Subject => partners,
            Role::Partner => subjects,
        };
        let shown = observed.iter().take(SHOWN_MAX);
        let shown: Vec<Shown> =
            shown.filter_map(|&beside| self.shown(role, class, beside)).collect();
        let covariance = |one: u32, other: u32| self.in_common(role, class, [one, other]);
        let matrix = Square::from_fn(shown.len(), |row, column| {
            let noise = if row == column { shown[row].variance } else { 0.0 };
            covariance(shown[row].beside, shown[column].beside) + noise
        });
        let values: Vec<f64> = shown.iter().map(|shown| shown.value).collect();
        let solved = Inverse::of(&matrix).filter(|_| !shown.is_empty()).map(|inverse| {
            let weights = inverse.times(&values);
            (inverse, weights)
        });
        let mut place = vec![None; self.classes.len()];
        shown.iter().enumerate().for_each(|(at, shown)| place[shown.beside as usize] = Some(at));
        let share = |other: usize| {
            let beside = other as u32;
            let alone = covariance(beside, beside);
            let Some((inverse, weights)) = &solved else {
                return RoleEffect { mean: 0.0, variance: alone };
            };
            if let Some(at) = place[other] {
                // Without one of the values, a process predicts value − [K⁻¹·y] / [K⁻¹] for it.
                let (Shown { value, variance, .. }, own) = (shown[at], inverse.at(at, at));
                let variance = (1.0 / own - variance).clamp(0.0, alone);
                return RoleEffect { mean: value - weights[at] / own, variance };
            }
            let near: Vec<f64> =
                shown.iter().map(|shown| covariance(shown.beside, beside)).collect();
            let known = dot(&near, &inverse.times(&near));
            RoleEffect { mean: dot(&near, weights), variance: (alone - known).max(0.0) }
        };
        asked.map(share).collect()
    }
}
