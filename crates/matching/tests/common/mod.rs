//! What the tests share: slow but obvious answers.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(dead_code, reason = "every test file is a crate of its own and uses only part of this")]

use tandem_matching::{Dense, FORBIDDEN, Sparse};

/// The largest number of pairs and, among those, the least cost, by trying everything: for every set
/// of columns the best that the rows so far can do with exactly those.
pub(crate) fn brute_force(matrix: &Dense, units: &[u32]) -> (usize, i64) {
    let mut best: Vec<Option<i64>> = vec![None; 1 << matrix.columns()];
    best[0] = Some(0);
    for row in (0..matrix.rows()).flat_map(|row| vec![row; units[row] as usize]) {
        // From large sets to small ones, so that a row is used once.
        for taken in (1..best.len()).rev() {
            for (column, &cost) in matrix.row(row).iter().enumerate() {
                let before = taken & !(1 << column);
                if before != taken && cost != FORBIDDEN {
                    let with = best[before].map(|total| total + cost);
                    best[taken] = [best[taken], with].into_iter().flatten().min();
                }
            }
        }
    }
    let totals = best.iter().enumerate();
    let reached = totals.filter_map(|(taken, &total)| Some((taken.count_ones(), -total?)));
    let (pairs, total) = reached.max().unwrap();
    (pairs as usize, -total)
}

pub(crate) fn sparse_of(matrix: &Dense) -> Sparse {
    let rows = (0..matrix.rows()).map(|row| {
        let cells = matrix.row(row).iter().enumerate();
        let allowed = cells.filter(|&(_, &cost)| cost != FORBIDDEN);
        allowed.map(|(column, &cost)| (u32::try_from(column).unwrap(), cost)).collect::<Vec<_>>()
    });
    Sparse::from_rows(matrix.columns(), rows).unwrap()
}
