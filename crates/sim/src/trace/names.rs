//! Interned names: text in the file, a small number in memory.

use rustc_hash::FxHashMap;
use std::fmt;
use std::hash::Hash;

/// Distinct values in order of first appearance. The hash map is never iterated, so its order does not
/// matter.
#[derive(Clone, Debug)]
pub struct Names<T = String> {
    values: Vec<T>,
    index: FxHashMap<T, u32>,
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { values: Vec::new(), index: FxHashMap::default() }
    }
}

impl<T: Clone + Eq + Hash> Names<T> {
    /// The number of `value`, new or known.
    pub(crate) fn intern<Q>(&mut self, value: &Q) -> u32
    where
        Q: ?Sized + Eq + Hash + ToOwned<Owned = T>,
        T: std::borrow::Borrow<Q>,
    {
        if let Some(&number) = self.index.get(value) {
            return number;
        }
        let number = u32::try_from(self.values.len()).expect("names are counted in u32");
        self.values.push(value.to_owned());
        self.index.insert(value.to_owned(), number);
        number
    }

    /// The value of a number.
    pub fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }

    /// The number of a known value.
    pub fn find(&self, value: &T) -> Option<u32> {
        self.index.get(value).copied()
    }

    /// All values, by number.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// A class of jobs with equal behaviour.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Such as `ResNet18`.
    pub model: String,
    /// Such as `CIFAR-10`; empty where unknown.
    pub dataset: String,
    /// Batch size per GPU, where known.
    pub batch: Option<u32>,
    /// Mixed precision.
    pub amp: bool,
}

impl Class {
    /// A class from Gavel's notation: `ResNet-18 (batch size 32)`, `A3C`.
    pub fn from_job_type(job_type: &str) -> Self {
        let parsed = job_type.strip_suffix(')').and_then(|rest| {
            let (model, batch) = rest.rsplit_once(" (batch size ")?;
            Some((model, batch.parse().ok()?))
        });
        let (model, batch) = match parsed {
            Some((model, batch)) => (model, Some(batch)),
            None => (job_type, None),
        };
        Self { model: model.to_owned(), dataset: String::new(), batch, amp: false }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if !self.dataset.is_empty() {
            write!(f, " {}", self.dataset)?;
        }
        if let Some(batch) = self.batch {
            write!(f, " b{batch}")?;
        }
        if self.amp {
            f.write_str(" amp")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_types_become_classes() {
        let class = Class::from_job_type("ResNet-18 (batch size 32)");
        assert_eq!((class.model.as_str(), class.batch), ("ResNet-18", Some(32)));
        let class = Class::from_job_type("A3C");
        assert_eq!((class.model.as_str(), class.batch), ("A3C", None));
    }

    #[test]
    fn names_keep_order_of_appearance() {
        let mut names: Names = Names::default();
        assert_eq!([names.intern("b"), names.intern("a"), names.intern("b")], [0, 1, 0]);
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), ["b", "a"]);
    }
}
