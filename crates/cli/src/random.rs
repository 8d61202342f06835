//! Seeded random numbers for benches.

/// A small seeded generator (SplitMix64): the same seed gives the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `most`.
    pub(crate) fn below(&mut self, most: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % most) as usize
    }

    /// A number from zero to below one.
    pub(crate) fn unit(&mut self) -> f64 {
        self.below(1 << 52) as f64 / (1_u64 << 52) as f64
    }
}
