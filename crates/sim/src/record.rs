//! What the report needs beyond the outcomes: who sat where when, and the state of the queue.

use tandem_core::{Gpus, JobId, Placement, Time};

/// One stay of a job on its GPUs.
#[derive(Clone, Debug)]
pub struct Stay {
    /// The job.
    pub job: JobId,
    /// From when.
    pub from: Time,
    /// Until when.
    pub to: Time,
    /// On which GPUs.
    pub gpus: Gpus,
    /// The parts in which it computed each batch.
    pub sub_batches: u32,
}

/// The state of the cluster from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSample {
    /// Since when.
    pub at: Time,
    /// Jobs that wait.
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

/// Writes the history of a run while it happens. Out of line, as everything is that most runs do without:
/// the event loop is short enough to stay in the cache of the processor.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Stays that have not ended, by job.
    open: std::collections::BTreeMap<JobId, (Time, Placement)>,
    pub(crate) record: RunHistory,
}

impl Recorder {
    #[cold]
    pub(crate) fn enter(&mut self, job: JobId, now: Time, placement: &Placement) {
        self.open.insert(job, (now, placement.clone()));
    }

    #[cold]
    pub(crate) fn leave(&mut self, job: JobId, now: Time) {
        if let Some((from, placement)) = self.open.remove(&job)
            && from < now
        {
            let Placement { gpus, sub_batches, .. } = placement;
            self.record.stays.push(Stay { job, from, to: now, gpus, sub_batches });
        }
    }

    /// Jobs that sit on GPUs at present.
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
