//! Assignments equal brute force where that is possible and carry a certificate everywhere.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{brute_force, sparse_of};
use proptest::prelude::*;
use tandem_matching::{
    AssignOptions, AssignOutcome, Assignment, Cell, CostError, Dense, FORBIDDEN, LIMIT, Sparse,
    assign, assign_with, certify, instance,
};

/// Rows, columns and costs: small ones for ties, negative ones, a part of them forbidden.
fn matrix(most: usize) -> impl Strategy<Value = Dense> {
    let sizes = (0..=most, 0..=most, 0..4_u32, 1..5_i64);
    sizes.prop_flat_map(|(rows, columns, forbidden, spread)| {
        let cost = (0..8_u32, -10_i64.pow(u32::try_from(spread).unwrap())..=100 * spread);
        let cell = cost.prop_map(move |(die, cost)| if die < forbidden { FORBIDDEN } else { cost });
        proptest::collection::vec(cell, rows * columns)
            .prop_map(move |costs| Dense::new(rows, columns, costs).unwrap())
    })
}

fn check(matrix: &Dense, units: Option<&[u32]>, found: &Assignment) {
    certify(matrix, units, found).unwrap();
    assert_eq!(found.outcome, AssignOutcome::Optimal);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn equals_brute_force(matrix in matrix(6)) {
        let found = assign(&matrix);
        let best = brute_force(&matrix, &vec![1; matrix.rows()]);
        prop_assert_eq!((found.pairs.len(), found.total), best);
        check(&matrix, None, &found);
        let sparse = sparse_of(&matrix);
        let same = assign(&sparse);
        prop_assert_eq!((same.pairs.len(), same.total), best);
        certify(&sparse, None, &same).unwrap();
    }

    #[test]
    fn multiplicities_equal_repeated_rows(
        matrix in matrix(5),
        units in proptest::collection::vec(0..4_u32, 5),
    ) {
        let units = &units[..matrix.rows()];
        let options = AssignOptions { multiplicities: Some(units), ..AssignOptions::default() };
        let found = assign_with(&matrix, &options).unwrap();
        prop_assert_eq!((found.pairs.len(), found.total), brute_force(&matrix, units));
        check(&matrix, Some(units), &found);
        let repeated = (0..matrix.rows()).flat_map(|row| vec![row; units[row] as usize]);
        let costs: Vec<i64> = repeated.clone().flat_map(|row| matrix.row(row).to_vec()).collect();
        let expanded = Dense::new(repeated.count(), matrix.columns(), costs).unwrap();
        prop_assert_eq!(assign(&expanded).total, found.total);
        let sparse = assign_with(&sparse_of(&matrix), &options).unwrap();
        prop_assert_eq!((sparse.pairs.len(), sparse.total), (found.pairs.len(), found.total));
        check(&matrix, Some(units), &sparse);
    }

    #[test]
    fn any_prices_to_begin_with_give_the_optimum(
        matrix in matrix(8),
        prices in proptest::collection::vec(prop_oneof![-50..50_i64, any::<i64>()], 8),
        units in proptest::collection::vec(0..3_u32, 8),
    ) {
        let prices = Some(&prices[..matrix.columns()]);
        let cold = assign(&matrix);
        let warm = assign_with(&matrix, &AssignOptions { prices, ..AssignOptions::default() }).unwrap();
        prop_assert_eq!((warm.pairs.len(), warm.total), (cold.pairs.len(), cold.total));
        check(&matrix, None, &warm);
        let units = Some(&units[..matrix.rows()]);
        let options = AssignOptions { multiplicities: units, prices, step_limit: None };
        check(&matrix, units, &assign_with(&matrix, &options).unwrap());
    }

    #[test]
    fn a_limit_is_reported_with_a_true_bound(
        matrix in matrix(8),
        limit in 0..200_u64,
        units in proptest::collection::vec(0..3_u32, 8),
    ) {
        let units = &units[..matrix.rows()];
        for multiplicities in [None, Some(units)] {
            let free = AssignOptions { multiplicities, ..AssignOptions::default() };
            let best = assign_with(&matrix, &free).unwrap();
            let limited = AssignOptions { step_limit: Some(limit), ..free };
            let found = assign_with(&matrix, &limited).unwrap();
            prop_assert_eq!(found.pairs.len(), best.pairs.len());
            match found.outcome {
                AssignOutcome::Optimal => check(&matrix, multiplicities, &found),
                AssignOutcome::Limited { gap } => {
                    prop_assert!(found.total >= best.total && found.total - best.total <= gap);
                    let paid: i64 = found.pairs.iter().map(|&(row, column)| {
                        matrix.row(row as usize)[column as usize]
                    }).sum();
                    prop_assert_eq!(paid, found.total);
                    let mut columns: Vec<u32> = found.pairs.iter().map(|pair| pair.1).collect();
                    columns.sort_unstable();
                    columns.dedup();
                    prop_assert_eq!(columns.len(), found.pairs.len());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn larger_ones_carry_their_certificate(matrix in matrix(120)) {
        let found = assign(&matrix);
        check(&matrix, None, &found);
        let sparse = assign(&sparse_of(&matrix));
        check(&matrix, None, &sparse);
        prop_assert_eq!(sparse.total, found.total);
        prop_assert_eq!(&assign(&matrix), &found);
        // A tenth of the costs a little different.
        let changed = |(at, &cost): (usize, &i64)| match at % 10 {
            0 if cost != FORBIDDEN => cost + 3,
            _ => cost,
        };
        let costs = (0..matrix.rows()).flat_map(|row| matrix.row(row)).enumerate().map(changed);
        let next = Dense::new(matrix.rows(), matrix.columns(), costs.collect()).unwrap();
        let options = AssignOptions { prices: Some(&found.duals.columns), ..AssignOptions::default() };
        let warm = assign_with(&next, &options).unwrap();
        check(&next, None, &warm);
    }
}

#[test]
fn eight_by_eight_equals_brute_force() {
    let mut random = instance::SplitMix64(8);
    for size in [1, 2, 10, 1000] {
        for forbidden in [0, 3] {
            let mut cost = || match random.below(8) < forbidden {
                true => FORBIDDEN,
                false => i64::try_from(random.below(size)).unwrap() - 3,
            };
            let matrix = Dense::new(8, 8, (0..64).map(|_| cost()).collect()).unwrap();
            let found = assign(&matrix);
            assert_eq!((found.pairs.len(), found.total), brute_force(&matrix, &[1; 8]));
            check(&matrix, None, &found);
        }
    }
}

#[test]
fn structured_instances_carry_their_certificate() {
    for n in [1, 2, 17, 100, 300] {
        for seed in 1..4 {
            for matrix in [instance::uniform(n, seed), instance::rank1(n, seed)] {
                let found = assign(&matrix);
                check(&matrix, None, &found);
                assert_eq!(found.pairs.len(), n);
                assert_eq!(assign(&sparse_of(&matrix)).total, found.total);
            }
            let matrix = instance::sparse(n, seed);
            certify(&matrix, None, &assign(&matrix)).unwrap();
        }
    }
}

/// Long and wide parts of structured matrices: rows or columns are left over.
#[test]
fn rectangles_carry_their_certificate() {
    for matrix in [instance::uniform(200, 5), instance::rank1(200, 5)] {
        for (rows, columns) in [(60, 200), (200, 60), (199, 200), (200, 199), (1, 200), (200, 1)] {
            let costs = (0..rows).flat_map(|row| &matrix.row(row)[..columns]).copied().collect();
            let part = Dense::new(rows, columns, costs).unwrap();
            let found = assign(&part);
            check(&part, None, &found);
            assert_eq!(found.pairs.len(), rows.min(columns));
            let options =
                AssignOptions { prices: Some(&found.duals.columns), ..AssignOptions::default() };
            let again = assign_with(&part, &options).unwrap();
            check(&part, None, &again);
            assert_eq!(again.total, found.total);
        }
    }
}

/// Many rows that want the same few columns, beside rows that do not.
#[test]
fn rows_that_cannot_all_be_served_cost_no_time() {
    let rows = (0..3000_u32).map(|row| match row % 3 {
        0 => vec![(row % 7, i64::from(row)), (7 + row % 5, i64::from(row % 11))],
        _ => vec![(12 + row % 1000, 5), (1012 + row, i64::from(row % 13))],
    });
    let matrix = Sparse::from_rows(5000, rows).unwrap();
    let found = assign(&matrix);
    certify(&matrix, None, &found).unwrap();
    assert_eq!(found.pairs.len(), 12 + 2000);
    assert!(found.steps < 5_000_000, "{}", found.steps);
}

/// Rows that are indifferent must not all queue for the same columns.
#[test]
fn ties_cost_no_time() {
    let equal = Dense::new(400, 400, vec![7; 160_000]).unwrap();
    let few = (0..160_000).map(|at| (at * 7919 % 1009) % 10).collect();
    for matrix in [equal, Dense::new(400, 400, few).unwrap()] {
        let found = assign(&matrix);
        check(&matrix, None, &found);
        assert!(found.steps < 2_000_000, "{} steps", found.steps);
    }
}

/// Columns left over must not be searched for one by one.
#[test]
fn rectangles_cost_little_more_than_squares() {
    let square = instance::rank1(400, 2);
    let costs = (0..200).flat_map(|row| square.row(row)).copied().collect();
    let half = Dense::new(200, 400, costs).unwrap();
    let found = assign(&half);
    check(&half, None, &found);
    assert!(found.steps < 4 * assign(&square).steps, "{} steps", found.steps);
}

#[test]
fn prices_of_a_similar_problem_save_work() {
    let matrix = instance::rank1(300, 1);
    let cold = assign(&matrix);
    let mut costs: Vec<i64> = (0..300).flat_map(|row| matrix.row(row)).copied().collect();
    for cost in costs.iter_mut().step_by(97) {
        *cost += 500;
    }
    let next = Dense::new(300, 300, costs).unwrap();
    let options = AssignOptions { prices: Some(&cold.duals.columns), ..AssignOptions::default() };
    let warm = assign_with(&next, &options).unwrap();
    check(&next, None, &warm);
    assert!(warm.steps * 3 < assign(&next).steps, "{} steps", warm.steps);
}

#[test]
fn a_certificate_notices_what_is_wrong() {
    let matrix = Dense::new(2, 2, vec![1, 5, 4, 2]).unwrap();
    let good = assign(&matrix);
    check(&matrix, None, &good);
    let spoil = |change: &dyn Fn(&mut Assignment)| {
        let mut bad = good.clone();
        change(&mut bad);
        certify(&matrix, None, &bad).unwrap_err();
    };
    spoil(&|bad| bad.pairs = vec![(0, 1), (1, 0)]);
    spoil(&|bad| bad.pairs = vec![(0, 0), (1, 0)]);
    spoil(&|bad| bad.pairs.truncate(1));
    spoil(&|bad| bad.total += 1);
    spoil(&|bad| bad.duals.rows[0] += 1);
    spoil(&|bad| bad.duals.columns[0] -= 1);
    spoil(&|bad| bad.duals.stay = 3);
}

#[test]
fn what_is_malformed_is_refused() {
    let refused = |result: Result<Dense, CostError>| result.unwrap_err();
    assert_eq!(refused(Dense::new(2, 2, vec![1])), CostError::Shape { expected: 4, found: 1 });
    let limit = LIMIT / 2;
    let large = vec![0, limit, -limit - 1, 0];
    assert_eq!(refused(Dense::new(2, 2, large)), CostError::TooLarge { row: 1, column: 0, limit });
    let extreme = Dense::new(2, 2, vec![-limit, limit, limit, -limit]).unwrap();
    check(&extreme, None, &assign(&extreme));
    let cell = |column| Cell { column, cost: 1 };
    let sparse = |starts, cells| Sparse::new(2, starts, cells).unwrap_err();
    assert_eq!(sparse(vec![0, 2], vec![cell(1), cell(0)]), CostError::Columns { row: 0 });
    assert_eq!(sparse(vec![0, 1], vec![cell(2)]), CostError::Columns { row: 0 });
    assert_eq!(sparse(vec![0, 2], vec![cell(0)]), CostError::Offsets);
    assert_eq!(sparse(vec![], vec![]), CostError::Offsets);
    let matrix = Dense::new(1, 2, vec![1, 2]).unwrap();
    let options = AssignOptions { prices: Some(&[1]), ..AssignOptions::default() };
    let expected = CostError::Length { expected: 2, found: 1 };
    assert_eq!(assign_with(&matrix, &options).unwrap_err(), expected);
    let many = Dense::new(1, 3, vec![LIMIT, 0, 0]).unwrap();
    let options = AssignOptions { multiplicities: Some(&[3]), ..AssignOptions::default() };
    let limit = LIMIT / 3;
    let expected = CostError::TooLarge { row: 0, column: 0, limit };
    assert_eq!(assign_with(&many, &options).unwrap_err(), expected);
}
