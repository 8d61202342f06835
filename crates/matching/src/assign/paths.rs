//! The exact search: shortest augmenting paths in reduced costs (Dijkstra), one for every column that a row
//! still lacks, then one for every unmatched column below the level.
//!
//! Dense rows are listed in part. Unlisted cells cost at least the row's bound, so the bound is in the heap
//! with the columns, and a row lists more cells only when the search reaches the bound.

use super::rows::Rows;
use super::state::{AuctionState, NONE};
use crate::costs::index;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Marks a row in the heap that has to list more of its cells.
const LIST_MORE: u32 = 1 << 31;

pub(crate) struct PathSearch {
    /// The last search that reached each column or row: no array is cleared between searches.
    column_seen: Vec<u32>,
    row_seen: Vec<u32>,
    round: u32,
    distance: Vec<i64>,
    /// The row from which each column was reached, [`NONE`] from the level itself.
    from: Vec<u32>,
    /// The column through which each row was reached, [`NONE`] where the search began.
    through: Vec<u32>,
    heap: BinaryHeap<Reverse<(i64, u32)>>,
    /// Columns at the current distance, which need no heap.
    ready: Vec<u32>,
    /// The distance of each reached row.
    row_distance: Vec<i64>,
    rows_done: Vec<u32>,
    columns_done: Vec<u32>,
    /// Whether the path may end with an unmatched row.
    may_stay: bool,
    /// The nearest such row, and its distance.
    stays: (i64, u32),
}

/// Where a path ends.
enum PathEnd {
    Column(u32),
    Stay(u32),
}

impl PathSearch {
    pub(crate) fn new(rows: usize, columns: usize) -> Self {
        Self {
            column_seen: vec![0; columns],
            row_seen: vec![0; rows],
            round: 0,
            distance: vec![0; columns],
            from: vec![NONE; columns],
            through: vec![NONE; rows],
            heap: BinaryHeap::new(),
            ready: Vec::new(),
            row_distance: vec![0; rows],
            rows_done: Vec::new(),
            columns_done: Vec::new(),
            may_stay: true,
            stays: (i64::MAX, NONE),
        }
    }

    /// Gives the row one more column, or leaves some row unmatched; false if the budget ran out.
    pub(crate) fn serve(
        &mut self,
        rows: &mut impl Rows,
        state: &mut AuctionState,
        row: u32,
    ) -> bool {
        self.begin(true);
        self.through[row as usize] = NONE;
        self.scan(rows, state, row, 0);
        let Some((length, end)) = self.run(rows, state) else { return false };
        self.shift(state, length);
        state.wants[row as usize] -= 1;
        match end {
            PathEnd::Column(column) => {
                self.flip(state, column);
            }
            PathEnd::Stay(stays) => {
                state.stays[stays as usize] += 1;
                let column = self.through[stays as usize];
                if column != NONE {
                    self.flip(state, column);
                }
            }
        }
        true
    }

    /// Lowers the level to the unmatched columns below it; rows may exchange a column for such a one. False
    /// if the budget ran out.
    pub(crate) fn level(&mut self, rows: &mut impl Rows, state: &mut AuctionState) -> bool {
        loop {
            let free = state.price.iter().zip(&state.owner).filter(|&(_, &owner)| owner == NONE);
            let stranded = free.map(|(price, _)| state.level - price).filter(|&below| below > 0);
            let Some(nearest) = stranded.min() else { return true };
            self.begin(false);
            self.start_from_level(rows, state, nearest);
            let Some((length, PathEnd::Column(column))) = self.run(rows, state) else {
                return false;
            };
            self.shift(state, length);
            state.level -= length;
            if let Some(row) = self.flip(state, column) {
                state.stays[row as usize] -= 1;
            }
        }
    }

    /// Reaches every column up to the nearest unmatched one below the level, and the unmatched rows, which
    /// prefer to take one.
    fn start_from_level(&mut self, rows: &impl Rows, state: &mut AuctionState, nearest: i64) {
        for column in 0..state.price.len() {
            let distance = state.level - state.price[column];
            if distance == 0 && state.owner[column] == NONE {
                // Unmatched, and moves with the level.
                self.mark(index(column), 0, NONE);
                self.columns_done.push(index(column));
            } else if distance <= nearest {
                self.reach(index(column), distance, NONE);
            }
        }
        for row in 0..rows.rows() {
            if state.stays[row] > 0 {
                self.through[row] = NONE;
                self.scan(rows, state, index(row), 0);
            }
        }
    }

    fn begin(&mut self, may_stay: bool) {
        self.round += 1;
        self.may_stay = may_stay;
        self.heap.clear();
        self.ready.clear();
        self.rows_done.clear();
        self.columns_done.clear();
        self.stays = (i64::MAX, NONE);
    }

    /// Follows the nearest column until one is free; `None` if the budget ran out.
    fn run(&mut self, rows: &mut impl Rows, state: &mut AuctionState) -> Option<(i64, PathEnd)> {
        let mut at = 0;
        loop {
            let column = match self.ready.pop() {
                Some(column) => column,
                None => {
                    let next = self.heap.pop();
                    let Some(Reverse((distance, node))) =
                        next.filter(|next| next.0.0 < self.stays.0)
                    else {
                        return Some((self.stays.0, PathEnd::Stay(self.stays.1)));
                    };
                    at = distance;
                    if node & LIST_MORE != 0 {
                        self.list_more(rows, state, node & !LIST_MORE);
                        continue;
                    }
                    if distance > self.distance[node as usize] {
                        continue;
                    }
                    node
                }
            };
            let owner = state.owner[column as usize];
            if owner == NONE {
                return Some((at, PathEnd::Column(column)));
            }
            self.columns_done.push(column);
            if self.row_seen[owner as usize] != self.round {
                self.through[owner as usize] = column;
                self.scan(rows, state, owner, at);
                if state.budget.exhausted() {
                    return None;
                }
            }
        }
    }

    /// Reaches the columns of a row that is itself at `at`.
    fn scan(&mut self, rows: &impl Rows, state: &mut AuctionState, row: u32, at: i64) {
        self.row_seen[row as usize] = self.round;
        self.row_distance[row as usize] = at;
        self.rows_done.push(row);
        let stay = at + state.stay_cost() - state.pays[row as usize];
        if self.may_stay && stay < self.stays.0 {
            self.stays = (stay, row);
        }
        self.relax(rows, state, row, at, at);
    }

    fn relax(&mut self, rows: &impl Rows, state: &mut AuctionState, row: u32, at: i64, now: i64) {
        let base = at - state.pays[row as usize];
        let listed = rows.listed(row as usize);
        state.budget.spend(listed.len());
        for cell in listed {
            let distance = base + cell.cost - state.price[cell.column as usize];
            if distance < self.stays.0 && self.closer(cell.column, distance) {
                if distance == now {
                    self.mark(cell.column, distance, row);
                    self.ready.push(cell.column);
                } else {
                    self.reach(cell.column, distance, row);
                }
            }
        }
        let bound = rows.bound(row as usize);
        if bound < i64::MAX && base + bound < self.stays.0 {
            self.heap.push(Reverse((base + bound, row | LIST_MORE)));
        }
    }

    #[inline]
    fn closer(&self, column: u32, distance: i64) -> bool {
        let column = column as usize;
        self.column_seen[column] != self.round || distance < self.distance[column]
    }

    #[inline]
    fn mark(&mut self, column: u32, distance: i64, row: u32) {
        self.distance[column as usize] = distance;
        self.column_seen[column as usize] = self.round;
        self.from[column as usize] = row;
    }

    #[inline]
    fn reach(&mut self, column: u32, distance: i64, row: u32) {
        self.mark(column, distance, row);
        self.heap.push(Reverse((distance, column)));
    }

    fn list_more(&mut self, rows: &mut impl Rows, state: &mut AuctionState, row: u32) {
        let at = self.row_distance[row as usize];
        let size = 2 * rows.listed(row as usize).len();
        state.budget.spend(rows.list(row as usize, &state.price, size));
        self.relax(rows, state, row, at, i64::MIN);
    }

    /// Moves prices and row duals so that the path costs nothing.
    fn shift(&self, state: &mut AuctionState, length: i64) {
        for &column in &self.columns_done {
            state.price[column as usize] -= length - self.distance[column as usize];
        }
        for &row in &self.rows_done {
            state.pays[row as usize] += length - self.row_distance[row as usize];
        }
    }

    /// Passes the columns of the path on, from its end to its start; returns the row at its start, if it was
    /// a row.
    fn flip(&self, state: &mut AuctionState, end: u32) -> Option<u32> {
        let mut column = end;
        loop {
            let row = self.from[column as usize];
            state.owner[column as usize] = row;
            if row == NONE {
                return None;
            }
            column = self.through[row as usize];
            if column == NONE {
                return Some(row);
            }
        }
    }
}
