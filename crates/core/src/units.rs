//! Integer units. Everything that decides something is an integer, so that two runs agree to the microsecond;
//! `f64` is for models and reports.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// Microseconds per second.
pub const MICROS_PER_SECOND: u64 = 1_000_000;
/// Parts per million in one.
pub const PPM_ONE: u32 = 1_000_000;

/// A point in time: microseconds since the origin of the trace or of the daemon's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Time {
    /// The end of time, about 584,000 years after the origin: an event at this time never happens.
    pub const END: Time = Time(u64::MAX);

    /// The instant `seconds` after the origin.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// Time from `earlier` to this; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);

    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(MICROS_PER_SECOND))
    }
}

impl Add<Span> for Time {
    type Output = Time;
    /// Saturates at [`Time::END`].
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

/// Speed relative to running alone on the reference GPU, in whole parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ppm(pub u32);

impl Ppm {
    /// No progress.
    pub const ZERO: Ppm = Ppm(0);
    /// Full solo speed on the reference GPU.
    pub const ONE: Ppm = Ppm(PPM_ONE);
}

/// An amount of work: microseconds of solo running time on the reference GPU × 10⁶.
///
/// A job of rate `r` ppm does `r` units per microsecond, so progress is exact at any rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work(pub u128);

impl Work {
    /// No work.
    pub const ZERO: Work = Work(0);

    /// The work that `span` of solo running does.
    pub const fn of(span: Span) -> Self {
        Self(span.0 as u128 * PPM_ONE as u128)
    }

    /// The work done at `rate` during `span`.
    pub const fn done(rate: Ppm, span: Span) -> Self {
        Self(rate.0 as u128 * span.0 as u128)
    }

    /// The time of this work at `rate`, rounded up to a microsecond; `None` at rate zero. Saturates.
    pub fn time_at(self, rate: Ppm) -> Option<Span> {
        if rate == Ppm::ZERO {
            return None;
        }
        // 128-bit division is several times slower than 64-bit, and most jobs fit the latter.
        let micros = match u64::try_from(self.0) {
            Ok(work) => work.div_ceil(u64::from(rate.0)),
            Err(_) => u64::try_from(self.0.div_ceil(u128::from(rate.0))).unwrap_or(u64::MAX),
        };
        Some(Span(micros))
    }

    /// This work × `ratio`, rounded to nearest. Saturates.
    #[must_use]
    pub fn times(self, ratio: Ratio) -> Work {
        if ratio == Ratio::ONE {
            return self;
        }
        let scale = u128::from(Ratio::SCALE);
        Work(self.0.saturating_mul(u128::from(ratio.0)).saturating_add(scale / 2) / scale)
    }

    /// This work without `done`; zero if that is more.
    pub const fn saturating_sub(self, done: Work) -> Work {
        Work(self.0.saturating_sub(done.0))
    }
}

impl Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work(self.0 + other.0)
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.0 += other.0;
    }
}

impl Sub for Work {
    type Output = Work;
    fn sub(self, other: Work) -> Work {
        Work(self.0 - other.0)
    }
}

/// A relative speed in parts per 10¹²: fine enough to round a job's rate, the product of several ratios, only
/// once, to [`Ppm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(u64);

impl Ratio {
    const SCALE: u64 = 1_000_000_000_000;
    /// No progress.
    pub const ZERO: Ratio = Ratio(0);
    /// Equal speed.
    pub const ONE: Ratio = Ratio(Self::SCALE);
    /// Half the speed.
    pub const HALF: Ratio = Ratio(Self::SCALE / 2);
    /// The largest ratio: a thousand times the reference.
    pub const MAX: Ratio = Ratio(1000 * Self::SCALE);

    /// `numerator / denominator`, rounded to nearest; limited to [`Ratio::MAX`].
    pub fn new(numerator: u64, denominator: u64) -> Self {
        assert!(denominator > 0, "a ratio needs a positive denominator");
        let scaled = u128::from(numerator) * u128::from(Self::SCALE);
        let rounded = (scaled + u128::from(denominator) / 2) / u128::from(denominator);
        Self(u64::try_from(rounded).unwrap_or(u64::MAX)).min(Self::MAX)
    }

    /// From a measured quotient: the one place where a floating-point rate enters. Negative values and NaN
    /// become zero.
    pub fn from_f64(value: f64) -> Self {
        // `as` saturates and maps NaN to zero.
        Self((value * Self::SCALE as f64).round() as u64).min(Self::MAX)
    }

    /// For models and reports.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Self::SCALE as f64
    }

    /// Rounded to whole parts per million, half up.
    pub fn ppm(self) -> Ppm {
        const STEP: u64 = Ratio::SCALE / PPM_ONE as u64;
        Ppm(u32::try_from((self.0 + STEP / 2) / STEP).unwrap_or(u32::MAX))
    }

    /// The mean of two ratios.
    pub const fn mean(self, other: Ratio) -> Ratio {
        Ratio((self.0 + other.0) / 2)
    }

    /// The sum of two ratios; limited to [`Ratio::MAX`].
    #[must_use]
    pub fn plus(self, other: Ratio) -> Ratio {
        Ratio(self.0.saturating_add(other.0)).min(Self::MAX)
    }

    /// This ratio without `other`; zero if that is more.
    #[must_use]
    pub const fn minus(self, other: Ratio) -> Ratio {
        Ratio(self.0.saturating_sub(other.0))
    }

    /// One divided by this, rounded to nearest; limited to [`Ratio::MAX`].
    #[must_use]
    pub fn inverse(self) -> Ratio {
        Ratio::new(Self::SCALE, self.0.max(1))
    }

    /// The product of two ratios, rounded to nearest.
    #[must_use]
    pub fn times(self, other: Ratio) -> Ratio {
        // Most products have a factor of one, and 128-bit division is slow.
        if other == Self::ONE {
            return self;
        }
        if self == Self::ONE {
            return other;
        }
        let product = u128::from(self.0) * u128::from(other.0) + u128::from(Self::SCALE) / 2;
        let scaled = u64::try_from(product / u128::from(Self::SCALE)).unwrap_or(u64::MAX);
        Ratio(scaled).min(Self::MAX)
    }
}

/// GPU memory in thousandths of a MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Memory(pub u64);

impl Memory {
    /// Whole MiB.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib * 1000)
    }

    /// This memory without `used`; zero if that is more.
    #[must_use]
    pub const fn saturating_sub(self, used: Memory) -> Memory {
        Memory(self.0.saturating_sub(used.0))
    }

    /// For models and reports.
    pub fn mib(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl Add for Memory {
    type Output = Memory;
    /// Saturates.
    fn add(self, other: Memory) -> Memory {
        Memory(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Memory) {
        *self = *self + other;
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, thousandths) = (self.0 / 1000, self.0 % 1000);
        if thousandths == 0 {
            write!(f, "{whole} MiB")
        } else {
            write!(f, "{whole}.{thousandths:03} MiB")
        }
    }
}

/// A utilisation in thousandths of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Utilisation(pub u32);

impl Utilisation {
    /// Fully used.
    pub const FULL: Utilisation = Utilisation(100_000);

    /// As a share of the whole, for models and reports.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(Self::FULL.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_is_rounded_up_to_a_microsecond() {
        let work = Work::of(Span(10));
        assert_eq!(work.time_at(Ppm(300_000)), Some(Span(34)));
        assert_eq!(work.time_at(Ppm::ONE), Some(Span(10)));
        assert_eq!(work.time_at(Ppm::ZERO), None);
    }

    #[test]
    fn large_work_divides_like_small_work() {
        let year = Span::from_secs(365 * 86_400 * 1000);
        assert_eq!(Work::of(year).time_at(Ppm::ONE), Some(year));
        assert_eq!(Work::of(year).time_at(Ppm(500_000)), Some(Span(year.0 * 2)));
    }

    #[test]
    fn ratios_round_half_up_once() {
        assert_eq!(Ratio::new(1, 3).ppm(), Ppm(333_333));
        assert_eq!(Ratio::new(2, 3).ppm(), Ppm(666_667));
        assert_eq!(Ratio::new(5, 10_000_000).ppm(), Ppm(1));
        // 2/3 × 0.8 is 0.53333…; rounding 2/3 first would give 533,334.
        assert_eq!(Ratio::new(2, 3).times(Ratio::new(8, 10)).ppm(), Ppm(533_333));
    }

    #[test]
    fn measured_ratios_are_sane_for_any_float() {
        assert_eq!(Ratio::from_f64(0.983).ppm(), Ppm(983_000));
        assert_eq!(Ratio::from_f64(-1.0).ppm(), Ppm::ZERO);
        assert_eq!(Ratio::from_f64(f64::NAN).ppm(), Ppm::ZERO);
        assert_eq!(Ratio::from_f64(f64::INFINITY), Ratio::MAX);
    }
}
