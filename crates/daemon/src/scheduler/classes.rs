//! What was learned about classes of jobs: duration, memory, and speed alone and beside each other.

use super::class_durations::RunningJobs;
use super::class_names::Definitions;
use super::services::LatencyAlone;
use crate::class::{ClassDefinition, JobLength};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{
    ClassId, ClassTraits, GpuTypeId, Memory, Observation, Profile, Ratio, SubBatch, SubBatches,
    Utilisation,
};
use tandem_models::interference::CLASSES_MAX;
use tandem_models::memory::ObservedMemory;

/// What was learned about one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedClass {
    /// Steady memory on each device, by number of sub-batches.
    pub memory: BTreeMap<u32, ObservedMemory>,
    /// Steps per second alone, by number of sub-batches.
    pub solo: BTreeMap<u32, f64>,
    /// What defines it, unless the user named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<ClassDefinition>,
    /// The fraction of time in which it uses its devices alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty: Option<f64>,
    /// Latencies alone, of services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyAlone>,
    /// Durations alone of the jobs that have finished, the latest last, in microseconds.
    pub durations_us: Vec<u64>,
    /// What those jobs had to do, as far as it was known: those of earlier ones may be missing at the front.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<Option<JobLength>>,
    /// Measured rates beside one other job, by its class.
    pub beside: BTreeMap<String, PairSeen>,
    /// Measured rates among several others, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub among: Vec<GroupSeen>,
}

/// Measured rates of a class beside one job of another class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairSeen {
    /// Rate and noise, the latest last.
    pub measured: Vec<(f64, f64)>,
}

/// A measured rate of a class among several jobs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupSeen {
    /// Classes of the co-located jobs on each GPU, where that differs.
    pub beside: Vec<Vec<String>>,
    /// Speed relative to running alone.
    pub rate: f64,
    /// Standard deviation of the measurement.
    pub noise: f64,
}

impl LearnedClass {
    /// How many measurements say something about the rate beside another class.
    pub fn measurements(&self, other: &str) -> usize {
        let pairs = self.beside.get(other).map_or(0, |seen| seen.measured.len());
        let names_it = |group: &&GroupSeen| group.beside.iter().flatten().any(|name| name == other);
        pairs + self.among.iter().filter(names_it).count()
    }

    /// The classes beside which it was measured.
    pub fn partners(&self) -> BTreeSet<&str> {
        let among = self.among.iter().flat_map(|group| group.beside.iter().flatten());
        self.beside.keys().chain(among).map(String::as_str).collect()
    }
}

/// Measurements that are kept of each pair, and of all groups of a class.
const MEASURED_MAX: usize = 64;

/// Classes of one user about which the engine learns.
const NUMBERED_MAX: usize = CLASSES_MAX / 4;
/// Classes of one user about which something is kept.
const LEARNED_MAX: usize = 1000;

/// All classes. The engine owns the beliefs about their pairs; this keeps the measurements behind them, from
/// which the engine learns again after a restart.
pub struct ClassTable {
    known: BTreeMap<String, LearnedClass>,
    /// Of how many classes of each user something is known.
    learned_of_users: BTreeMap<String, usize>,
    /// What is learned about a class that is not kept.
    forgotten: LearnedClass,
    /// Numbered classes of each user.
    of_users: BTreeMap<String, usize>,
    /// Numbers, in order of appearance.
    numbers: BTreeMap<String, u32>,
    names: Vec<String>,
    /// The engine knows the classes before this one.
    told: usize,
    /// Classes about which something was learned in this step.
    learned: BTreeSet<String>,
    pub(super) definitions: Definitions,
    pub(super) running: RunningJobs,
}

impl ClassTable {
    /// Starts from what was known before.
    pub fn new(known: BTreeMap<String, LearnedClass>) -> Self {
        let mut learned_of_users: BTreeMap<String, usize> = BTreeMap::new();
        for user in known.keys().filter_map(|name| user_of(name)) {
            *learned_of_users.entry(user.to_owned()).or_default() += 1;
        }
        let mut classes = Self {
            known,
            learned_of_users,
            forgotten: LearnedClass::default(),
            of_users: BTreeMap::new(),
            numbers: BTreeMap::new(),
            names: Vec::new(),
            told: 0,
            learned: BTreeSet::new(),
            definitions: Definitions::default(),
            running: RunningJobs::default(),
        };
        classes.compare_all_siblings();
        classes
    }

    /// What is known about a class.
    pub fn get(&self, name: &str) -> Option<&LearnedClass> {
        self.known.get(name)
    }

    /// All that is known, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &LearnedClass)> {
        self.known.iter()
    }

    /// The number of a class in profiles. The engine learns about a limited number of classes, of which no user
    /// takes all: there is none for classes of a user beyond that.
    pub fn number(&mut self, name: &str) -> Option<ClassId> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(ClassId(number));
        }
        if let Some(user) = user_of(name) {
            let own = self.of_users.entry(user.to_owned()).or_default();
            if *own >= NUMBERED_MAX.min(CLASSES_MAX.saturating_sub(self.names.len())) {
                return None;
            }
            *own += 1;
        }
        let number = u32::try_from(self.names.len()).expect("classes are counted in u32");
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        Some(ClassId(number))
    }

    /// The number of a class in profiles, if it was ever heard of.
    pub fn find(&self, name: &str) -> Option<ClassId> {
        self.numbers.get(name).copied().map(ClassId)
    }

    /// What is known about a class, to be changed.
    pub(super) fn learn(&mut self, name: &str) -> &mut LearnedClass {
        if !self.known.contains_key(name)
            && let Some(user) = user_of(name)
        {
            let own = self.learned_of_users.entry(user.to_owned()).or_default();
            if *own >= LEARNED_MAX {
                self.forgotten = LearnedClass::default();
                return &mut self.forgotten;
            }
            *own += 1;
        }
        self.learned.insert(name.to_owned());
        let definition = self.definition(name).cloned();
        let class = self.known.entry(name.to_owned()).or_default();
        class.definition = definition;
        class
    }

    /// Classes about which something was learned in this step.
    pub(super) fn take_learned(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.learned)
    }

    /// Classes that the engine does not know yet, in order. Each is given once.
    pub(super) fn take_new(&mut self) -> impl Iterator<Item = (ClassId, String)> + '_ {
        let first = std::mem::replace(&mut self.told, self.names.len());
        let number = |index: usize| ClassId(u32::try_from(index).expect("classes are u32"));
        let names = self.names.iter().cloned().enumerate().skip(first);
        names.map(move |(index, name)| (number(index), name))
    }

    /// All measurements that were kept, as the engine learns from them.
    pub(super) fn observations(&mut self) -> Vec<Observation> {
        let known = std::mem::take(&mut self.known);
        let mut all = Vec::new();
        for (name, class) in &known {
            for (other, seen) in &class.beside {
                let beside = [vec![other.clone()]];
                for &(rate, noise) in &seen.measured {
                    all.push(self.observation(name, &beside, rate, noise));
                }
            }
            for GroupSeen { beside, rate, noise } in &class.among {
                all.push(self.observation(name, beside, *rate, *noise));
            }
        }
        self.known = known;
        all
    }

    fn observation(
        &mut self,
        name: &str,
        beside: &[Vec<String>],
        rate: f64,
        noise: f64,
    ) -> Observation {
        let mut profile = |name: &str| Profile { class: self.number(name), ..Profile::default() };
        let job = profile(name);
        let mut profiles =
            |others: &Vec<String>| others.iter().map(|other| profile(other)).collect();
        Observation {
            job,
            beside: beside.iter().map(&mut profiles).collect(),
            gpu: GpuTypeId(0),
            rate: Ratio::from_f64(rate),
            noise: Ratio::from_f64(noise),
        }
    }

    /// What a class does alone, as the engine's model takes it.
    pub(super) fn traits(&self, name: &str) -> ClassTraits {
        let Some(class) = self.known.get(name) else { return ClassTraits::default() };
        let memory = class.memory.get(&1).or_else(|| class.memory.values().next());
        ClassTraits {
            gpu_util: class.duty.map(|duty| Utilisation((duty * 100_000.0).round() as u32)),
            memory: memory.and_then(ObservedMemory::peak),
            steps_per_s: class.solo.get(&1).copied().map(Ratio::from_f64),
            reports: !class.solo.is_empty(),
        }
    }

    /// The same of all classes of which something is known.
    pub(super) fn all_traits(&mut self) -> Vec<(ClassId, ClassTraits)> {
        let names: Vec<String> = self.known.keys().cloned().collect();
        names.iter().filter_map(|name| Some((self.number(name)?, self.traits(name)))).collect()
    }

    /// The memory of a class on a device, with a margin; `None` if it was never measured.
    pub fn memory(&self, name: &str) -> Option<Memory> {
        let seen = &self.known.get(name)?.memory;
        let seen = seen.get(&1).or_else(|| seen.values().next());
        seen.map(|seen| seen.reserve(Memory::default()))
    }

    /// The sub-batches whose speed and memory were measured for a class. Neither is ever assumed.
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

    /// The latency of a class alone, which a service of it reported.
    pub fn set_latency(&mut self, name: &str, alone: LatencyAlone) {
        self.learn(name).latency = Some(alone);
    }

    /// A class showed how much of the time it uses its devices.
    pub fn set_duty(&mut self, name: &str, duty: f64) {
        self.learn(name).duty = Some(duty.clamp(0.0, 1.0));
    }

    /// A class showed what it takes.
    pub fn set_memory(&mut self, name: &str, accum: u32, bytes: u64) {
        let class = self.learn(name);
        class.memory.entry(accum).or_default().observe(memory(bytes));
    }

    /// A class showed its speed alone.
    pub fn set_solo(&mut self, name: &str, accum: u32, steps_per_s: f64) {
        self.learn(name).solo.insert(accum, steps_per_s);
    }

    /// The rate of a class among co-located jobs was measured. Keeps it, and gives it as the engine learns
    /// from it.
    pub fn observe(
        &mut self,
        name: &str,
        beside: &[Vec<String>],
        rate: f64,
        noise: f64,
    ) -> Observation {
        let class = self.learn(name);
        match beside {
            [others] if others.len() == 1 => {
                let seen = class.beside.entry(others[0].clone()).or_default();
                push_latest(&mut seen.measured, (rate, noise), MEASURED_MAX);
            }
            groups => {
                let seen = GroupSeen { beside: groups.to_vec(), rate, noise };
                push_latest(&mut class.among, seen, MEASURED_MAX);
            }
        }
        self.observation(name, beside, rate, noise)
    }
}

/// The user of a class that is not common.
fn user_of(name: &str) -> Option<&str> {
    name.split_once('/').map(|(user, _)| user)
}

/// Adds a value; the oldest goes when there are more than `most`.
pub(super) fn push_latest<T>(values: &mut Vec<T>, value: T, most: usize) {
    values.push(value);
    if values.len() > most {
        values.remove(0);
    }
}

/// Bytes as the engine counts memory, rounded up.
pub fn memory(bytes: u64) -> Memory {
    Memory::from_mib(bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(groups: &[&[&str]]) -> Vec<Vec<String>> {
        let names = |group: &&[&str]| group.iter().map(|&name| name.to_owned()).collect();
        groups.iter().map(names).collect()
    }

    #[test]
    fn observations_are_kept_and_told_again() {
        let mut classes = ClassTable::new(BTreeMap::new());
        let live = [
            classes.observe("a", &groups(&[&["b"]]), 0.7, 0.05),
            classes.observe("a", &groups(&[&["b", "c"]]), 0.5, 0.02),
            classes.observe("a", &groups(&[&["b"], &["c"]]), 0.6, 0.02),
        ];
        let kept = serde_json::to_string(&classes.known).expect("it can be written");
        let mut next = ClassTable::new(serde_json::from_str(&kept).expect("it was written"));
        assert_eq!(next.observations(), live);
        let names: Vec<String> = next.take_new().map(|(_, name)| name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(next.take_new().count(), 0, "each is told once");
        let measured = |other| next.known["a"].measurements(other);
        assert_eq!((measured("b"), measured("c"), measured("a")), (3, 2, 0));
    }

    #[test]
    fn pairs_of_an_earlier_store_are_told_as_observations() {
        let body =
            r#"{"memory":{},"solo":{},"durations_us":[],"beside":{"b":{"measured":[[0.8,0.1]]}}}"#;
        let class: LearnedClass = serde_json::from_str(body).expect("an earlier version wrote it");
        let mut classes = ClassTable::new(BTreeMap::from([("a".to_owned(), class)]));
        let told = classes.observations();
        let rates: Vec<Ratio> = told.iter().map(|told| told.rate).collect();
        assert_eq!(rates, [Ratio::from_f64(0.8)]);
        assert_eq!(told[0].beside[0][0].class, classes.find("b"));
    }

    #[test]
    fn a_user_takes_neither_all_numbers_nor_all_room() {
        let mut classes = ClassTable::new(BTreeMap::new());
        for class in 0..2 * LEARNED_MAX {
            let name = format!("ann/{class}");
            classes.number(&name);
            classes.set_duty(&name, 0.5);
        }
        assert_eq!((classes.names.len(), classes.known.len()), (NUMBERED_MAX, LEARNED_MAX));
        assert!(classes.number("ann/0").is_some() && classes.number("ann/99").is_none());
        assert!(classes.number("bob/net").is_some() && classes.number("net").is_some());
        classes.set_duty("bob/net", 0.25);
        assert_eq!(classes.get("bob/net").and_then(|class| class.duty), Some(0.25));
        // A user who comes late finds room, too.
        for user in ["cyd", "dan", "eve"] {
            for class in 0..200 {
                let _ = classes.number(&format!("{user}/{class}"));
            }
        }
        assert!(classes.number("late/net").is_some());
        let kept = ClassTable::new(classes.known);
        assert_eq!(kept.learned_of_users["ann"], LEARNED_MAX);
    }

    #[test]
    fn only_the_latest_observations_are_kept() {
        let mut classes = ClassTable::new(BTreeMap::new());
        for rate in 0..MEASURED_MAX + 3 {
            classes.observe("a", &groups(&[&["b"]]), rate as f64, 0.05);
            classes.observe("a", &groups(&[&["b", "b"]]), rate as f64, 0.05);
        }
        let LearnedClass { beside, among, .. } = &classes.known["a"];
        assert_eq!((beside["b"].measured.len(), among.len()), (MEASURED_MAX, MEASURED_MAX));
        assert_eq!((beside["b"].measured[0].0, among[0].rate), (3.0, 3.0));
    }
}
