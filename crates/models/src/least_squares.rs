//! Least squares: a line with non-negative coefficients, in closed form, and a few bounded parameters, by
//! Levenberg-Marquardt.

/// Base and slope of the best line with non-negative coefficients; `None` with fewer than two abscissas.
pub(crate) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        points.iter().map(|&(x, y)| of(x, y)).sum::<f64>() / count
    };
    let (x_mean, y_mean) = (mean(&|x, _| x), mean(&|_, y| y));
    let spread = mean(&|x, _| (x - x_mean).powi(2));
    let varies = points.iter().any(|&(x, _)| x != points[0].0);
    if !varies || spread <= 0.0 {
        return None;
    }
    let slope = mean(&|x, y| (x - x_mean) * (y - y_mean)) / spread;
    let base = y_mean - slope * x_mean;
    // If the best line has a negative coefficient, the best one without lies on the boundary.
    Some(if slope < 0.0 {
        (y_mean.max(0.0), 0.0)
    } else if base < 0.0 {
        (0.0, mean(&|x, y| x * y) / mean(&|x, _| x * x))
    } else {
        (base, slope)
    })
}

/// The limits of one parameter.
pub(crate) type Bounds = (f64, f64);

/// The fit stops after this many steps, far more than it needs.
const STEPS_MAX: usize = 200;
/// The fit stops when a step improves by less than this share.
const IMPROVEMENT_MIN: f64 = 1e-10;

/// Parameters near `start`, within their bounds, that minimise the sum of squared residuals, and that sum.
/// `residuals` fills one entry per measurement.
pub(crate) fn bounded<const N: usize>(
    start: [f64; N],
    bounds: [Bounds; N],
    mut residuals: impl FnMut(&[f64; N], &mut Vec<f64>),
) -> ([f64; N], f64) {
    let mut at = start;
    let (mut here, mut there) = (Vec::new(), Vec::new());
    residuals(&at, &mut here);
    let mut loss = sum_of_squares(&here);
    let mut damping = 1e-3;
    for _ in 0..STEPS_MAX {
        let (normal, gradient) = linearise(&at, &bounds, &here, &mut residuals);
        let before = loss;
        // A rejected step is repeated with more damping, which shortens it.
        while damping < 1e12 {
            let step = damped_step(&normal, &gradient, damping);
            let next: [f64; N] = std::array::from_fn(|index| {
                (at[index] - step[index]).clamp(bounds[index].0, bounds[index].1)
            });
            residuals(&next, &mut there);
            let reached = sum_of_squares(&there);
            if reached < loss {
                (at, loss) = (next, reached);
                std::mem::swap(&mut here, &mut there);
                damping = (damping / 10.0).max(1e-12);
                break;
            }
            damping *= 10.0;
        }
        if before - loss <= before * IMPROVEMENT_MIN {
            break;
        }
    }
    (at, loss)
}

fn sum_of_squares(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}

/// JᵀJ and Jᵀr by forward differences. A parameter at a bound whose gradient points outwards stays there.
fn linearise<const N: usize>(
    at: &[f64; N],
    bounds: &[Bounds; N],
    here: &[f64],
    residuals: &mut impl FnMut(&[f64; N], &mut Vec<f64>),
) -> ([[f64; N]; N], [f64; N]) {
    let columns: [Vec<f64>; N] = std::array::from_fn(|index| {
        let (low, high) = bounds[index];
        let width = 1e-7 * at[index].abs().max(1e-3);
        // Towards the inside.
        let width =
            if at[index] + width > high && at[index] - width >= low { -width } else { width };
        let mut moved = *at;
        moved[index] += width;
        let mut column = Vec::new();
        residuals(&moved, &mut column);
        column.iter_mut().zip(here).for_each(|(new, old)| *new = (*new - old) / width);
        column
    });
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let mut gradient: [f64; N] = std::array::from_fn(|index| dot(&columns[index], here));
    let free: [bool; N] = std::array::from_fn(|index| {
        let (low, high) = bounds[index];
        !(at[index] <= low && gradient[index] > 0.0 || at[index] >= high && gradient[index] < 0.0)
    });
    let normal = std::array::from_fn(|row| {
        std::array::from_fn(|column| match row == column {
            true => dot(&columns[row], &columns[row]),
            false if free[row] && free[column] => dot(&columns[row], &columns[column]),
            false => 0.0,
        })
    });
    for (gradient, free) in gradient.iter_mut().zip(free) {
        if !free {
            *gradient = 0.0;
        }
    }
    (normal, gradient)
}

/// Solves (A + λ·diag A)·x = g by elimination; A is symmetric and, with the damping, definite.
fn damped_step<const N: usize>(
    normal: &[[f64; N]; N],
    gradient: &[f64; N],
    damping: f64,
) -> [f64; N] {
    let (mut a, mut x) = (*normal, *gradient);
    for (index, row) in a.iter_mut().enumerate() {
        // A parameter without influence stays.
        row[index] = if row[index] > 0.0 { row[index] * (1.0 + damping) } else { 1.0 };
    }
    for pivot in 0..N {
        for row in pivot + 1..N {
            let factor = a[row][pivot] / a[pivot][pivot];
            let above = a[pivot];
            a[row]
                .iter_mut()
                .zip(above)
                .skip(pivot)
                .for_each(|(here, above)| *here -= factor * above);
            x[row] -= factor * x[pivot];
        }
    }
    for row in (0..N).rev() {
        let known: f64 = (row + 1..N).map(|column| a[row][column] * x[column]).sum();
        x[row] = (x[row] - known) / a[row][row];
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_and_stays_above_zero() {
        assert_eq!(line(&[(1.0, 3.0), (2.0, 5.0)]), Some((1.0, 2.0)));
        assert_eq!(line(&[(1.0, 5.0), (2.0, 3.0)]), Some((4.0, 0.0)));
        let (base, slope) = line(&[(1.0, 0.0), (2.0, 2.0)]).unwrap();
        assert_eq!((base, slope), (0.0, 0.8));
        assert_eq!(line(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn a_curve_is_found_within_its_bounds() {
        let truth = |x: f64| 2.0 * (-0.7 * x).exp();
        let xs: Vec<f64> = (0..10).map(f64::from).collect();
        let fit = |bounds| {
            bounded([1.0, 0.1], bounds, |at, out| {
                out.clear();
                out.extend(xs.iter().map(|&x| at[0] * (-at[1] * x).exp() - truth(x)));
            })
        };
        let ([scale, decay], loss) = fit([(0.0, 10.0), (0.0, 10.0)]);
        assert!((scale - 2.0).abs() < 1e-6 && (decay - 0.7).abs() < 1e-6, "{scale} {decay}");
        assert!(loss < 1e-12);
        let ([_, decay], _) = fit([(0.0, 10.0), (0.0, 0.5)]);
        assert_eq!(decay, 0.5);
    }
}
