//! One row of a trace, and its fields as numbers, times and flags.

use super::TraceService;
use super::formats::Columns;
use super::problem::{BadRow, Problem};
use crate::decimal::{DecimalError, parse_scaled, parse_short};
use tandem_core::{MICROS_PER_SECOND, PPM_ONE, PRIORITY_MAX, Span, Time, Tolerance, Utilisation};

/// The longest time in a field: about three thousand years. A hundred of them still fit into 64 bits of
/// microseconds; a run that needs more is stopped.
pub(super) const MICROS_MAX: u64 = 100_000_000_000 * MICROS_PER_SECOND;

/// A column: its position and name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) index: usize,
    pub(super) name: &'static str,
}

pub(super) struct TraceRow<'a, 'f> {
    pub(super) text: &'a str,
    /// The range of each field in `text`.
    pub(super) fields: &'f [(usize, usize)],
    pub(super) line: u64,
}

impl<'a> TraceRow<'a, '_> {
    pub(super) fn text(&self, field: Field) -> &'a str {
        let (start, end) = self.fields[field.index];
        let text = &self.text[start..end];
        // Fields are rarely padded, and the test costs less than trimming.
        match (text.as_bytes().first(), text.as_bytes().last()) {
            (Some(first), Some(last)) if *first > b' ' && *last > b' ' => text,
            _ => text.trim_ascii(),
        }
    }

    pub(super) fn required(&self, field: Field) -> Result<&'a str, Box<BadRow>> {
        match self.text(field) {
            "" => Err(self.bad(field.name, Problem::MissingValue)),
            text => Ok(text),
        }
    }

    #[inline]
    pub(super) fn optional<T>(
        &self,
        field: Option<Field>,
        read: impl FnOnce(Field) -> Result<T, Box<BadRow>>,
    ) -> Result<Option<T>, Box<BadRow>> {
        match field {
            Some(field) if !self.is_blank(field) => read(field).map(Some),
            _ => Ok(None),
        }
    }

    #[inline]
    pub(super) fn is_blank(&self, field: Field) -> bool {
        match self.bytes(field).first() {
            None => true,
            Some(&first) => first <= b' ' && self.text(field).is_empty(),
        }
    }

    #[inline]
    pub(super) fn bytes(&self, field: Field) -> &'a [u8] {
        let (start, end) = self.fields[field.index];
        &self.text.as_bytes()[start..end]
    }

    /// A number in the common short form.
    #[inline]
    pub(super) fn short(&self, field: Field, scale: i32) -> Option<u64> {
        parse_short(self.bytes(field), scale)
    }

    #[inline]
    pub(super) fn scaled(&self, field: Field, scale: i32) -> Result<u64, Box<BadRow>> {
        match self.short(field, scale) {
            Some(value) => Ok(value),
            None => self.scaled_from_any(field, scale),
        }
    }

    #[cold]
    pub(super) fn scaled_from_any(&self, field: Field, scale: i32) -> Result<u64, Box<BadRow>> {
        let text = self.text(field);
        match parse_scaled(text, scale) {
            Ok(value) => Ok(value),
            Err(_) if text.is_empty() => Err(self.bad(field.name, Problem::MissingValue)),
            Err(cause) => Err(self.number(field, text, cause)),
        }
    }

    /// A number whose unit is 10^(scale − 6) seconds.
    #[inline]
    pub(super) fn span(&self, field: Field, scale: i32) -> Result<Span, Box<BadRow>> {
        let micros = self.scaled(field, scale)?;
        if micros > MICROS_MAX { Err(self.overflow(field)) } else { Ok(Span(micros)) }
    }

    /// The same, or a date and time.
    pub(super) fn time(&self, field: Field, scale: i32) -> Result<Time, Box<BadRow>> {
        if let Some(micros) = self.short(field, scale) {
            return Ok(Time(micros));
        }
        let text = self.text(field);
        if text.len() >= 10 && text.as_bytes()[4] == b'-' && !text.starts_with('-') {
            let not_a_time = || self.bad(field.name, Problem::NotATime { text: text.to_owned() });
            let civil: jiff::civil::DateTime = text.parse().map_err(|_| not_a_time())?;
            let zoned = civil.to_zoned(jiff::tz::TimeZone::UTC).map_err(|_| not_a_time())?;
            let micros = u64::try_from(zoned.timestamp().as_microsecond());
            return micros.map(Time).map_err(|_| not_a_time());
        }
        Ok(Time(self.span(field, scale)?.0))
    }

    #[inline]
    pub(super) fn whole(&self, field: Field) -> Result<u32, Box<BadRow>> {
        // Spreadsheets and pandas write integers as 8.0.
        let thousandths = self.scaled(field, 3)?;
        if !thousandths.is_multiple_of(1000) {
            let text = self.text(field).to_owned();
            return Err(self.bad(field.name, Problem::NotWhole { text }));
        }
        u32::try_from(thousandths / 1000).map_err(|_| self.overflow(field))
    }

    pub(super) fn utilisation(&self, field: Field, scale: i32) -> Result<Utilisation, Box<BadRow>> {
        u32::try_from(self.scaled(field, scale)?).map(Utilisation).map_err(|_| self.overflow(field))
    }

    pub(super) fn flag(&self, field: Field) -> Result<bool, Box<BadRow>> {
        match self.text(field) {
            "0" | "false" | "False" => Ok(false),
            "1" | "true" | "True" => Ok(true),
            text => Err(self.bad(field.name, Problem::NotAFlag { text: text.to_owned() })),
        }
    }

    /// A factor from 1 to 1000, in parts per million.
    pub(super) fn slowdown(&self, field: Field) -> Result<u32, Box<BadRow>> {
        let most = self.scaled(field, 6)?;
        let one = u64::from(PPM_ONE);
        let in_range = (one..=1000 * one).contains(&most);
        let text = || self.text(field).to_owned();
        let most = u32::try_from(most).ok().filter(|_| in_range);
        most.ok_or_else(|| self.bad(field.name, Problem::NotASlowdown { text: text() }))
    }

    /// The slow-down that the user accepts.
    pub(super) fn tolerance(&self, columns: &Columns) -> Result<Tolerance, Box<BadRow>> {
        let slowdown = self.optional(columns.slowdown_max, |field| self.slowdown(field))?;
        let exclusive = self.optional(columns.exclusive, |field| self.flag(field))?;
        Ok(match (exclusive, slowdown) {
            (Some(true), _) => Tolerance::Alone,
            (_, Some(most)) => Tolerance::Slowdown(most),
            _ => Tolerance::Any,
        })
    }

    /// What a service is promised; `None` for a job that ends by itself.
    pub(super) fn service(
        &self,
        columns: &Columns,
        gpu_util: Option<Utilisation>,
    ) -> Result<Option<TraceService>, Box<BadRow>> {
        let Some(kind) = columns.kind else { return Ok(None) };
        match self.text(kind) {
            "" | "training" => return Ok(None),
            "service" => {}
            text => return Err(self.bad(kind.name, Problem::NotAKind { text: text.to_owned() })),
        }
        let thousandths = |field: Field| match u32::try_from(self.scaled(field, 3)?) {
            Ok(0) => {
                Err(self.bad(field.name, Problem::NotAService { missing: "a positive number" }))
            }
            Ok(value) => Ok(value),
            Err(_) => Err(self.overflow(field)),
        };
        let rate_milli = self.optional(columns.rate_per_s, thousandths)?;
        let slo_us = self.optional(columns.slo_ms, thousandths)?;
        let missing = |missing| self.bad(kind.name, Problem::NotAService { missing });
        if slo_us.is_some() && gpu_util.is_none() {
            return Err(missing("gpu_util"));
        }
        let rate_milli = rate_milli.ok_or_else(|| missing("rate_per_s"))?;
        Ok(Some(TraceService { rate_milli, slo_us }))
    }

    pub(super) fn priority(&self, field: Field) -> Result<i8, Box<BadRow>> {
        let text = self.text(field);
        let priority =
            text.parse().ok().filter(|priority| (-PRIORITY_MAX..=PRIORITY_MAX).contains(priority));
        priority
            .ok_or_else(|| self.bad(field.name, Problem::NotAPriority { text: text.to_owned() }))
    }

    pub(super) fn overflow(&self, field: Field) -> Box<BadRow> {
        self.number(field, self.text(field), DecimalError::Overflow)
    }

    pub(super) fn number(&self, field: Field, text: &str, cause: DecimalError) -> Box<BadRow> {
        self.bad(field.name, Problem::Number { text: text.to_owned(), cause })
    }

    pub(super) fn bad(&self, field: &str, problem: Problem) -> Box<BadRow> {
        Box::new(BadRow { line: self.line, field: field.to_owned(), problem })
    }
}
