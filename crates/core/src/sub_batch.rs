//! Gradient accumulation: a job can compute each batch in several smaller parts, one after the other,
//! which takes longer and needs less memory.

use crate::units::{Memory, Ratio};
use std::sync::Arc;

/// One way to run a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubBatch {
    /// The parts into which each batch is divided; 1 is the batch as a whole.
    pub count: u32,
    /// Solo iteration time relative to whole batches, at least 1.
    pub slowdown: Ratio,
    /// Memory on each GPU.
    pub memory: Memory,
}

impl SubBatch {
    /// Speed relative to whole batches.
    pub fn rate(&self) -> Ratio {
        self.slowdown.inverse()
    }
}

/// The ways to run a job other than in whole batches: ever more parts, ever less memory. Most jobs
/// have none, and those of one class can share theirs. One word wide, because every job carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubBatches(Option<Arc<Vec<SubBatch>>>);

impl SubBatches {
    /// Puts `ways` in order and leaves out those that save no memory over one of fewer parts.
    pub fn new(ways: impl IntoIterator<Item = SubBatch>) -> Self {
        let mut ways: Vec<SubBatch> = ways.into_iter().filter(|way| way.count > 1).collect();
        ways.sort_by_key(|way| way.count);
        let mut kept: Vec<SubBatch> = Vec::with_capacity(ways.len());
        for way in ways {
            if kept.last().is_none_or(|last| way.count > last.count && way.memory < last.memory) {
                kept.push(SubBatch { slowdown: way.slowdown.max(Ratio::ONE), ..way });
            }
        }
        Self((!kept.is_empty()).then(|| Arc::new(kept)))
    }

    /// In ascending order of parts.
    pub fn as_slice(&self) -> &[SubBatch] {
        self.0.as_deref().map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ways_that_save_memory_are_kept_in_order() {
        let way =
            |count, memory| SubBatch { count, slowdown: Ratio::new(1, 2), memory: Memory(memory) };
        let ways = SubBatches::new([way(8, 40), way(1, 99), way(2, 60), way(4, 60), way(2, 10)]);
        let kept: Vec<(u32, Memory)> =
            ways.as_slice().iter().map(|way| (way.count, way.memory)).collect();
        assert_eq!(kept, [(2, Memory(60)), (8, Memory(40))]);
        assert_eq!(ways.as_slice()[0].slowdown, Ratio::ONE);
        assert_eq!(SubBatches::new([way(1, 5)]), SubBatches::default());
    }
}
