//! Beliefs about pairs that follow what is observed.
//!
//! rate(a | b) = prediction + load · (sensitivity of a + pressure of b + what is the pair's own), all
//! Gaussian, with variances that the predictor measured on pairs it had not seen; the load is larger
//! where a larger slow-down is predicted. Sensitivity and pressure vary with the other class of the pair,
//! alike where the other classes are. What a pair shows about itself is weighed exactly; what other
//! pairs show reaches it through the sensitivity and the pressure that it shares with them.

use super::offline::{Effect, Offline, load};
use super::profile::ClassProfile;
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use crate::linalg::{Inverse, Square, dot};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What is believed about a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Expected rate.
    pub rate: f64,
    /// Its standard deviation.
    pub deviation: f64,
}

impl Belief {
    /// The rate that is exceeded unless things are `deviations` standard deviations worse than
    /// expected.
    pub fn cautious(&self, deviations: f64) -> f64 {
        (self.rate - deviations * self.deviation).clamp(RATE_MIN, RATE_MAX)
    }
}

/// Observations of one ordered pair: their weighted mean and its precision (1 / variance).
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

/// Watches one direction in which a rate may drift: a one-sided cumulative sum of surprises, and what
/// was observed since it began to grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Watch {
    sum: f64,
    since: Evidence,
}

impl Watch {
    /// Surprises below this many standard deviations are noise.
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
struct Pair {
    evidence: Evidence,
    /// Variance that drifts have added.
    drifted: f64,
    falling: Watch,
    rising: Watch,
}

/// What a class adds to the rates beside another, as sensitivity or as pressure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Share {
    /// Expected from all that was observed.
    mean: f64,
    /// Expected from all pairs but this one, which must not hear its own voice twice.
    from_others: f64,
    /// Variance of that.
    variance: f64,
}

impl Share {
    fn unknown(effect: Effect) -> Self {
        Self { mean: 0.0, from_others: 0.0, variance: effect.variance() }
    }
}

/// What a class has in common over others is told by so many of them, the first: the cost grows with
/// their cube, and the next one would say little more.
const SHOWN_MAX: usize = 64;

/// What one pair shows of a share.
#[derive(Clone, Copy)]
struct Shown {
    /// The other class of the pair.
    beside: u32,
    value: f64,
    variance: f64,
}

/// A class and what has been learned about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Class {
    profile: ClassProfile,
    /// The predictor has measured it beside others.
    familiar: bool,
    /// Its predicted rate beside each class, by position: predicting takes long, and it never changes.
    predicted: Vec<f64>,
    /// How alike it and each class are to others, by position.
    likeness: Vec<f64>,
    /// By position of the partner.
    sensitivity: Vec<Share>,
    /// By position of the subject.
    pressure: Vec<Share>,
    /// What it showed beside each class, by position.
    pairs: Vec<Option<Pair>>,
    /// Observed beside these, by position.
    partners: Vec<u32>,
    /// These were observed beside it.
    subjects: Vec<u32>,
}

/// Beliefs about all pairs of classes on one kind of GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Online {
    offline: Offline,
    classes: Vec<Class>,
}

impl Online {
    /// Starts from a predictor.
    pub fn new(offline: Offline) -> Self {
        Self { offline, classes: Vec::new() }
    }

    /// The predictor that it started from.
    pub fn offline(&self) -> &Offline {
        &self.offline
    }

    /// The number of a class, new or known by its name.
    pub fn class(&mut self, profile: &ClassProfile) -> u32 {
        let known = self.classes.iter().position(|class| class.profile.name == profile.name);
        let number = known.unwrap_or_else(|| self.add(profile));
        u32::try_from(number).expect("classes are counted in u32")
    }

    fn add(&mut self, profile: &ClassProfile) -> usize {
        let offline = &self.offline;
        for class in &mut self.classes {
            class.predicted.push(offline.predict(&class.profile, profile).rate);
            class.likeness.push(offline.likeness(&class.profile, profile));
            class.pairs.push(None);
        }
        let others = self.classes.iter().map(|class| &class.profile).chain([profile]);
        let predicted = others.clone().map(|other| offline.predict(profile, other).rate).collect();
        let likeness = others.map(|other| offline.likeness(profile, other)).collect();
        let (number, familiar) = (self.classes.len(), offline.knows(profile));
        let errors = offline.errors(familiar);
        self.classes.push(Class {
            profile: profile.clone(),
            familiar,
            predicted,
            likeness,
            sensitivity: vec![Share::unknown(errors.sensitivity); number + 1],
            pressure: vec![Share::unknown(errors.pressure); number + 1],
            pairs: vec![None; number + 1],
            partners: Vec::new(),
            subjects: Vec::new(),
        });
        for class in 0..number {
            let sensitivity = self.sensitivity(class as u32, number..number + 1);
            let pressure = self.pressure(class as u32, number..number + 1);
            self.classes[class].sensitivity.extend(sensitivity);
            self.classes[class].pressure.extend(pressure);
        }
        number
    }

    /// `a` ran at `rate` beside `b`; `noise` is the standard deviation of such a measurement.
    pub fn observe(&mut self, a: u32, b: u32, rate: f64, noise: f64) {
        let before = self.belief(a, b);
        let rate = rate.clamp(-MEASURED_MAX, MEASURED_MAX);
        let noise = noise.clamp(1e-4, MEASURED_MAX);
        let precision = 1.0 / noise.powi(2);
        if self.pair(a, b).is_none() {
            self.classes[a as usize].partners.push(b);
            self.classes[b as usize].subjects.push(a);
        }
        let pair = self.classes[a as usize].pairs[b as usize].get_or_insert(Pair {
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
            // What was observed before the drift began says nothing about now.
            pair.evidence = if falls { pair.falling.since } else { pair.rising.since };
            pair.drifted += (pair.evidence.mean - before.rate).powi(2);
            (pair.falling, pair.rising) = (Watch::default(), Watch::default());
        }
        let all = 0..self.classes.len();
        self.classes[a as usize].sensitivity = self.sensitivity(a, all.clone());
        self.classes[b as usize].pressure = self.pressure(b, all);
    }

    /// What is believed about the rate of `a` beside `b`.
    pub fn belief(&self, a: u32, b: u32) -> Belief {
        let own = self.pair(a, b);
        let predicted = self.predicted(a, b);
        let load = load(predicted);
        let sensitivity = &self.classes[a as usize].sensitivity[b as usize];
        let pressure = &self.classes[b as usize].pressure[a as usize];
        let expected = predicted + load * (sensitivity.from_others + pressure.from_others);
        let shared = sensitivity.variance + pressure.variance;
        let variance = load.powi(2) * (shared + self.pair_variance(a, b))
            + own.map_or(0.0, |pair| pair.drifted);
        let evidence = own.map_or_else(Evidence::default, |pair| pair.evidence);
        let precision = 1.0 / variance + evidence.precision;
        let rate = (expected / variance + evidence.mean * evidence.precision) / precision;
        Belief { rate: rate.clamp(RATE_MIN, RATE_MAX), deviation: (1.0 / precision).sqrt() }
    }

    fn pair(&self, a: u32, b: u32) -> Option<&Pair> {
        self.classes[a as usize].pairs[b as usize].as_ref()
    }

    fn predicted(&self, a: u32, b: u32) -> f64 {
        self.classes[a as usize].predicted[b as usize]
    }

    fn knows(&self, class: u32) -> bool {
        self.classes[class as usize].familiar
    }

    fn pair_variance(&self, a: u32, b: u32) -> f64 {
        self.offline.errors(self.knows(a) && self.knows(b)).pair
    }

    /// Sensitivity of `a` beside each of `asked`.
    fn sensitivity(&self, a: u32, asked: Range<usize>) -> Vec<Share> {
        let Class { partners, familiar, .. } = &self.classes[a as usize];
        let explained = |b: u32| self.classes[b as usize].pressure[a as usize].mean;
        let shown = |&b: &u32| self.shown((a, b), b, explained(b));
        let shown: Vec<Shown> = partners.iter().take(SHOWN_MAX).filter_map(shown).collect();
        self.shares(self.offline.errors(*familiar).sensitivity, &shown, asked)
    }

    /// Pressure of `b` on each of `asked`.
    fn pressure(&self, b: u32, asked: Range<usize>) -> Vec<Share> {
        let Class { subjects, familiar, .. } = &self.classes[b as usize];
        let explained = |a: u32| self.classes[a as usize].sensitivity[b as usize].mean;
        let shown = |&a: &u32| self.shown((a, b), a, explained(a));
        let shown: Vec<Shown> = subjects.iter().take(SHOWN_MAX).filter_map(shown).collect();
        self.shares(self.offline.errors(*familiar).pressure, &shown, asked)
    }

    /// What a pair shows of the share of one of its classes, given the part that is explained by the
    /// class beside it.
    fn shown(&self, (a, b): (u32, u32), beside: u32, explained: f64) -> Option<Shown> {
        let Pair { evidence, drifted, .. } = self.pair(a, b)?;
        let predicted = self.predicted(a, b);
        let load = load(predicted);
        let noise = (drifted + 1.0 / evidence.precision) / load.powi(2);
        Some(Shown {
            beside,
            value: (evidence.mean - predicted) / load - explained,
            variance: self.pair_variance(a, b) + noise,
        })
    }

    /// A class's shares beside each of `asked`: a Gaussian process over the classes beside it,
    /// conditioned on what it showed.
    fn shares(&self, effect: Effect, shown: &[Shown], asked: Range<usize>) -> Vec<Share> {
        let covariance =
            |one: u32, other: usize| effect.covariance(self.classes[one as usize].likeness[other]);
        let matrix = Square::from_fn(shown.len(), |row, column| {
            let noise = if row == column { shown[row].variance } else { 0.0 };
            covariance(shown[row].beside, shown[column].beside as usize) + noise
        });
        let Some(inverse) = Inverse::of(&matrix).filter(|_| !shown.is_empty()) else {
            return vec![Share::unknown(effect); asked.len()];
        };
        let values: Vec<f64> = shown.iter().map(|shown| shown.value).collect();
        let weights = inverse.times(&values);
        let mut place = vec![None; self.classes.len()];
        shown.iter().enumerate().for_each(|(at, shown)| place[shown.beside as usize] = Some(at));
        let share = |other: usize| match place[other] {
            Some(at) => {
                let (Shown { value, variance, .. }, own) = (shown[at], inverse.at(at, at));
                Share {
                    mean: value - variance * weights[at],
                    // Without one of the values, a process expects value − [K⁻¹·y] / [K⁻¹] of it.
                    from_others: value - weights[at] / own,
                    variance: (1.0 / own - variance).max(0.0),
                }
            }
            None => {
                let near: Vec<f64> =
                    shown.iter().map(|shown| covariance(shown.beside, other)).collect();
                let mean = dot(&near, &weights);
                let known = dot(&near, &inverse.times(&near));
                let variance = (effect.variance() - known).max(0.0);
                Share { mean, from_others: mean, variance }
            }
        };
        asked.map(share).collect()
    }
}
