//! Human-readable times.

/// ISO 8601 in UTC, to the millisecond.
pub fn iso(unix_us: u64) -> String {
    let micros = i64::try_from(unix_us).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => "never".to_owned(),
    }
}
