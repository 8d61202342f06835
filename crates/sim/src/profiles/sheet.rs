//! A CSV file with named columns. Whatever is wrong is one line that names file, line and field.

use crate::decimal::parse_scaled;
use crate::interference::{TableError, line_at};
use std::str::FromStr;

/// The bytes of a file without a byte-order mark.
pub(super) fn read_bytes(file: &str) -> Result<Vec<u8>, TableError> {
    let bytes =
        std::fs::read(file).map_err(|cause| TableError::Io { file: file.to_owned(), cause })?;
    let marked = bytes.strip_prefix("\u{feff}".as_bytes()).map(<[u8]>::to_vec);
    Ok(marked.unwrap_or(bytes))
}

pub(super) struct Sheet<'a> {
    file: &'a str,
    header: csv::StringRecord,
    /// With the line on which each begins.
    records: Vec<(u64, csv::StringRecord)>,
}

/// Where a column stands, and its name.
#[derive(Clone, Copy)]
pub(super) struct Column {
    index: usize,
    name: &'static str,
}

impl<'a> Sheet<'a> {
    pub(super) fn parse(bytes: &[u8], file: &'a str) -> Result<Self, TableError> {
        let mut csv = csv::Reader::from_reader(bytes);
        let header = csv
            .headers()
            .map_err(|_| error(file, 1, "header", "not UTF-8 text".to_owned()))?
            .clone();
        let records = csv.records().map(|record| match record {
            Ok(record) => Ok((line_at(bytes, record.position()), record)),
            Err(cause) => {
                let problem = "is not UTF-8 or has another number of fields than the header";
                Err(error(file, line_at(bytes, cause.position()), "row", problem.to_owned()))
            }
        });
        let records = records.collect::<Result<_, _>>()?;
        Ok(Self { file, header, records })
    }

    pub(super) fn column(&self, name: &'static str) -> Result<Column, TableError> {
        let missing = || error(self.file, 1, name, "missing column".to_owned());
        self.find(name).ok_or_else(missing)
    }

    pub(super) fn find(&self, name: &'static str) -> Option<Column> {
        let index = self.header.iter().position(|column| column == name)?;
        Some(Column { index, name })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.records.iter().map(|(line, record)| Row { file: self.file, line: *line, record })
    }
}

pub(super) struct Row<'a> {
    file: &'a str,
    line: u64,
    record: &'a csv::StringRecord,
}

impl Row<'_> {
    pub(super) fn text(&self, column: Column) -> &str {
        self.record.get(column.index).unwrap_or("").trim()
    }

    /// An error about this field that quotes it.
    pub(super) fn bad(&self, column: Column, problem: &str) -> TableError {
        let problem = format!("{problem}: '{}'", self.text(column));
        error(self.file, self.line, column.name, problem)
    }

    pub(super) fn parsed<T: FromStr>(
        &self,
        column: Column,
        problem: &str,
    ) -> Result<T, TableError> {
        self.text(column).parse().map_err(|_| self.bad(column, problem))
    }

    /// A flag written as 0 or 1.
    pub(super) fn flag(&self, column: Column) -> Result<bool, TableError> {
        match self.text(column) {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.bad(column, "neither 0 nor 1")),
        }
    }

    /// A decimal in thousandths.
    pub(super) fn thousandths(&self, column: Column) -> Result<u64, TableError> {
        parse_scaled(self.text(column), 3).map_err(|cause| self.bad(column, &cause.to_string()))
    }

    /// A finite number that is not negative; models take them as they are.
    pub(super) fn number(&self, column: Column) -> Result<f64, TableError> {
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
    pub(super) fn positive(&self, column: Column) -> Result<f64, TableError> {
        let value = self.number(column)?;
        if value > 0.0 { Ok(value) } else { Err(self.bad(column, "has to be above zero")) }
    }
}

fn error(file: &str, line: u64, field: &str, problem: String) -> TableError {
    TableError::Line { file: file.to_owned(), line, field: field.to_owned(), problem }
}
