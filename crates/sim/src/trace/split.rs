//! Finds the ends of fields, a block of bytes at a time. Fields are a few bytes long, and a search per field
//! costs more than a test of every byte.

const LOW_BITS: u64 = u64::from_ne_bytes([0x7f; 8]);
const ONES: u64 = u64::from_ne_bytes([1; 8]);
const SIDE_BY_SIDE: u64 = 0x0102_0408_1020_4080;
const NEWLINES: u64 = u64::from_ne_bytes([b'\n'; 8]);
/// One byte per bit of a word: the bit says that a field ends there.
const BLOCK: usize = 64;

/// Calls `visit` with every position at which a delimiter or a line break ends a field, in order, and
/// whether a line ends there too. Stops at the first error.
#[inline]
pub(super) fn visit_ends<E>(
    bytes: &[u8],
    delimiter: u8,
    mut visit: impl FnMut(usize, bool) -> Result<(), E>,
) -> Result<(), E> {
    let delimiters = u64::from_ne_bytes([delimiter; 8]);
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    // A zero is neither a delimiter nor a line break.
    let mut last = [0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (base, block) in (0..).step_by(BLOCK).zip(blocks.iter().chain([&last])) {
        // The number of fields in a block cannot be predicted: one wrong branch per block is better than one
        // per word.
        let mut ends = ends_in(block, delimiters);
        while ends != 0 {
            let end = ends.trailing_zeros() as usize % BLOCK;
            visit(base + end, block[end] == b'\n')?;
            ends &= ends - 1;
        }
    }
    Ok(())
}

/// A bit for every byte that is a line break or a delimiter.
#[inline]
fn ends_in(block: &[u8; BLOCK], delimiters: u64) -> u64 {
    let (words, _) = block.as_chunks::<8>();
    let bits = words.iter().enumerate().map(|(index, word)| {
        let word = u64::from_le_bytes(*word);
        let others = differ(word, NEWLINES) & differ(word, delimiters);
        // Every byte is 0 or 1; the product collects them in its top byte.
        let ends = (!others >> 7) & ONES;
        (ends.wrapping_mul(SIDE_BY_SIDE) >> 56) << (8 * index)
    });
    bits.fold(0, |all, bits| all | bits)
}

/// The top bit of every byte in which two words differ; the other bits are undefined.
fn differ(word: u64, pattern: u64) -> u64 {
    let different = word ^ pattern;
    ((different & LOW_BITS) + LOW_BITS) | different
}

#[cfg(test)]
mod tests {
    use super::visit_ends;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(text in "[a,\n\u{0}\u{7f}é-]{0,200}") {
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
