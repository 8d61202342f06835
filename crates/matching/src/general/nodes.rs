//! Vertices and blossoms: their nesting, and the rotation of a matching inside a blossom.

pub(crate) const NONE: u32 = u32::MAX;

/// A node is a vertex (below `vertices`) or a blossom.
pub(crate) struct Nodes {
    pub(crate) vertices: usize,
    /// The mate of each vertex, or [`NONE`].
    pub(crate) mate: Vec<u32>,
    /// The outermost node around each vertex.
    pub(crate) top: Vec<u32>,
    /// The blossom right around each node, or [`NONE`].
    pub(crate) parent: Vec<u32>,
    /// The vertex of each node that is matched outside of it, or not at all.
    pub(crate) base: Vec<u32>,
    /// The odd cycle of each blossom, base first.
    pub(crate) children: Vec<Vec<u32>>,
    /// The edges of the cycle: from a vertex in each child to one in the next.
    pub(crate) links: Vec<Vec<(u32, u32)>>,
    /// Blossoms that are not in use.
    unused: Vec<u32>,
}

impl Nodes {
    pub(crate) fn new(vertices: usize) -> Self {
        let index = crate::costs::index;
        let ids: Vec<u32> = (0..index(vertices)).collect();
        let most = vertices + vertices / 2;
        let mut base = ids.clone();
        base.resize(most, NONE);
        Self {
            vertices,
            mate: vec![NONE; vertices],
            top: ids,
            parent: vec![NONE; most],
            base,
            children: vec![Vec::new(); most],
            links: vec![Vec::new(); most],
            unused: (index(vertices)..index(most)).rev().collect(),
        }
    }

    pub(crate) fn is_blossom(&self, node: u32) -> bool {
        node as usize >= self.vertices
    }

    pub(crate) fn top_of(&self, vertex: u32) -> u32 {
        self.top[vertex as usize]
    }

    /// All vertices of a node.
    pub(crate) fn leaves(&self, node: u32) -> Vec<u32> {
        let (mut leaves, mut open) = (Vec::new(), vec![node]);
        while let Some(node) = open.pop() {
            match self.is_blossom(node) {
                true => open.extend(&self.children[node as usize]),
                false => leaves.push(node),
            }
        }
        leaves
    }

    /// Makes a blossom of outermost nodes.
    pub(crate) fn join(&mut self, children: Vec<u32>, links: Vec<(u32, u32)>) -> u32 {
        let blossom = self.unused.pop().expect("blossoms are nested, so fewer than half as many");
        self.base[blossom as usize] = self.base[children[0] as usize];
        self.parent[blossom as usize] = NONE;
        for &child in &children {
            self.parent[child as usize] = blossom;
        }
        self.children[blossom as usize] = children;
        self.links[blossom as usize] = links;
        for leaf in self.leaves(blossom) {
            self.top[leaf as usize] = blossom;
        }
        blossom
    }

    /// Undoes a blossom and returns its cycle.
    pub(crate) fn part(&mut self, blossom: u32) -> (Vec<u32>, Vec<(u32, u32)>) {
        let children = std::mem::take(&mut self.children[blossom as usize]);
        let links = std::mem::take(&mut self.links[blossom as usize]);
        for &child in &children {
            self.parent[child as usize] = NONE;
            for leaf in self.leaves(child) {
                self.top[leaf as usize] = child;
            }
        }
        self.unused.push(blossom);
        (children, links)
    }

    pub(crate) fn in_use(&self, blossom: u32) -> bool {
        !self.children[blossom as usize].is_empty()
    }

    /// Makes the vertex the base of its node, by rotating the matching inside.
    pub(crate) fn rebase(&mut self, node: u32, vertex: u32) {
        if !self.is_blossom(node) {
            return;
        }
        let mut child = vertex;
        while self.parent[child as usize] != node {
            child = self.parent[child as usize];
        }
        self.rebase(child, vertex);
        let mut cycle = std::mem::take(&mut self.children[node as usize]);
        let mut links = std::mem::take(&mut self.links[node as usize]);
        let entry = position(&cycle, child);
        for (from, to) in matched_on_the_way(&cycle, &links, entry) {
            self.rebase(from.0, from.1);
            self.rebase(to.0, to.1);
            self.mate[from.1 as usize] = to.1;
            self.mate[to.1 as usize] = from.1;
        }
        cycle.rotate_left(entry);
        links.rotate_left(entry);
        self.base[node as usize] = vertex;
        self.children[node as usize] = cycle;
        self.links[node as usize] = links;
    }
}

pub(crate) fn position(cycle: &[u32], child: u32) -> usize {
    cycle.iter().position(|&other| other == child).expect("it is a child of this blossom")
}

/// A child of a cycle and the vertex in it.
type End = (u32, u32);

/// The pairs of neighbours to match so that `entry` instead of the first child has its base matched outside:
/// those on the even path from `entry` to the first child.
fn matched_on_the_way(cycle: &[u32], links: &[(u32, u32)], entry: usize) -> Vec<(End, End)> {
    walk(cycle, links, entry).chunks_exact(2).map(|steps| steps[1]).collect::<Vec<_>>()
}

/// The steps from `entry` to the first child, in the direction with an even number of them.
pub(crate) fn walk(cycle: &[u32], links: &[(u32, u32)], entry: usize) -> Vec<(End, End)> {
    let size = cycle.len();
    let mut steps = Vec::new();
    let mut at = entry;
    while at != 0 {
        if entry % 2 == 1 {
            let next = (at + 1) % size;
            steps.push(((cycle[at], links[at].0), (cycle[next], links[at].1)));
            at = next;
        } else {
            let next = at - 1;
            steps.push(((cycle[at], links[next].1), (cycle[next], links[next].0)));
            at = next;
        }
    }
    steps
}
