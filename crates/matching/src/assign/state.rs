//! The state of a partial assignment: the owner and the price of every column.
//!
//! Prices are at most `level`, and a column without an owner at `level` stays unmatched. A row may stay
//! unmatched at the cost `stay`, which is so high that this happens only if it must: maximum cardinality is
//! thereby part of the costs.

use super::rows::{FIRST, Rows};
use crate::costs::index;

/// No row, or no column.
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) struct AuctionState {
    /// The row that has each column, or [`NONE`].
    pub(crate) owner: Vec<u32>,
    /// The price of each column.
    pub(crate) price: Vec<i64>,
    /// The dual value of each row: at most `cost − price` of all its cells, equal for those it owns.
    pub(crate) pays: Vec<i64>,
    /// How many more columns each row needs.
    pub(crate) wants: Vec<u32>,
    /// How many of those it gave up.
    pub(crate) stays: Vec<u32>,
    /// Smallest number of unmatched columns.
    pub(crate) left_over: usize,
    /// The highest price, which is that of an unmatched column.
    pub(crate) level: i64,
    /// The cost of an unmatched row, with `level` at 0.
    pub(crate) stay: i64,
    /// Cells that may still be scanned.
    pub(crate) budget: Budget,
}

/// Counts scanned cells.
pub(crate) struct Budget {
    limit: u64,
    used: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
    }

    #[inline]
    pub(crate) fn spend(&mut self, cells: usize) {
        self.used += cells as u64;
    }

    #[inline]
    pub(crate) fn exhausted(&self) -> bool {
        self.used > self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }
}

impl AuctionState {
    /// The cost of an unmatched row at the current level.
    #[inline]
    pub(crate) fn stay_cost(&self) -> i64 {
        self.stay - self.level
    }

    /// Takes the column away from its row.
    pub(crate) fn release(&mut self, column: u32) {
        let row = std::mem::replace(&mut self.owner[column as usize], NONE);
        self.wants[row as usize] += 1;
    }

    /// Releases all columns.
    pub(crate) fn release_all(&mut self) {
        for column in 0..self.owner.len() {
            if self.owner[column] != NONE {
                self.release(index(column));
            }
        }
        self.price.fill(self.level);
    }

    /// Sets every row's dual value and releases columns that are more expensive than that. Afterwards
    /// complementary slackness holds.
    pub(crate) fn settle(&mut self, rows: &mut impl Rows) {
        let owned = Owned::of(&self.owner, rows.rows());
        for row in 0..rows.rows() {
            let others = self.least_of_others(rows, row);
            self.pays[row] = others;
            for &column in owned.columns(row) {
                let price = rows.cost(row, column) - others;
                if price > self.price[column as usize] {
                    self.release(column);
                } else {
                    self.price[column as usize] = price;
                }
            }
        }
        self.lower_level();
    }

    /// Columns without an owner need not be more expensive than the most expensive owned one.
    fn lower_level(&mut self) {
        let owned = self.price.iter().zip(&self.owner).filter(|&(_, &row)| row != NONE);
        let Some(dearest) = owned.map(|(&price, _)| price).max() else { return };
        self.level = self.level.min(dearest);
        self.price.iter_mut().for_each(|price| *price = (*price).min(dearest));
    }

    /// The smallest `cost − price` among the columns that the row does not have, at most the cost of staying
    /// unmatched.
    pub(crate) fn least_of_others(&mut self, rows: &mut impl Rows, row: usize) -> i64 {
        let mut size = FIRST;
        loop {
            let mut least = self.stay_cost();
            for cell in rows.listed(row) {
                let value = cell.cost - self.price[cell.column as usize];
                if value < least && self.owner[cell.column as usize] as usize != row {
                    least = value;
                }
            }
            self.budget.spend(rows.listed(row).len());
            if least <= rows.bound(row) {
                return least;
            }
            self.budget.spend(rows.list(row, &self.price, size));
            size *= 2;
        }
    }
}

/// The columns of every row.
pub(crate) struct Owned {
    starts: Vec<usize>,
    columns: Vec<u32>,
}

impl Owned {
    pub(crate) fn of(owner: &[u32], rows: usize) -> Self {
        let mut starts = vec![0; rows + 2];
        for &row in owner.iter().filter(|&&row| row != NONE) {
            starts[row as usize + 2] += 1;
        }
        for row in 2..rows + 2 {
            starts[row] += starts[row - 1];
        }
        let mut columns = vec![0; starts[rows + 1]];
        for (column, &row) in owner.iter().enumerate().filter(|&(_, &row)| row != NONE) {
            // Filling a row moves its start to its end, where the next one begins.
            let place = &mut starts[row as usize + 1];
            columns[*place] = index(column);
            *place += 1;
        }
        Self { starts, columns }
    }

    /// Ascending.
    pub(crate) fn columns(&self, row: usize) -> &[u32] {
        &self.columns[self.starts[row]..self.starts[row + 1]]
    }
}
