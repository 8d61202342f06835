//! The events: an edge between trees or to a free node becomes tight, or the dual of an odd blossom reaches
//! zero. Events wait in a heap and are checked at their time; outdated ones are dropped or rescheduled.

use super::forest::{Forest, Label};
use super::nodes::{NONE, Nodes, position, walk};
use super::{Blossom, Graph, Matching, PairCount, weigh};
use crate::costs::index;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Marks a blossom among the edges of the heap.
const BLOSSOM: u32 = 1 << 31;

struct Solver<'a> {
    graph: &'a Graph,
    /// The edges of each vertex: `around[starts[v]..starts[v + 1]]`.
    starts: Vec<usize>,
    around: Vec<u32>,
    nodes: Nodes,
    forest: Forest,
    events: BinaryHeap<Reverse<(i64, u32)>>,
    pairs: usize,
}

pub(crate) fn run(graph: &Graph, pairs: PairCount) -> Matching {
    // Free vertices all have the same dual, half of the doubled weight, and are done when it is 0. At any
    // time the matching is the heaviest of its size.
    let heaviest = graph.edges.iter().map(|edge| edge.2).max().unwrap_or(0);
    let (dual, end, most) = match pairs {
        PairCount::Any => (heaviest.max(0), heaviest.max(0), usize::MAX),
        PairCount::Most => (heaviest, i64::MAX, usize::MAX),
        PairCount::Exactly(count) => (heaviest, i64::MAX, count),
    };
    let mut solver = Solver::new(graph, dual);
    solver.plant();
    while solver.pairs < most {
        let Some(Reverse((time, event))) = solver.events.pop() else { break };
        if time >= end {
            break;
        }
        solver.forest.now = time;
        match event & BLOSSOM {
            0 => solver.tighten(event),
            _ => solver.expand(event & !BLOSSOM),
        }
    }
    if pairs == PairCount::Any {
        solver.forest.now = end;
    }
    solver.report()
}

impl<'a> Solver<'a> {
    fn new(graph: &'a Graph, dual: i64) -> Self {
        let mut starts = vec![0; graph.vertices + 2];
        for &(a, b, _) in &graph.edges {
            starts[a as usize + 2] += 1;
            starts[b as usize + 2] += 1;
        }
        for vertex in 1..starts.len() {
            starts[vertex] += starts[vertex - 1];
        }
        let mut around = vec![0; 2 * graph.edges.len()];
        for (edge, &(a, b, _)) in graph.edges.iter().enumerate() {
            for end in [a, b] {
                around[starts[end as usize + 1]] = index(edge);
                starts[end as usize + 1] += 1;
            }
        }
        let nodes = Nodes::new(graph.vertices);
        let forest = Forest::new(&nodes, dual);
        Self { graph, starts, around, nodes, forest, events: BinaryHeap::new(), pairs: 0 }
    }

    /// Makes every vertex the root of a tree.
    fn plant(&mut self) {
        for vertex in 0..index(self.graph.vertices) {
            self.forest.enter(vertex, Label::Even, (NONE, NONE), vertex);
        }
        for edge in 0..index(self.graph.edges.len()) {
            self.schedule(edge);
        }
    }

    /// The slack of an edge between two outermost nodes: its duals beyond its doubled weight.
    fn slack(&self, edge: u32) -> i64 {
        let (a, b, weight) = self.graph.edges[edge as usize];
        let dual = |vertex| self.forest.dual_of(&self.nodes, vertex);
        dual(a) + dual(b) - 2 * weight
    }

    /// Schedules the edge if it will become tight.
    fn schedule(&mut self, edge: u32) {
        let (a, b, _) = self.graph.edges[edge as usize];
        if self.nodes.top_of(a) == self.nodes.top_of(b) {
            return;
        }
        let labels = [a, b].map(|vertex| self.forest.label_of(&self.nodes, vertex));
        let wait = match labels {
            // All vertices in trees have duals of the same parity.
            [Label::Even, Label::Even] => self.slack(edge) / 2,
            [Label::Even, Label::Out] | [Label::Out, Label::Even] => self.slack(edge),
            _ => return,
        };
        self.events.push(Reverse((self.forest.now + wait, edge)));
    }

    fn schedule_around(&mut self, node: u32) {
        for leaf in self.nodes.leaves(node) {
            for at in self.starts[leaf as usize]..self.starts[leaf as usize + 1] {
                self.schedule(self.around[at]);
            }
        }
    }

    /// An edge may have become tight.
    fn tighten(&mut self, edge: u32) {
        let (a, b, _) = self.graph.edges[edge as usize];
        let tops = [a, b].map(|vertex| self.nodes.top_of(vertex));
        if tops[0] == tops[1] {
            return;
        }
        let labels = tops.map(|top| self.forest.label[top as usize]);
        if !labels.contains(&Label::Even) || labels.contains(&Label::Odd) {
            return;
        }
        if self.slack(edge) > 0 {
            return self.schedule(edge);
        }
        match labels {
            [Label::Even, Label::Out] => self.grow(a, b),
            [Label::Out, _] => self.grow(b, a),
            _ if self.forest.tree[tops[0] as usize] == self.forest.tree[tops[1] as usize] => {
                self.shrink(a, b);
            }
            _ => self.augment(a, b),
        }
    }

    /// Adds the node of `outer` and its mate to the tree of `inner`.
    fn grow(&mut self, inner: u32, outer: u32) {
        let tree = self.forest.tree[self.nodes.top_of(inner) as usize];
        let odd = self.nodes.top_of(outer);
        self.enter_odd(odd, (inner, outer), tree);
        let base = self.nodes.base[odd as usize];
        let mate = self.nodes.mate[base as usize];
        let even = self.nodes.top_of(mate);
        self.forest.enter(even, Label::Even, (base, mate), tree);
        self.schedule_around(even);
    }

    fn enter_odd(&mut self, node: u32, edge: (u32, u32), tree: u32) {
        self.forest.enter(node, Label::Odd, edge, tree);
        if self.nodes.is_blossom(node) {
            self.events.push(Reverse((self.forest.end_of(node), node | BLOSSOM)));
        }
    }

    /// A tight edge within a tree closes an odd cycle, which becomes a blossom.
    fn shrink(&mut self, a: u32, b: u32) {
        let (top_a, top_b) = (self.nodes.top_of(a), self.nodes.top_of(b));
        let crown = self.forest.common(&self.nodes, top_a, top_b);
        let (mut cycle, mut links) = (Vec::new(), vec![(a, b)]);
        let mut node = top_a;
        while node != crown {
            cycle.push(node);
            links.push(self.forest.entered[node as usize]);
            node = self.forest.above(&self.nodes, node).expect("the crown is above");
        }
        cycle.push(crown);
        cycle.reverse();
        links.reverse();
        let mut node = top_b;
        while node != crown {
            cycle.push(node);
            let (outer, inner) = self.forest.entered[node as usize];
            links.push((inner, outer));
            node = self.forest.above(&self.nodes, node).expect("the crown is above");
        }
        let (entered, tree) =
            (self.forest.entered[crown as usize], self.forest.tree[crown as usize]);
        let odd = |&&node: &&u32| self.forest.label[node as usize] == Label::Odd;
        let new_even: Vec<u32> = cycle.iter().filter(odd).copied().collect();
        for &node in &cycle {
            self.forest.leave(&self.nodes, node);
        }
        let blossom = self.nodes.join(cycle, links);
        self.forest.dual[blossom as usize] = 0;
        self.forest.enter(blossom, Label::Even, entered, tree);
        for node in new_even {
            self.schedule_around(node);
        }
    }

    /// An odd blossom without a dual is expanded; the nodes on the path through it stay in the tree.
    fn expand(&mut self, blossom: u32) {
        let at = blossom as usize;
        let odd = self.nodes.in_use(blossom)
            && self.nodes.parent[at] == NONE
            && self.forest.label[at] == Label::Odd;
        if !odd || self.forest.end_of(blossom) != self.forest.now {
            return;
        }
        let (entered, tree) = (self.forest.entered[at], self.forest.tree[at]);
        self.forest.leave(&self.nodes, blossom);
        let (cycle, links) = self.nodes.part(blossom);
        let entry = self.nodes.top_of(entered.1);
        self.enter_odd(entry, entered, tree);
        for steps in walk(&cycle, &links, position(&cycle, entry)).chunks_exact(2) {
            let ((_, from), (even, to)) = steps[0];
            self.forest.enter(even, Label::Even, (from, to), tree);
            let ((_, from), (odd, to)) = steps[1];
            self.enter_odd(odd, (from, to), tree);
        }
        for child in cycle {
            if self.forest.label[child as usize] != Label::Odd {
                self.schedule_around(child);
            }
        }
    }

    /// A tight edge between two trees: the matching grows by one, and the trees are removed.
    fn augment(&mut self, a: u32, b: u32) {
        self.pairs += 1;
        let trees = [a, b].map(|end| self.forest.tree[self.nodes.top_of(end) as usize]);
        self.turn(a, b);
        self.turn(b, a);
        let mut left = Vec::new();
        for tree in trees {
            for node in std::mem::take(&mut self.forest.members[tree as usize]) {
                let outermost = self.nodes.parent[node as usize] == NONE;
                let there = !self.nodes.is_blossom(node) || self.nodes.in_use(node);
                let labelled = self.forest.label[node as usize] != Label::Out;
                if outermost && there && labelled && self.forest.tree[node as usize] == tree {
                    self.forest.leave(&self.nodes, node);
                    left.push(node);
                }
            }
        }
        for node in left {
            self.schedule_around(node);
        }
    }

    /// Matches an even vertex to `partner` and flips the path up to the root.
    fn turn(&mut self, vertex: u32, partner: u32) {
        let (mut vertex, mut partner) = (vertex, partner);
        loop {
            let even = self.nodes.top_of(vertex);
            self.nodes.rebase(even, vertex);
            self.nodes.mate[vertex as usize] = partner;
            let Some(odd) = self.forest.above(&self.nodes, even) else { return };
            let (outer, inner) = self.forest.entered[odd as usize];
            self.nodes.rebase(odd, inner);
            self.nodes.mate[inner as usize] = outer;
            (vertex, partner) = (outer, inner);
        }
    }

    fn report(mut self) -> Matching {
        for node in 0..index(self.nodes.parent.len()) {
            let outermost = self.nodes.parent[node as usize] == NONE;
            if outermost && (!self.nodes.is_blossom(node) || self.nodes.in_use(node)) {
                self.forest.leave(&self.nodes, node);
            }
        }
        let vertices = self.nodes.vertices;
        let mut blossoms = Vec::new();
        for node in index(vertices)..index(self.nodes.parent.len()) {
            let dual = self.forest.dual[node as usize];
            if self.nodes.in_use(node) && dual > 0 {
                let mut leaves = self.nodes.leaves(node);
                leaves.sort_unstable();
                blossoms.push(Blossom { vertices: leaves, dual });
            }
        }
        let mate = |&mate: &u32| (mate != NONE).then_some(mate);
        let mates: Vec<Option<u32>> = self.nodes.mate.iter().map(mate).collect();
        let (_, weight) = weigh(self.graph, &mates);
        self.forest.dual.truncate(vertices);
        Matching { mates, weight, duals: self.forest.dual, blossoms }
    }
}
