//! Beliefs about pairs that follow what is observed.
//!
//! rate(a | b) = prediction + load · (sensitivity of a + pressure of b + what is the pair's own), all
//! Gaussian, with variances that the predictor measured on pairs it had not seen; the load is larger
//! where a larger slow-down is predicted. What a pair shows about itself is weighed exactly; what other
//! pairs show reaches it through the sensitivity and the pressure that it shares with them.

use super::offline::{Offline, load};
use super::profile::ClassProfile;
use super::{MEASURED_MAX, RATE_MAX, RATE_MIN};
use serde::{Deserialize, Serialize};

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

/// A class and what has been learned about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Class {
    profile: ClassProfile,
    /// The predictor has measured it beside others.
    familiar: bool,
    /// Its predicted rate beside each class, by position: predicting takes long, and it never changes.
    predicted: Vec<f64>,
    sensitivity: f64,
    pressure: f64,
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
            class.pairs.push(None);
        }
        let others = self.classes.iter().map(|class| &class.profile);
        let beside = others.chain([profile]).map(|other| offline.predict(profile, other).rate);
        let predicted: Vec<f64> = beside.collect();
        self.classes.push(Class {
            profile: profile.clone(),
            familiar: self.offline.knows(profile),
            pairs: vec![None; predicted.len()],
            predicted,
            sensitivity: 0.0,
            pressure: 0.0,
            partners: Vec::new(),
            subjects: Vec::new(),
        });
        self.classes.len() - 1
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
        self.classes[a as usize].sensitivity = self.sensitivity(a, None).0;
        self.classes[b as usize].pressure = self.pressure(b, None).0;
    }

    /// What is believed about the rate of `a` beside `b`.
    pub fn belief(&self, a: u32, b: u32) -> Belief {
        let own = self.pair(a, b);
        let predicted = self.predicted(a, b);
        let load = load(predicted);
        let (sensitivity, of_sensitivity) = self.sensitivity(a, Some(b));
        let (pressure, of_pressure) = self.pressure(b, Some(a));
        let expected = predicted + load * (sensitivity + pressure);
        let variance = load.powi(2) * (of_sensitivity + of_pressure + self.pair_variance(a, b))
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

    /// Sensitivity of `a` and its variance, from all pairs but the one with `except`, which must not
    /// hear its own voice twice.
    fn sensitivity(&self, a: u32, except: Option<u32>) -> (f64, f64) {
        let partners = self.classes[a as usize].partners.iter().filter(|&&b| Some(b) != except);
        let shown = partners.map(|&b| ((a, b), self.classes[b as usize].pressure));
        self.shared(self.offline.errors(self.knows(a)).sensitivity, shown)
    }

    /// Pressure of `b` and its variance, likewise.
    fn pressure(&self, b: u32, except: Option<u32>) -> (f64, f64) {
        let subjects = self.classes[b as usize].subjects.iter().filter(|&&a| Some(a) != except);
        let shown = subjects.map(|&a| ((a, b), self.classes[a as usize].sensitivity));
        self.shared(self.offline.errors(self.knows(b)).pressure, shown)
    }

    /// What pairs have in common, given the part of each that is explained by its other class.
    fn shared(
        &self,
        prior_variance: f64,
        shown: impl Iterator<Item = ((u32, u32), f64)>,
    ) -> (f64, f64) {
        let (mut precision, mut sum) = (1.0 / prior_variance, 0.0);
        for ((a, b), explained) in shown {
            let Some(Pair { evidence, drifted, .. }) = self.pair(a, b) else { continue };
            let predicted = self.predicted(a, b);
            let load = load(predicted);
            let noise = (drifted + 1.0 / evidence.precision) / load.powi(2);
            let weight = 1.0 / (self.pair_variance(a, b) + noise);
            precision += weight;
            sum += weight * ((evidence.mean - predicted) / load - explained);
        }
        (sum / precision, 1.0 / precision)
    }
}
