//! The class of a job. Jobs of one class are expected to behave alike. The class is what the user named, or
//! follows from the command: program, script and the arguments that matter (model, batch, sequence length),
//! without those that do not (seed, paths, names of runs). An argument of unknown meaning counts until it was
//! seen to make no difference.

mod arguments;
mod length;
mod program;

pub use length::{JobLength, LengthUnit};

use crate::request::JobRequest;
use arguments::{Argument, Weight, arguments, weight};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Arguments that the configuration classifies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRules {
    /// These matter.
    #[serde(default)]
    pub matter: Vec<String>,
    /// These do not.
    #[serde(default)]
    pub ignore: Vec<String>,
}

impl ClassRules {
    /// From comma-separated lists, as in the configuration.
    pub fn new(matter: Option<&str>, ignore: Option<&str>) -> Self {
        let names = |list: Option<&str>| {
            let names = list.into_iter().flat_map(|list| list.split(','));
            names.map(arguments::canonical).filter(|name| !name.is_empty()).collect()
        };
        Self { matter: names(matter), ignore: names(ignore) }
    }
}

/// What defines a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassDefinition {
    /// The user who submitted the first job of it. Commands are private: others are not shown the rest.
    pub uid: u32,
    /// Program and script.
    pub program: String,
    /// Arguments that matter or whose meaning is unknown.
    pub arguments: BTreeMap<String, String>,
    /// The arguments of unknown meaning.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub undecided: BTreeSet<String>,
}

/// The first arguments of a command, as long as they say what it is: a user may give a mebibyte.
fn start_of(command: &[String]) -> &[String] {
    let mut left = START_BYTES;
    let fits = |argument: &&String| {
        let room = left.checked_sub(argument.len() + 1);
        left = room.unwrap_or(0);
        room.is_some()
    };
    &command[..command.iter().take_while(fits).count()]
}

/// How much of a command says what it is.
pub(crate) const START_BYTES: usize = 16 << 10;
/// Characters of a value in a definition.
const VALUE_MAX: usize = 200;

impl ClassDefinition {
    /// The definition that follows from a command. `is_ignored` names arguments that were seen to make no
    /// difference.
    pub fn of_command(
        command: &[String],
        uid: u32,
        rules: &ClassRules,
        is_ignored: impl Fn(&str, &str) -> bool,
    ) -> Self {
        let (program, all) = arguments(start_of(command));
        let mut definition = Self { uid, program, ..Self::default() };
        for Argument { name, value } in all {
            let value: String = value.chars().take(VALUE_MAX).collect();
            match weight(&name, &value, rules) {
                Weight::Ignored => {}
                Weight::Matters => drop(definition.arguments.insert(name, base(&value))),
                Weight::Undecided if is_ignored(&definition.program, &name) => {}
                Weight::Undecided => {
                    definition.undecided.insert(name.clone());
                    definition.arguments.insert(name, value);
                }
            }
        }
        definition
    }

    /// The name of the class: the program and a hash. Classes are public, commands are not.
    pub fn name(&self) -> String {
        let program = self.program.split(' ').next().unwrap_or_default();
        let program: String =
            program.chars().filter(|character| !character.is_control()).take(40).collect();
        let mut text = self.program.clone();
        for (name, value) in &self.arguments {
            text.extend(["\0", name, "\0", value]);
        }
        format!("{program}#{:08x}", fnv(text.as_bytes()) >> 32)
    }

    /// In one line.
    pub fn text(&self) -> String {
        let arguments = self.arguments.iter().map(|(name, value)| match value.as_str() {
            "" => format!(" {name}"),
            value => format!(" {name}={value}"),
        });
        self.program.clone() + &arguments.collect::<String>()
    }

    /// The argument by which two definitions differ, if it is the only one.
    pub fn only_difference<'a>(&'a self, other: &'a Self) -> Option<&'a str> {
        if self.program != other.program {
            return None;
        }
        let names: BTreeSet<&String> =
            self.arguments.keys().chain(other.arguments.keys()).collect();
        let mut differing = names
            .into_iter()
            .filter(|name| self.arguments.get(*name) != other.arguments.get(*name));
        let first = differing.next()?;
        differing.next().is_none().then_some(first)
    }
}

/// The class of a request without any learned knowledge.
pub fn of_request(request: &JobRequest) -> String {
    named(request).unwrap_or_else(|| {
        let rules = ClassRules::default();
        let definition = ClassDefinition::of_command(&request.command, 0, &rules, |_, _| false);
        prefix(request).to_owned() + &definition.name()
    })
}

/// The class that the user named. A name that ends with a slash is a prefix.
pub(crate) fn named(request: &JobRequest) -> Option<String> {
    request.class.clone().filter(|class| !class.ends_with('/'))
}

/// The prefix of a class name that follows from the command.
pub(crate) fn prefix(request: &JobRequest) -> &str {
    request.class.as_deref().filter(|class| class.ends_with('/')).unwrap_or_default()
}

/// The class of a user's job. Classes are kept apart by user, so that no user spoils what was learned about the
/// jobs of others. Classes of operators and shared classes are common.
pub fn of_user(request: &JobRequest, user: &str, is_operator: bool, shared: &[String]) -> String {
    let class = of_request(request);
    match &request.class {
        _ if is_operator || shared.contains(&class) => class,
        Some(_) => format!("{user}/{class}"),
        None => format!("{user}/"),
    }
}

/// The last part of a path.
fn base(text: &str) -> String {
    text.trim_end_matches('/').rsplit('/').next().unwrap_or(text).to_owned()
}

/// FNV-1a: class names are stored, so the hash must not change between builds.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(command: &[&str]) -> String {
        let command = command.iter().map(|&argument| argument.to_owned()).collect();
        of_request(&JobRequest { command, ..JobRequest::default() })
    }

    fn python(arguments: &[&str]) -> String {
        class(&[&["python", "train.py"], arguments].concat())
    }

    #[test]
    fn a_class_is_program_script_and_the_arguments_that_matter() {
        let named = class(&["/usr/bin/python3", "-u", "/a/train.py", "--seed", "7"]);
        assert_eq!(named, class(&["python3", "train.py", "--seed=2"]));
        assert!(named.starts_with("python3#") && !named.contains("train"), "{named}");
        assert_ne!(python(&[]), class(&["python", "eval.py"]));
        assert_ne!(class(&["python", "-m", "a.train"]), class(&["python", "-m", "b.train"]));
        assert_eq!(python(&["--batch=32"]), python(&["--bs", "32"]));
        assert_ne!(python(&["-b", "64"]), python(&["-b", "32"]));
        assert_ne!(python(&["--model", "small"]), python(&["--model", "huge"]));
        assert_ne!(python(&["model=small"]), python(&["model=huge"]));
        assert_ne!(python(&["--max_seq_length=128"]), python(&["--max-seq-length", "512"]));
        assert_ne!(python(&["--fp16"]), python(&[]));
        assert_ne!(python(&["--config", "a/small.yaml"]), python(&["--config", "a/huge.yaml"]));
        assert_eq!(python(&["--model", "/data/x/bert"]), python(&["--model", "./bert"]));
    }

    #[test]
    fn seeds_paths_names_and_lengths_of_runs_do_not_matter() {
        let plain = python(&["--model", "small"]);
        for other in [
            &["--seed", "3"][..],
            &["--output_dir", "/tmp/run-17"],
            &["--run-name", "tuesday"],
            &["--lr", "3e-4"],
            &["--learning_rate=1e-3"],
            &["--epochs", "90"],
            &["--log-every", "50"],
            &["--data", "/mnt/data/imagenet"],
            &["--resume", "last.ckpt"],
            &["--wandb-project", "thesis"],
            &["/home/ann/list.txt"],
        ] {
            assert_eq!(python(&[&["--model", "small"], other].concat()), plain, "{other:?}");
        }
    }

    #[test]
    fn the_user_has_the_last_word() {
        let of = |rules: &ClassRules, arguments: &[&str]| {
            let command: Vec<String> = ["python", "train.py"]
                .iter()
                .chain(arguments)
                .map(|&text| text.to_owned())
                .collect();
            ClassDefinition::of_command(&command, 0, rules, |_, _| false).name()
        };
        let rules = ClassRules::new(Some("lr, --epochs"), Some("model"));
        assert_ne!(of(&rules, &["--lr", "1"]), of(&rules, &["--lr", "2"]));
        assert_ne!(of(&rules, &["--epochs", "1"]), of(&rules, &["--epochs", "2"]));
        assert_eq!(of(&rules, &["--model", "a"]), of(&rules, &["--model", "b"]));
        let named = JobRequest { class: Some("mine".to_owned()), ..JobRequest::default() };
        assert_eq!(of_request(&named), "mine");
    }

    #[test]
    fn arguments_of_unknown_meaning_count_until_they_are_seen_not_to_matter() {
        assert_ne!(python(&["--flavour", "a"]), python(&["--flavour", "b"]));
        assert_ne!(class(&["sleep", "30"]), class(&["sleep", "60"]));
        let command: Vec<String> =
            ["python", "t.py", "--flavour", "a"].iter().map(|&text| text.to_owned()).collect();
        let rules = ClassRules::default();
        let kept = ClassDefinition::of_command(&command, 0, &rules, |_, _| false);
        assert_eq!(kept.text(), "python t.py flavour=a");
        assert!(kept.undecided.contains("flavour"));
        let dropped = ClassDefinition::of_command(&command, 0, &rules, |program, name| {
            (program, name) == ("python t.py", "flavour")
        });
        assert_eq!(dropped.text(), "python t.py");
        assert_eq!(kept.only_difference(&dropped), Some("flavour"));
    }

    #[test]
    fn names_are_short_whatever_the_command() {
        let long = "x".repeat(500);
        assert!(class(&["a", &long]).len() < 120);
        assert!(class(&[&long]).len() < 120);
        assert!(class(&[]).starts_with('#'));
        assert_ne!(class(&["a", "b"]), class(&["a", "c"]));
    }
}
