//! How much more a gang counts than a single job: it is harder to place again, and ordering by time per
//! GPU makes large gangs wait longest.

use tandem_core::PPM_ONE;

/// The weight of a gang of `gpus` GPUs, in parts per million of a single job: `gpus` to the power of
/// `quarters`/4.
pub(super) fn gang_weight(gpus: u32, quarters: u32) -> i128 {
    if gpus == 1 {
        return i128::from(PPM_ONE);
    }
    // g^n · 10²⁴ has to fit 128 bits.
    let power = u128::from(gpus).saturating_pow(quarters).min(1 << 48);
    let root = (power * u128::from(PPM_ONE).pow(4)).isqrt().isqrt();
    i128::try_from(root).expect("a fourth root of 128 bits has 32")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_counts_the_fourth_root_of_its_gpus() {
        assert_eq!([1, 16, 64].map(|gpus| gang_weight(gpus, 1) / 1000), [1000, 2000, 2828]);
        assert_eq!(gang_weight(64, 0), i128::from(PPM_ONE));
        assert!(gang_weight(u32::MAX, 1_000_000) > 0);
    }
}
