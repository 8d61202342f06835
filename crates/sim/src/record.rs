//! The history of a run for the report: placements over time and the state of the queue.

use tandem_core::{Gpus, JobId, Placement, Time};

/// One placement of a job over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The job.
    pub job: JobId,
    /// Its start.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// Its GPUs.
    pub gpus: Gpus,
    /// Sub-batches per batch.
    pub sub_batches: u32,
}

/// The state of the cluster from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSample {
    /// The time.
    pub at: Time,
    /// Waiting jobs.
    pub waiting: u32,
    /// GPUs with at least one tenant.
    pub busy: u32,
    /// GPUs with at least two.
    pub shared: u32,
}

/// The history of a run.
#[derive(Clone, Debug, Default)]
pub struct RunHistory {
    /// In order of their end.
    pub stays: Vec<Stay>,
    /// In order of time.
    pub samples: Vec<QueueSample>,
}

/// Records the history of a run. Not inlined, like everything that most runs do not need: the event loop has
/// to fit into the instruction cache.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Placements that have not ended, by job.
    open: std::collections::BTreeMap<JobId, (Time, Placement)>,
    pub(crate) record: RunHistory,
}

impl Recorder {
    #[cold]
    pub(crate) fn place(&mut self, job: JobId, now: Time, placement: &Placement) {
        self.open.insert(job, (now, placement.clone()));
    }

    #[cold]
    pub(crate) fn remove(&mut self, job: JobId, now: Time) {
        if let Some((from, placement)) = self.open.remove(&job)
            && from < now
        {
            let Placement { gpus, sub_batches, .. } = placement;
            self.record.stays.push(Stay { job, from, to: now, gpus, sub_batches });
        }
    }

    /// All placements; those that have not ended by `now` end there.
    pub(crate) fn stays_until(mut self, now: Time) -> Vec<Stay> {
        let open: Vec<JobId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|job| self.remove(job, now));
        self.record.stays
    }

    /// Jobs that are placed now.
    pub(crate) fn placed(&self) -> usize {
        self.open.len()
    }

    #[cold]
    pub(crate) fn sample(&mut self, sample: QueueSample) {
        let samples = &mut self.record.samples;
        match samples.last_mut() {
            Some(last) if last.at == sample.at => *last = sample,
            Some(last) if QueueSample { at: sample.at, ..*last } == sample => {}
            _ => samples.push(sample),
        }
    }
}
