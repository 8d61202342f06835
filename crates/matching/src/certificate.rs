//! Optimality certificates: complementary slackness, checked cell by cell.

use crate::assign::{Assignment, Matrix};
use std::fmt;

/// What is wrong with an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The matrix has another number of rows or columns, or a pair lies outside of it.
    Shape,
    /// A pair uses a forbidden cell.
    Forbidden(u32, u32),
    /// A column is used twice, or a row more often than it may be.
    Capacity(u32, u32),
    /// The total is not the sum of the costs.
    Total,
    /// A cell violates dual feasibility, or a pair is not tight.
    Cell(u32, u32),
    /// A row's dual exceeds the cost of staying unmatched, or is below it although it lacks a column.
    Row(u32),
    /// A column's price is above 0, or below although it is unmatched.
    Column(u32),
    /// The cost of staying unmatched is so low that cardinality would not come first.
    Stay,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self:?}")
    }
}

impl std::error::Error for Violation {}

/// Checks that an assignment is valid and, by its duals, that none of the same or a larger cardinality is
/// better. With every unmatched row charged `stay`, the duals bound the cost of all assignments from below
/// and this one attains the bound; `stay` exceeds what any larger assignment could cost in addition.
///
/// # Errors
/// The first violation.
pub fn certify<M: Matrix>(
    matrix: &M,
    multiplicities: Option<&[u32]>,
    found: &Assignment,
) -> Result<(), Violation> {
    let (rows, columns) = matrix.size();
    let duals = &found.duals;
    let mut missing = multiplicities.map_or_else(|| vec![1; rows], <[u32]>::to_vec);
    if duals.rows.len() != rows || duals.columns.len() != columns || missing.len() != rows {
        return Err(Violation::Shape);
    }
    let units: i128 = missing.iter().map(|&units| i128::from(units)).sum();
    let mut mates: Vec<Vec<u32>> = vec![Vec::new(); rows];
    let mut taken = vec![false; columns];
    for &(row, column) in &found.pairs {
        let (i, j) = (row as usize, column as usize);
        if i >= rows || j >= columns {
            return Err(Violation::Shape);
        }
        if taken[j] || missing[i] == 0 {
            return Err(Violation::Capacity(row, column));
        }
        taken[j] = true;
        missing[i] -= 1;
        mates[i].push(column);
    }
    let (mut total, mut least, mut largest) = (0_i128, i64::MAX, i64::MIN);
    for (row, mates) in mates.iter_mut().enumerate() {
        let id = crate::costs::index(row);
        for cell in matrix.cells(row) {
            (least, largest) = (least.min(cell.cost), largest.max(cell.cost));
            let paid =
                i128::from(duals.rows[row]) + i128::from(duals.columns[cell.column as usize]);
            let mate = mates.iter().position(|&column| column == cell.column);
            if let Some(mate) = mate {
                mates.swap_remove(mate);
                total += i128::from(cell.cost);
            }
            let cost = i128::from(cell.cost);
            if paid > cost || (mate.is_some() && paid < cost) {
                return Err(Violation::Cell(id, cell.column));
            }
        }
        if let Some(&column) = mates.first() {
            return Err(Violation::Forbidden(id, column));
        }
        let (pays, stay) = (duals.rows[row], duals.stay);
        if pays > stay || (missing[row] > 0 && pays < stay) {
            return Err(Violation::Row(id));
        }
    }
    for (column, &price) in duals.columns.iter().enumerate() {
        if price > 0 || (price < 0 && !taken[column]) {
            return Err(Violation::Column(crate::costs::index(column)));
        }
    }
    if total != i128::from(found.total) {
        return Err(Violation::Total);
    }
    // k + 1 pairs at the largest cost are still cheaper than k at the smallest and one unmatched row.
    let pairs = units.min(columns as i128);
    let (least, largest) = (i128::from(least), i128::from(largest));
    if least <= largest && i128::from(duals.stay) <= least + (pairs - 1) * (largest - least) {
        return Err(Violation::Stay);
    }
    Ok(())
}
