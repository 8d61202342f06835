//! Decimal text to scaled integers and back, exactly.

use std::fmt;
use tandem_core::MICROS_PER_SECOND;
use thiserror::Error;

/// Why a text is not a valid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecimalError {
    /// Not a decimal number.
    #[error("not a number")]
    NotANumber,
    /// Below zero.
    #[error("negative")]
    Negative,
    /// Too large for 64 bits.
    #[error("number overflow")]
    Overflow,
}

/// `text × 10^scale` as an integer; rounded to nearest, half up, where the text has more digits.
///
/// Accepts the output of CSV writers: digits, a point, an exponent, a plus sign.
pub fn parse_scaled(text: &str, scale: i32) -> Result<u64, DecimalError> {
    match parse_short(text.as_bytes(), scale) {
        Some(value) => Ok(value),
        None => parse_any(text.trim(), scale),
    }
}

/// The common case: a few digits with no more decimals than are kept. `None` means that the general parser
/// decides.
#[inline]
pub(crate) fn parse_short(text: &[u8], scale: i32) -> Option<u64> {
    const DIGITS_MAX: usize = 12;
    const POWERS: [u64; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
    if text.is_empty() || text.len() > DIGITS_MAX {
        return None;
    }
    let mut value: u64 = 0;
    let mut point = None;
    for (index, &byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() => point = Some(index),
            _ => return None,
        }
    }
    let decimals = match point {
        None => 0,
        Some(_) if text.len() == 1 => return None,
        Some(index) => text.len() - index - 1,
    };
    let missing = usize::try_from(scale).ok()?.checked_sub(decimals)?;
    value.checked_mul(*POWERS.get(missing)?)
}

fn parse_any(text: &str, scale: i32) -> Result<u64, DecimalError> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => {
            let exponent = digits[at + 1..].parse::<i32>().map_err(|_| DecimalError::NotANumber)?;
            (&digits[..at], exponent)
        }
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(DecimalError::NotANumber);
    }
    // Position of the last kept digit, relative to the decimal point.
    let point = i64::from(exponent) + i64::from(scale);
    let mut value: u64 = 0;
    let mut nonzero = false;
    let mut round_up = false;
    let mut position = i64::try_from(whole.len()).unwrap_or(i64::MAX);
    for byte in whole.bytes().chain(fraction.bytes()) {
        if !byte.is_ascii_digit() {
            return Err(DecimalError::NotANumber);
        }
        position -= 1;
        let digit = u64::from(byte - b'0');
        nonzero |= digit != 0;
        // The value of this digit is 10^(position + point).
        let weight = position + point;
        if weight >= 0 {
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(digit))
                .ok_or(DecimalError::Overflow)?;
        } else if weight == -1 {
            round_up = digit >= 5;
        }
    }
    if negative && nonzero {
        return Err(DecimalError::Negative);
    }
    let trailing_zeros = position + point;
    if trailing_zeros > 0 && value > 0 {
        let power = u32::try_from(trailing_zeros)
            .ok()
            .and_then(|zeros| 10_u64.checked_pow(zeros))
            .ok_or(DecimalError::Overflow)?;
        value = value.checked_mul(power).ok_or(DecimalError::Overflow)?;
    }
    value.checked_add(u64::from(round_up)).ok_or(DecimalError::Overflow)
}

/// Appends microseconds as seconds: up to six decimals, no trailing zeros.
pub(crate) fn push_seconds(out: &mut Vec<u8>, micros: u64) {
    push_whole(out, micros / MICROS_PER_SECOND);
    let fraction = micros % MICROS_PER_SECOND;
    if fraction != 0 {
        out.push(b'.');
        let mut digits = [0; 6];
        let mut rest = fraction;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let last = digits.iter().rposition(|&digit| digit != b'0').unwrap_or(0);
        out.extend_from_slice(&digits[..=last]);
    }
}

/// Appends an integer.
pub(crate) fn push_whole(out: &mut Vec<u8>, value: u64) {
    // Most numbers of a row have one digit.
    if let digit @ 0..10 = value {
        out.push(b'0' + digit as u8);
        return;
    }
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Microseconds as seconds: up to six decimals, no trailing zeros.
pub(crate) struct Seconds(pub(crate) u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fixed_point(f, self.0, 6)
    }
}

/// Thousandths as units: up to three decimals, no trailing zeros.
pub(crate) struct Thousandths(pub(crate) u64);

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fixed_point(f, self.0, 3)
    }
}

fn fixed_point(f: &mut fmt::Formatter<'_>, value: u64, decimals: u32) -> fmt::Result {
    let unit = 10_u64.pow(decimals);
    let (whole, mut fraction) = (value / unit, value % unit);
    if fraction == 0 {
        return write!(f, "{whole}");
    }
    let mut width = decimals as usize;
    while fraction.is_multiple_of(10) {
        fraction /= 10;
        width -= 1;
    }
    write!(f, "{whole}.{fraction:0width$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_csv_writers_produce() {
        let micros = |text| parse_scaled(text, 6);
        assert_eq!(micros("13222421"), Ok(13_222_421_000_000));
        assert_eq!(micros("2330.0"), Ok(2_330_000_000));
        assert_eq!(micros(".5"), Ok(500_000));
        assert_eq!(micros("5."), Ok(5_000_000));
        assert_eq!(micros("1e3"), Ok(1_000_000_000));
        assert_eq!(micros("1.25E-3"), Ok(1250));
        assert_eq!(micros("12e-7"), Ok(1));
        assert_eq!(micros("15e-7"), Ok(2));
        assert_eq!(micros("-0.0"), Ok(0));
        assert_eq!(micros("0.0000005"), Ok(1));
        assert_eq!(micros("0.00000049"), Ok(0));
        assert_eq!(parse_scaled("2868294000", 3), Ok(2_868_294_000_000));
    }

    #[test]
    fn refuses_text_that_is_no_number() {
        for text in ["", ".", "-", "abc", "1.2.3", "0x10", "1e", "nan", "inf", "1 2", "１"] {
            assert_eq!(parse_scaled(text, 6), Err(DecimalError::NotANumber), "{text:?}");
        }
        assert_eq!(parse_scaled("-3", 6), Err(DecimalError::Negative));
        assert_eq!(parse_scaled("1e30", 6), Err(DecimalError::Overflow));
        assert_eq!(parse_scaled("99999999999999999999", 0), Err(DecimalError::Overflow));
        assert_eq!(parse_scaled("0e999999999", 6), Ok(0));
    }

    proptest! {
        #[test]
        fn the_short_way_agrees_with_the_long_one(text in "[0-9]{0,8}\\.?[0-9]{0,7}", scale in 0i32..7) {
            if let Some(value) = parse_short(text.as_bytes(), scale) {
                prop_assert_eq!(parse_any(&text, scale), Ok(value));
            }
        }

        #[test]
        fn written_seconds_are_read_back(micros in 0u64..1 << 60) {
            let written = Seconds(micros).to_string();
            prop_assert_eq!(parse_scaled(&written, 6), Ok(micros));
            let mut pushed = Vec::new();
            push_seconds(&mut pushed, micros);
            prop_assert_eq!(pushed, written.into_bytes());
        }

        #[test]
        fn no_text_panics(text in "\\PC*", scale in -3i32..9) {
            let _ = parse_scaled(&text, scale);
        }
    }
}
