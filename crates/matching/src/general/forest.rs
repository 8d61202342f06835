//! The alternating trees: their outermost nodes, how these were reached, and the duals, which change with
//! time for nodes in trees.

use super::nodes::{NONE, Nodes};

/// The place of an outermost node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Label {
    /// In no tree.
    Out,
    /// At an even distance from the root: its vertices look for partners, their duals fall.
    Even,
    /// At an odd distance: its vertices have a partner in the tree, their duals rise.
    Odd,
}

pub(crate) struct Forest {
    pub(crate) label: Vec<Label>,
    /// The edge through which a node came into its tree: a vertex of the parent, one of its own.
    pub(crate) entered: Vec<(u32, u32)>,
    /// The root vertex of a node's tree.
    pub(crate) tree: Vec<u32>,
    /// The members of the tree of each root, present and past.
    pub(crate) members: Vec<Vec<u32>>,
    /// Duals of vertices and of blossoms as they were at `since`.
    pub(crate) dual: Vec<i64>,
    since: Vec<i64>,
    pub(crate) now: i64,
    /// Marks of the search for a common ancestor.
    marked: Vec<u32>,
    walks: u32,
}

impl Forest {
    pub(crate) fn new(nodes: &Nodes, dual: i64) -> Self {
        let count = nodes.parent.len();
        let mut duals = vec![dual; nodes.vertices];
        duals.resize(count, 0);
        Self {
            label: vec![Label::Out; count],
            entered: vec![(NONE, NONE); count],
            tree: vec![NONE; count],
            members: vec![Vec::new(); nodes.vertices],
            dual: duals,
            since: vec![0; count],
            now: 0,
            marked: vec![0; count],
            walks: 0,
        }
    }

    pub(crate) fn label_of(&self, nodes: &Nodes, vertex: u32) -> Label {
        self.label[nodes.top_of(vertex) as usize]
    }

    /// The dual of a vertex at this time.
    pub(crate) fn dual_of(&self, nodes: &Nodes, vertex: u32) -> i64 {
        let top = nodes.top_of(vertex) as usize;
        let passed = self.now - self.since[top];
        match self.label[top] {
            Label::Out => self.dual[vertex as usize],
            Label::Even => self.dual[vertex as usize] - passed,
            Label::Odd => self.dual[vertex as usize] + passed,
        }
    }

    /// When the dual of an odd blossom reaches zero.
    pub(crate) fn end_of(&self, blossom: u32) -> i64 {
        self.since[blossom as usize] + self.dual[blossom as usize] / 2
    }

    /// Adds an outermost node to a tree; its duals are as of now.
    pub(crate) fn enter(&mut self, node: u32, label: Label, edge: (u32, u32), tree: u32) {
        let at = node as usize;
        self.label[at] = label;
        self.entered[at] = edge;
        self.tree[at] = tree;
        self.since[at] = self.now;
        self.members[tree as usize].push(node);
    }

    /// Removes an outermost node from its tree, with its duals as of now.
    pub(crate) fn leave(&mut self, nodes: &Nodes, node: u32) {
        let at = node as usize;
        let passed = self.now - self.since[at];
        let (vertices, blossom) = match self.label[at] {
            Label::Out => return,
            Label::Even => (-passed, 2 * passed),
            Label::Odd => (passed, -2 * passed),
        };
        if passed != 0 {
            nodes.leaves(node).iter().for_each(|&leaf| self.dual[leaf as usize] += vertices);
            if nodes.is_blossom(node) {
                self.dual[at] += blossom;
            }
        }
        self.label[at] = Label::Out;
        self.entered[at] = (NONE, NONE);
    }

    /// The outermost node from which this one was reached; none for the root.
    pub(crate) fn above(&self, nodes: &Nodes, node: u32) -> Option<u32> {
        let (outer, _) = self.entered[node as usize];
        (outer != NONE).then(|| nodes.top_of(outer))
    }

    /// The lowest node above both, which is even.
    pub(crate) fn common(&mut self, nodes: &Nodes, a: u32, b: u32) -> u32 {
        self.walks += 1;
        let (mut here, mut there) = (Some(a), Some(b));
        loop {
            if let Some(node) = here {
                if self.marked[node as usize] == self.walks {
                    return node;
                }
                self.marked[node as usize] = self.walks;
                here = self.above(nodes, node);
            }
            std::mem::swap(&mut here, &mut there);
        }
    }
}
