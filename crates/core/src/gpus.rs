//! The GPUs of a placement.

use crate::cluster::{Cluster, GpuId, NodeId};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// GPUs of a placement, in allocation order. Plan, job, action and back end all keep them, so that a copy has
/// to be cheap.
#[derive(Clone)]
pub struct Gpus(GpuList);

#[derive(Clone)]
enum GpuList {
    /// Consecutive GPUs, which most gangs have, are a slice of [`ASCENDING`]: no allocation and no reference
    /// count.
    Contiguous(&'static [GpuId]),
    Listed(Arc<[GpuId]>),
}

/// Clusters up to this size can use slices of [`ASCENDING`].
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
    /// `count` GPUs from `first` on.
    pub(crate) fn contiguous(first: GpuId, count: u32) -> Self {
        let range = first.index()..first.index() + count as usize;
        match ASCENDING.get(range) {
            Some(window) => Self(GpuList::Contiguous(window)),
            None => Self(GpuList::Listed((first.0..first.0 + count).map(GpuId).collect())),
        }
    }

    /// Whether all GPUs are in `range`.
    pub(crate) fn are_within(&self, range: &Range<u32>) -> bool {
        match &self.0 {
            GpuList::Contiguous([]) => true,
            GpuList::Contiguous([first, .., last]) => first.0 >= range.start && last.0 < range.end,
            GpuList::Contiguous(gpus) => range.contains(&gpus[0].0),
            GpuList::Listed(gpus) => gpus.iter().all(|gpu| range.contains(&gpu.0)),
        }
    }

    /// Splits the GPUs into ranges of consecutive ones within a node. Most gangs are one range, and updating
    /// a range costs less than updating each GPU.
    pub fn contiguous_ranges<'a>(
        &'a self,
        cluster: &'a Cluster,
    ) -> impl Iterator<Item = (NodeId, Range<usize>)> + 'a {
        let contiguous = matches!(self.0, GpuList::Contiguous(_));
        let mut rest: &[GpuId] = self;
        std::iter::from_fn(move || {
            let first = *rest.first()?;
            let node = cluster.gpu(first).node;
            let in_node = cluster.nodes()[node.index()].gpus.end - first.0;
            let longest = rest.len().min(in_node as usize);
            let follows = |&(gpu, next): &(&GpuId, u32)| gpu.0 == next;
            let length = match contiguous {
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
            Some(window) => Self(GpuList::Contiguous(window)),
            None => Self(GpuList::Listed(gpus.into())),
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
        Self(GpuList::Contiguous(&[]))
    }
}

impl Deref for Gpus {
    type Target = [GpuId];
    #[inline]
    fn deref(&self) -> &[GpuId] {
        match &self.0 {
            GpuList::Contiguous(window) => window,
            GpuList::Listed(gpus) => gpus,
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
            let beside = Gpus::contiguous(GpuId(first), count);
            prop_assert_eq!(&*beside, &plain[..count as usize]);
            prop_assert_eq!(Gpus::from(&plain[..count as usize]), beside);
        }
    }
}
