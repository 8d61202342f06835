//! The fallback at the step limit: the pairs found so far are completed greedily, brought to maximum
//! cardinality by plain augmenting paths, and improved by moves and swaps. The current prices bound the
//! distance to the optimum.
//!
//! Every part scans each cell a bounded number of times, so that the limit holds.

use super::sealed::Matrix;
use super::state::{AuctionState, NONE};
use crate::costs::{Cell, index};
use std::collections::VecDeque;

/// Passes over all pairs to improve them.
const PASSES: usize = 2;

/// Completes the assignment and returns by how much it may exceed the optimum.
pub(crate) fn complete<M: Matrix>(matrix: &M, state: &mut AuctionState) -> i64 {
    for (wants, stays) in state.wants.iter_mut().zip(&mut state.stays) {
        *wants += std::mem::take(stays);
    }
    let bound = dual_bound(matrix, state);
    greed(matrix, state);
    augment(matrix, state);
    for _ in 0..PASSES {
        if !improve(matrix, state) {
            break;
        }
    }
    let missing: i128 = state.wants.iter().map(|&wants| i128::from(wants)).sum();
    let owned = state.owner.iter().enumerate().filter(|&(_, &row)| row != NONE);
    let costs = owned.map(|(column, &row)| matrix.cost(row, index(column)).unwrap_or(0));
    let total: i128 = costs.map(i128::from).sum();
    let gap = total + missing * i128::from(state.stay) - bound;
    i64::try_from(gap).unwrap_or(i64::MAX)
}

/// A lower bound on the cost of every assignment, unmatched rows included: the value of the duals at the
/// current prices.
fn dual_bound<M: Matrix>(matrix: &M, state: &mut AuctionState) -> i128 {
    let held = state.owner.iter().filter(|&&row| row != NONE);
    let mut units = state.wants.clone();
    held.for_each(|&row| units[row as usize] += 1);
    let mut bound = 0;
    for (row, &units) in units.iter().enumerate() {
        let value = |cell: Cell| cell.cost - state.price[cell.column as usize];
        let least = matrix.cells(row).map(value).min().unwrap_or(i64::MAX);
        state.pays[row] = least.min(state.stay_cost());
        bound += i128::from(state.pays[row] + state.level) * i128::from(units);
    }
    let prices = state.price.iter().map(|price| i128::from(price - state.level));
    bound + prices.sum::<i128>()
}

/// Every row takes its cheapest free columns.
fn greed<M: Matrix>(matrix: &M, state: &mut AuctionState) {
    for row in 0..state.wants.len() {
        while state.wants[row] > 0 {
            let free = matrix.cells(row).filter(|cell| state.owner[cell.column as usize] == NONE);
            let Some(cell) = free.min_by_key(|cell| (cell.cost, cell.column)) else { break };
            state.owner[cell.column as usize] = index(row);
            state.wants[row] -= 1;
        }
    }
}

/// Maximum cardinality. Columns from which a search found no free one never lead to one later.
fn augment<M: Matrix>(matrix: &M, state: &mut AuctionState) {
    let mut from = vec![NONE; state.owner.len()];
    let mut seen = vec![false; state.owner.len()];
    for row in 0..state.wants.len() {
        while state.wants[row] > 0 {
            let mut reached = Vec::new();
            let Some(end) = search(matrix, state, index(row), &mut seen, &mut from, &mut reached)
            else {
                break;
            };
            let mut column = end.0;
            loop {
                let taker = from[column as usize];
                state.owner[column as usize] = taker;
                if taker as usize == row {
                    break;
                }
                column = end.1[taker as usize];
            }
            state.wants[row] -= 1;
            for column in reached {
                seen[column as usize] = false;
            }
        }
    }
}

/// The nearest free column in steps, and the column through which each row was reached.
fn search<M: Matrix>(
    matrix: &M,
    state: &AuctionState,
    row: u32,
    seen: &mut [bool],
    from: &mut [u32],
    reached: &mut Vec<u32>,
) -> Option<(u32, Vec<u32>)> {
    let mut through = vec![NONE; state.wants.len()];
    let mut queue = VecDeque::from([row]);
    while let Some(next) = queue.pop_front() {
        for cell in matrix.cells(next as usize) {
            let column = cell.column as usize;
            if std::mem::replace(&mut seen[column], true) {
                continue;
            }
            reached.push(cell.column);
            from[column] = next;
            let owner = state.owner[column];
            if owner == NONE {
                return Some((cell.column, through));
            }
            if owner != row && through[owner as usize] == NONE {
                through[owner as usize] = cell.column;
                queue.push_back(owner);
            }
        }
    }
    None
}

/// Moves rows to cheaper free columns and swaps columns of two rows; returns whether that gained.
fn improve<M: Matrix>(matrix: &M, state: &mut AuctionState) -> bool {
    let mut gained = false;
    for column in 0..state.owner.len() {
        let row = state.owner[column];
        if row == NONE {
            continue;
        }
        let (mut here, mut cost) = (index(column), matrix.cost(row, index(column)).unwrap_or(0));
        for cell in matrix.cells(row as usize) {
            let other = state.owner[cell.column as usize];
            if other == row {
                continue;
            }
            let gain = if other == NONE {
                cost - cell.cost
            } else {
                let Some(theirs) = matrix.cost(other, here) else { continue };
                cost + matrix.cost(other, cell.column).unwrap_or(0) - cell.cost - theirs
            };
            if gain > 0 {
                state.owner[here as usize] = other;
                state.owner[cell.column as usize] = row;
                (here, cost) = (cell.column, cell.cost);
                gained = true;
            }
        }
    }
    gained
}
