//! Lists of a request, read up to a limit: many short texts take far more memory than the bytes that bring them.

use super::TASKS_MAX;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The most arguments of a command, and the most environment variables.
pub(super) const ARGUMENTS_MAX: usize = 65_536;

/// The arguments of a command.
pub(super) fn arguments<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(List { max: ARGUMENTS_MAX, of: "arguments", item: PhantomData })
}

/// The values of a parameter: each makes a task.
pub(super) fn values<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    from.deserialize_seq(List { max: TASKS_MAX, of: "values of a parameter", item: PhantomData })
}

/// The parameters of a sweep.
pub(super) fn params<'de, D: Deserializer<'de>, P: Deserialize<'de>>(
    from: D,
) -> Result<Vec<P>, D::Error> {
    from.deserialize_seq(List { max: super::tasks::PARAMS_MAX, of: "params", item: PhantomData })
}

/// Environment variables.
pub(super) fn variables<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    from.deserialize_map(Variables)
}

fn too_many<E: Error>(max: usize, of: &str) -> E {
    E::custom(format!("too many {of} (at most {max}; put longer lists into a file)"))
}

struct List<T> {
    max: usize,
    of: &'static str,
    item: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", self.of)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == self.max {
                return Err(too_many(self.max, self.of));
            }
            items.push(item);
        }
        Ok(items)
    }
}

struct Variables;

impl<'de> Visitor<'de> for Variables {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of environment variables")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut variables = BTreeMap::new();
        while let Some((name, value)) = map.next_entry()? {
            variables.insert(name, value);
            if variables.len() > ARGUMENTS_MAX {
                return Err(too_many(ARGUMENTS_MAX, "environment variables"));
            }
        }
        Ok(variables)
    }
}
