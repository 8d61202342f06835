//! Minimum-cost assignment: maximum cardinality first, then minimum cost.
//!
//! Three steps, each of which leaves less for the next: an auction finds good prices (`auction.rs`),
//! complementary slackness is restored (`state.rs`), and shortest augmenting paths complete the assignment
//! (`paths.rs`).

mod auction;
mod fallback;
mod paths;
mod rows;
mod state;

use crate::costs::{Cell, CostError, CostRange, Dense, FORBIDDEN, Sparse, index, limit_of};
use paths::PathSearch;
use rows::{Rows, Shortlists};
use state::{AuctionState, Budget, NONE};

/// Options of an assignment.
#[derive(Clone, Copy, Debug, Default)]
pub struct AssignOptions<'a> {
    /// The largest number of columns of each row; one by default. A row with multiplicity k stands for k
    /// equal rows.
    pub multiplicities: Option<&'a [u32]>,
    /// Initial prices (warm start), one per column: [`Duals::columns`] of a similar problem. They change the
    /// running time and which of several optima is found, never its cost.
    pub prices: Option<&'a [i64]>,
    /// How many cells may be scanned before the search for the optimum stops.
    pub step_limit: Option<u64>,
}

/// Dual values. With `S` = [`Duals::stay`], for every allowed cell `rows[i] + columns[j] ≤ cost`, `rows ≤ S`
/// and `columns ≤ 0`; equality for matched cells, unmatched rows and unmatched columns.
/// [`certify`](crate::certify) checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duals {
    /// The dual value of each row.
    pub rows: Vec<i64>,
    /// The price of each column.
    pub columns: Vec<i64>,
    /// The cost of an unmatched row: more than any further pair can save.
    pub stay: i64,
}

/// What is known about the quality of an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssignOutcome {
    /// Optimal: of maximum cardinality, and none of that cardinality costs less.
    Optimal,
    /// The step limit was reached: of maximum cardinality, found greedily and improved.
    Limited {
        /// The optimum costs at most this much less.
        gap: i64,
    },
}

/// An assignment with the proof of its quality.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// (row, column), ascending; a row with a multiplicity may appear several times.
    pub pairs: Vec<(u32, u32)>,
    /// The cost of all pairs.
    pub total: i64,
    /// The dual values, which prove the optimum or its bound.
    pub duals: Duals,
    /// Whether it is the optimum.
    pub outcome: AssignOutcome,
    /// Number of scanned cells, which [`AssignOptions::step_limit`] limits.
    pub steps: u64,
}

/// A matrix that can be assigned: [`Dense`] or [`Sparse`].
pub trait Matrix: sealed::Matrix {}
impl Matrix for Dense {}
impl Matrix for Sparse {}

pub(crate) mod sealed {
    use super::{AssignOptions, Assignment, Cell, CostRange};

    /// The operations of both kinds of matrix, for this crate only.
    pub trait Matrix: Sized {
        fn size(&self) -> (usize, usize);
        fn range(&self) -> CostRange;
        /// On average; a dense row counts as full.
        fn cells_per_row(&self) -> i64;
        fn exchanged(&self) -> Self;
        fn cells(&self, row: usize) -> impl Iterator<Item = Cell>;
        fn cost(&self, row: u32, column: u32) -> Option<i64>;
        fn solve(&self, options: &AssignOptions<'_>) -> Assignment;
    }
}

impl sealed::Matrix for Dense {
    fn size(&self) -> (usize, usize) {
        (self.rows(), self.columns())
    }

    fn range(&self) -> CostRange {
        self.range
    }

    fn cells_per_row(&self) -> i64 {
        i64::from(index(self.columns()))
    }

    fn exchanged(&self) -> Self {
        self.transposed()
    }

    fn cells(&self, row: usize) -> impl Iterator<Item = Cell> {
        let allowed = self.row(row).iter().enumerate().filter(|&(_, &cost)| cost != FORBIDDEN);
        allowed.map(|(column, &cost)| Cell { column: index(column), cost })
    }

    fn cost(&self, row: u32, column: u32) -> Option<i64> {
        let cost = self.row(row as usize)[column as usize];
        (cost != FORBIDDEN).then_some(cost)
    }

    fn solve(&self, options: &AssignOptions<'_>) -> Assignment {
        solve(Shortlists::new(self), self, options)
    }
}

impl sealed::Matrix for Sparse {
    fn size(&self) -> (usize, usize) {
        (self.rows(), self.columns())
    }

    fn range(&self) -> CostRange {
        self.range
    }

    fn cells_per_row(&self) -> i64 {
        i64::from(index(self.cell_count() / self.rows().max(1)))
    }

    fn exchanged(&self) -> Self {
        self.transposed()
    }

    fn cells(&self, row: usize) -> impl Iterator<Item = Cell> {
        self.row(row).iter().copied()
    }

    fn cost(&self, row: u32, column: u32) -> Option<i64> {
        let cells = self.row(row as usize);
        let at = cells.binary_search_by_key(&column, |cell| cell.column).ok()?;
        Some(cells[at].cost)
    }

    fn solve(&self, options: &AssignOptions<'_>) -> Assignment {
        solve(self, self, options)
    }
}

/// The cheapest assignment of maximum cardinality.
#[must_use]
pub fn assign(matrix: &impl Matrix) -> Assignment {
    assign_with(matrix, &AssignOptions::default()).expect("the default options are valid")
}

/// The cheapest assignment of maximum cardinality, with options.
///
/// Which of several optima is found depends only on the arguments: rows bid in order, and among many equal
/// columns a row tries those from its own number on first.
///
/// # Errors
/// If an option does not have one value per row or column, or if the multiplicities give so many pairs that
/// their costs could exceed [`LIMIT`](crate::LIMIT).
pub fn assign_with<M: Matrix>(
    matrix: &M,
    options: &AssignOptions<'_>,
) -> Result<Assignment, CostError> {
    let (rows, columns) = matrix.size();
    check_length(options.multiplicities.map(<[u32]>::len), rows)?;
    check_length(options.prices.map(<[i64]>::len), columns)?;
    let Some(multiplicities) = options.multiplicities else {
        // With more rows than columns, every column can be matched.
        return Ok(if rows > columns { exchange(matrix, options) } else { matrix.solve(options) });
    };
    let pairs = units(multiplicities).min(columns as u64);
    if !matrix.range().fits(pairs) {
        let limit = limit_of(pairs);
        let beyond = |cell: &Cell| !(-limit..=limit).contains(&cell.cost);
        let found = (0..rows).find_map(|row| Some((row, matrix.cells(row).find(beyond)?)));
        let (row, cell) = found.expect("the range is beyond the limit");
        return Err(CostError::TooLarge { row, column: cell.column as usize, limit });
    }
    Ok(matrix.solve(options))
}

fn check_length(found: Option<usize>, expected: usize) -> Result<(), CostError> {
    match found {
        Some(found) if found != expected => Err(CostError::Length { expected, found }),
        _ => Ok(()),
    }
}

fn units(multiplicities: &[u32]) -> u64 {
    multiplicities.iter().map(|&units| u64::from(units)).sum()
}

/// Solves the transposed problem and transposes the result.
fn exchange<M: Matrix>(matrix: &M, options: &AssignOptions<'_>) -> Assignment {
    let prices = options.prices.map(|prices| payments(matrix, prices));
    let options = AssignOptions { prices: prices.as_deref(), ..*options };
    let mut found = matrix.exchanged().solve(&options);
    for pair in &mut found.pairs {
        *pair = (pair.1, pair.0);
    }
    found.pairs.sort_unstable();
    // Unmatched columns become unmatched rows, and the other way round.
    let stay = found.duals.stay;
    let rows = found.duals.columns.iter().map(|price| price + stay).collect();
    let columns = found.duals.rows.iter().map(|pays| pays - stay).collect();
    found.duals = Duals { rows, columns, stay };
    found
}

/// The dual values of the rows at these prices.
fn payments<M: Matrix>(matrix: &M, prices: &[i64]) -> Vec<i64> {
    let least = |row| {
        let values = matrix.cells(row);
        values.map(|cell| cell.cost.saturating_sub(prices[cell.column as usize])).min()
    };
    (0..matrix.size().0).map(|row| least(row).unwrap_or(0)).collect()
}

fn solve<M: Matrix>(mut rows: impl Rows, matrix: &M, options: &AssignOptions<'_>) -> Assignment {
    let mut state = begin(&rows, matrix.range(), options);
    if options.prices.is_none() {
        let range = matrix.range().largest - matrix.range().least;
        let spacing = range / matrix.cells_per_row().max(1);
        auction::approach(&mut rows, &mut state, spacing, range);
    }
    auction::conclude(&mut rows, &mut state);
    let outcome = if finish(&mut rows, &mut state) {
        AssignOutcome::Optimal
    } else {
        AssignOutcome::Limited { gap: fallback::complete(matrix, &mut state) }
    };
    report(matrix, &state, outcome)
}

fn begin(rows: &impl Rows, range: CostRange, options: &AssignOptions<'_>) -> AuctionState {
    let (count, columns) = (rows.rows(), rows.columns());
    let wants = options.multiplicities.map_or_else(|| vec![1; count], <[u32]>::to_vec);
    let pairs = units(&wants).min(columns as u64);
    let left_over = columns - usize::try_from(pairs).expect("at most the number of columns");
    let pairs = i64::try_from(pairs).expect("at most the number of columns");
    // No exchange of pairs for as many others saves this much.
    let stay = range.least + pairs * (range.largest - range.least) + 1;
    let price = options.prices.map_or_else(|| vec![0; columns], |prices| lowered(prices, stay));
    AuctionState {
        owner: vec![NONE; columns],
        price,
        pays: vec![0; count],
        wants,
        stays: vec![0; count],
        left_over,
        level: 0,
        stay,
        budget: Budget::new(options.step_limit.unwrap_or(u64::MAX)),
    }
}

/// The same prices with the highest at 0, and none beyond what the solver would set.
fn lowered(prices: &[i64], stay: i64) -> Vec<i64> {
    let highest = prices.iter().copied().max().unwrap_or(0);
    let lowest = -stay.saturating_abs();
    prices.iter().map(|price| price.saturating_sub(highest).max(lowest)).collect()
}

/// Matches every row, then lowers the level to the unmatched columns; false if the budget ran out.
fn finish(rows: &mut impl Rows, state: &mut AuctionState) -> bool {
    if state.budget.exhausted() {
        return false;
    }
    state.settle(rows);
    let mut search = PathSearch::new(rows.rows(), rows.columns());
    for row in 0..rows.rows() {
        while state.wants[row] > 0 {
            if !search.serve(rows, state, index(row)) {
                return false;
            }
        }
    }
    search.level(rows, state)
}

fn report<M: Matrix>(matrix: &M, state: &AuctionState, outcome: AssignOutcome) -> Assignment {
    let owned = state.owner.iter().enumerate().filter(|&(_, &row)| row != NONE);
    let mut pairs: Vec<(u32, u32)> = owned.map(|(column, &row)| (row, index(column))).collect();
    pairs.sort_unstable();
    let cost = |&(row, column): &(u32, u32)| matrix.cost(row, column).expect("pairs are allowed");
    let total = pairs.iter().map(cost).sum();
    let columns = state.price.iter().map(|price| price - state.level).collect();
    let rows = state.pays.iter().map(|pays| pays + state.level).collect();
    let duals = Duals { rows, columns, stay: state.stay };
    Assignment { pairs, total, duals, outcome, steps: state.budget.used() }
}
