//! The state of a solution on its way: who has which column, at which prices.
//!
//! Prices are at most `level`, and an unowned column at `level` is simply left over. A row may stay
//! without a column at the price `stay`, which is so high that this happens only when it must:
//! maximum cardinality first is thereby part of the costs.

use super::rows::{FIRST, Rows};
use crate::costs::index;

/// No row, or no column.
pub(crate) const NONE: u32 = u32::MAX;

pub(crate) struct AuctionState {
    /// The row that has each column, or [`NONE`].
    pub(crate) owner: Vec<u32>,
    /// The price of each column.
    pub(crate) price: Vec<i64>,
    /// What each row pays: at most `cost − price` of all its cells, exactly that of those it has.
    pub(crate) pays: Vec<i64>,
    /// How many more columns each row wants.
    pub(crate) wants: Vec<u32>,
    /// How many of those it has given up.
    pub(crate) stays: Vec<u32>,
    /// How many columns are left over at least.
    pub(crate) left_over: usize,
    /// The highest price, which is that of a column left over.
    pub(crate) level: i64,
    /// What a row without a column costs, with `level` at 0.
    pub(crate) stay: i64,
    /// Cells that may still be looked at.
    pub(crate) budget: Budget,
}

/// Counts what the solver looks at.
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
    /// What staying without a column costs a row at the present level.
    #[inline]
    pub(crate) fn stay_cost(&self) -> i64 {
        self.stay - self.level
    }

    /// Takes the column away from its row.
    pub(crate) fn release(&mut self, column: u32) {
        let row = std::mem::replace(&mut self.owner[column as usize], NONE);
        self.wants[row as usize] += 1;
    }

    /// Takes all columns away and begins anew.
    pub(crate) fn release_all(&mut self) {
        for column in 0..self.owner.len() {
            if self.owner[column] != NONE {
                self.release(index(column));
            }
        }
        self.price.fill(self.level);
    }

    /// Lets every row pay exactly what it must, and releases what is dearer than that. Afterwards
    /// prices, payments and owners fit together (complementary slackness).
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

    /// Nobody minds if unowned columns are no dearer than the dearest owned one.
    fn lower_level(&mut self) {
        let owned = self.price.iter().zip(&self.owner).filter(|&(_, &row)| row != NONE);
        let Some(dearest) = owned.map(|(&price, _)| price).max() else { return };
        self.level = self.level.min(dearest);
        self.price.iter_mut().for_each(|price| *price = (*price).min(dearest));
    }

    /// The least `cost − price` among the columns that the row does not have, at most the cost of
    /// staying without.
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

/// The columns of every row, gathered when they are needed.
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
            // Filling a row moves its start to where it ends, which is where the next one begins.
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
