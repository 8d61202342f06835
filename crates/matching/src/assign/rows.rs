//! The solver's view of a matrix: for every row some cells, and a bound for the others.
//!
//! Prices only fall while the solver runs, so that the reduced cost of a cell, `cost − price`, only rises. A
//! bound on the unlisted cells therefore stays valid, and a dense row is not scanned again until its listed
//! cells have become more expensive than the bound.

use crate::costs::{Cell, Dense, FORBIDDEN, Sparse, index};

pub(crate) trait Rows {
    fn rows(&self) -> usize;
    fn columns(&self) -> usize;
    /// The cells listed so far.
    fn listed(&self, row: usize) -> &[Cell];
    /// No unlisted cell has `cost − price` below this.
    fn bound(&self, row: usize) -> i64;
    /// Lists the `size` cells that are cheapest now; returns how many were scanned.
    fn list(&mut self, row: usize, prices: &[i64], size: usize) -> usize;
    /// Clears the list, because prices have risen.
    fn forget(&mut self);
    /// The cost of an allowed cell.
    fn cost(&self, row: usize, column: u32) -> i64;
}

impl Rows for &Sparse {
    fn rows(&self) -> usize {
        Sparse::rows(self)
    }

    fn columns(&self) -> usize {
        Sparse::columns(self)
    }

    #[inline]
    fn listed(&self, row: usize) -> &[Cell] {
        self.row(row)
    }

    #[inline]
    fn bound(&self, _row: usize) -> i64 {
        i64::MAX
    }

    fn list(&mut self, _row: usize, _prices: &[i64], _size: usize) -> usize {
        0
    }

    fn forget(&mut self) {}

    fn cost(&self, row: usize, column: u32) -> i64 {
        let cells = self.row(row);
        let at = cells.binary_search_by_key(&column, |cell| cell.column);
        cells[at.expect("the cell is allowed")].cost
    }
}

/// Cells of a dense row that are listed at first.
pub(crate) const FIRST: usize = 16;

/// A bound far below every price, so that a row is listed when it is first needed.
const NOTHING_LISTED: i64 = i64::MIN / 2;

/// A dense matrix whose rows list their cheapest cells.
pub(crate) struct Shortlists<'a> {
    matrix: &'a Dense,
    lists: Vec<Vec<Cell>>,
    bounds: Vec<i64>,
    /// Scratch: `cost − price` and cell.
    found: Vec<(i64, Cell)>,
}

impl<'a> Shortlists<'a> {
    pub(crate) fn new(matrix: &'a Dense) -> Self {
        let rows = matrix.rows();
        Self {
            matrix,
            lists: vec![Vec::new(); rows],
            bounds: vec![NOTHING_LISTED; rows],
            found: Vec::new(),
        }
    }
}

impl Rows for Shortlists<'_> {
    fn rows(&self) -> usize {
        self.matrix.rows()
    }

    fn columns(&self) -> usize {
        self.matrix.columns()
    }

    #[inline]
    fn listed(&self, row: usize) -> &[Cell] {
        &self.lists[row]
    }

    #[inline]
    fn bound(&self, row: usize) -> i64 {
        self.bounds[row]
    }

    fn list(&mut self, row: usize, prices: &[i64], size: usize) -> usize {
        self.bounds[row] = cheapest(self.matrix.row(row), prices, size, row, &mut self.found);
        let list = &mut self.lists[row];
        list.clear();
        list.extend(self.found.iter().map(|&(_, cell)| cell));
        prices.len()
    }

    fn forget(&mut self) {
        self.bounds.fill(NOTHING_LISTED);
    }

    fn cost(&self, row: usize, column: u32) -> i64 {
        self.matrix.row(row)[column as usize]
    }
}

/// Finds at least `size` cells of smallest `cost − price`, if there are as many, and returns a bound for the
/// rest.
fn cheapest(
    costs: &[i64],
    prices: &[i64],
    size: usize,
    row: usize,
    found: &mut Vec<(i64, Cell)>,
) -> i64 {
    found.clear();
    let most = if size == FIRST { usual_threshold(costs, prices) } else { ANY };
    for (column, (&cost, &price)) in costs.iter().zip(prices).enumerate() {
        let value = cost - price;
        if value <= most {
            found.push((value, Cell { column: index(column), cost }));
        }
    }
    // Neither equal costs nor an unlucky order may make the list long.
    if found.len() > 4 * size {
        keep(found, size, row % costs.len())
    } else if most == ANY {
        i64::MAX
    } else {
        most + 1
    }
}

/// Above every value of an allowed cell and below that of a forbidden one.
const ANY: i64 = FORBIDDEN / 2;

/// A value that [`FIRST`] cells do not exceed, and rarely many more: the median of the minima of interleaved
/// parts. [`ANY`] if the row is short or mostly forbidden.
fn usual_threshold(costs: &[i64], prices: &[i64]) -> i64 {
    let mut least = [FORBIDDEN; 2 * FIRST];
    let parts = costs.chunks_exact(2 * FIRST).zip(prices.chunks_exact(2 * FIRST));
    for (costs, prices) in parts {
        for ((least, cost), price) in least.iter_mut().zip(costs).zip(prices) {
            *least = (*least).min(cost - price);
        }
    }
    let (_, &mut median, _) = least.select_nth_unstable(FIRST - 1);
    median.min(ANY)
}

/// Keeps the `size` cheapest and returns the smallest of the others. Among equals those from `first` on are
/// kept, so that indifferent rows do not all choose the same.
fn keep(found: &mut Vec<(i64, Cell)>, size: usize, first: usize) -> i64 {
    let key = |&(value, cell): &(i64, Cell)| (value, cell.column.wrapping_sub(index(first)));
    let (_, &mut (least, _), _) = found.select_nth_unstable_by_key(size, key);
    found.truncate(size);
    found.sort_unstable_by_key(key);
    least
}
