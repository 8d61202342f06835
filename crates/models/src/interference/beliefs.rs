//! Believed pair rates: what policies plan with when they are not told the truth. The planning engine owns
//! them and passes on what its driver observes, so the simulator and the daemon learn alike.

use super::co_tenants::CoTenants;
use super::online::Online;
use super::profile::ClassProfile;
use std::sync::Arc;
use tandem_core::{
    ClassId, ClassTraits, ClosedForm, GpuTypeId, Interference, Learner, Observation, Profile, Ratio,
};

/// Classes that a growing set of beliefs covers: memory and the cost of an observation grow with their
/// number. Later classes follow the rule for pairs without a belief.
pub const CLASSES_MAX: usize = 300;

/// What is taken off the rate of a pair that nothing but its use of the GPU speaks for.
const UNMEASURED: f64 = 0.95;

/// How far above its expected rate a pair is believed to run. A pair that is never tried is never learned
/// (optimism in the face of uncertainty).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimism {
    /// The expected rate.
    None,
    /// This many standard deviations more.
    Deviations(f64),
    /// Until the pair was measured up to one standard deviation more, and never above the speed alone or, where
    /// the use of the GPU by both is known, above what the time allows that both use it: most for a new class
    /// beside the partner that would tell most about it.
    UntilMeasured,
}

/// A class that was measured beside fewer others is new.
const PARTNERS_FEW: usize = 3;
/// Partners are compared by what they would tell while there are at most this many classes: the cost grows with
/// their square.
const COMPARED_MAX: usize = 128;
/// The least part of the optimism that is left for the partner that would tell least.
const HOPE_MIN: f64 = 0.25;
/// Standard deviation of a measurement, in comparisons of partners.
const NOISE: f64 = 0.05;

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
    /// What classes do alone, by class, as far as it was told.
    traits: Vec<Option<ClassTraits>>,
    /// What a measurement beside each class would tell about a new class, by class.
    information: Vec<Vec<f64>>,
    table: Arc<BeliefTable>,
}

/// Rates as they are read; shared with snapshots, copied when an observation changes it under one.
#[derive(Clone)]
struct BeliefTable {
    /// Rates of pairs without a belief, and whether a pair fits into memory.
    rule: Arc<dyn Interference>,
    classes: usize,
    /// By subject, then partner; `None` where the rule holds.
    rates: Vec<Option<PairBelief>>,
}

/// What is believed about the rate of a class beside another.
#[derive(Clone, Copy)]
struct PairBelief {
    /// With optimism.
    rate: Ratio,
    /// Standard deviation.
    deviation: Ratio,
}

impl BeliefTable {
    fn of_classes(&self, a: ClassId, b: ClassId) -> Option<PairBelief> {
        let (a, b) = (a.index(), b.index());
        if a >= self.classes || b >= self.classes {
            return None;
        }
        self.rates[a * self.classes + b]
    }

    /// Adds a class; the rate of each of its pairs is what `rate` says.
    fn add(&mut self, rate: impl Fn(usize, usize) -> Option<PairBelief>) {
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
        let rate =
            |a: usize, b: usize| is_covered(a, b).then(|| believed(&online, optimism, 1.0, a, b));
        let rates = (0..classes * classes).map(|pair| rate(pair / classes, pair % classes));
        let table = Arc::new(BeliefTable { rule, classes, rates: rates.collect() });
        Self {
            online,
            optimism,
            learns,
            rule_is_exact: true,
            traits: Vec::new(),
            information: Vec::new(),
            table,
        }
    }

    /// Beliefs that learn, about classes that are yet to appear.
    pub fn growing(online: Online) -> Self {
        let table = BeliefTable { rule: Arc::new(ClosedForm), classes: 0, rates: Vec::new() };
        Self {
            online,
            optimism: Optimism::UntilMeasured,
            learns: true,
            rule_is_exact: false,
            traits: Vec::new(),
            information: Vec::new(),
            table: Arc::new(table),
        }
    }

    /// The believed rate of class `a` beside `b`, whether they fit or not; `None` if the pair follows the
    /// rule.
    pub fn of_classes(&self, a: ClassId, b: ClassId) -> Option<Ratio> {
        Some(self.table.of_classes(a, b)?.rate)
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
    /// inflicts, beside any class, and which partners tell most about them.
    fn refresh(&mut self, a: usize, b: usize) {
        let compares = self.optimism == Optimism::UntilMeasured;
        if compares {
            self.compare_partners(a);
            self.compare_partners(b);
        }
        for other in 0..self.table.classes {
            let pairs = [(a, other), (other, b), (b, other), (other, a)];
            for &(a, b) in if compares { &pairs[..] } else { &pairs[..2] } {
                let at = a * self.table.classes + b;
                if self.table.rates[at].is_some() {
                    let rate = self.believed(a, b);
                    Arc::make_mut(&mut self.table).rates[at] = Some(rate);
                }
            }
        }
    }

    /// The believed rate of a pair. Where one of the classes reports no steps, a wrong belief would hardly be
    /// noticed: such a pair is not hoped for, and until it was measured it runs as well as the time allows that
    /// both use their GPU alone.
    fn believed(&self, a: usize, b: usize) -> PairBelief {
        let traits = |class: usize| self.traits.get(class).copied().flatten();
        let pair = (number(a), number(b));
        match (traits(a), traits(b)) {
            (Some(own), Some(other))
                if !(self.online.is_measured(pair) || own.reports && other.reports) =>
            {
                let profile = |traits: ClassTraits| Profile {
                    gpu_util: traits.gpu_util,
                    ..Profile::default()
                };
                let by_use = ClosedForm.pair_rate(&profile(own), &profile(other), GpuTypeId(0));
                let rate =
                    by_use.map_or(Ratio::HALF, |rate| rate.times(Ratio::from_f64(UNMEASURED)));
                let deviation = self.online.belief(pair.0, pair.1).deviation;
                PairBelief { rate, deviation: Ratio::from_f64(deviation) }
            }
            _ => believed(&self.online, self.optimism, self.hope(a, b), a, b),
        }
    }

    /// The part of the optimism that a pair gets: new classes should meet the partners that tell most.
    fn hope(&self, a: usize, b: usize) -> f64 {
        let told = |class: usize, beside: usize| self.information.get(class)?.get(beside).copied();
        let most = told(a, b).into_iter().chain(told(b, a)).reduce(f64::max);
        most.map_or(1.0, |most| HOPE_MIN + (1.0 - HOPE_MIN) * most)
    }

    fn compare_partners(&mut self, class: usize) {
        let compares = self.table.classes <= COMPARED_MAX
            && self.online.partners(number(class)) < PARTNERS_FEW;
        let told =
            if compares { self.online.information(number(class), NOISE) } else { Vec::new() };
        self.information.resize(self.information.len().max(class + 1), Vec::new());
        self.information[class] = told;
    }
}

fn number(class: usize) -> u32 {
    u32::try_from(class).expect("classes are counted in u32")
}

fn believed(online: &Online, optimism: Optimism, hope: f64, a: usize, b: usize) -> PairBelief {
    let pair = (number(a), number(b));
    let belief = online.belief(pair.0, pair.1);
    let rate = match optimism {
        Optimism::None => belief.rate,
        Optimism::Deviations(deviations) => belief.cautious(-deviations),
        Optimism::UntilMeasured => {
            let doubt = if online.is_measured(pair) { 0.0 } else { belief.deviation };
            let most = online.left_by_use(pair).unwrap_or(1.0).max(belief.rate).min(1.0);
            (belief.rate + hope * doubt).min(most)
        }
    };
    PairBelief { rate: Ratio::from_f64(rate), deviation: Ratio::from_f64(belief.deviation) }
}

impl Interference for BeliefTable {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        let by_rule = self.rule.pair_rate(job, beside, gpu)?;
        let pair = job.class.zip(beside.class);
        let believed = pair.and_then(|(a, b)| self.of_classes(a, b));
        Some(believed.map_or(by_rule, |belief| belief.rate))
    }

    fn pair_deviation(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Ratio {
        let pair = job.class.zip(beside.class);
        pair.and_then(|(a, b)| self.of_classes(a, b)).map_or(Ratio::ZERO, |belief| belief.deviation)
    }
}

impl Interference for Beliefs {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        self.table.pair_rate(job, beside, gpu)
    }

    fn pair_deviation(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Ratio {
        self.table.pair_deviation(job, beside, gpu)
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
        Arc::make_mut(table).add(|a, b| Some(believed(online, *optimism, 1.0, a, b)));
    }

    fn describe_class(&mut self, class: ClassId, traits: &ClassTraits) {
        let at = class.index();
        if at >= self.table.classes {
            return;
        }
        self.traits.resize(self.traits.len().max(self.table.classes), None);
        if self.traits[at].replace(*traits) == Some(*traits) {
            return;
        }

        self.online.describe(
            class.0,
            traits.gpu_util.map(tandem_core::Utilisation::share),
            traits.memory.map(|memory| memory.mib()),
            traits.steps_per_s.map(Ratio::as_f64),
        );
        self.refresh(at, at);
    }

    fn observe(&mut self, observation: &Observation) -> bool {
        let (Some(class), true) = (observation.job.class, self.learns) else { return false };
        let gpus: Option<Vec<CoTenants>> = observation
            .beside
            .iter()
            .map(|others| self.co_tenants(&observation.job, others, observation.gpu))
            .collect();
        let Some(gpus) = gpus else { return false };
        let (rate, noise) = (observation.rate.as_f64(), observation.noise.as_f64());
        let mut moved = false;
        for pair in self.online.pair_observations(class.0, &gpus, rate, noise) {
            let before = self.online.belief(class.0, pair.beside);
            self.online.observe(class.0, pair.beside, pair.rate, pair.noise);
            self.refresh(class.index(), pair.beside as usize);
            let after = self.online.belief(class.0, pair.beside);
            moved |= (after.rate - before.rate).abs() > after.deviation;
        }
        moved
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

    /// What a class does alone: percent of the time on its GPU, memory and speed.
    fn alone(percent: u32, mib: u64) -> ClassTraits {
        ClassTraits {
            gpu_util: Some(tandem_core::Utilisation(percent * 1000)),
            memory: Some(tandem_core::Memory::from_mib(mib)),
            steps_per_s: Some(Ratio::from_f64(30.0)),
            reports: true,
        }
    }

    /// A table in which memory varies, too, so that a class can be far from all of it.
    fn table_with_memory() -> Offline {
        let profile = |index: u32| ClassProfile {
            name: format!("known {index}"),
            gpu_util: Some(0.1 + 0.15 * f64::from(index)),
            memory_mib: Some(2000.0 + 1000.0 * f64::from((index * 7) % 5)),
            steps_per_s: Some(5.0 + f64::from((index * 3) % 4)),
            ..ClassProfile::default()
        };
        let profiles: Vec<ClassProfile> = (0..6).map(profile).collect();
        let mut pairs = Vec::new();
        for a in 0..6 {
            for b in a..6 {
                let rate = 1.0 - 0.04 * (a + b) as f64;
                pairs.push(MeasuredPair { a, b, rate_a: rate, rate_b: rate });
            }
        }
        Offline::fit(&profiles, &pairs, 1).expect("21 pairs are enough")
    }

    #[test]
    fn predictions_follow_what_classes_do_alone_however_unlike_the_training_they_are() {
        let mut beliefs = Beliefs::growing(Online::new(table_with_memory()));
        for class in 0..2 {
            beliefs.add_class(ClassId(class), &format!("class {class}"));
        }
        let before = (beliefs.online.belief(0, 0).rate, beliefs.online.belief(1, 1).rate);
        assert!((before.0 - before.1).abs() < 1e-9, "nothing tells them apart: {before:?}");
        // 22 MiB is less than a hundredth of what any job of the table takes.
        beliefs.describe_class(ClassId(0), &alone(95, 22));
        beliefs.describe_class(ClassId(1), &alone(10, 22));
        let (busy, idle) = (beliefs.online.belief(0, 0).rate, beliefs.online.belief(1, 1).rate);
        assert!(idle - busy > 0.15, "{busy} for two busy ones, {idle} for two idle ones");
    }

    #[test]
    fn on_cores_two_jobs_get_what_is_left_for_each() {
        let mut beliefs = Beliefs::growing(Online::new(offline()).taking_turns());
        for (class, percent) in [100, 40, 70].into_iter().enumerate() {
            let class = ClassId(number(class));
            beliefs.add_class(class, &format!("class {}", class.0));
            beliefs.describe_class(class, &alone(percent, 22));
        }
        let is = |a: u32, b: u32, expected: f64| {
            let rate = beliefs.online.belief(a, b).rate;
            assert!((rate - expected).abs() < 0.01, "{a} beside {b}: {rate}, not {expected}");
        };
        is(0, 0, 0.5);
        is(1, 1, 1.0);
        is(0, 1, 1.0 / 1.4);
        is(2, 2, 1.0 / 1.4);
        // What is planned with is no more than the time allows, however unsure the model is.
        for (a, b, most) in [(0, 0, 0.5), (0, 1, 1.0 / 1.4), (1, 0, 1.0 / 1.4), (1, 1, 1.0)] {
            let planned = rate(&beliefs, a, b);
            assert!((planned - most).abs() < 0.01, "{a} beside {b}: {planned}, not {most}");
        }
        observe(&mut beliefs, &[&[1]], 0.9);
        assert!(rate(&beliefs, 0, 1) > 0.8, "a measurement counts more");
    }

    #[test]
    fn busy_pairs_are_not_hoped_for_and_idle_ones_are() {
        let mut beliefs = Beliefs::growing(Online::new(table_with_memory()));
        for (class, percent) in [100, 20].into_iter().enumerate() {
            let class = ClassId(number(class));
            beliefs.add_class(class, &format!("class {}", class.0));
            beliefs.describe_class(class, &alone(percent, 3000));
        }
        let expected = |a: u32, b: u32| beliefs.online.belief(a, b);
        let busy = expected(0, 0);
        assert!(busy.deviation > 0.02, "the model is not sure: {busy:?}");
        let planned = rate(&beliefs, 0, 0);
        assert!((planned - busy.rate.max(0.5)).abs() < 1e-6, "{planned}, {busy:?}");
        let idle = expected(1, 1);
        assert!(idle.rate > 0.999 || rate(&beliefs, 1, 1) > idle.rate + 0.01, "{idle:?}");
    }

    #[test]
    fn a_new_class_is_hoped_for_most_beside_the_partner_that_tells_most() {
        let mut beliefs = Beliefs::growing(Online::new(table_with_memory()));
        let shares = [20, 50, 52, 54, 56, 90];
        for (class, percent) in shares.into_iter().enumerate() {
            let class = ClassId(number(class));
            beliefs.add_class(class, &format!("class {}", class.0));
            beliefs.describe_class(class, &alone(percent, 3000));
        }
        let new = 5;
        let next = beliefs.online.next_experiments(5, &[0, 1, 2, 3, 4], 1, NOISE);
        let hopes: Vec<f64> = (0..5).map(|other| beliefs.hope(new, other)).collect();
        let best = next.partners[0] as usize;
        assert!(hopes.iter().all(|&hope| hope <= hopes[best]), "{hopes:?}, best beside {best}");
        assert!(hopes.iter().any(|&hope| hope < hopes[best] - 0.05), "they differ: {hopes:?}");
        // Measured beside three others it is known well enough.
        for other in 0..3 {
            beliefs.observe(&Observation {
                job: profile(5),
                beside: vec![vec![profile(other)]],
                gpu: GpuTypeId(0),
                rate: Ratio::from_f64(0.8),
                noise: Ratio::from_f64(0.05),
            });
        }
        assert_eq!(beliefs.information[new], Vec::<f64>::new());
    }

    #[test]
    fn classes_that_report_nothing_share_as_far_as_their_use_of_the_gpu_allows() {
        let mut beliefs = beliefs(3);
        let traits = |percent: u32, reports| ClassTraits {
            gpu_util: Some(tandem_core::Utilisation(percent * 1000)),
            reports,
            ..ClassTraits::default()
        };
        beliefs.describe_class(ClassId(0), &traits(100, false));
        beliefs.describe_class(ClassId(1), &traits(5, false));
        beliefs.describe_class(ClassId(2), &traits(100, true));
        assert!(rate(&beliefs, 0, 0) < 0.5, "two that want all of it");
        assert!(rate(&beliefs, 0, 1) > 0.85 && rate(&beliefs, 1, 0) > 0.85);
        assert!(rate(&beliefs, 1, 1) > 0.9);
        assert!(rate(&beliefs, 0, 2) < 0.5, "one that reports does not help the other");
        assert!(rate(&beliefs, 2, 2) > 0.5, "two that report are tried");
        observe(&mut beliefs, &[&[0]], 0.8);
        assert!(rate(&beliefs, 0, 0) > 0.6, "a measurement counts more");
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
