//! Finds where fields end, eight bytes at a time. Fields of a trace are a few bytes long, and a search
//! that starts anew for each of them costs more than looking at every byte.

/// The positions of two bytes in a text, in order.
pub(super) struct Ends<'a> {
    bytes: &'a [u8],
    /// Each byte of a word, repeated.
    patterns: [u64; 2],
    /// Where the present word begins.
    base: usize,
    /// The top bit of every byte of the present word that matches and was not handed out.
    matches: u64,
}

const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);

impl<'a> Ends<'a> {
    pub(super) fn new(bytes: &'a [u8], one: u8, other: u8) -> Self {
        let patterns = [one, other].map(|byte| u64::from_ne_bytes([byte; 8]));
        let mut ends = Self { bytes, patterns, base: 0, matches: 0 };
        ends.matches = ends.search();
        ends
    }

    fn search(&self) -> u64 {
        let rest = &self.bytes[self.base..];
        let word = match rest.first_chunk::<8>() {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => {
                // A zero is neither a delimiter nor the end of a line.
                let mut last = [0; 8];
                last[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(last)
            }
        };
        self.patterns.iter().fold(0, |matches, pattern| {
            let different = word ^ pattern;
            // The top bit of a byte stays clear only if all its bits are.
            matches | !(((different & LOW_BITS) + LOW_BITS) | different | LOW_BITS)
        })
    }
}

impl Iterator for Ends<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.matches == 0 {
            self.base += 8;
            if self.base >= self.bytes.len() {
                return None;
            }
            self.matches = self.search();
        }
        let at = self.base + self.matches.trailing_zeros() as usize / 8;
        self.matches &= self.matches - 1;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::Ends;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(text in "[a,\n\u{0}\u{7f}é-]{0,60}") {
            let plain = text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b',' | b'\n'));
            let plain: Vec<usize> = plain.map(|(at, _)| at).collect();
            prop_assert_eq!(Ends::new(text.as_bytes(), b',', b'\n').collect::<Vec<_>>(), plain);
        }
    }
}
