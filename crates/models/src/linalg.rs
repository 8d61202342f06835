//! Linear algebra for the models: dense, positive definite, at most a few hundred rows. Plain loops in a
//! fixed order, so that every machine gets the same bits.

/// A square matrix, row by row.
#[derive(Clone, Debug)]
pub(crate) struct Square {
    pub(crate) size: usize,
    pub(crate) values: Vec<f64>,
}

impl Square {
    pub(crate) fn from_fn(size: usize, value: impl Fn(usize, usize) -> f64) -> Self {
        let values = (0..size * size).map(|at| value(at / size, at % size)).collect();
        Self { size, values }
    }

    pub(crate) fn zeros(size: usize) -> Self {
        Self { size, values: vec![0.0; size * size] }
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.size..(row + 1) * self.size]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.size..(row + 1) * self.size]
    }

    /// `self · other`.
    pub(crate) fn times(&self, other: &Square) -> Square {
        let mut product = Square::zeros(self.size);
        for row in 0..self.size {
            let into = &mut product.values[row * self.size..(row + 1) * self.size];
            for (&factor, from) in self.row(row).iter().zip(other.values.chunks(self.size)) {
                if factor != 0.0 {
                    for (sum, value) in into.iter_mut().zip(from) {
                        *sum += factor * value;
                    }
                }
            }
        }
        product
    }

    pub(crate) fn transposed(&self) -> Square {
        Square::from_fn(self.size, |row, column| self.row(column)[row])
    }

    pub(crate) fn scale(&mut self, factor: f64) {
        self.values.iter_mut().for_each(|value| *value *= factor);
    }

    /// `self += factor · other`.
    pub(crate) fn add(&mut self, factor: f64, other: &Square) {
        for (sum, value) in self.values.iter_mut().zip(&other.values) {
            *sum += factor * value;
        }
    }
}

/// Dot product in eight interleaved sums, so that it can be vectorised.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (&a[..a.len().min(b.len())], &b[..a.len().min(b.len())]);
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let done = a.len() / 8 * 8;
    let rest: f64 = a[done..].iter().zip(&b[done..]).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

/// The inverse of a positive definite matrix, as the rows of U with A⁻¹ = U·Uᵀ, so that an element costs one
/// dot product.
pub(crate) struct Inverse {
    rows: Square,
}

impl Inverse {
    /// `None` if `matrix` is not positive definite.
    pub(crate) fn of(matrix: &Square) -> Option<Self> {
        let lower = cholesky(matrix)?;
        let size = matrix.size;
        // Row j of `rows` is column j of L⁻¹: it begins at j, and forward substitution fills it.
        let mut rows = Square::zeros(size);
        for column in 0..size {
            let into = rows.row_mut(column);
            into[column] = 1.0 / lower.row(column)[column];
            for row in column + 1..size {
                let factors = lower.row(row);
                into[row] = -dot(&factors[column..row], &into[column..row]) / factors[row];
            }
        }
        Some(Self { rows })
    }

    /// Element of the inverse.
    pub(crate) fn at(&self, row: usize, column: usize) -> f64 {
        let from = row.max(column);
        dot(&self.rows.row(row)[from..], &self.rows.row(column)[from..])
    }

    /// The inverse times a vector.
    pub(crate) fn times(&self, vector: &[f64]) -> Vec<f64> {
        let size = self.rows.size;
        let mut half = vec![0.0; size];
        for (&factor, row) in vector.iter().zip(self.rows.values.chunks(size)) {
            for (sum, value) in half.iter_mut().zip(row) {
                *sum += factor * value;
            }
        }
        (0..size).map(|row| dot(self.rows.row(row), &half)).collect()
    }
}

/// Lower triangle L with L·Lᵀ = `matrix`; `None` if it is not positive definite.
fn cholesky(matrix: &Square) -> Option<Square> {
    let size = matrix.size;
    let mut lower = Square::zeros(size);
    for row in 0..size {
        let (above, rest) = lower.values.split_at_mut(row * size);
        let current = &mut rest[..size];
        for column in 0..row {
            let other = &above[column * size..column * size + column + 1];
            let rest = matrix.row(row)[column] - dot(&current[..column], &other[..column]);
            current[column] = rest / other[column];
        }
        let pivot = matrix.row(row)[row] - dot(&current[..row], &current[..row]);
        if pivot.is_nan() || pivot <= 0.0 {
            return None;
        }
        current[row] = pivot.sqrt();
    }
    Some(lower)
}

/// Solves `a·x = b` for symmetric positive definite `a`, given as a product with a vector, by conjugate
/// gradients, to a relative residual of `tolerance` or for `steps_max` steps.
pub(crate) fn conjugate_gradients(
    b: &[f64],
    tolerance: f64,
    steps_max: usize,
    a: impl Fn(&[f64]) -> Vec<f64>,
) -> Vec<f64> {
    let mut x = vec![0.0; b.len()];
    let mut residual = b.to_vec();
    let mut direction = residual.clone();
    let mut size = dot(&residual, &residual);
    let enough = size * tolerance * tolerance;
    for _ in 0..steps_max {
        if size <= enough {
            break;
        }
        let image = a(&direction);
        let step = size / dot(&direction, &image);
        for at in 0..b.len() {
            x[at] += step * direction[at];
            residual[at] -= step * image[at];
        }
        let next = dot(&residual, &residual);
        for (direction, residual) in direction.iter_mut().zip(&residual) {
            *direction = residual + next / size * *direction;
        }
        size = next;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positive_definite(size: usize) -> Square {
        Square::from_fn(size, |row, column| {
            let distance = row.abs_diff(column) as f64;
            (-distance / 3.0).exp() + if row == column { 0.1 } else { 0.0 }
        })
    }

    #[test]
    fn the_inverse_times_the_matrix_is_one() {
        let matrix = positive_definite(21);
        let inverse = Inverse::of(&matrix).unwrap();
        let full = Square::from_fn(21, |row, column| inverse.at(row, column));
        let product = matrix.times(&full);
        for row in 0..21 {
            for column in 0..21 {
                let one = if row == column { 1.0 } else { 0.0 };
                assert!((product.row(row)[column] - one).abs() < 1e-9);
            }
        }
        let vector: Vec<f64> = (0..21).map(|n| f64::from(n) - 7.0).collect();
        let expected: Vec<f64> = (0..21).map(|row| dot(full.row(row), &vector)).collect();
        for (value, expected) in inverse.times(&vector).iter().zip(expected) {
            assert!((value - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn conjugate_gradients_solve_what_the_inverse_solves() {
        let matrix = positive_definite(30);
        let b: Vec<f64> = (0..30).map(|n| f64::from(n % 7)).collect();
        let exact = Inverse::of(&matrix).unwrap().times(&b);
        let times = |x: &[f64]| (0..30).map(|row| dot(matrix.row(row), x)).collect();
        let solved = conjugate_gradients(&b, 1e-12, 100, times);
        for (a, b) in exact.iter().zip(solved) {
            assert!((a - b).abs() < 1e-8);
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_inverse_here() {
        assert!(Inverse::of(&Square::from_fn(2, |_, _| 1.0)).is_none());
    }
}
