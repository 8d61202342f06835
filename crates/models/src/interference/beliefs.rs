//! Believed pair rates: what policies plan with when they are not told the truth. The planning engine owns
//! them and passes on what its driver observes, so the simulator and the daemon learn alike.

use super::co_tenants::CoTenants;
use super::online::Online;
use super::profile::ClassProfile;
use std::sync::Arc;
use tandem_core::{
    ClassId, ClosedForm, GpuTypeId, Interference, Learner, Observation, Profile, Ratio,
};

/// Classes that a growing set of beliefs covers: memory and the cost of an observation grow with their
/// number. Later classes follow the rule for pairs without a belief.
pub const CLASSES_MAX: usize = 300;

/// How far above its expected rate a pair is believed to run. A pair that is never tried is never learned
/// (optimism in the face of uncertainty).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimism {
    /// The expected rate.
    None,
    /// This many standard deviations more.
    Deviations(f64),
    /// One standard deviation more until the pair was measured, and never above the speed alone.
    UntilMeasured,
}

/// Believed rates of all pairs of classes on one kind of GPU.
#[derive(Clone)]
pub struct Beliefs {
    online: Online,
    optimism: Optimism,
    /// Observations correct the rates.
    learns: bool,
    /// The rule for pairs without a belief is the world's own, so an observation among such pairs still
    /// tells something about the others.
    rule_is_exact: bool,
    table: Arc<Table>,
}

/// Rates as they are read; shared with snapshots, copied when an observation changes it under one.
#[derive(Clone)]
struct Table {
    /// Rates of pairs without a belief, and whether a pair fits into memory.
    rule: Arc<dyn Interference>,
    classes: usize,
    /// By subject, then partner; `None` where the rule holds.
    rates: Vec<Option<Ratio>>,
}

impl Table {
    fn of_classes(&self, a: ClassId, b: ClassId) -> Option<Ratio> {
        let (a, b) = (a.index(), b.index());
        if a >= self.classes || b >= self.classes {
            return None;
        }
        self.rates[a * self.classes + b]
    }

    /// Adds a class; the rate of each of its pairs is what `rate` says.
    fn add(&mut self, rate: impl Fn(usize, usize) -> Option<Ratio>) {
        let (before, classes) = (self.classes, self.classes + 1);
        let mut rates = Vec::with_capacity(classes * classes);
        for a in 0..classes {
            let known = if a < before { &self.rates[a * before..][..before] } else { &[] };
            rates.extend_from_slice(known);
            rates.extend((known.len()..classes).map(|b| rate(a, b)));
        }
        (self.classes, self.rates) = (classes, rates);
    }
}

impl Beliefs {
    /// Beliefs about the classes that `online` knows. Pairs for which `is_covered` is false, and jobs
    /// without a class, follow `rule`, which is the world's own.
    pub fn of_known_classes(
        online: Online,
        rule: Arc<dyn Interference>,
        is_covered: impl Fn(usize, usize) -> bool,
        optimism: Optimism,
        learns: bool,
    ) -> Self {
        let classes = online.count();
        let rate = |a: usize, b: usize| is_covered(a, b).then(|| believed(&online, optimism, a, b));
        let rates = (0..classes * classes).map(|pair| rate(pair / classes, pair % classes));
        let table = Arc::new(Table { rule, classes, rates: rates.collect() });
        Self { online, optimism, learns, rule_is_exact: true, table }
    }

    /// Beliefs that learn, about classes that are yet to appear.
    pub fn growing(online: Online) -> Self {
        let table = Table { rule: Arc::new(ClosedForm), classes: 0, rates: Vec::new() };
        Self {
            online,
            optimism: Optimism::UntilMeasured,
            learns: true,
            rule_is_exact: false,
            table: Arc::new(table),
        }
    }

    /// The believed rate of class `a` beside `b`, whether they fit or not; `None` if the pair follows the
    /// rule.
    pub fn of_classes(&self, a: ClassId, b: ClassId) -> Option<Ratio> {
        self.table.of_classes(a, b)
    }

    /// Whether observations correct them.
    pub fn learns(&self) -> bool {
        self.learns
    }

    /// The co-located jobs on one GPU as the beliefs see them; `None` if one of them follows a rule that
    /// may be wrong, because then the observation does not tell which pair was off.
    fn co_tenants(&self, job: &Profile, others: &[Profile], gpu: GpuTypeId) -> Option<CoTenants> {
        let mut co_tenants = CoTenants { classes: Vec::new(), known_rate: 1.0 };
        for other in others {
            let pair = job.class.zip(other.class);
            match pair.filter(|&(a, b)| self.of_classes(a, b).is_some()) {
                Some((_, ClassId(class))) => co_tenants.classes.push(class),
                None if !self.rule_is_exact => return None,
                None => {
                    let by_rule = self.table.rule.pair_rate(job, other, gpu);
                    co_tenants.known_rate *= by_rule.map_or(1.0, |rate| rate.as_f64());
                }
            }
        }
        Some(co_tenants)
    }

    /// Brings up to date what an observation of `a` beside `b` changes: what `a` suffers and what `b`
    /// inflicts, beside any class.
    fn refresh(&mut self, a: usize, b: usize) {
        let Self { online, optimism, table, .. } = self;
        let table = Arc::make_mut(table);
        for other in 0..table.classes {
            for (a, b) in [(a, other), (other, b)] {
                if let Some(rate) = &mut table.rates[a * table.classes + b] {
                    *rate = believed(online, *optimism, a, b);
                }
            }
        }
    }
}

fn believed(online: &Online, optimism: Optimism, a: usize, b: usize) -> Ratio {
    let number = |class: usize| u32::try_from(class).expect("classes are counted in u32");
    let pair = (number(a), number(b));
    let belief = online.belief(pair.0, pair.1);
    Ratio::from_f64(match optimism {
        Optimism::None => belief.rate,
        Optimism::Deviations(deviations) => belief.cautious(-deviations),
        Optimism::UntilMeasured => {
            let doubt = if online.is_measured(pair) { 0.0 } else { belief.deviation };
            (belief.rate + doubt).min(1.0)
        }
    })
}

impl Interference for Table {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        let by_rule = self.rule.pair_rate(job, beside, gpu)?;
        let pair = job.class.zip(beside.class);
        let believed = pair.and_then(|(a, b)| self.of_classes(a, b));
        Some(believed.unwrap_or(by_rule))
    }
}

impl Interference for Beliefs {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        self.table.pair_rate(job, beside, gpu)
    }
}

impl Learner for Beliefs {
    fn add_class(&mut self, class: ClassId, name: &str) {
        let classes = self.table.classes;
        if class.index() != classes || classes >= CLASSES_MAX {
            return;
        }
        self.online.class(&ClassProfile { name: name.to_owned(), ..ClassProfile::default() });
        let Self { online, optimism, table, .. } = self;
        Arc::make_mut(table).add(|a, b| Some(believed(online, *optimism, a, b)));
    }

    fn observe(&mut self, observation: &Observation) {
        let (Some(class), true) = (observation.job.class, self.learns) else { return };
        let gpus: Option<Vec<CoTenants>> = observation
            .beside
            .iter()
            .map(|others| self.co_tenants(&observation.job, others, observation.gpu))
            .collect();
        let Some(gpus) = gpus else { return };
        let (rate, noise) = (observation.rate.as_f64(), observation.noise.as_f64());
        for pair in self.online.pair_observations(class.0, &gpus, rate, noise) {
            self.online.observe(class.0, pair.beside, pair.rate, pair.noise);
            self.refresh(class.index(), pair.beside as usize);
        }
    }

    fn snapshot(&self) -> Arc<dyn Interference> {
        self.table.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::{MeasuredPair, Offline};

    fn offline() -> Offline {
        let profile = |index: u32| ClassProfile {
            name: format!("known {index}"),
            gpu_util: Some(0.2 * f64::from(index)),
            ..ClassProfile::default()
        };
        let profiles: Vec<ClassProfile> = (1..=4).map(profile).collect();
        let mut pairs = Vec::new();
        for a in 0..4 {
            for b in a..4 {
                let rate = 1.0 - 0.07 * (a + b) as f64;
                pairs.push(MeasuredPair { a, b, rate_a: rate, rate_b: rate - 0.03 });
            }
        }
        Offline::fit(&profiles, &pairs, 1).expect("ten pairs are enough")
    }

    fn beliefs(classes: u32) -> Beliefs {
        let mut beliefs = Beliefs::growing(Online::new(offline()));
        for class in 0..classes {
            beliefs.add_class(ClassId(class), &format!("class {class}"));
        }
        beliefs
    }

    fn profile(class: u32) -> Profile {
        Profile { class: Some(ClassId(class)), ..Profile::default() }
    }

    fn observe(beliefs: &mut Beliefs, beside: &[&[u32]], rate: f64) {
        let profiles = |classes: &&[u32]| classes.iter().map(|&class| profile(class)).collect();
        beliefs.observe(&Observation {
            job: profile(0),
            beside: beside.iter().map(profiles).collect(),
            gpu: GpuTypeId(0),
            rate: Ratio::from_f64(rate),
            noise: Ratio::from_f64(0.05),
        });
    }

    fn rate(model: &dyn Interference, a: u32, b: u32) -> f64 {
        model.pair_rate(&profile(a), &profile(b), GpuTypeId(0)).expect("it fits").as_f64()
    }

    #[test]
    fn a_rate_among_two_others_teaches_both_pairs() {
        let mut beliefs = beliefs(3);
        let product = |beliefs: &Beliefs| rate(beliefs, 0, 1) * rate(beliefs, 0, 2);
        let observed = product(&beliefs) / 2.0;
        observe(&mut beliefs, &[&[1, 2]], observed);
        let after = product(&beliefs);
        assert!(after < 1.5 * observed, "{after} is not near {observed}");
    }

    #[test]
    fn optimism_ends_with_the_first_measurement() {
        let mut beliefs = beliefs(2);
        let (before, unmeasured) = (rate(&beliefs, 0, 1), rate(&beliefs, 1, 0));
        let expected = beliefs.online.belief(0, 1);
        assert!((before - (expected.rate + expected.deviation).min(1.0)).abs() < 1e-9);
        observe(&mut beliefs, &[&[1]], 0.6);
        let expected = beliefs.online.belief(0, 1);
        assert!((rate(&beliefs, 0, 1) - expected.rate).abs() < 1e-9);
        assert!((expected.rate - 0.6).abs() < 0.1, "{expected:?}");
        assert!(rate(&beliefs, 1, 0) > 0.9 * unmeasured, "the other direction was not measured");
    }

    #[test]
    fn a_snapshot_stays_as_it_is() {
        let mut beliefs = beliefs(2);
        let snapshot = beliefs.snapshot();
        let before = rate(snapshot.as_ref(), 0, 1);
        assert_eq!(before, rate(&beliefs, 0, 1));
        observe(&mut beliefs, &[&[1]], 0.3);
        assert_eq!(rate(snapshot.as_ref(), 0, 1), before);
        assert!(rate(&beliefs, 0, 1) < before - 0.1);
        assert_eq!(rate(beliefs.snapshot().as_ref(), 0, 1), rate(&beliefs, 0, 1));
    }

    #[test]
    fn classes_beyond_the_limit_follow_the_closed_form_and_teach_nothing() {
        let count = u32::try_from(CLASSES_MAX).expect("it is small");
        let mut beliefs = beliefs(count + 1);
        assert_eq!(beliefs.of_classes(ClassId(0), ClassId(count)), None);
        assert_eq!(rate(&beliefs, 0, count), 0.5);
        let before = rate(&beliefs, 0, 1);
        observe(&mut beliefs, &[&[1, count]], 0.1);
        assert_eq!(rate(&beliefs, 0, 1), before);
    }

    #[test]
    fn a_class_is_added_once() {
        let mut beliefs = beliefs(2);
        observe(&mut beliefs, &[&[1]], 0.4);
        let before = rate(&beliefs, 0, 1);
        beliefs.add_class(ClassId(0), "class 0");
        beliefs.add_class(ClassId(7), "not the next one");
        assert_eq!((rate(&beliefs, 0, 1), beliefs.table.classes), (before, 2));
    }
}
