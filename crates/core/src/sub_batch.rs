//! Gradient accumulation: a job computes each batch in several sub-batches, which takes longer and needs less
//! memory.

use crate::units::{Memory, Ratio};
use std::sync::Arc;

/// One option to run a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubBatch {
    /// Sub-batches per batch; 1 is the whole batch.
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

/// The options of a job beyond whole batches: more sub-batches, less memory. Most jobs have none, and jobs of
/// a class can share them. One word wide, because every job has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubBatches(Option<Arc<Vec<SubBatch>>>);

impl SubBatches {
    /// Sorts `options` and removes those that save no memory over one with fewer sub-batches.
    pub fn new(options: impl IntoIterator<Item = SubBatch>) -> Self {
        let mut options: Vec<SubBatch> =
            options.into_iter().filter(|option| option.count > 1).collect();
        options.sort_by_key(|option| option.count);
        let mut kept: Vec<SubBatch> = Vec::with_capacity(options.len());
        for option in options {
            if kept
                .last()
                .is_none_or(|last| option.count > last.count && option.memory < last.memory)
            {
                kept.push(SubBatch { slowdown: option.slowdown.max(Ratio::ONE), ..option });
            }
        }
        Self((!kept.is_empty()).then(|| Arc::new(kept)))
    }

    /// In ascending order of sub-batches.
    pub fn as_slice(&self) -> &[SubBatch] {
        self.0.as_deref().map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_save_memory_are_kept_in_order() {
        let option =
            |count, memory| SubBatch { count, slowdown: Ratio::new(1, 2), memory: Memory(memory) };
        let options = SubBatches::new([
            option(8, 40),
            option(1, 99),
            option(2, 60),
            option(4, 60),
            option(2, 10),
        ]);
        let kept: Vec<(u32, Memory)> =
            options.as_slice().iter().map(|option| (option.count, option.memory)).collect();
        assert_eq!(kept, [(2, Memory(60)), (8, Memory(40))]);
        assert_eq!(options.as_slice()[0].slowdown, Ratio::ONE);
        assert_eq!(SubBatches::new([option(1, 5)]), SubBatches::default());
    }
}
