//! When two jobs do better side by side than one after the other (Luo et al., IWQoS 2024).
//!
//! A resident B runs and a guest A waits. Their mean finish time, as a function of the moment at which
//! they begin to share, is piecewise linear with its minimum at an end: share now, or not at all.
//! So two closed forms decide, in exact integers.

use std::cmp::Ordering;
use tandem_core::{PPM_ONE, Ppm, Work};

/// Mean finish times of a guest and a resident, from now on.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// t_con: they share from now on until one of them ends.
    pub together: Finish,
    /// t_seq: the guest starts when the resident ends.
    pub in_turn: Finish,
}

/// A mean finish time as a quotient, in quarters of a unit of work.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    numerator: u128,
    denominator: u32,
}

impl Pair {
    /// From twice the remaining solo work of guest and resident, and their rates beside each other; a
    /// rate above that of running alone counts as equal to it.
    ///
    /// With ξ = 1 / rate, and if ξ_A·T_A ≥ ξ_B·T_B:
    /// t_con = T_A/2 + (1 − 1/(2ξ_A))·ξ_B·T_B, otherwise the same with A and B exchanged;
    /// t_seq = T_B + T_A/2.
    pub fn new(twice_guest: Work, twice_resident: Work, guest: Ppm, resident: Ppm) -> Self {
        Self {
            together: Finish::together((twice_guest, guest), (twice_resident, resident)),
            in_turn: Finish { numerator: 2 * twice_resident.0 + twice_guest.0, denominator: 1 },
        }
    }

    /// Whether sharing beats waiting; equality is not sharing.
    pub fn pays(&self) -> bool {
        self.together < self.in_turn
    }

    /// What sharing gains over waiting; nothing if it does not pay.
    pub fn benefit(&self) -> Finish {
        let Finish { numerator, denominator } = self.together;
        let in_turn = self.in_turn.numerator * u128::from(denominator);
        Finish { numerator: in_turn.saturating_sub(numerator), denominator }
    }
}

impl Finish {
    /// Remaining work is below 2⁸⁵ and rates below 2²⁰, so that nothing here or in a comparison exceeds
    /// 128 bits.
    fn together(a: (Work, Ppm), b: (Work, Ppm)) -> Self {
        const FULL: u32 = PPM_ONE;
        let limited = |(work, rate): (Work, Ppm)| (work.0, rate.0.clamp(1, FULL));
        let ((mut last, mut last_rate), (mut first, mut first_rate)) = (limited(a), limited(b));
        if last * u128::from(first_rate) < first * u128::from(last_rate) {
            std::mem::swap(&mut last, &mut first);
            std::mem::swap(&mut last_rate, &mut first_rate);
        }
        let numerator = last * u128::from(first_rate) + first * u128::from(2 * FULL - last_rate);
        Self { numerator, denominator: first_rate }
    }

    /// In seconds, for reports and tests.
    pub fn seconds(&self) -> f64 {
        self.numerator as f64 / f64::from(self.denominator) / 4.0 / 1e12
    }
}

impl Ord for Finish {
    fn cmp(&self, other: &Self) -> Ordering {
        let one = self.numerator * u128::from(other.denominator);
        one.cmp(&(other.numerator * u128::from(self.denominator)))
    }
}

impl PartialOrd for Finish {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Finish {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Finish {}
