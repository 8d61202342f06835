//! Matrices of costs as CSV: integers, an empty cell where a pair is forbidden, no header.

use crate::failure::Failure;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use tandem_matching::{Cell, CostError, Dense, FORBIDDEN, LIMIT, Sparse};

/// Dense unless fewer than one cell in this many is allowed.
const SPARSE_FROM: usize = 8;

pub(crate) enum Costs {
    Dense(Dense),
    Sparse(Sparse),
}

/// The allowed cells, row after row, as they are read.
struct Cells {
    starts: Vec<usize>,
    cells: Vec<Cell>,
    columns: usize,
}

pub(crate) fn read(path: &Path) -> Result<Costs, Failure> {
    let name = path.display();
    let cannot = |cause: io::Error| {
        Failure::bad_input(format!("{name}: cannot be read: {cause}; name a CSV file of costs"))
    };
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).map_err(cannot)?),
    };
    let mut lines = BufReader::with_capacity(1 << 18, source);
    let mut found = Cells { starts: vec![0], cells: Vec::new(), columns: 0 };
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(cannot)? > 0 {
        let row = found.starts.len() - 1;
        let problem = |problem| Failure::bad_input(format!("{name}:{}: {problem}", row + 1));
        let text = line.strip_prefix("\u{feff}".as_bytes()).filter(|_| row == 0).unwrap_or(&line);
        found.add(text.trim_ascii_end()).map_err(problem)?;
        line.clear();
    }
    if found.starts.len() == 1 {
        return Err(Failure::bad_input(format!("{name}: is empty; it needs a row of costs")));
    }
    found.into_costs().map_err(|error| match error {
        CostError::TooLarge { row, column, limit } => Failure::bad_input(format!(
            "{name}:{}: field {}: beyond ±{limit}, the limit for a matrix of this size; scale the costs down",
            row + 1,
            column + 1
        )),
        other => Failure::bad_input(format!("{name}: {other}")),
    })
}

impl Cells {
    /// Adds a row.
    fn add(&mut self, line: &[u8]) -> Result<(), String> {
        let mut fields = 0;
        for field in line.split(|&byte| byte == b',') {
            let field = field.trim_ascii();
            if !field.is_empty() {
                let cost = number(field).ok_or_else(|| refusal(fields + 1, field))?;
                // Beyond any limit; the value that marks a forbidden cell is there, too.
                if cost.unsigned_abs() > LIMIT.unsigned_abs() {
                    let problem = format!("field {}: beyond ±{LIMIT}", fields + 1);
                    return Err(format!("{problem}; scale the costs down"));
                }
                let column = u32::try_from(fields).map_err(|_| "too many fields".to_owned())?;
                self.cells.push(Cell { column, cost });
            }
            fields += 1;
        }
        if self.starts.len() == 1 {
            self.columns = fields;
        } else if fields != self.columns {
            let (expected, plural) = (self.columns, if fields == 1 { "" } else { "s" });
            let problem = format!("row: {fields} field{plural}, but line 1 has {expected}");
            return Err(format!("{problem}; give every row as many"));
        }
        self.starts.push(self.cells.len());
        Ok(())
    }

    fn into_costs(self) -> Result<Costs, CostError> {
        let rows = self.starts.len() - 1;
        if self.cells.len() * SPARSE_FROM < rows.saturating_mul(self.columns) {
            return Sparse::new(self.columns, self.starts, self.cells).map(Costs::Sparse);
        }
        let mut costs = vec![FORBIDDEN; rows * self.columns];
        for row in 0..rows {
            for cell in &self.cells[self.starts[row]..self.starts[row + 1]] {
                costs[row * self.columns + cell.column as usize] = cell.cost;
            }
        }
        Dense::new(rows, self.columns, costs).map(Costs::Dense)
    }
}

/// A whole number. The value that marks a forbidden cell becomes another one beyond every limit.
fn number(field: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(field).ok()?.parse().ok()?;
    Some(if number == FORBIDDEN { i64::MAX } else { number })
}

fn refusal(field: usize, text: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(text).chars().take(40).collect();
    format!(
        "field {field}: not a 64-bit integer: '{text}'; leave it empty where a pair is forbidden"
    )
}

pub(crate) fn write_dense(matrix: &Dense, out: &mut dyn Write) -> io::Result<()> {
    for row in 0..matrix.rows() {
        for (column, &cost) in matrix.row(row).iter().enumerate() {
            let comma = if column == 0 { "" } else { "," };
            match cost == FORBIDDEN {
                true => write!(out, "{comma}")?,
                false => write!(out, "{comma}{cost}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

pub(crate) fn write_sparse(matrix: &Sparse, out: &mut dyn Write) -> io::Result<()> {
    let commas = vec![b','; matrix.columns()];
    for row in 0..matrix.rows() {
        let mut at = 0;
        for cell in matrix.row(row) {
            let column = cell.column as usize;
            out.write_all(&commas[at..column])?;
            write!(out, "{}", cell.cost)?;
            at = column;
        }
        out.write_all(&commas[at..matrix.columns().saturating_sub(1)])?;
        writeln!(out)?;
    }
    Ok(())
}
