//! Finds where fields end, eight bytes at a time. Fields of a trace are a few bytes long, and a search
//! that starts anew for each of them costs more than looking at every byte.

/// The ends of all fields in a text, in order, and whether a line ends there too.
pub(super) struct Ends<'a> {
    bytes: &'a [u8],
    /// The delimiter in every byte of a word.
    delimiters: u64,
    /// Where the present word begins.
    base: usize,
    /// The top bit of every byte of the present word at which a field ends and that was not handed out.
    fields: u64,
    /// The same where a line ends.
    lines: u64,
}

const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);
const NEWLINES: u64 = u64::from_ne_bytes([b'\n'; 8]);

impl<'a> Ends<'a> {
    pub(super) fn new(bytes: &'a [u8], delimiter: u8) -> Self {
        let delimiters = u64::from_ne_bytes([delimiter; 8]);
        let mut ends = Self { bytes, delimiters, base: 0, fields: 0, lines: 0 };
        ends.search();
        ends
    }

    #[inline]
    fn search(&mut self) {
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
        self.lines = matches(word, NEWLINES);
        self.fields = self.lines | matches(word, self.delimiters);
    }
}

/// The top bit of every byte in which two words agree.
fn matches(word: u64, pattern: u64) -> u64 {
    let different = word ^ pattern;
    // The top bit of a byte stays clear only if all its bits are.
    !(((different & LOW_BITS) + LOW_BITS) | different | LOW_BITS)
}

impl Iterator for Ends<'_> {
    type Item = (usize, bool);

    #[inline]
    fn next(&mut self) -> Option<(usize, bool)> {
        while self.fields == 0 {
            self.base += 8;
            if self.base >= self.bytes.len() {
                return None;
            }
            self.search();
        }
        let at = self.base + self.fields.trailing_zeros() as usize / 8;
        let others = self.fields & (self.fields - 1);
        let ends_line = (self.fields ^ others) & self.lines != 0;
        self.fields = others;
        Some((at, ends_line))
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
            let plain: Vec<(usize, bool)> = plain.map(|(at, byte)| (at, byte == b'\n')).collect();
            prop_assert_eq!(Ends::new(text.as_bytes(), b',').collect::<Vec<_>>(), plain);
        }
    }
}
