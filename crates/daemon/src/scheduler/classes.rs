//! What is known about classes of jobs: how long they take, how much memory, how fast alone and beside
//! each other.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};
use tandem_core::{
    ClassId, ClosedForm, GpuTypeId, Interference, Memory, Observation, Profile, Ratio, Span,
    SubBatch, SubBatches, UserId,
};
use tandem_models::history::{History, Traits, UNKNOWN};
use tandem_models::interference::{ClassProfile, CoTenants, Online, PairObservation};
use tandem_models::memory::ObservedMemory;

/// Classes whose pairs are learned; every pair has a belief of its own. Jobs of later classes share
/// with nobody.
const CLASSES_MAX: usize = 300;

/// What is known about one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// What it takes on each device, by the number of parts of a batch: seen once it was steady.
    pub memory: BTreeMap<u32, ObservedMemory>,
    /// Steps per second alone, by the number of parts of a batch.
    pub solo: BTreeMap<u32, f64>,
    /// Durations alone of the jobs that have finished, the latest last, in microseconds.
    pub durations_us: Vec<u64>,
    /// Rates beside other classes, with the number of measurements: mean and deviation of the belief.
    pub beside: BTreeMap<String, PairSeen>,
}

/// What was measured of a pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairSeen {
    /// Measurements, the latest last: rate and noise. As many as beliefs need.
    pub measured: Vec<(f64, f64)>,
}

/// Measurements of a pair that are kept.
const MEASURED_MAX: usize = 64;
const DURATIONS_MAX: usize = 16;

/// All classes.
pub struct Classes {
    known: BTreeMap<String, Class>,
    /// Numbers, in order of appearance.
    numbers: BTreeMap<String, u32>,
    names: Vec<String>,
    history: History,
    beliefs: Beliefs,
}

impl Classes {
    /// Starts from what was known before.
    pub fn new(known: BTreeMap<String, Class>, beliefs: Beliefs) -> Self {
        let mut classes = Self {
            known: BTreeMap::new(),
            numbers: BTreeMap::new(),
            names: Vec::new(),
            history: History::default(),
            beliefs,
        };
        for (name, class) in known {
            for &duration in &class.durations_us {
                classes.remember(&name, UserId(0), 1, Span(duration));
            }
            for (beside, seen) in &class.beside {
                for &(rate, noise) in &seen.measured {
                    classes.believe(&name, beside, rate, noise);
                }
            }
            classes.known.insert(name, class);
        }
        classes
    }

    /// What is known about a class.
    pub fn get(&self, name: &str) -> Option<&Class> {
        self.known.get(name)
    }

    /// All that is known, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Class)> {
        self.known.iter()
    }

    /// The number of a class in profiles.
    pub fn number(&mut self, name: &str) -> ClassId {
        if let Some(&number) = self.numbers.get(name) {
            return ClassId(number);
        }
        let number = u32::try_from(self.names.len()).expect("classes are counted in u32");
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        self.beliefs.add(name);
        ClassId(number)
    }

    /// The number of a class in profiles, if it was ever heard of.
    pub fn find(&self, name: &str) -> Option<ClassId> {
        self.numbers.get(name).copied().map(ClassId)
    }

    /// What is believed about pairs; follows what is learned.
    pub fn beliefs(&self) -> Beliefs {
        self.beliefs.clone()
    }

    /// Believed rate of a class beside another.
    pub fn believed(&self, name: &str, beside: &str) -> Option<f64> {
        let (a, b) = (self.numbers.get(name)?, self.numbers.get(beside)?);
        self.beliefs.rate_of(*a, *b)
    }

    /// What a class at `rate` among others, on devices with these `companies`, says about each of its
    /// pairs: the other class, the pair's rate, and how uncertain that is.
    pub fn clues(
        &self,
        name: &str,
        companies: &[Vec<&str>],
        rate: f64,
        noise: f64,
    ) -> Vec<(String, f64, f64)> {
        let company = |names: &Vec<&str>| {
            let classes: Option<Vec<u32>> =
                names.iter().map(|&name| self.numbers.get(name).copied()).collect();
            Some(CoTenants { classes: classes?, known_rate: 1.0 })
        };
        let companies: Option<Vec<CoTenants>> = companies.iter().map(company).collect();
        let (Some(&class), Some(companies)) = (self.numbers.get(name), companies) else {
            return Vec::new();
        };
        let clues = self.beliefs.clues(class, &companies, rate, noise).into_iter();
        clues
            .map(|clue| (self.names[clue.beside as usize].clone(), clue.rate, clue.noise))
            .collect()
    }

    /// How long a job will take, as far as jobs like it tell; `None` if there were none.
    pub fn estimate(&self, name: &str, user: UserId, gpus: u32) -> Option<Span> {
        let seen = self.known.get(name).is_some_and(|class| !class.durations_us.is_empty());
        let number = self.numbers.get(name).copied().map(ClassId);
        seen.then(|| self.history.estimate(&Traits { user, name: None, gpus, class: number }))
    }

    /// What to expect of a job of which nothing is known.
    pub fn unknown(&self, user: UserId, gpus: u32) -> Span {
        match self.known.values().any(|class| !class.durations_us.is_empty()) {
            true => self.history.estimate(&Traits { user, name: None, gpus, class: None }),
            false => UNKNOWN,
        }
    }

    /// What a class takes on a device, with a margin; `None` if it was never seen.
    pub fn memory(&self, name: &str) -> Option<Memory> {
        let seen = &self.known.get(name)?.memory;
        let seen = seen.get(&1).or_else(|| seen.values().next());
        seen.map(|seen| seen.reserve(Memory::default()))
    }

    /// The ways to run a class in parts whose speed and memory were measured: neither is ever assumed.
    pub fn ways(&self, name: &str) -> SubBatches {
        let Some(class) = self.known.get(name) else { return SubBatches::default() };
        let Some(&whole) = class.solo.get(&1) else { return SubBatches::default() };
        let ways = class.solo.iter().filter_map(|(&count, &rate)| {
            let memory = class.memory.get(&count)?.reserve(Memory::default());
            let slowdown = Ratio::from_f64((whole / rate).max(1.0));
            (count > 1).then_some(SubBatch { count, slowdown, memory })
        });
        SubBatches::new(ways)
    }

    /// A job has finished after so much work.
    pub fn finished(&mut self, name: &str, user: UserId, gpus: u32, duration: Span) {
        self.remember(name, user, gpus, duration);
        let durations = &mut self.known.entry(name.to_owned()).or_default().durations_us;
        durations.push(duration.0);
        if durations.len() > DURATIONS_MAX {
            durations.remove(0);
        }
    }

    fn remember(&mut self, name: &str, user: UserId, gpus: u32, duration: Span) {
        let class = Some(self.number(name));
        self.history.finish(&Traits { user, name: None, gpus, class }, duration);
    }

    /// A class showed what it takes.
    pub fn set_memory(&mut self, name: &str, accum: u32, bytes: u64) {
        let class = self.known.entry(name.to_owned()).or_default();
        class.memory.entry(accum).or_default().observe(memory(bytes));
    }

    /// A class showed its speed alone.
    pub fn set_solo(&mut self, name: &str, accum: u32, steps_per_s: f64) {
        self.known.entry(name.to_owned()).or_default().solo.insert(accum, steps_per_s);
    }

    /// A class showed its speed beside another.
    pub fn observe(&mut self, name: &str, beside: &str, rate: f64, noise: f64) {
        self.believe(name, beside, rate, noise);
        let class = self.known.entry(name.to_owned()).or_default();
        let seen = class.beside.entry(beside.to_owned()).or_default();
        seen.measured.push((rate, noise));
        if seen.measured.len() > MEASURED_MAX {
            seen.measured.remove(0);
        }
    }

    fn believe(&mut self, name: &str, beside: &str, rate: f64, noise: f64) {
        let (a, b) = (self.number(name), self.number(beside));
        self.beliefs.learn(a.0, b.0, rate, noise);
    }
}

/// Bytes as the engine counts memory, rounded up.
pub fn memory(bytes: u64) -> Memory {
    Memory::from_mib(bytes.div_ceil(1 << 20))
}

/// Beliefs about pairs, shared by the scheduler, which teaches them, and the engine, which asks.
#[derive(Clone)]
pub struct Beliefs(Arc<RwLock<State>>);

struct State {
    source: Source,
    /// Pairs that were measured.
    measured: BTreeSet<(usize, usize)>,
    /// `rates[a][b]`: believed speed of `a` beside `b`.
    rates: Vec<Vec<Ratio>>,
}

enum Source {
    /// Learned from what is measured.
    Online(Box<Online>),
    /// Given.
    Fixed(Arc<dyn Interference>),
}

impl Beliefs {
    /// Learned, from a predictor on.
    pub fn online(online: Online) -> Self {
        Self::new(Source::Online(Box::new(online)))
    }

    /// Given by somebody who knows.
    pub fn fixed(interference: Arc<dyn Interference>) -> Self {
        Self::new(Source::Fixed(interference))
    }

    fn new(source: Source) -> Self {
        Self(Arc::new(RwLock::new(State { source, measured: BTreeSet::new(), rates: Vec::new() })))
    }

    fn with<T>(&self, ask: impl FnOnce(&State) -> T) -> T {
        ask(&self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    fn rate_of(&self, a: u32, b: u32) -> Option<f64> {
        self.with(|state| Some(state.rates.get(a as usize)?.get(b as usize)?.as_f64()))
    }

    fn add(&self, name: &str) {
        self.change(|state| {
            let Source::Online(online) = &mut state.source else { return };
            let count = state.rates.len();
            if count >= CLASSES_MAX {
                return;
            }
            let profile = ClassProfile { name: name.to_owned(), ..ClassProfile::default() };
            online.class(&profile);
            state.rates.push(Vec::new());
            for a in 0..=count {
                for b in state.rates[a].len()..=count {
                    // Nobody has seen the new class beside anyone.
                    state.rates[a].push(believed(online, a, b, false));
                }
            }
        });
    }

    /// What a rate among several says about each pair; about a pair alone it says what it is.
    fn clues(
        &self,
        a: u32,
        companies: &[CoTenants],
        rate: f64,
        noise: f64,
    ) -> Vec<PairObservation> {
        if let [CoTenants { classes, .. }] = companies
            && let &[beside] = classes.as_slice()
        {
            return vec![PairObservation { beside, rate, noise }];
        }
        self.with(|state| {
            let Source::Online(online) = &state.source else { return Vec::new() };
            let mut classes = companies.iter().flat_map(|company| &company.classes).chain([&a]);
            match classes.all(|&class| (class as usize) < state.rates.len()) {
                true => online.pair_observations(a, companies, rate, noise),
                false => Vec::new(),
            }
        })
    }

    fn learn(&self, a: u32, b: u32, rate: f64, noise: f64) {
        self.change(|state| {
            let Source::Online(online) = &mut state.source else { return };
            let count = state.rates.len();
            let (row, column) = (a as usize, b as usize);
            if row >= count || column >= count {
                return;
            }
            online.observe(a, b, rate, noise);
            state.measured.insert((row, column));
            for other in 0..count {
                for (a, b) in [(row, other), (other, column)] {
                    state.rates[a][b] = believed(online, a, b, state.measured.contains(&(a, b)));
                }
            }
        });
    }
}

/// What is believed about a pair. One that was never measured gets the benefit of the doubt, a standard
/// deviation of it: trying it costs seconds, and what is never tried is never learned.
fn believed(online: &Online, a: usize, b: usize, is_measured: bool) -> Ratio {
    let number = |class: usize| u32::try_from(class).expect("classes are counted in u32");
    let belief = online.belief(number(a), number(b));
    let doubt = if is_measured { 0.0 } else { belief.deviation };
    Ratio::from_f64((belief.rate + doubt).min(1.0))
}

impl Interference for Beliefs {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        self.with(|state| match &state.source {
            Source::Fixed(given) => given.pair_rate(job, beside, gpu),
            Source::Online(_) => {
                let rate =
                    |a: ClassId, b: ClassId| state.rates.get(a.index())?.get(b.index()).copied();
                job.class
                    .zip(beside.class)
                    .and_then(|(a, b)| rate(a, b))
                    .map_or_else(|| ClosedForm.pair_rate(job, beside, gpu), Some)
            }
        })
    }

    fn observe(&mut self, _: &Observation) {
        // The scheduler teaches them by class name.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(names: &[&str]) -> Classes {
        let mut classes = Classes::new(BTreeMap::new(), crate::journal::beliefs());
        names.iter().for_each(|name| {
            classes.number(name);
        });
        classes
    }

    #[test]
    fn a_rate_among_two_others_teaches_both_pairs() {
        let mut classes = classes(&["a", "b", "c"]);
        let lone = classes.clues("a", &[vec!["b"]], 0.7, 0.05);
        assert_eq!(lone, [("b".to_owned(), 0.7, 0.05)], "beside one other it is what was measured");
        let product = |classes: &Classes| {
            let believed = |other| classes.believed("a", other).expect("both are known");
            believed("b") * believed("c")
        };
        let seen = product(&classes) / 2.0;
        let clues = classes.clues("a", &[vec!["b", "c"]], seen, 0.05);
        assert_eq!(clues.len(), 2);
        for (beside, rate, noise) in clues {
            assert!(noise > 0.05, "{beside}: the other one is uncertain too");
            classes.observe("a", &beside, rate, noise);
        }
        assert!(product(&classes) < 1.5 * seen, "{} is not near {seen}", product(&classes));
    }

    #[test]
    fn of_classes_beyond_those_that_are_learned_nothing_is_told() {
        let names: Vec<String> =
            (0..=CLASSES_MAX).map(|number| format!("class {number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let classes = classes(&names);
        let last = names[CLASSES_MAX];
        assert!(classes.clues(last, &[vec![names[0], names[1]]], 0.5, 0.05).is_empty());
        assert!(classes.clues(names[0], &[vec![names[1], last]], 0.5, 0.05).is_empty());
        assert!(classes.clues(names[0], &[vec!["never heard of"]], 0.5, 0.05).is_empty());
    }
}
