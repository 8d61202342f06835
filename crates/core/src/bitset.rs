//! A set of small integers that finds its smallest member without a scan of every word.

use std::ops::Range;

/// Members are bits of `words`; a bit of `summary` says that a word is not empty. A word of the summary
/// covers 4,096 members, so ten thousand nodes need three.
#[derive(Clone, Debug, Default)]
pub(crate) struct BitSet {
    words: Vec<u64>,
    summary: Vec<u64>,
    len: usize,
}

impl BitSet {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let words = capacity.div_ceil(64);
        Self { words: vec![0; words], summary: vec![0; words.div_ceil(64)], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn contains(&self, member: usize) -> bool {
        self.words.get(member / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    /// Whether the set contains all of `range`, which is within its capacity.
    #[inline]
    pub(crate) fn contains_range(&self, range: Range<usize>) -> bool {
        words_of(&range).all(|(word, bits)| self.words[word] & bits == bits)
    }

    #[cold]
    fn grow(&mut self, word: usize) {
        self.words.resize((word + 1).next_power_of_two(), 0);
        self.summary.resize(self.words.len().div_ceil(64), 0);
    }

    #[inline]
    pub(crate) fn insert(&mut self, member: usize) {
        let (word, bit) = (member / 64, 1 << (member % 64));
        if word >= self.words.len() {
            self.grow(word);
        }
        debug_assert!(self.words[word] & bit == 0, "{member} is in the set already");
        self.words[word] |= bit;
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove(&mut self, member: usize) {
        let (word, bit) = (member / 64, 1 << (member % 64));
        debug_assert!(self.words[word] & bit != 0, "{member} is not in the set");
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.len -= 1;
    }

    /// Adds all of `range`, none of which is in the set.
    pub(crate) fn insert_range(&mut self, range: Range<usize>) {
        for (word, bits) in words_of(&range) {
            debug_assert!(
                self.words[word] & bits == 0,
                "a part of {range:?} is in the set already"
            );
            self.words[word] |= bits;
            self.summary[word / 64] |= 1 << (word % 64);
        }
        self.len += range.len();
    }

    /// Removes the members within `range` and returns how many there were.
    #[inline]
    pub(crate) fn remove_range(&mut self, range: Range<usize>) -> usize {
        let mut removed = 0;
        for (word, bits) in words_of(&range) {
            removed += (self.words[word] & bits).count_ones() as usize;
            self.words[word] &= !bits;
            if self.words[word] == 0 {
                self.summary[word / 64] &= !(1 << (word % 64));
            }
        }
        self.len -= removed;
        removed
    }

    pub(crate) fn first(&self) -> Option<usize> {
        self.next_from(0)
    }

    /// The smallest member that is at least `from`.
    pub(crate) fn next_from(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        if word >= self.words.len() {
            return None;
        }
        let rest = self.words[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let next = word + 1;
        let mut index = next / 64;
        let mut mask = u64::MAX << (next % 64);
        while index < self.summary.len() {
            let rest = self.summary[index] & mask;
            if rest != 0 {
                let word = index * 64 + rest.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            index += 1;
            mask = u64::MAX;
        }
        None
    }

    /// Members in ascending order within a short range, word by word.
    pub(crate) fn iter_within(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let mut word = range.start / 64;
        let first = self.words.get(word).copied().unwrap_or(0);
        let mut rest = first & (u64::MAX << (range.start % 64));
        std::iter::from_fn(move || {
            while rest == 0 {
                word += 1;
                if word * 64 >= range.end {
                    return None;
                }
                rest = self.words.get(word).copied().unwrap_or(0);
            }
            let member = word * 64 + rest.trailing_zeros() as usize;
            rest &= rest - 1;
            (member < range.end).then_some(member)
        })
    }

    /// Members in ascending order, from `from` on.
    pub(crate) fn iter_from(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        let mut next = from;
        std::iter::from_fn(move || {
            let member = self.next_from(next)?;
            next = member + 1;
            Some(member)
        })
    }
}

/// The words that a range covers, each with the bits of the range.
fn words_of(range: &Range<usize>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let Range { start, end } = *range;
    (start / 64..end.div_ceil(64)).map(move |word| {
        let below_start = start.saturating_sub(word * 64);
        let above_end = (word * 64 + 64).saturating_sub(end);
        (word, (u64::MAX << below_start) & (u64::MAX >> above_end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_an_ordered_set(members in proptest::collection::btree_set(0usize..9000, 0..200), from in 0usize..8850) {
            let mut set = BitSet::with_capacity(9000);
            for &member in &members {
                set.insert(member);
            }
            prop_assert_eq!(set.len(), members.len());
            prop_assert_eq!(set.first(), members.first().copied());
            let expected: Vec<usize> = members.range(from..).copied().collect();
            prop_assert_eq!(set.iter_from(from).collect::<Vec<_>>(), expected);
            let within: Vec<usize> = members.range(from..from + 150).copied().collect();
            prop_assert_eq!(set.iter_within(from..from + 150).collect::<Vec<_>>(), within.clone());
            prop_assert_eq!(set.contains_range(from..from + 2), members.range(from..from + 2).count() == 2);
            let mut other = set.clone();
            prop_assert_eq!(other.remove_range(from..from + 150), within.len());
            let outside = members.iter().copied().filter(|member| !within.contains(member));
            prop_assert_eq!(other.iter_from(0).collect::<Vec<_>>(), outside.collect::<Vec<_>>());
            prop_assert_eq!(other.len(), members.len() - within.len());
            other.insert_range(from..from + 150);
            prop_assert!(other.contains_range(from..from + 150));
            prop_assert_eq!(other.iter_within(from..from + 150).count(), 150);
            let mut left: BTreeSet<usize> = members.clone();
            for &member in members.iter().step_by(2) {
                set.remove(member);
                left.remove(&member);
            }
            prop_assert_eq!(set.iter_from(0).collect::<Vec<_>>(), left.into_iter().collect::<Vec<_>>());
        }
    }
}
