//! Nobody starves: jobs that have been passed over for too long go first.
//!
//! A job is overdue when the time that it has spent without GPUs exceeds `patience` times the longer of its
//! estimate and the p99 of the JCTs so far. Overdue jobs go before all others and are never preempted.
//! They are served in order of submission, on at most half of the GPUs, or on as many as the first of
//! them needs: under overload nearly every job waits long, and the rule must not become first in, first
//! out.

use super::jct_history::JctSummary;
use tandem_core::{Job, JobId, Span, Time};

/// Stands for the p99 until a job has ended.
const FIRST_P99: Span = Span::from_secs(24 * 3600);

/// When jobs are overdue.
pub(super) struct Overdue {
    pub(super) patience: u64,
    pub(super) jcts: Option<JctSummary>,
    pub(super) now: Time,
}

impl Overdue {
    /// The overdue jobs that go first in a partition of `gpus` GPUs.
    pub(super) fn first<'a>(&self, jobs: impl Iterator<Item = &'a Job>, gpus: u32) -> Vec<JobId> {
        let mut overdue: Vec<(JobId, u32)> = jobs
            .filter(|job| self.patience > 0 && self.is_overdue(job))
            .map(|job| (job.id(), job.spec.gpus))
            .collect();
        overdue.sort_unstable();
        let mut held = 0;
        overdue.retain(|&(_, wanted)| {
            let goes_first = held == 0 || held + wanted <= gpus / 2;
            held += if goes_first { wanted } else { 0 };
            goes_first
        });
        overdue.into_iter().map(|(job, _)| job).collect()
    }

    fn is_overdue(&self, job: &Job) -> bool {
        let on_gpus = job.attained(self.now).0 / u64::from(job.spec.gpus.max(1));
        let passed_over = self.now.since(job.spec.submit).0.saturating_sub(on_gpus);
        let p99 = self.jcts.map_or(FIRST_P99.0, |jcts| {
            u64::try_from(jcts.p99_ms.saturating_mul(1000)).unwrap_or(u64::MAX)
        });
        passed_over > self.patience.saturating_mul(p99.max(job.spec.estimate.0))
    }
}
