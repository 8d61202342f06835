//! Maximum-weight matching on general graphs: Edmonds' blossom algorithm in its primal-dual form.
//!
//! All trees grow at once, driven by a heap of events, and an augmentation removes only the two trees that it
//! joins. Duals are stored with the time at which they were valid, so that waiting costs nothing. In a sparse
//! graph the work per augmentation is about that of the two trees.

mod forest;
mod nodes;
mod solve;

use std::fmt;

/// The largest |weight| × vertices.
const LIMIT: i64 = 1 << 58;

/// Why a graph is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphError {
    /// More than 2³⁰ vertices or edges.
    TooMany,
    /// The edge has an end that is no vertex, or two equal ends.
    Ends {
        /// Which edge.
        edge: usize,
    },
    /// The edge's |weight| × vertices is above 2⁵⁸.
    TooLarge {
        /// Which edge.
        edge: usize,
    },
}

impl fmt::Display for GraphError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(out, "more than 2^30 vertices or edges"),
            Self::Ends { edge } => write!(out, "edge {edge} does not join two different vertices"),
            Self::TooLarge { edge } => write!(out, "the weight of edge {edge} is too large"),
        }
    }
}

impl std::error::Error for GraphError {}

/// An undirected graph with integer weights.
#[derive(Clone, Debug)]
pub struct Graph {
    vertices: usize,
    edges: Vec<(u32, u32, i64)>,
}

impl Graph {
    /// Takes edges as (vertex, vertex, weight). Of parallel edges the heaviest counts.
    ///
    /// # Errors
    /// If an end is no vertex, an edge is a loop, or |weight| × vertices is above 2⁵⁸.
    pub fn new(vertices: usize, edges: Vec<(u32, u32, i64)>) -> Result<Self, GraphError> {
        if vertices.max(edges.len()) > 1 << 30 {
            return Err(GraphError::TooMany);
        }
        let limit = LIMIT.unsigned_abs() / vertices.max(1) as u64;
        for (edge, &(a, b, weight)) in edges.iter().enumerate() {
            if a == b || a.max(b) as usize >= vertices {
                return Err(GraphError::Ends { edge });
            }
            if weight.unsigned_abs() > limit {
                return Err(GraphError::TooLarge { edge });
            }
        }
        Ok(Self { vertices, edges })
    }

    /// The number of vertices.
    #[must_use]
    pub fn vertices(&self) -> usize {
        self.vertices
    }

    /// The edges as given.
    #[must_use]
    pub fn edges(&self) -> &[(u32, u32, i64)] {
        &self.edges
    }
}

/// An odd set of vertices with its dual value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blossom {
    /// The vertices, ascending.
    pub vertices: Vec<u32>,
    /// Its dual value, above 0.
    pub dual: i64,
}

/// A matching and the proof that none is heavier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matching {
    /// The partner of each vertex, if it has one.
    pub mates: Vec<Option<u32>>,
    /// The weight of all pairs.
    pub weight: i64,
    /// The dual value of each vertex. Duals belong to doubled weights, so that they are integers.
    pub duals: Vec<i64>,
    /// The blossoms with a dual value.
    pub blossoms: Vec<Blossom>,
}

/// How many pairs a matching may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairCount {
    /// Any number.
    Any,
    /// As many as the graph allows.
    Most,
    /// This number, or as many as the graph allows if that is fewer.
    Exactly(usize),
}

/// The heaviest among the matchings with that many pairs.
///
/// Ties are broken in a fixed way that depends on nothing but the graph.
#[must_use]
pub fn maximum_weight_matching(graph: &Graph, pairs: PairCount) -> Matching {
    solve::run(graph, pairs)
}

/// What is wrong with a matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchingViolation {
    /// The mates do not agree with each other or with the edges, or the numbers with the graph.
    Mates,
    /// A dual value has the wrong sign, or a blossom an even size.
    Dual,
    /// The duals of an edge do not cover its weight.
    Edge(usize),
    /// The weight is not what the duals add up to.
    Weight,
}

/// Checks that a matching is legal and, by its duals, that none is heavier; unless any number of pairs
/// is allowed, that none with as many pairs is.
///
/// # Errors
/// The first thing that is wrong.
pub fn certify_matching(
    graph: &Graph,
    pairs: PairCount,
    found: &Matching,
) -> Result<(), MatchingViolation> {
    let count = check_mates(graph, found)?;
    // With the number of pairs given, all duals may be shifted by the same amount.
    let least = found.duals.iter().copied().min().unwrap_or(0);
    let shift = if pairs == PairCount::Any { 0 } else { least };
    let odd = |blossom: &Blossom| blossom.dual > 0 && blossom.vertices.len() % 2 == 1;
    if least < shift || !found.blossoms.iter().all(odd) {
        return Err(MatchingViolation::Dual);
    }
    let mut covered: Vec<i64> = graph
        .edges
        .iter()
        .map(|&(a, b, weight)| found.duals[a as usize] + found.duals[b as usize] - 2 * weight)
        .collect();
    let mut inside = vec![false; graph.vertices];
    let mut bound: i128 = found.duals.iter().map(|&dual| i128::from(dual - shift)).sum();
    for blossom in &found.blossoms {
        blossom.vertices.iter().for_each(|&vertex| inside[vertex as usize] = true);
        for (covered, &(a, b, _)) in covered.iter_mut().zip(&graph.edges) {
            if inside[a as usize] && inside[b as usize] {
                *covered += blossom.dual;
            }
        }
        blossom.vertices.iter().for_each(|&vertex| inside[vertex as usize] = false);
        bound += i128::from(blossom.dual) * (blossom.vertices.len() as i128 / 2);
    }
    if let Some(edge) = covered.iter().position(|&covered| covered < 0) {
        return Err(MatchingViolation::Edge(edge));
    }
    bound += i128::from(shift) * 2 * count;
    if bound == 2 * i128::from(found.weight) { Ok(()) } else { Err(MatchingViolation::Weight) }
}

/// The number of pairs, if every vertex is its mate's mate and the weight is that of their edges.
fn check_mates(graph: &Graph, found: &Matching) -> Result<i128, MatchingViolation> {
    let mutual = |(vertex, mate): (usize, &Option<u32>)| {
        mate.is_none_or(|mate| found.mates.get(mate as usize) == Some(&u32::try_from(vertex).ok()))
    };
    let sizes = found.mates.len() == graph.vertices && found.duals.len() == graph.vertices;
    if !sizes || !found.mates.iter().enumerate().all(mutual) {
        return Err(MatchingViolation::Mates);
    }
    let (pairs, weight) = weigh(graph, &found.mates);
    let matched = found.mates.iter().flatten().count();
    if weight != found.weight || pairs * 2 != matched {
        return Err(MatchingViolation::Mates);
    }
    Ok(pairs as i128)
}

/// The number of pairs that have an edge, and the weight of the heaviest edges between them.
fn weigh(graph: &Graph, mates: &[Option<u32>]) -> (usize, i64) {
    let mut heaviest: Vec<Option<i64>> = vec![None; graph.vertices];
    for &(a, b, weight) in &graph.edges {
        if mates[a as usize] == Some(b) {
            let best = &mut heaviest[a.min(b) as usize];
            *best = (*best).max(Some(weight));
        }
    }
    (heaviest.iter().flatten().count(), heaviest.iter().flatten().sum())
}
