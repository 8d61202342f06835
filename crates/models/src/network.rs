//! What gangs across nodes pay for the network, and what they pay when they meet on it.
//!
//! A node has one link. A gang that spans nodes uses the link of each of them; gangs that meet on a
//! link divide it evenly, and since a gang advances in step, its slowest link counts.

use tandem_core::Ratio;

/// Share of an iteration across nodes that communication takes where nothing is known of a class: the
/// middle of the six models that Pollux measured (`tandem model throughput`). They spread from 0.05
/// (imagenet) to 0.62 (ncf), so whoever knows a class should say so.
pub const DEFAULT_SHARE: f64 = 0.35;

/// The rate of a gang across nodes relative to the same gang as its duration was measured: on as few
/// nodes as possible, with the links to itself.
///
/// With a share c of communication on free links, an iteration of length 1 takes (1 − c) + k·c when
/// the busiest of its links is divided by k. A gang that could sit on one node was measured without the
/// network, so that its iteration was 1 − c; a larger one has paid for it already.
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
    fn links_are_divided_and_a_gang_that_must_span_has_paid_for_a_free_one() {
        let ppm = |share, sharers, fits| rate(share, sharers, fits).ppm().0;
        assert_eq!(ppm(0.25, 1, false), 1_000_000);
        assert_eq!(ppm(0.25, 1, true), 750_000);
        assert_eq!(ppm(0.25, 2, false), 800_000);
        assert_eq!(ppm(0.25, 2, true), 600_000);
        assert_eq!(ppm(0.0, 9, true), 1_000_000);
        assert!(ppm(f64::INFINITY, 1000, true) > 0);
    }
}
