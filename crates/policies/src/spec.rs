//! How a policy is named on the command line: `NAME[:key=value,...]`.

use crate::{Entry, REGISTRY};
use std::fmt;
use std::sync::Arc;
use tandem_core::{PPM_ONE, Policy};
use thiserror::Error;

/// A parameter of a policy. The kind of its default is the kind of its values.
#[derive(Clone, Copy, Debug)]
pub struct PolicyParam {
    /// Its key.
    pub name: &'static str,
    /// Its value unless another is given.
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

/// The prefix of the keys of [`Entry::tuning`].
const TUNING: &str = "tuning.";

/// The parameters that limit the jobs on one GPU.
const TENANT_PARAMS: [&str; 2] = ["tenants", "group"];

/// Values for all parameters of a policy, those for tuning last.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Vec<(&'static str, Value)>,
}

impl Settings {
    fn defaults(entry: &'static Entry) -> Self {
        let all = entry.params.iter().chain(entry.tuning);
        Self { values: all.map(|param| (param.name, param.default)).collect() }
    }

    fn value(&self, name: &str) -> Value {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.expect("a policy asks only for parameters that it declares").1
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
        /// The text that was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// No such parameter.
    #[error("policy {policy} has no parameter '{name}'; {known}")]
    UnknownParam {
        /// The policy.
        policy: &'static str,
        /// The text that was given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A value of the wrong kind.
    #[error("parameter {name} of policy {policy} is {kind}, not '{text}'")]
    BadValue {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// The values that it takes.
        kind: String,
        /// The text that was given.
        text: String,
    },
    /// An item that is not `key=value`.
    #[error("'{text}' in policy {policy} is not of the form key=value")]
    NotAPair {
        /// The policy.
        policy: &'static str,
        /// The text that was given.
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
    /// An empty text.
    #[error("no policy is named; known are {known}")]
    Empty {
        /// The names that exist.
        known: String,
    },
}

/// A policy with its parameters: `NAME[:key=value,...]`.
///
/// ```
/// use tandem_policies::PolicySpec;
///
/// let specs = PolicySpec::parse_list("srtf,gshare:slice_s=300,age_h=12,tandem")?;
/// let names: Vec<&str> = specs.iter().map(|spec| spec.entry.name).collect();
/// assert_eq!(names, ["srtf", "gshare", "tandem"]);
/// assert_eq!(specs[1].text, "gshare:slice_s=300,age_h=12");
///
/// let error = PolicySpec::parse("srtf:slice_s=300").unwrap_err();
/// assert_eq!(error.to_string(), "policy srtf has no parameter 'slice_s'; it has none");
/// # Ok::<(), tandem_policies::SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicySpec {
    /// The text as given, under which results are reported.
    pub text: String,
    /// The policy.
    pub entry: &'static Entry,
    settings: Settings,
    /// Makes instances instead of the entry, for a policy from outside of the registry.
    maker: Option<Maker>,
}

/// Makes an instance for one partition.
#[derive(Clone)]
struct Maker(Arc<dyn Fn() -> Box<dyn Policy> + Send + Sync>);

impl fmt::Debug for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Maker")
    }
}

impl PolicySpec {
    /// A policy with its defaults.
    pub fn of(entry: &'static Entry) -> Self {
        let settings = Settings::defaults(entry);
        Self { text: entry.name.to_owned(), entry, settings, maker: None }
    }

    /// Whether it lets jobs compute in sub-batches.
    pub fn accumulates(&self) -> bool {
        let is_flag = |param: &PolicyParam| param.name == crate::kit::ACCUMULATE.name;
        self.entry.params.iter().any(is_flag) && self.settings.flag(crate::kit::ACCUMULATE.name)
    }

    /// Whether its plans choose budgets where somebody was promised something.
    pub fn uses_budgets(&self) -> bool {
        let is_choice = |param: &PolicyParam| param.name == "budgets";
        self.entry.params.iter().any(is_choice) && self.settings.choice("budgets") != "off"
    }

    /// The most jobs that it puts on one GPU with these parameters.
    pub fn tenants_max(&self) -> usize {
        let limits = self.entry.params.iter().filter(|param| TENANT_PARAMS.contains(&param.name));
        let given = limits.map(|param| self.settings.whole(param.name));
        let given = given.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX).max(1));
        given.fold(self.entry.tenants_max, usize::min)
    }

    /// A policy from outside of the registry: `make` makes its instances, `entry` describes it.
    pub fn made_by(
        text: &str,
        entry: &'static Entry,
        make: impl Fn() -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Self {
        let maker = Some(Maker(Arc::new(make)));
        Self { text: text.to_owned(), maker, ..Self::of(entry) }
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
        let mut given = vec![false; spec.settings.values.len()];
        for pair in params.iter().flat_map(|params| params.split(',')) {
            let index = set(entry, &mut spec.settings, pair)?;
            if std::mem::replace(&mut given[index], true) {
                let name = spec.settings.values[index].0;
                return Err(SpecError::GivenTwice { policy: entry.name, name });
            }
        }
        Ok(spec)
    }

    /// Reads a list. An item with `=` and no policy name belongs to the policy before it:
    /// `tiresias:interval_s=300,threshold_gpu_s=9000,srtf` names two policies.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SpecError> {
        Self::split_list(text).iter().map(|spec| Self::parse(spec)).collect()
    }

    /// The specifications in a list, as [`PolicySpec::parse_list`] separates them.
    pub fn split_list(text: &str) -> Vec<String> {
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
        specs
    }

    /// Makes an instance for one partition.
    pub fn build(&self) -> Box<dyn Policy> {
        match &self.maker {
            Some(Maker(make)) => make(),
            None => (self.entry.build)(&self.settings),
        }
    }
}

fn set(entry: &'static Entry, settings: &mut Settings, pair: &str) -> Result<usize, SpecError> {
    let policy = entry.name;
    let (name, text) = pair
        .split_once('=')
        .ok_or_else(|| SpecError::NotAPair { policy, text: pair.to_owned() })?;
    let (params, first, plain) = match name.strip_prefix(TUNING) {
        Some(plain) => (entry.tuning, entry.params.len(), plain),
        None => (entry.params, 0, name),
    };
    let index = params.iter().position(|param| param.name == plain).ok_or_else(|| {
        SpecError::UnknownParam { policy, name: name.to_owned(), known: known_params(params) }
    })?;
    let param = &params[index];
    let value = param.default.parse_like(text).ok_or_else(|| SpecError::BadValue {
        policy,
        name: param.name,
        kind: param.default.kind(),
        text: text.to_owned(),
    })?;
    settings.values[first + index].1 = value;
    Ok(first + index)
}

fn known_policies() -> String {
    REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

fn known_params(params: &[PolicyParam]) -> String {
    if params.is_empty() {
        return "it has none".to_owned();
    }
    let known = params.iter().map(|param| format!("{}={}", param.name, param.default));
    format!("known are {}", known.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        PolicySpec::parse_list(text).unwrap_err().to_string()
    }

    #[test]
    fn tuning_has_a_prefix_and_is_not_listed_with_the_parameters() {
        let tuned = PolicySpec::parse("tandem:slice_s=30,tuning.queue_cost_percent=20").unwrap();
        assert_eq!(tuned.settings.whole("queue_cost_percent"), 20);
        assert_eq!(tuned.settings.whole("slice_s"), 30);
        assert!(error("tandem:queue_cost_percent=20").contains("known are slice_s=60"));
        assert!(error("tandem:tuning.slice_s=20").contains("queue_cost_percent=100"));
        assert_eq!(
            error("fifo:tuning.x=1"),
            "policy fifo has no parameter 'tuning.x'; it has none"
        );
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
