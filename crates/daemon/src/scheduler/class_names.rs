//! Which class a job belongs to, and which arguments were seen to make no difference.

use super::{ClassTable, Scheduler};
use crate::class::{self, ClassDefinition};
use crate::job::StoredJob;
use std::collections::{BTreeMap, BTreeSet};

/// Values of an argument that must have been seen before it is believed to make no difference.
const VALUES_MIN: usize = 3;
/// Classes whose memory and speed differ by less than this are alike.
const ALIKE: f64 = 0.15;
/// Durations of alike classes differ by less than this factor: an argument may say how long a job goes on.
const ALIKE_DURATION: f64 = 1.5;
/// Definitions that are remembered of classes about which nothing is known yet.
const DEFINITIONS_MAX: usize = 10_000;

/// The definitions of classes, and what follows from them.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    by_class: BTreeMap<String, ClassDefinition>,
    /// Arguments that make no difference, by program.
    ignored: BTreeSet<(String, String)>,
}

impl ClassTable {
    /// What defines a class.
    pub fn definition(&self, name: &str) -> Option<&ClassDefinition> {
        let known = self.get(name).and_then(|class| class.definition.as_ref());
        known.or_else(|| self.definitions.by_class.get(name))
    }

    /// Remembers what defines a class.
    pub(super) fn define(&mut self, name: &str, definition: ClassDefinition) {
        let has_room = self.definitions.by_class.len() < DEFINITIONS_MAX;
        if has_room && self.definition(name).is_none() {
            self.definitions.by_class.insert(name.to_owned(), definition);
        }
    }

    /// Looks again for arguments that make no difference, once more is known about a class: if classes that
    /// differ in nothing else take the same memory and time and run at the same speed.
    pub(super) fn compare_siblings(&mut self, name: &str) {
        let Some(own) = self.definition(name).cloned() else { return };
        for argument in &own.undecided {
            let siblings = self.iter().filter(|(_, class)| {
                let other = class.definition.as_ref();
                other.is_some_and(|other| {
                    *other == own || other.only_difference(&own) == Some(argument.as_str())
                })
            });
            let all: Vec<Behaviour> = siblings.filter_map(|(_, class)| class.behaviour()).collect();
            let key = (own.program.clone(), argument.clone());
            let finished = all.iter().filter(|one| one.duration_s.is_some()).count();
            if finished >= VALUES_MIN && is_alike(&all) {
                self.definitions.ignored.insert(key);
            } else if all.len() >= 2 && !is_alike(&all) {
                self.definitions.ignored.remove(&key);
            }
        }
    }

    /// Looks at all classes, after a restart.
    pub(super) fn compare_all_siblings(&mut self) {
        let names: Vec<String> = self.iter().map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.compare_siblings(name));
    }

    /// Arguments that were seen to make no difference to a program.
    pub fn ignored_arguments(&self, program: &str) -> impl Iterator<Item = &str> {
        let of_program = move |(other, _): &&(String, String)| other == program;
        self.definitions.ignored.iter().filter(of_program).map(|(_, name)| name.as_str())
    }

    fn is_ignored(&self, program: &str, argument: &str) -> bool {
        self.definitions.ignored.contains(&(program.to_owned(), argument.to_owned()))
    }
}

/// What a class was seen to do.
struct Behaviour {
    memory_mib: f64,
    /// Steps per second, or else the part of the time in which it uses its devices.
    speed: f64,
    duration_s: Option<f64>,
}

/// Whether all are nearly the same.
fn is_alike(all: &[Behaviour]) -> bool {
    let spread = |factor: f64, value: &dyn Fn(&Behaviour) -> Option<f64>| {
        let least = all.iter().filter_map(value).fold(f64::INFINITY, f64::min);
        let most = all.iter().filter_map(value).fold(0.0, f64::max);
        most <= least * factor
    };
    spread(1.0 + ALIKE, &|one| Some(one.memory_mib))
        && spread(1.0 + ALIKE, &|one| Some(one.speed))
        && spread(ALIKE_DURATION, &|one| one.duration_s)
}

impl super::LearnedClass {
    fn behaviour(&self) -> Option<Behaviour> {
        Some(Behaviour {
            memory_mib: self.memory.get(&1)?.peak()?.mib(),
            speed: self.solo.get(&1).copied().or(self.duty)?,
            duration_s: self.typical_s(),
        })
    }
}

impl Scheduler {
    /// The class of a job, by what the user named or by its command.
    pub fn class_of(&self, job: &StoredJob) -> (String, Option<ClassDefinition>) {
        if let Some(class) = class::named(&job.request) {
            return (class, None);
        }
        let is_ignored = |program: &str, name: &str| self.learning.is_ignored(program, name);
        let rules = &self.setup.class_rules;
        let command = job.command_start();
        let definition = ClassDefinition::of_command(&command, job.uid, rules, is_ignored);
        (class::prefix(&job.request).to_owned() + &definition.name(), Some(definition))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ClassRules;
    use tandem_core::Span;

    /// Classes of one program with values of an argument of unknown meaning, each seen to take so long.
    fn seen(durations_s: [u64; 3]) -> ClassTable {
        let mut classes = ClassTable::new(BTreeMap::new());
        for (job, seconds) in (1..).zip(durations_s) {
            let command = ["python", "t.py", "--flavour", &format!("v{job}")].map(str::to_owned);
            let rules = ClassRules::default();
            let definition = ClassDefinition::of_command(&command, 0, &rules, |_, _| false);
            let name = definition.name();
            classes.define(&name, definition);
            classes.set_memory(&name, 1, 100 << 20);
            classes.set_duty(&name, 0.5);
            classes.compare_siblings(&name);
            assert_eq!(classes.ignored_arguments("python t.py").count(), 0, "none has finished");
            classes.finished(&name, job, Span::from_secs(seconds), None);
        }
        classes
    }

    #[test]
    fn an_argument_makes_no_difference_where_memory_speed_and_duration_are_alike() {
        let ignored = |durations_s| {
            let classes = seen(durations_s);
            classes.ignored_arguments("python t.py").map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(ignored([100, 110, 95]), ["flavour"]);
        assert_eq!(ignored([70, 140, 280]), Vec::<String>::new());
    }
}
