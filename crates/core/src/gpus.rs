//! The GPUs of a placement.

use crate::cluster::{Cluster, GpuId, NodeId};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// GPUs of a placement, in the order in which the allocation touches them. Plan, job, action and back
/// end all hold on to them, so a copy costs next to nothing.
#[derive(Clone)]
pub struct Gpus(Kept);

#[derive(Clone)]
enum Kept {
    /// GPUs side by side, which most gangs have, are a window of [`ASCENDING`]: nothing is allocated and
    /// nobody counts who holds on to them.
    SideBySide(&'static [GpuId]),
    Elsewhere(Arc<[GpuId]>),
}

/// GPUs of clusters up to this size can be windows.
const WINDOWS: usize = 1 << 14;
static ASCENDING: [GpuId; WINDOWS] = {
    let mut ascending = [GpuId(0); WINDOWS];
    let mut index = 0;
    while index < WINDOWS {
        ascending[index] = GpuId(index as u32);
        index += 1;
    }
    ascending
};

impl Gpus {
    /// So many GPUs from `first` on.
    pub(crate) fn side_by_side(first: GpuId, count: u32) -> Self {
        let range = first.index()..first.index() + count as usize;
        match ASCENDING.get(range) {
            Some(window) => Self(Kept::SideBySide(window)),
            None => Self(Kept::Elsewhere((first.0..first.0 + count).map(GpuId).collect())),
        }
    }

    /// Whether all of them are in `range`.
    pub(crate) fn are_within(&self, range: &Range<u32>) -> bool {
        match &self.0 {
            Kept::SideBySide([]) => true,
            Kept::SideBySide([first, .., last]) => first.0 >= range.start && last.0 < range.end,
            Kept::SideBySide(gpus) => range.contains(&gpus[0].0),
            Kept::Elsewhere(gpus) => gpus.iter().all(|gpu| range.contains(&gpu.0)),
        }
    }

    /// Splits them into stretches of consecutive ones in one node: gangs mostly sit on such, and what is
    /// done to a stretch at once costs less than GPU by GPU.
    pub fn stretches<'a>(
        &'a self,
        cluster: &'a Cluster,
    ) -> impl Iterator<Item = (NodeId, Range<usize>)> + 'a {
        let side_by_side = matches!(self.0, Kept::SideBySide(_));
        let mut rest: &[GpuId] = self;
        std::iter::from_fn(move || {
            let first = *rest.first()?;
            let node = cluster.gpu(first).node;
            let in_node = cluster.nodes()[node.index()].gpus.end - first.0;
            let longest = rest.len().min(in_node as usize);
            let follows = |&(gpu, next): &(&GpuId, u32)| gpu.0 == next;
            let length = match side_by_side {
                true => longest,
                false => rest[..longest].iter().zip(first.0..).take_while(follows).count(),
            };
            rest = &rest[length..];
            Some((node, first.index()..first.index() + length))
        })
    }
}

impl From<&[GpuId]> for Gpus {
    fn from(gpus: &[GpuId]) -> Self {
        let window = gpus.first().and_then(|first| ASCENDING.get(first.index()..));
        let window = window.and_then(|window| window.get(..gpus.len()));
        match window.filter(|window| *window == gpus) {
            Some(window) => Self(Kept::SideBySide(window)),
            None => Self(Kept::Elsewhere(gpus.into())),
        }
    }
}

impl FromIterator<GpuId> for Gpus {
    fn from_iter<I: IntoIterator<Item = GpuId>>(gpus: I) -> Self {
        let gpus: SmallVec<[GpuId; 16]> = gpus.into_iter().collect();
        gpus.as_slice().into()
    }
}

impl Default for Gpus {
    fn default() -> Self {
        Self(Kept::SideBySide(&[]))
    }
}

impl Deref for Gpus {
    type Target = [GpuId];
    #[inline]
    fn deref(&self) -> &[GpuId] {
        match &self.0 {
            Kept::SideBySide(window) => window,
            Kept::Elsewhere(gpus) => gpus,
        }
    }
}

impl PartialEq for Gpus {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Gpus {}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hold_what_they_were_made_of(first in 0..40_000u32, count in 0..20u32, others in proptest::collection::vec(0..40_000u32, 0..4)) {
            let plain: Vec<GpuId> = (first..first + count).chain(others).map(GpuId).collect();
            let gpus: Gpus = plain.iter().copied().collect();
            prop_assert_eq!(&*gpus, plain.as_slice());
            prop_assert_eq!(format!("{gpus:?}"), format!("{plain:?}"));
            let range = 9_000..20_000;
            prop_assert_eq!(gpus.are_within(&range), plain.iter().all(|gpu| range.contains(&gpu.0)));
            let beside = Gpus::side_by_side(GpuId(first), count);
            prop_assert_eq!(&*beside, &plain[..count as usize]);
            prop_assert_eq!(Gpus::from(&plain[..count as usize]), beside);
        }
    }
}
