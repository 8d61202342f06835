//! Good prices quickly: rows bid for columns with increments that shrink from phase to phase (Bertsekas'
//! auction with ε-scaling), and a last phase without increments as in Jonker and Volgenant's augmenting row
//! reduction. The exact search matches the few remaining rows.
//!
//! A row with a multiplicity bids for columns that it does not have; its own cannot outbid each other.

use super::rows::{FIRST, Rows};
use super::state::{AuctionState, NONE, Owned};
use crate::costs::index;

/// The cheapest column of a row, its reduced cost, and that of the next.
struct BestColumns {
    column: u32,
    value: i64,
    next_column: u32,
    next: i64,
}

/// Bids per row before the first phase is judged, and before any later phase stops: rows that outnumber their
/// columns would bid for very long.
const BIDS_TO_JUDGE: usize = 4;
const BIDS_PER_PHASE: usize = 20;
/// The factor by which the increments shrink from phase to phase.
const SHRINK: i64 = 6;

/// Finds prices near the final ones. `spacing` is the typical distance between the costs of a row, `range`
/// the distance between the smallest and the largest cost.
pub(crate) fn approach(rows: &mut impl Rows, state: &mut AuctionState, spacing: i64, range: i64) {
    let count = rows.rows();
    phase(rows, state, spacing, BIDS_TO_JUDGE * count);
    let waiting = state.wants.iter().filter(|&&wants| wants > 0).count();
    let mut epsilon = spacing / SHRINK;
    if waiting > count / 4 {
        // All rows compete for the same columns, whose prices have far to go: use large steps.
        state.release_all();
        rows.forget();
        epsilon = range / 8;
    }
    while epsilon > spacing / 16 {
        release_beyond(rows, state, epsilon);
        phase(rows, state, epsilon, BIDS_PER_PHASE * count);
        epsilon /= SHRINK;
    }
    release_beyond(rows, state, 0);
}

/// Matches most rows and leaves few for the exact search.
pub(crate) fn conclude(rows: &mut impl Rows, state: &mut AuctionState) {
    let bids = 2 * rows.rows();
    phase(rows, state, 0, bids);
}

/// Bids with increments of at least `epsilon` until no row needs a column, or until the bids run out.
fn phase(rows: &mut impl Rows, state: &mut AuctionState, epsilon: i64, bids: usize) {
    let mut bids = bids;
    let mut queue: Vec<u32> = wanting(state);
    queue.reverse();
    loop {
        bids = settle_bids(rows, state, epsilon, bids, &mut queue);
        if bids == 0 || epsilon == 0 {
            return;
        }
        claim_left_over(state, epsilon, &mut queue);
        if queue.is_empty() {
            return;
        }
    }
}

/// Lets the rows in the queue bid, and those that they outbid; returns the remaining bids.
fn settle_bids(
    rows: &mut impl Rows,
    state: &mut AuctionState,
    epsilon: i64,
    bids: usize,
    queue: &mut Vec<u32>,
) -> usize {
    let mut bids = bids;
    while let Some(row) = queue.pop() {
        if bids == 0 || state.budget.exhausted() {
            return 0;
        }
        // A row with a multiplicity may be in the queue more often than it needs columns.
        if state.wants[row as usize] == 0 {
            continue;
        }
        bids -= 1;
        let Some(offer) = best_columns(rows, state, row as usize) else { continue };
        // In the last phase a tie must not make rows bid in a cycle.
        let tie = epsilon == 0 && offer.value == offer.next;
        let column = match tie && state.owner[offer.column as usize] != NONE {
            true if offer.next_column == NONE => continue,
            true => offer.next_column,
            false => offer.column,
        };
        state.price[column as usize] -= offer.next - offer.value + epsilon;
        let loser = std::mem::replace(&mut state.owner[column as usize], row);
        state.wants[row as usize] -= 1;
        if state.wants[row as usize] > 0 {
            queue.push(row);
        }
        if loser != NONE {
            state.wants[loser as usize] += 1;
            if !tie {
                queue.push(loser);
            }
        }
    }
    bids
}

/// With more columns than rows, the unmatched columns must have the highest prices in the end. A virtual
/// bidder without costs claims that many columns; rows that held one of them queue again.
fn claim_left_over(state: &mut AuctionState, epsilon: i64, queue: &mut Vec<u32>) {
    let left_over = state.left_over;
    if left_over == 0 || left_over >= state.price.len() {
        return;
    }
    let mut prices = state.price.clone();
    let (_, &mut next, _) = prices.select_nth_unstable_by(left_over, |a, b| b.cmp(a));
    for column in 0..state.owner.len() {
        let owner = state.owner[column];
        if owner != NONE && state.price[column] > next + epsilon {
            state.release(index(column));
            state.price[column] = next - epsilon;
            queue.push(owner);
        }
    }
}

/// Releases columns that are more expensive than another column of their row by more than epsilon.
fn release_beyond(rows: &mut impl Rows, state: &mut AuctionState, epsilon: i64) {
    let owned = Owned::of(&state.owner, rows.rows());
    for row in (0..rows.rows()).filter(|&row| !owned.columns(row).is_empty()) {
        let others = state.least_of_others(rows, row);
        for &column in owned.columns(row) {
            if rows.cost(row, column) - state.price[column as usize] > others + epsilon {
                state.release(column);
            }
        }
    }
}

fn wanting(state: &AuctionState) -> Vec<u32> {
    let wanting = state.wants.iter().enumerate().filter(|&(_, &wants)| wants > 0);
    wanting.map(|(row, _)| index(row)).collect()
}

/// The best two columns of a row, besides those it has; `None` if it prefers to stay unmatched.
fn best_columns(rows: &mut impl Rows, state: &mut AuctionState, row: usize) -> Option<BestColumns> {
    let mut size = FIRST;
    loop {
        let stay = state.stay_cost();
        let mut offer = BestColumns { column: NONE, value: stay, next_column: NONE, next: stay };
        let listed = rows.listed(row);
        for cell in listed {
            let value = cell.cost - state.price[cell.column as usize];
            if value < offer.next && state.owner[cell.column as usize] as usize != row {
                if value < offer.value {
                    (offer.next_column, offer.next) = (offer.column, offer.value);
                    (offer.column, offer.value) = (cell.column, value);
                } else {
                    (offer.next_column, offer.next) = (cell.column, value);
                }
            }
        }
        state.budget.spend(listed.len());
        if offer.next <= rows.bound(row) {
            return (offer.column != NONE).then_some(offer);
        }
        // Prices have moved since the list was made; otherwise the list is too short.
        state.budget.spend(rows.list(row, &state.price, size));
        size *= 2;
    }
}
