//! A CSV file with named columns. An error is one line that names file, line and field.

use crate::decimal::parse_scaled;
use crate::interference::TableError;
use std::str::FromStr;

/// The bytes of a file without a byte-order mark.
pub(crate) fn read_bytes(file: &str) -> Result<Vec<u8>, TableError> {
    let bytes =
        std::fs::read(file).map_err(|cause| TableError::Io { file: file.to_owned(), cause })?;
    let marked = bytes.strip_prefix("\u{feff}".as_bytes()).map(<[u8]>::to_vec);
    Ok(marked.unwrap_or(bytes))
}

pub(crate) struct Sheet<'a> {
    file: &'a str,
    bytes: &'a [u8],
    header: csv::StringRecord,
    records: Vec<csv::StringRecord>,
}

/// The position of a column, and its name.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    index: usize,
    name: &'static str,
}

impl<'a> Sheet<'a> {
    pub(crate) fn parse(bytes: &'a [u8], file: &'a str) -> Result<Self, TableError> {
        let mut csv = csv::Reader::from_reader(bytes);
        let header = csv
            .headers()
            .map_err(|_| error(file, 1, "header", "not UTF-8 text".to_owned()))?
            .clone();
        let records = csv.records().map(|record| {
            record.map_err(|cause| {
                let problem = "is not UTF-8 or has another number of fields than the header";
                error(file, line_at(bytes, cause.position()), "row", problem.to_owned())
            })
        });
        let records = records.collect::<Result<_, _>>()?;
        Ok(Self { file, bytes, header, records })
    }

    pub(crate) fn column(&self, name: &'static str) -> Result<Column, TableError> {
        let missing = || error(self.file, 1, name, "missing column".to_owned());
        self.find(name).ok_or_else(missing)
    }

    pub(crate) fn find(&self, name: &'static str) -> Option<Column> {
        let index = self.header.iter().position(|column| column == name)?;
        Some(Column { index, name })
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = SheetRow<'_>> {
        self.records.iter().map(|record| SheetRow { sheet: self, record })
    }
}

pub(crate) struct SheetRow<'a> {
    sheet: &'a Sheet<'a>,
    record: &'a csv::StringRecord,
}

impl SheetRow<'_> {
    pub(crate) fn text(&self, column: Column) -> &str {
        self.record.get(column.index).unwrap_or("").trim()
    }

    /// An error about this field that quotes it.
    pub(crate) fn bad(&self, column: Column, problem: &str) -> TableError {
        let problem = format!("{problem}: '{}'", self.text(column));
        let line = line_at(self.sheet.bytes, self.record.position());
        error(self.sheet.file, line, column.name, problem)
    }

    pub(crate) fn parsed<T: FromStr>(
        &self,
        column: Column,
        problem: &str,
    ) -> Result<T, TableError> {
        self.text(column).parse().map_err(|_| self.bad(column, problem))
    }

    /// A flag written as 0 or 1.
    pub(crate) fn flag(&self, column: Column) -> Result<bool, TableError> {
        match self.text(column) {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.bad(column, "neither 0 nor 1")),
        }
    }

    /// A decimal times ten to the power of `scale`.
    pub(crate) fn scaled(&self, column: Column, scale: i32) -> Result<u64, TableError> {
        parse_scaled(self.text(column), scale).map_err(|cause| self.bad(column, &cause.to_string()))
    }

    /// A finite number that is not negative; models take them as they are.
    pub(crate) fn number(&self, column: Column) -> Result<f64, TableError> {
        let value: f64 = self.parsed(column, "not a number")?;
        if !value.is_finite() {
            return Err(self.bad(column, "not a number"));
        }
        if value < 0.0 {
            return Err(self.bad(column, "negative"));
        }
        Ok(value)
    }

    /// A number above zero.
    pub(crate) fn positive(&self, column: Column) -> Result<f64, TableError> {
        let value = self.number(column)?;
        if value > 0.0 { Ok(value) } else { Err(self.bad(column, "has to be above zero")) }
    }
}

pub(crate) fn error(file: &str, line: u64, field: &str, problem: String) -> TableError {
    TableError::Line { file: file.to_owned(), line, field: field.to_owned(), problem }
}

/// The line on which a record begins; it scans the file and is for errors only. The number of the `csv` crate
/// is one short after CR LF.
fn line_at(bytes: &[u8], position: Option<&csv::Position>) -> u64 {
    let at = position.map_or(0, |position| position.byte() as usize);
    let blank = bytes[at..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    bytes[..at + blank].iter().filter(|&&byte| byte == b'\n').count() as u64 + 1
}
