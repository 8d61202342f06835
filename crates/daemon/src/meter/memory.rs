//! Peak memory of a run, once it is steady.

use super::{FEW_STEPS, FEW_STEPS_S, JobMeter, MeterOptions};
use crate::scheduler::{Active, Fact, Phase};
use tandem_backends::RunSample;
use tandem_core::Time;

/// Relative growth of memory below this is ignored.
const GROWTH_MIN: f64 = 0.02;

/// Peak memory, and since when it has not grown.
#[derive(Debug, Default)]
pub(super) struct MemoryPlateau {
    peak: u64,
    /// The peak with any number of sub-batches.
    highest: u64,
    since: u64,
    at_steps: u64,
    reported: u64,
    /// The number of sub-batches to which it belongs.
    accum: u32,
    /// It counts from this step on.
    ignores_until: u64,
}

impl MemoryPlateau {
    pub(super) fn highest(&self) -> u64 {
        self.highest
    }
}

impl JobMeter {
    pub(super) fn memory(
        &mut self,
        run: &RunSample,
        active: &Active,
        options: &MeterOptions,
        now: Time,
    ) -> Option<Fact> {
        let (steps, accum) = (self.steps, self.accum.max(1));
        let memory = &mut self.memory;
        if active.phase != Phase::Running {
            memory.since = now.0;
            return None;
        }
        memory.highest = memory.highest.max(run.memory_bytes);
        if memory.accum != accum {
            // With other sub-batches it needs more or less.
            let highest = memory.highest;
            let is_first = memory.accum == 0;
            *memory = MemoryPlateau { accum, highest, ..MemoryPlateau::default() };
            memory.ignores_until = if is_first { 0 } else { steps + FEW_STEPS };
        }
        if steps < memory.ignores_until {
            // What it took before may not have been given back yet.
            return None;
        }
        if run.memory_bytes as f64 > memory.peak as f64 * (1.0 + GROWTH_MIN) {
            (memory.peak, memory.since, memory.at_steps) = (run.memory_bytes, now.0, steps);
            return None;
        }
        let seconds = now.0.saturating_sub(memory.since) as f64 / 1e6;
        let steps = steps.saturating_sub(memory.at_steps);
        let is_settled = seconds >= options.settle_s
            || steps >= options.settle_steps
            || (steps >= FEW_STEPS && seconds >= FEW_STEPS_S);
        if !is_settled || memory.peak == 0 || memory.reported == memory.peak {
            return None;
        }
        memory.reported = memory.peak;
        Some(Fact::Memory { class: active.job.class.clone(), accum, bytes: memory.peak })
    }
}
