//! The cost of the network for gangs across nodes, alone and with other gangs.
//!
//! A node has one link. A gang across nodes uses the link of each of them. Gangs on one link share it
//! equally, and a gang's slowest link counts, because it trains synchronously.

use tandem_core::Ratio;

/// Communication share of an iteration across nodes for unknown classes: the middle of the six models that
/// Pollux measured (`tandem model throughput`). They range from 0.05 (imagenet) to 0.62 (ncf), so users
/// should give the share of a class if they know it.
pub const DEFAULT_SHARE: f64 = 0.35;

/// The rate of a gang across nodes relative to the gang whose duration was measured: on as few nodes as
/// possible, with the links to itself.
///
/// With a communication share c on free links, an iteration of length 1 takes (1 − c) + k·c if k gangs share
/// its busiest link. A gang that fits on one node was measured without the network, so that its iteration was
/// 1 − c; a larger one includes it already.
pub fn rate(share: f64, sharers: u32, fits_one_node: bool) -> Ratio {
    let share = share.clamp(0.0, 0.99);
    let iteration = (1.0 - share) + f64::from(sharers.max(1)) * share;
    let measured = if fits_one_node { 1.0 - share } else { 1.0 };
    Ratio::from_f64(measured / iteration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_shared_and_the_duration_of_a_large_gang_includes_a_free_link() {
        let ppm = |share, sharers, fits| rate(share, sharers, fits).ppm().0;
        assert_eq!(ppm(0.25, 1, false), 1_000_000);
        assert_eq!(ppm(0.25, 1, true), 750_000);
        assert_eq!(ppm(0.25, 2, false), 800_000);
        assert_eq!(ppm(0.25, 2, true), 600_000);
        assert_eq!(ppm(0.0, 9, true), 1_000_000);
        assert!(ppm(f64::INFINITY, 1000, true) > 0);
    }
}
