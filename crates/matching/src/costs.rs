//! Costs of an assignment: dense and sparse integer matrices, checked when they are made.

use std::fmt;

/// The cost of a dense cell that must not be used.
pub const FORBIDDEN: i64 = 1 << 62;

/// The largest |cost| × number of pairs: no sum or difference of the solver overflows below it.
pub const LIMIT: i64 = 1 << 58;

/// One allowed cell of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The column.
    pub column: u32,
    /// What the pair costs.
    pub cost: i64,
}

/// Why a matrix or an option is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostError {
    /// The costs do not fill the rows and columns stated.
    Shape {
        /// Cells there should be.
        expected: usize,
        /// Cells there are.
        found: usize,
    },
    /// More rows or columns than 31 bits count.
    TooMany,
    /// |cost| × number of possible pairs is above [`LIMIT`].
    TooLarge {
        /// The row of the first such cost.
        row: usize,
        /// Its column.
        column: usize,
        /// The largest |cost| allowed in a matrix of this size.
        limit: i64,
    },
    /// The offsets of a sparse matrix do not ascend from 0 to the number of cells.
    Offsets,
    /// The columns of a sparse row do not ascend, or reach beyond the last.
    Columns {
        /// The row.
        row: usize,
    },
    /// Wrong number of multiplicities or prices.
    Length {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
}

impl fmt::Display for CostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { expected, found } => {
                write!(out, "{found} costs for {expected} cells")
            }
            Self::TooMany => write!(out, "more than {} rows or columns", u32::MAX / 2),
            Self::TooLarge { row, column, limit } => write!(
                out,
                "the cost in row {row}, column {column} is beyond ±{limit}, the limit for this many pairs"
            ),
            Self::Offsets => write!(out, "the offsets do not ascend from 0 to the number of cells"),
            Self::Columns { row } => {
                write!(out, "the columns of row {row} do not ascend, or reach beyond the last")
            }
            Self::Length { expected, found } => {
                write!(out, "{found} values where {expected} belong")
            }
        }
    }
}

impl std::error::Error for CostError {}

/// The least and the largest cost; 0 and 0 without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CostRange {
    pub(crate) least: i64,
    pub(crate) largest: i64,
}

impl CostRange {
    fn of(costs: impl Iterator<Item = i64>) -> Self {
        let (least, largest) =
            costs.fold((i64::MAX, i64::MIN), |(low, high), cost| (low.min(cost), high.max(cost)));
        if least > largest { Self::default() } else { Self { least, largest } }
    }

    /// Whether every sum of `pairs` costs stays within [`LIMIT`].
    pub(crate) fn fits(self, pairs: u64) -> bool {
        let magnitude = self.least.unsigned_abs().max(self.largest.unsigned_abs());
        magnitude <= limit_of(pairs).unsigned_abs()
    }
}

/// The largest |cost| that `pairs` pairs may have.
pub(crate) fn limit_of(pairs: u64) -> i64 {
    LIMIT / i64::try_from(pairs.max(1)).unwrap_or(LIMIT)
}

/// A matrix with a cost for every cell, by rows; [`FORBIDDEN`] where a pair must not be.
#[derive(Clone, Debug)]
pub struct Dense {
    rows: usize,
    columns: usize,
    costs: Vec<i64>,
    pub(crate) range: CostRange,
}

impl Dense {
    /// Takes `rows` × `columns` costs, row after row.
    ///
    /// # Errors
    /// If their number is wrong or one of them is beyond [`LIMIT`] / min(rows, columns).
    pub fn new(rows: usize, columns: usize, costs: Vec<i64>) -> Result<Self, CostError> {
        check_size(rows, columns)?;
        let expected = rows.checked_mul(columns).ok_or(CostError::TooMany)?;
        if costs.len() != expected {
            return Err(CostError::Shape { expected, found: costs.len() });
        }
        let least = costs.iter().copied().min().unwrap_or(0);
        let largest = costs.iter().map(|&cost| if cost == FORBIDDEN { i64::MIN } else { cost });
        let largest = largest.max().unwrap_or(0);
        let range =
            if least == FORBIDDEN { CostRange::default() } else { CostRange { least, largest } };
        let limit = limit_of(rows.min(columns) as u64);
        if !range.fits(rows.min(columns) as u64) {
            let beyond = |&cost: &i64| cost != FORBIDDEN && !(-limit..=limit).contains(&cost);
            let at = costs.iter().position(beyond).expect("the range is beyond the limit");
            return Err(CostError::TooLarge { row: at / columns, column: at % columns, limit });
        }
        Ok(Self { rows, columns, costs, range })
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All costs of a row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[i64] {
        &self.costs[row * self.columns..][..self.columns]
    }

    /// Rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        // In square blocks, so that both sides stay in the cache.
        const BLOCK: usize = 32;
        let mut costs = vec![0; self.costs.len()];
        for first in (0..self.rows).step_by(BLOCK) {
            for left in (0..self.columns).step_by(BLOCK) {
                for row in first..self.rows.min(first + BLOCK) {
                    for column in left..self.columns.min(left + BLOCK) {
                        costs[column * self.rows + row] = self.costs[row * self.columns + column];
                    }
                }
            }
        }
        Self { rows: self.columns, columns: self.rows, costs, range: self.range }
    }
}

/// A matrix that lists the allowed cells only: compressed rows.
#[derive(Clone, Debug)]
pub struct Sparse {
    columns: usize,
    /// Where each row begins in `cells`, and the end of the last.
    starts: Vec<usize>,
    cells: Vec<Cell>,
    pub(crate) range: CostRange,
}

impl Sparse {
    /// Takes the cells of row `i` from `starts[i]..starts[i + 1]`, columns ascending.
    ///
    /// # Errors
    /// If offsets or columns are out of order, or a cost is beyond [`LIMIT`] / min(rows, columns).
    pub fn new(columns: usize, starts: Vec<usize>, cells: Vec<Cell>) -> Result<Self, CostError> {
        let ascend = starts.is_sorted();
        if starts.first() != Some(&0) || starts.last() != Some(&cells.len()) || !ascend {
            return Err(CostError::Offsets);
        }
        let rows = starts.len() - 1;
        check_size(rows, columns)?;
        let range = CostRange::of(cells.iter().map(|cell| cell.cost));
        let matrix = Self { columns, starts, cells, range };
        let limit = limit_of(rows.min(columns) as u64);
        for row in 0..rows {
            let cells = matrix.row(row);
            let ascend = cells.is_sorted_by(|a, b| a.column < b.column);
            if !ascend || cells.last().is_some_and(|last| last.column as usize >= columns) {
                return Err(CostError::Columns { row });
            }
            if let Some(cell) = cells.iter().find(|cell| !(-limit..=limit).contains(&cell.cost)) {
                return Err(CostError::TooLarge { row, column: cell.column as usize, limit });
            }
        }
        Ok(matrix)
    }

    /// The same from rows of (column, cost) pairs.
    ///
    /// # Errors
    /// As [`Sparse::new`].
    pub fn from_rows<R>(
        columns: usize,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<Self, CostError>
    where
        R: IntoIterator<Item = (u32, i64)>,
    {
        let (mut starts, mut cells) = (vec![0], Vec::new());
        for row in rows {
            cells.extend(row.into_iter().map(|(column, cost)| Cell { column, cost }));
            starts.push(cells.len());
        }
        Self::new(columns, starts, cells)
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn cell_count(&self) -> usize {
        self.cells.len()
    }

    /// The allowed cells of a row, columns ascending.
    #[must_use]
    pub fn row(&self, row: usize) -> &[Cell] {
        &self.cells[self.starts[row]..self.starts[row + 1]]
    }

    /// Rows and columns exchanged.
    pub(crate) fn transposed(&self) -> Self {
        let mut starts = vec![0; self.columns + 1];
        for cell in &self.cells {
            starts[cell.column as usize + 1] += 1;
        }
        for column in 0..self.columns {
            starts[column + 1] += starts[column];
        }
        let mut next = starts.clone();
        let mut cells = vec![Cell { column: 0, cost: 0 }; self.cells.len()];
        for row in 0..self.rows() {
            for cell in self.row(row) {
                let place = &mut next[cell.column as usize];
                cells[*place] = Cell { column: index(row), cost: cell.cost };
                *place += 1;
            }
        }
        Self { columns: self.rows(), starts, cells, range: self.range }
    }
}

fn check_size(rows: usize, columns: usize) -> Result<(), CostError> {
    // One value of 32 bits means none, and half of them mark rows in the heap.
    let most = (u32::MAX / 2) as usize;
    if rows > most || columns > most { Err(CostError::TooMany) } else { Ok(()) }
}

/// A row or column as it is stored.
pub(crate) fn index(value: usize) -> u32 {
    u32::try_from(value).expect("sizes are checked when a matrix is made")
}
