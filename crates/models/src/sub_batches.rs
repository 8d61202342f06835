//! The sub-batch options of a job, with which a policy can make it fit beside another.

use crate::memory::{MemoryFit, to_memory};
use crate::throughput::{Gang, Throughput};
use tandem_core::{Memory, Ratio, SubBatch};

/// The options to split a batch of `batch` examples per GPU into 1, 2, 4, … sub-batches, down to one example
/// each. The whole batch takes `whole`, the known memory of the job; no split takes more.
pub fn sub_batches(
    batch: u32,
    whole: Memory,
    gang: Gang,
    throughput: &Throughput,
    memory: &MemoryFit,
) -> Vec<SubBatch> {
    let counts = std::iter::successors(Some(1_u32), |count| count.checked_mul(2));
    counts
        .take_while(|&count| count <= batch.max(1))
        .map(|count| SubBatch {
            count,
            slowdown: Ratio::from_f64(throughput.price(batch.into(), count, gang)),
            memory: match count {
                1 => whole,
                // The largest sub-batch counts if the batch does not divide evenly.
                _ => to_memory(memory.safe_mib(batch.div_ceil(count).into())).min(whole),
            },
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throughput::Compute;

    #[test]
    fn more_sub_batches_are_slower_and_smaller() {
        let throughput = Throughput::alone(Compute { alpha: 0.1, beta: 0.01 });
        let memory = MemoryFit::fit(&[(8.0, 1800.0), (16.0, 2600.0)]).unwrap();
        let whole = Memory::from_mib(2500);
        let options = sub_batches(10, whole, Gang::ONE, &throughput, &memory);
        let shown: Vec<_> =
            options.iter().map(|o| (o.count, o.slowdown.ppm().0, o.memory.0 / 1000)).collect();
        assert_eq!(
            shown,
            [
                (1, 1_000_000, 2500),
                (2, 1_500_000, 1500),
                (4, 2_500_000, 1300),
                (8, 4_500_000, 1200)
            ]
        );
        assert_eq!(sub_batches(0, whole, Gang::ONE, &throughput, &memory).len(), 1);
    }
}
