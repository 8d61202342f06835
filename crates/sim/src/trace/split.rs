//! Finds where fields end, eight bytes at a time. Fields of a trace are a few bytes long, and a search
//! that starts anew for each of them costs more than looking at every byte.

const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);
const NEWLINES: u64 = u64::from_ne_bytes([b'\n'; 8]);

/// Calls `visit` with every position at which a delimiter or a line break ends a field, in order, and
/// whether a line ends there too. Stops at the first error.
#[inline]
pub(super) fn visit_ends<E>(
    bytes: &[u8],
    delimiter: u8,
    mut visit: impl FnMut(usize, bool) -> Result<(), E>,
) -> Result<(), E> {
    let delimiters = u64::from_ne_bytes([delimiter; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    // A zero is neither a delimiter nor a line break.
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut base = 0;
    for word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*word);
        let lines = matches(word, NEWLINES);
        let mut ends = lines | matches(word, delimiters);
        while ends != 0 {
            let others = ends & (ends - 1);
            visit(base + ends.trailing_zeros() as usize / 8, (ends ^ others) & lines != 0)?;
            ends = others;
        }
        base += 8;
    }
    Ok(())
}

/// The top bit of every byte in which two words agree.
fn matches(word: u64, pattern: u64) -> u64 {
    let different = word ^ pattern;
    // The top bit of a byte stays clear only if all its bits are.
    !(((different & LOW_BITS) + LOW_BITS) | different | LOW_BITS)
}

#[cfg(test)]
mod tests {
    use super::visit_ends;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(text in "[a,\n\u{0}\u{7f}é-]{0,60}") {
            let plain = text.bytes().enumerate().filter(|(_, byte)| matches!(byte, b',' | b'\n'));
            let plain: Vec<(usize, bool)> = plain.map(|(at, byte)| (at, byte == b'\n')).collect();
            let mut found = Vec::new();
            let visited: Result<(), ()> = visit_ends(text.as_bytes(), b',', |at, ends_line| {
                found.push((at, ends_line));
                Ok(())
            });
            prop_assert_eq!((visited, found), (Ok(()), plain));
        }
    }
}
