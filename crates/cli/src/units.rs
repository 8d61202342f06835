//! Parses and prints times, sizes and points in time.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

const MINUTE_S: f64 = 60.0;
const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 86_400.0;

/// Seconds of a span: `90` is minutes, `HH:MM:SS`, `1-00:00:00`, `1h30m`, `45s`.
pub(crate) fn span(text: &str) -> Result<f64, String> {
    let seconds = if text.ends_with(|last: char| last.is_ascii_alphabetic()) {
        span_of_units(text)
    } else {
        span_of_clock(text)
    };
    seconds.filter(|&seconds| seconds <= 1e10).ok_or_else(|| {
        let shown = text.escape_debug();
        format!("'{shown}' is not a time; give minutes (90), HH:MM:SS, D-HH:MM:SS or 1h30m")
    })
}

/// A limit of time, where none is `0` or `unlimited`; no limit is infinite.
pub(crate) fn limit(text: &str) -> Result<f64, String> {
    if ["unlimited", "infinite"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(f64::INFINITY);
    }
    span(text).map(|seconds| if seconds == 0.0 { f64::INFINITY } else { seconds })
}

/// `1h30m`, each unit once, from days down to seconds.
fn span_of_units(text: &str) -> Option<f64> {
    let mut units = [("d", DAY_S), ("h", HOUR_S), ("m", MINUTE_S), ("s", 1.0)].into_iter();
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let digits =
            rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_length = rest[digits..].find(|character: char| !character.is_ascii_alphabetic());
        let end = unit_length.map_or(rest.len(), |length| digits + length);
        let unit = match &rest[digits..end] {
            "min" | "minute" | "minutes" => "m",
            "sec" | "second" | "seconds" => "s",
            "hour" | "hours" => "h",
            "day" | "days" => "d",
            unit => unit,
        };
        let (_, seconds) = units.find(|&(name, _)| name == unit)?;
        total += number * seconds;
        rest = &rest[end..];
    }
    Some(total)
}

/// As in Slurm: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.
fn span_of_clock(text: &str) -> Option<f64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u32>().ok()?), clock),
        None => (None, text),
    };
    let plain = |part: &str| part.chars().all(|character| character.is_ascii_digit());
    let numbers = clock.split(':').map(|part| part.parse::<u32>().ok().filter(|_| plain(part)));
    let numbers: Vec<f64> = numbers.map(|number| number.map(f64::from)).collect::<Option<_>>()?;
    let seconds = match (days, numbers.as_slice()) {
        (None, &[minutes]) => minutes * MINUTE_S,
        (None, &[minutes, seconds]) => minutes * MINUTE_S + seconds,
        (Some(_), &[hours]) => hours * HOUR_S,
        (Some(_), &[hours, minutes]) => hours * HOUR_S + minutes * MINUTE_S,
        (_, &[hours, minutes, seconds]) => hours * HOUR_S + minutes * MINUTE_S + seconds,
        _ => return None,
    };
    Some(f64::from(days.unwrap_or(0)) * DAY_S + seconds)
}

/// Bytes of a size: `20G` and `20GiB` count by 1024, `20GB` by 1000, a plain number is MiB.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    let parse = || {
        let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.');
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let number: f64 = number.parse().ok()?;
        let unit = unit.trim_start().to_ascii_uppercase();
        let power = |letter: &str| "KMGTP".find(letter).filter(|_| letter.len() == 1);
        let factor = match unit.as_str() {
            "" => 1024_f64.powi(2),
            "B" => 1.0,
            unit => {
                let (letter, base) = match (unit.strip_suffix("IB"), unit.strip_suffix('B')) {
                    (Some(letter), _) => (letter, 1024_f64),
                    (None, Some(letter)) => (letter, 1000.0),
                    (None, None) => (unit, 1024.0),
                };
                base.powi(i32::try_from(power(letter)?).ok()? + 1)
            }
        };
        let bytes = (number * factor).round();
        // `as` is exact enough: the range is checked.
        (bytes >= 1.0 && bytes <= 2_f64.powi(60)).then_some(bytes as u64)
    };
    parse().ok_or_else(|| format!("'{}' is not a size; give 20G or 512M", text.escape_debug()))
}

/// A number of GPUs.
pub(crate) fn gpus(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number
        .ok_or_else(|| format!("'{}' is not a number of GPUs; give 1 or 0.5", text.escape_debug()))
}

/// A moment, in seconds since 1970: `now+1h`, `HH:MM`, `2026-12-24`, `2026-12-24T18:00`, with `Z` or an
/// offset for another zone than that of this machine.
pub(crate) fn moment(text: &str) -> Result<f64, String> {
    moment_from(text, &Zoned::now()).ok_or_else(|| {
        let shown = text.escape_debug();
        // The calendar has later days than the clock.
        if text.parse::<Date>().is_ok() || text.parse::<DateTime>().is_ok() {
            return format!("'{shown}' is too far away; give a moment before the year 2286");
        }
        format!("'{shown}' is not a moment; give now+1h, HH:MM or 2026-12-24T18:00")
    })
}

/// A moment that follows another, such as the end of a reservation: a time of day is the first one after it.
pub(crate) fn moment_after(text: &str, start_unix_s: f64) -> Result<f64, String> {
    let is_time_of_day = text.contains(':') && !text.contains(['-', 'T', ' ', '+']);
    // Rounded up, so that the same time of day is that of the next day.
    let start = Timestamp::from_millisecond((start_unix_s * 1e3) as i64 + 1).ok();
    let start = start.filter(|_| is_time_of_day).map(|start| start.to_zoned(TimeZone::system()));
    let found = start.and_then(|start| moment_from(text, &start));
    found.map_or_else(|| moment(text), Ok)
}

/// A past point in time, in seconds since 1970: as `moment`, and `7d` is a week ago.
pub(crate) fn since(text: &str) -> Result<f64, String> {
    let now = Zoned::now();
    let now_s = now.timestamp().as_millisecond() as f64 / 1e3;
    if let Some(ago) = span_of_units(text).filter(|_| !text.is_empty()) {
        return Ok((now_s - ago).max(0.0));
    }
    // A time of day is the latest one.
    moment(text).map(|found| if found > now_s { found - DAY_S } else { found })
}

fn moment_from(text: &str, now: &Zoned) -> Option<f64> {
    let seconds = |timestamp: Timestamp| timestamp.as_millisecond() as f64 / 1e3;
    if let Some(rest) = text.strip_prefix("now") {
        let after = match rest.strip_prefix('+') {
            None => return rest.is_empty().then(|| seconds(now.timestamp())),
            // As in Slurm, a plain number is seconds here.
            Some(after) => after.parse::<u32>().map(f64::from).ok().or_else(|| span(after).ok())?,
        };
        return Some(seconds(now.timestamp()) + after);
    }
    if text == "tomorrow" {
        let day = now.date().checked_add(1.day()).ok()?;
        return Some(seconds(day.to_zoned(now.time_zone().clone()).ok()?.timestamp()));
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(seconds(timestamp));
    }
    let local = |moment: DateTime| {
        Some(seconds(moment.to_zoned(now.time_zone().clone()).ok()?.timestamp()))
    };
    // A time of day comes before a date, because some times could be read as dates.
    if text.contains(':') && !text.contains(['-', 'T', ' ']) {
        let (hour, rest) = text.split_once(':')?;
        let (minute, second) = rest.split_once(':').unwrap_or((rest, "0"));
        let time =
            Time::new(hour.parse().ok()?, minute.parse().ok()?, second.parse().ok()?, 0).ok()?;
        let today = now.date().to_datetime(time);
        let day =
            if today < now.datetime() { now.date().checked_add(1.day()).ok()? } else { now.date() };
        return local(day.to_datetime(time));
    }
    if !text.contains('-') {
        return None;
    }
    if let Ok(date) = text.parse::<Date>()
        && text.len() == 10
    {
        return local(date.at(0, 0, 0, 0));
    }
    local(text.parse::<DateTime>().ok()?)
}

/// A time of the interface in the zone of this machine.
pub(crate) fn local(text: &str) -> String {
    let Ok(timestamp) = text.parse::<Timestamp>() else { return text.to_owned() };
    timestamp.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A span for tables: `0:45`, `1:02:03`, `2-03:04:05`.
pub(crate) fn clock(seconds: f64) -> String {
    // `as` saturates, and no job runs that long.
    let whole = seconds.max(0.0).round() as u64;
    let (days, hours) = (whole / 86_400, whole / 3600 % 24);
    let (minutes, seconds) = (whole / 60 % 60, whole % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// A span in words: `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
pub(crate) fn words(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min", whole / 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A number of things: `1 job`, `2 jobs`.
pub(crate) fn counted(count: impl TryInto<u64>, thing: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

/// A size as text.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            let digits = usize::from(unit != "B" && value < 10.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        let cases = [
            ("90", 5400.0),
            ("1:30", 90.0),
            ("01:02:03", 3723.0),
            ("1-00:00:00", 86_400.0),
            ("2-3", 183_600.0),
            ("1-01:30", 91_800.0),
            ("1h30m", 5400.0),
            ("45s", 45.0),
            ("1.5h", 5400.0),
            ("2d4h", 187_200.0),
            ("10minutes", 600.0),
            ("0.5s", 0.5),
        ];
        for (text, seconds) in cases {
            assert_eq!(span(text), Ok(seconds), "{text}");
        }
        for wrong in [
            "",
            "-1",
            "x",
            "1:2:3:4",
            "1m1h",
            "1h1h",
            "1-2-3",
            "h",
            "1.5",
            "+5",
            "1e3",
            "99999999d",
        ] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
        assert_eq!(limit("0"), Ok(f64::INFINITY));
        assert_eq!(limit("UNLIMITED"), Ok(f64::INFINITY));
        assert!(span("\u{1b}[31m").unwrap_err().contains("\\u{1b}"));
    }

    #[test]
    fn sizes() {
        let cases = [
            ("20G", 20 << 30),
            ("20GiB", 20 << 30),
            ("20gb", 20_000_000_000),
            ("512", 512 << 20),
            ("1.5M", 3 << 19),
            ("1T", 1 << 40),
            ("100B", 100),
        ];
        for (text, size) in cases {
            assert_eq!(memory(text), Ok(size), "{text}");
        }
        for wrong in ["", "G", "-1G", "1X", "1GG", "1KM", "0", "nan", "1e400", "99999999P"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            [0, 1023, 1536, 20 << 30, 3 << 40].map(bytes),
            ["0 B", "1023 B", "1.5 KiB", "20 GiB", "3.0 TiB"]
        );
    }

    #[test]
    fn moments() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let now: Timestamp = "2026-11-16T10:30:00Z".parse().unwrap();
        let start = now.as_second() as f64;
        let now = now.to_zoned(zone);
        let cases = [
            ("now", 0.0),
            ("now+1h", 3600.0),
            ("now+90", 90.0),
            ("13:00", 1800.0),
            ("12:00", 84_600.0),
            ("12:45:30", 930.0),
            ("2026-11-16T13:00", 1800.0),
            ("2026-11-16T11:00:00Z", 1800.0),
            ("2026-11-16 13:00:00", 1800.0),
            ("2026-11-17", 41_400.0),
            ("tomorrow", 41_400.0),
        ];
        for (text, later) in cases {
            assert_eq!(moment_from(text, &now), Some(start + later), "{text}");
        }
        for wrong in ["", "later", "25:00", "now-1h", "2026-13-01", "nowhere", "12", "now+"] {
            assert_eq!(moment_from(wrong, &now), None, "{wrong}");
        }
    }

    #[test]
    fn an_end_at_a_time_of_day_is_the_first_one_after_the_start() {
        let hours = |from: &str, to: &str| {
            let start = moment(from).unwrap();
            (moment_after(to, start).unwrap() - start) / HOUR_S
        };
        assert_eq!(hours("2030-01-10T18:00", "22:00"), 4.0);
        assert_eq!(hours("2030-01-10T18:00", "06:30"), 12.5);
        assert_eq!(hours("2030-01-10T18:00", "18:00"), 24.0);
        assert_eq!(hours("2030-01-10T18:00", "2030-01-10T19:00"), 1.0);
        // Today's if that is still to come, else tomorrow's: the start decides.
        assert_eq!(hours("18:00", "22:00"), 4.0);
        assert!(moment_after("22h", 0.0).is_err());
        let later = moment_after("now+2h", moment("now+1h").unwrap()).unwrap();
        assert!((later - moment("now+2h").unwrap()).abs() < 60.0);
    }

    #[test]
    fn a_day_that_is_too_far_away_is_called_that() {
        assert!(moment("9999-12-31").unwrap_err().contains("is too far away"));
        assert!(moment("2026-13-01").unwrap_err().contains("is not a moment"));
    }

    #[test]
    fn one_thing_is_not_called_several() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "job")), ["0 jobs", "1 job", "2 jobs"]);
    }

    #[test]
    fn spans_for_people() {
        assert_eq!([5.0, 3723.0, 183_600.0].map(clock), ["0:05", "1:02:03", "2-03:00:00"]);
        assert_eq!(
            [1.25, 45.0, 725.0, 12_000.0, 187_200.0].map(words),
            ["1.2 s", "45 s", "12 min", "3 h 20 min", "2 d 4 h"]
        );
    }
}
