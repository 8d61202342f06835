//! Matchings on general graphs equal brute force where that is possible and carry a certificate
//! everywhere.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use proptest::prelude::*;
use tandem_matching::PairCount::{self, Any, Exactly, Most};
use tandem_matching::instance::SplitMix64;
use tandem_matching::{Graph, GraphError, certify_matching, maximum_weight_matching};

/// Up to `most` vertices, some of all possible edges, weights with many ties or few.
fn graph(most: u32) -> impl Strategy<Value = Graph> {
    (0..=most, 0..3_u32, 0..9_u32).prop_flat_map(|(vertices, spread, density)| {
        let all: Vec<(u32, u32)> =
            (0..vertices).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
        let weight = -5..=6 * 10_i64.pow(spread);
        proptest::collection::vec((0..10_u32, weight), all.len()).prop_map(move |drawn| {
            let edges = all.iter().zip(drawn).filter(|(_, (die, _))| *die <= density);
            let edges = edges.map(|(&(a, b), (_, weight))| (a, b, weight)).collect();
            Graph::new(vertices as usize, edges).unwrap()
        })
    })
}

/// Pairs and weight of the best matching, by trying everything.
fn brute_force(graph: &Graph, pairs: PairCount) -> (usize, i64) {
    fn best(edges: &[(u32, u32, i64)], used: u32, pairs: PairCount) -> (usize, i64) {
        let Some((&(a, b, weight), rest)) = edges.split_first() else { return (0, 0) };
        let without = best(rest, used, pairs);
        let left = match pairs {
            Exactly(left) => left.checked_sub(1).map(Exactly),
            other => Some(other),
        };
        let (Some(left), 0) = (left, used & (1 << a | 1 << b)) else { return without };
        let with = best(rest, used | 1 << a | 1 << b, left);
        let with = (with.0 + 1, with.1 + weight);
        let key = |found: (usize, i64)| if pairs == Any { (0, found.1) } else { found };
        if key(with) > key(without) { with } else { without }
    }
    best(graph.edges(), 0, pairs)
}

fn check(graph: &Graph, pairs: PairCount) -> (usize, i64) {
    let found = maximum_weight_matching(graph, pairs);
    assert_eq!(found, maximum_weight_matching(graph, pairs));
    certify_matching(graph, pairs, &found).unwrap();
    (found.mates.iter().flatten().count() / 2, found.weight)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_brute_force(graph in graph(7)) {
        prop_assert_eq!(check(&graph, Any).1, brute_force(&graph, Any).1);
        prop_assert_eq!(check(&graph, Most), brute_force(&graph, Most));
        for count in 0..=3 {
            prop_assert_eq!(check(&graph, Exactly(count)), brute_force(&graph, Exactly(count)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn larger_ones_carry_their_certificate(graph in graph(40)) {
        check(&graph, Any);
        let (pairs, _) = check(&graph, Most);
        prop_assert_eq!(check(&graph, Exactly(pairs / 2)).0, pairs / 2);
        // With equal weights the heaviest is the largest, and its duals prove that.
        let equal = graph.edges().iter().map(|&(a, b, _)| (a, b, 1)).collect();
        let largest = check(&Graph::new(graph.vertices(), equal).unwrap(), Any);
        prop_assert_eq!(pairs, largest.0);
    }
}

#[test]
fn nine_vertices_equal_brute_force() {
    let mut random = SplitMix64(9);
    for _ in 0..40 {
        let mut edges = Vec::new();
        for a in 0..9 {
            for b in (0..a).filter(|_| random.below(2) == 0).collect::<Vec<_>>() {
                edges.push((a, b, i64::try_from(random.below(30)).unwrap()));
            }
        }
        let graph = Graph::new(9, edges).unwrap();
        assert_eq!(check(&graph, Any).1, brute_force(&graph, Any).1);
        assert_eq!(check(&graph, Most), brute_force(&graph, Most));
    }
}

/// Triangles joined in chains nest blossoms deeply.
#[test]
fn thousands_of_vertices_carry_their_certificate() {
    let mut random = SplitMix64(3);
    for (vertices, degree, weights) in [(2000, 4, 50), (2001, 3, 1), (1501, 6, 100_000)] {
        let mut edges = Vec::new();
        for a in 0..vertices {
            for _ in 0..degree {
                let near = (a + 1 + u32::try_from(random.below(5)).unwrap()) % vertices;
                let far = u32::try_from(random.below(u64::from(vertices))).unwrap();
                let b = if random.below(4) == 0 { far } else { near };
                if a != b {
                    edges.push((a, b, i64::try_from(random.below(weights)).unwrap() + 1));
                }
            }
        }
        let graph = Graph::new(vertices as usize, edges).unwrap();
        check(&graph, Any);
        check(&graph, Most);
    }
}

#[test]
fn what_is_malformed_is_refused() {
    let refused = |edges| Graph::new(2, edges).unwrap_err();
    assert_eq!(refused(vec![(0, 1, 1), (1, 1, 1)]), GraphError::Ends { edge: 1 });
    assert_eq!(refused(vec![(0, 2, 1)]), GraphError::Ends { edge: 0 });
    assert_eq!(refused(vec![(0, 1, i64::MIN)]), GraphError::TooLarge { edge: 0 });
    let empty = Graph::new(0, Vec::new()).unwrap();
    assert_eq!(check(&empty, Most), (0, 0));
}
