//! How data are written: tables for people, JSON, lines of JSON and CSV for programs.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use comfy_table::{
    Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle,
};
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// Names longer than this are cut in tables.
const NAME_MAX: usize = 32;
/// Columns of a table with sentences, where there is no terminal, and at least.
const WIDTH_DEFAULT: u16 = 100;
const WIDTH_MIN: u16 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table
    Table,
    /// One object
    Json,
    /// One object per line and entry
    Jsonl,
    /// A header and one line per entry
    Csv,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorChoice {
    /// Whether to use colours on standard output.
    pub(crate) fn is_on(self) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
            }
        }
    }
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ListOutput {
    /// Output format [default: $TANDEM_OUTPUT, or table]
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT")]
    format: Option<OutputFormat>,
}

impl ListOutput {
    /// `--json`, then `-o`, then the environment.
    pub(crate) fn format(self, json: bool) -> Result<OutputFormat, Failure> {
        if json {
            return Ok(OutputFormat::Json);
        }
        match (self.format, std::env::var("TANDEM_OUTPUT")) {
            (Some(format), _) => Ok(format),
            (None, Ok(text)) if !text.is_empty() => {
                OutputFormat::from_str(&text, false).map_err(|_| {
                    let text = text.escape_debug();
                    Failure::bad_input(format!(
                        "TANDEM_OUTPUT is '{text}'; give table, json, jsonl or csv"
                    ))
                })
            }
            (None, _) => Ok(OutputFormat::Table),
        }
    }
}

/// Text from other users without control characters, which a terminal would execute.
pub(crate) fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hostile(character) {
            cleaned.extend(character.escape_unicode());
        } else {
            cleaned.push(character);
        }
    }
    cleaned
}

/// Control characters, and those that reorder or hide the text around them.
fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A name for a table: cleaned and cut.
pub(crate) fn name(text: &str) -> String {
    let cleaned = clean(text);
    match cleaned.char_indices().nth(NAME_MAX) {
        Some(_) => cleaned.chars().take(NAME_MAX - 1).chain(['…']).collect(),
        None => cleaned,
    }
}

/// A cell of a table.
pub(crate) struct TableCell {
    text: String,
    color: Option<Color>,
}

impl TableCell {
    pub(crate) fn colored(text: impl Into<String>, color: Option<Color>) -> Self {
        Self { text: text.into(), color }
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self { text: text.into(), color: None }
    }
}

/// A table; a header that begins with `>` aligns its column to the right, one with `~` holds sentences, which are
/// wrapped to the terminal or, without one, to a fixed width. Other columns are never wrapped, for `grep` and `awk`.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<TableCell>>, colors: bool) -> String {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(rule));
    let is_prose = |title: &str| title.starts_with('~');
    if header.iter().any(|title| is_prose(title)) {
        let width = table.width().unwrap_or(WIDTH_DEFAULT).clamp(WIDTH_MIN, WIDTH_DEFAULT);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    } else {
        table.set_content_arrangement(ContentArrangement::Disabled);
    }
    table.set_header(header.iter().map(|title| title.trim_start_matches(['>', '~'])));
    if colors {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    for row in rows {
        table.add_row(row.into_iter().map(|TableCell { text, color }| {
            let cell = Cell::new(text);
            match color {
                Some(color) if colors => cell.fg(color),
                _ => cell,
            }
        }));
    }
    for (column, title) in table.column_iter_mut().zip(header) {
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if !is_prose(title) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// One object per line.
pub(crate) fn json_lines(rows: &[Value]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for row in rows {
        writeln!(out, "{row}")?;
    }
    out.flush()?;
    Ok(())
}

/// These fields of each object, with a header. The items of a list are separated by blanks.
pub(crate) fn csv(columns: &[&str], rows: &[Value]) -> Result<(), Failure> {
    let mut text = csv_text(columns, rows);
    text.truncate(text.trim_end_matches('\n').len());
    super::commands::print(&text)
}

fn csv_text(columns: &[&str], rows: &[Value]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(columns);
    for row in rows {
        let fields =
            columns.iter().map(|column| row.get(column).map_or_else(String::new, csv_field));
        let _ = writer.write_record(fields);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn csv_field(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        Value::Array(items) => items.iter().map(csv_field).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hostile_text_is_escaped() {
        assert_eq!(clean("a\u{1b}[31mb\n\u{202e}c\u{9b}"), "a\\u{1b}[31mb\\u{a}\\u{202e}c\\u{9b}");
        assert_eq!(clean("träin 学习"), "träin 学习");
        assert_eq!(name(&"x".repeat(40)).chars().count(), NAME_MAX);
    }

    #[test]
    fn csv_is_quoted() {
        let rows = [
            json!({"id": 1, "name": "a,\"b\"", "devices": [0, 1], "reason": null}),
            json!({"id": 2}),
        ];
        let text = csv_text(&["id", "name", "devices", "reason"], &rows);
        assert_eq!(text, "id,name,devices,reason\n1,\"a,\"\"b\"\"\",0 1,\n2,,,\n");
    }

    #[test]
    fn tables_align_numbers() {
        let text = table(&[">id", "name"], vec![vec!["7".into(), "a".into()]], false);
        assert_eq!(text.lines().count(), 3);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn sentences_in_tables_are_wrapped_and_other_columns_are_not() {
        let long = "some words ".repeat(40);
        let path = format!("/home/{}", "x".repeat(40));
        let row = || vec![TableCell::from(path.as_str()), long.as_str().into()];
        let wrapped = table(&["check", "~found"], vec![row()], false);
        assert!(wrapped.lines().all(|line| line.chars().count() <= 100), "{wrapped}");
        assert!(wrapped.contains(&path), "{wrapped}");
        assert_eq!(table(&["check", "found"], vec![row()], false).lines().count(), 3);
    }
}
