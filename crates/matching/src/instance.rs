//! Seeded instances for benchmarks and tests. The order of the draws is part of the definition, so that programs in
//! other languages can build the same instances.

use crate::costs::{Cell, Dense, Sparse};

/// Vigna's SplitMix64: a few lines in any language.
#[derive(Clone, Debug)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to below `end`: the high half of the product with 64 random bits.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(end);
        u64::try_from(product >> 64).expect("it is below the end")
    }

    /// A number from 1 to `last`.
    fn up_to(&mut self, last: u64) -> i64 {
        i64::try_from(self.below(last) + 1).expect("the last is small")
    }
}

/// The largest cost of the uniform and the sparse instances.
const LARGEST: u64 = 1_000_000;
/// Cells per row of the sparse instances.
const PER_ROW: usize = 20;

/// n × n independent costs from 1 to a million.
#[must_use]
pub fn uniform(n: usize, seed: u64) -> Dense {
    let mut random = SplitMix64(seed);
    let costs = (0..n * n).map(|_| random.up_to(LARGEST)).collect();
    Dense::new(n, n, costs).expect("small costs fill the square")
}

/// n × n products of a row's and a column's factor, each from 1 to a thousand, plus noise from 0 to
/// ten thousand: 1 % of the largest product.
#[must_use]
pub fn rank1(n: usize, seed: u64) -> Dense {
    let mut random = SplitMix64(seed);
    let mut factors = || (0..n).map(|_| random.up_to(1000)).collect::<Vec<_>>();
    let (rows, columns) = (factors(), factors());
    let mut costs = Vec::with_capacity(n * n);
    for row in rows {
        let noisy = columns.iter().map(|column| row * column + random.up_to(10_001) - 1);
        costs.extend(noisy);
    }
    Dense::new(n, n, costs).expect("small costs fill the square")
}

/// n × n with 20 different random columns per row (all of them below 20), costs from 1 to a million.
#[must_use]
pub fn sparse(n: usize, seed: u64) -> Sparse {
    let mut random = SplitMix64(seed);
    let (mut starts, mut cells) = (vec![0], Vec::new());
    for _ in 0..n {
        let mut row: Vec<Cell> = Vec::with_capacity(PER_ROW);
        while row.len() < PER_ROW.min(n) {
            let column = u32::try_from(random.below(n as u64)).expect("n fits");
            if row.iter().all(|cell| cell.column != column) {
                row.push(Cell { column, cost: random.up_to(LARGEST) });
            }
        }
        row.sort_unstable_by_key(|cell| cell.column);
        cells.extend(row);
        starts.push(cells.len());
    }
    Sparse::new(n, starts, cells).expect("columns differ and are sorted")
}
