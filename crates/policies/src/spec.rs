//! How a policy is named on the command line: `NAME[:key=value,...]`.

use crate::registry::{Entry, REGISTRY};
use std::fmt;
use tandem_core::{PPM_ONE, Policy};
use thiserror::Error;

/// A parameter of a policy. The kind of its default is the kind of its values.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its key.
    pub name: &'static str,
    /// What it is if nothing is said.
    pub default: Value,
    /// One line for `--help`.
    pub help: &'static str,
}

/// A value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Whole(u64),
    /// A number from 0 to 1, in parts per million.
    Share(u32),
    /// One word of a list.
    Choice {
        /// The word.
        word: &'static str,
        /// The list.
        of: &'static [&'static str],
    },
}

impl Value {
    fn kind(self) -> String {
        match self {
            Value::Flag(_) => "true or false".to_owned(),
            Value::Whole(_) => "a whole number".to_owned(),
            Value::Share(_) => "a number from 0 to 1".to_owned(),
            Value::Choice { of, .. } => of.join(" or "),
        }
    }

    fn parse_like(self, text: &str) -> Option<Value> {
        match self {
            Value::Flag(_) => text.parse().ok().map(Value::Flag),
            Value::Whole(_) => text.parse().ok().map(Value::Whole),
            Value::Share(_) => parse_share(text).map(Value::Share),
            Value::Choice { of, .. } => {
                let word = of.iter().find(|word| **word == text)?;
                Some(Value::Choice { word, of })
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(value) => value.fmt(f),
            Value::Whole(value) => value.fmt(f),
            Value::Share(ppm) => (f64::from(*ppm) / f64::from(PPM_ONE)).fmt(f),
            Value::Choice { word, .. } => word.fmt(f),
        }
    }
}

/// A decimal number from 0 to 1, rounded to parts per million.
fn parse_share(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share: f64 = text.parse().ok().filter(|_| plain)?;
    // `as` is exact: the value lies between 0 and a million.
    (share <= 1.0).then(|| (share * f64::from(PPM_ONE)).round() as u32)
}

/// Values for all parameters of a policy.
#[derive(Clone, Debug)]
pub struct Settings {
    params: &'static [Param],
    values: Vec<Value>,
}

impl Settings {
    fn value(&self, name: &str) -> Value {
        let index = self.params.iter().position(|param| param.name == name);
        self.values[index.expect("a policy asks only for parameters that it declares")]
    }

    /// A parameter declared as a flag.
    pub fn flag(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Flag(value) => value,
            other => panic!("parameter {name} is declared as {}", other.kind()),
        }
    }

    /// A parameter declared as a whole number.
    pub fn whole(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Whole(value) => value,
            other => panic!("parameter {name} is declared as {}", other.kind()),
        }
    }

    /// A parameter declared as a share, in parts per million.
    pub fn share(&self, name: &str) -> u32 {
        match self.value(name) {
            Value::Share(value) => value,
            other => panic!("parameter {name} is declared as {}", other.kind()),
        }
    }

    /// A parameter declared as a choice.
    pub fn choice(&self, name: &str) -> &'static str {
        match self.value(name) {
            Value::Choice { word, .. } => word,
            other => panic!("parameter {name} is declared as {}", other.kind()),
        }
    }
}

/// Why a specification is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// No such policy.
    #[error("unknown policy '{name}'; known are {known}")]
    UnknownPolicy {
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// No such parameter.
    #[error("policy {policy} has no parameter '{name}'; {known}")]
    UnknownParam {
        /// The policy.
        policy: &'static str,
        /// What was given.
        name: String,
        /// What there is.
        known: String,
    },
    /// A value of the wrong kind.
    #[error("parameter {name} of policy {policy} is {kind}, not '{text}'")]
    BadValue {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// What it takes.
        kind: String,
        /// What was given.
        text: String,
    },
    /// Something that is no `key=value`.
    #[error("'{text}' in policy {policy} is not of the form key=value")]
    NotAPair {
        /// The policy.
        policy: &'static str,
        /// What was given.
        text: String,
    },
    /// The same parameter twice.
    #[error("parameter {name} of policy {policy} is given twice")]
    GivenTwice {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
    },
    /// Nothing.
    #[error("no policy is named; known are {known}")]
    Empty {
        /// What there is.
        known: String,
    },
}

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    /// As given, the name under which results are reported.
    pub text: String,
    /// The policy.
    pub entry: &'static Entry,
    settings: Settings,
}

impl PolicySpec {
    /// A policy with its defaults.
    pub fn of(entry: &'static Entry) -> Self {
        let values = entry.params.iter().map(|param| param.default).collect();
        let settings = Settings { params: entry.params, values };
        Self { text: entry.name.to_owned(), entry, settings }
    }

    /// Reads `NAME[:key=value,...]`.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let (name, params) = match text.split_once(':') {
            Some((name, params)) => (name, Some(params)),
            None => (text, None),
        };
        let entry = REGISTRY.iter().find(|entry| entry.name == name).ok_or_else(|| {
            if text.is_empty() {
                SpecError::Empty { known: known_policies() }
            } else {
                SpecError::UnknownPolicy { name: name.to_owned(), known: known_policies() }
            }
        })?;
        let mut spec = Self { text: text.to_owned(), ..Self::of(entry) };
        let mut given = vec![false; entry.params.len()];
        for pair in params.iter().flat_map(|params| params.split(',')) {
            let index = set(entry, &mut spec.settings, pair)?;
            if std::mem::replace(&mut given[index], true) {
                let name = entry.params[index].name;
                return Err(SpecError::GivenTwice { policy: entry.name, name });
            }
        }
        Ok(spec)
    }

    /// Reads a list. An item with `=` and no policy name belongs to the policy before it:
    /// `tiresias:interval_s=300,threshold_gpu_s=9000,srtf` names two policies.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SpecError> {
        let mut specs: Vec<String> = Vec::new();
        for item in text.split(',') {
            let name = item.split(':').next().unwrap_or(item);
            match specs.last_mut() {
                Some(last) if item.contains('=') && name.contains('=') => {
                    last.push(if last.contains(':') { ',' } else { ':' });
                    last.push_str(item);
                }
                _ => specs.push(item.to_owned()),
            }
        }
        specs.iter().map(|spec| Self::parse(spec)).collect()
    }

    /// Makes an instance for one partition.
    pub fn build(&self) -> Box<dyn Policy> {
        (self.entry.build)(&self.settings)
    }
}

fn set(entry: &'static Entry, settings: &mut Settings, pair: &str) -> Result<usize, SpecError> {
    let policy = entry.name;
    let (name, text) = pair
        .split_once('=')
        .ok_or_else(|| SpecError::NotAPair { policy, text: pair.to_owned() })?;
    let index = entry.params.iter().position(|param| param.name == name).ok_or_else(|| {
        SpecError::UnknownParam { policy, name: name.to_owned(), known: known_params(entry) }
    })?;
    let param = &entry.params[index];
    settings.values[index] = param.default.parse_like(text).ok_or_else(|| SpecError::BadValue {
        policy,
        name: param.name,
        kind: param.default.kind(),
        text: text.to_owned(),
    })?;
    Ok(index)
}

fn known_policies() -> String {
    REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn known_params(entry: &Entry) -> String {
    if entry.params.is_empty() {
        return "it has none".to_owned();
    }
    let params: Vec<String> =
        entry.params.iter().map(|param| format!("{}={}", param.name, param.default)).collect();
    format!("known are {}", params.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        PolicySpec::parse_list(text).unwrap_err().to_string()
    }

    #[test]
    fn an_item_with_a_value_and_no_name_belongs_to_the_policy_before_it() {
        let specs = PolicySpec::parse_list(
            "tiresias:interval_s=300,threshold_gpu_s=5,srtf,sjf:backfill=true,fifo",
        )
        .unwrap();
        let texts: Vec<&str> = specs.iter().map(|spec| spec.text.as_str()).collect();
        assert_eq!(
            texts,
            ["tiresias:interval_s=300,threshold_gpu_s=5", "srtf", "sjf:backfill=true", "fifo"]
        );
        assert_eq!(
            PolicySpec::parse_list("fifo,backfill=true").unwrap()[0].text,
            "fifo:backfill=true"
        );
    }

    #[test]
    fn errors_say_what_is_known() {
        let known = known_policies();
        assert_eq!(error("sjff"), format!("unknown policy 'sjff'; known are {known}"));
        assert_eq!(error(""), format!("no policy is named; known are {known}"));
        assert_eq!(error("fifo:x=1"), "policy fifo has no parameter 'x'; known are backfill=false");
        assert_eq!(error("srtf:x=1"), "policy srtf has no parameter 'x'; it has none");
        assert_eq!(
            error("fifo:backfill=yes"),
            "parameter backfill of policy fifo is true or false, not 'yes'"
        );
        assert_eq!(
            error("sjf-bsbf:order=best"),
            "parameter order of policy sjf-bsbf is tcon or benefit, not 'best'"
        );
        assert_eq!(
            error("fifo:backfill"),
            "'backfill' in policy fifo is not of the form key=value"
        );
        assert_eq!(
            error("fifo:backfill=true,backfill=true"),
            "parameter backfill of policy fifo is given twice"
        );
    }
}
