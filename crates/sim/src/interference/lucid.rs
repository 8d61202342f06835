//! Lucid's co-location CSV: one row per pair, speeds relative to running alone. A speed of zero means
//! that the pair did not fit in memory.

use super::{Entry, PairTable, TableError};
use crate::decimal::parse_scaled;
use crate::trace::Class;
use tandem_core::Ratio;

pub(super) fn parse(bytes: &[u8], file: &str) -> Result<PairTable, TableError> {
    let error = |line: u64, field: &str, problem: String| TableError::Line {
        file: file.to_owned(),
        line,
        field: field.to_owned(),
        problem,
    };
    let mut csv = csv::Reader::from_reader(bytes);
    let header =
        csv.headers().map_err(|_| error(1, "header", "not UTF-8 text".to_owned()))?.clone();
    let column = |name: String| {
        let index = header.iter().position(|column| column == name);
        index
            .map(|index| (index, name.clone()))
            .ok_or_else(|| error(1, &name, "missing column".to_owned()))
    };
    let side = |number: u32| -> Result<Side, TableError> {
        Ok(Side {
            model: column(format!("model{number}"))?,
            dataset: column(format!("dataset{number}"))?,
            batch: column(format!("batchsize{number}"))?,
            amp: column(format!("amp{number}"))?,
            speed: column(format!("speed{number}"))?,
        })
    };
    let sides = [side(1)?, side(2)?];
    let mut table = PairTable::default();
    for record in csv.records() {
        let record = record.map_err(|cause| {
            let line = line_at(bytes, cause.position());
            error(
                line,
                "row",
                "is not UTF-8 or has another number of fields than the header".to_owned(),
            )
        })?;
        let read = |side: &Side| {
            side.read(&record).map_err(|(field, problem)| {
                error(line_at(bytes, record.position()), &field, problem)
            })
        };
        let ((a, of_a), (b, of_b)) = (read(&sides[0])?, read(&sides[1])?);
        let fits = of_a > Ratio::ZERO && of_b > Ratio::ZERO;
        let entry = |rate| if fits { Entry::Rate(rate) } else { Entry::DoesNotFit };
        table.insert(&a, &b, entry(of_a), entry(of_b));
    }
    Ok(table)
}

/// The line on which a record begins. The crate's own number is one short after CR LF.
pub(crate) fn line_at(bytes: &[u8], position: Option<&csv::Position>) -> u64 {
    let at = position.map_or(0, |position| position.byte() as usize);
    let blank = bytes[at..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    bytes[..at + blank].iter().filter(|&&byte| byte == b'\n').count() as u64 + 1
}

type Column = (usize, String);

/// The columns of one job of the pair.
struct Side {
    model: Column,
    dataset: Column,
    batch: Column,
    amp: Column,
    speed: Column,
}

impl Side {
    fn read(&self, record: &csv::StringRecord) -> Result<(Class, Ratio), (String, String)> {
        let text = |column: &Column| record.get(column.0).unwrap_or("").trim().to_owned();
        let bad = |column: &Column, problem: &str| {
            (column.1.clone(), format!("{problem}: '{}'", text(column)))
        };
        let batch = text(&self.batch).parse().map_err(|_| bad(&self.batch, "not a batch size"))?;
        let amp = match text(&self.amp).as_str() {
            "0" => false,
            "1" => true,
            _ => return Err(bad(&self.amp, "neither 0 nor 1")),
        };
        let parts = parse_scaled(&text(&self.speed), 12)
            .map_err(|cause| bad(&self.speed, &cause.to_string()))?;
        let class = Class {
            model: text(&self.model),
            dataset: text(&self.dataset),
            batch: Some(batch),
            amp,
        };
        Ok((class, Ratio::new(parts, 1_000_000_000_000)))
    }
}
