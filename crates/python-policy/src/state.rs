//! The state of a partition as the process is told it: which jobs wait, by difference, and which run.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use tandem_core::{Draft, Job, JobId, Time, Tolerance, Work};

/// What has changed since the last plan.
#[derive(Default)]
pub(crate) struct Changes {
    enqueued: BTreeSet<JobId>,
    dequeued: BTreeSet<JobId>,
}

impl Changes {
    pub(crate) fn enqueue(&mut self, job: JobId) {
        self.enqueued.insert(job);
    }

    pub(crate) fn dequeue(&mut self, job: JobId) {
        // A job that was not reported yet needs no report.
        if !self.enqueued.remove(&job) {
            self.dequeued.insert(job);
        }
    }

    /// The state for the next plan.
    pub(crate) fn take(&mut self, draft: &Draft<'_>) -> Value {
        let now = draft.now();
        let waiting: Vec<Value> = std::mem::take(&mut self.enqueued)
            .into_iter()
            .filter_map(|job| Some(describe(draft.find(job)?, now)))
            .collect();
        let gone: Vec<u32> = std::mem::take(&mut self.dequeued).into_iter().map(number).collect();
        let running: Vec<Value> = draft.placed().map(|job| running(draft, job, now)).collect();
        json!({
            "now": seconds(now.0),
            "free": draft.free_count(),
            "gpus": draft.up_count(),
            "waiting": waiting,
            "gone": gone,
            "running": running,
        })
    }
}

pub(crate) fn number(job: JobId) -> u32 {
    job.0
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn work_seconds(work: Work) -> f64 {
    work.0 as f64 / 1e12
}

/// A waiting job.
fn describe(job: &Job, now: Time) -> Value {
    let spec = &job.spec;
    json!({
        "id": number(job.id()),
        "gpus": spec.gpus,
        "submit_s": seconds(spec.submit.0),
        "estimate_s": seconds(spec.estimate.0),
        "remaining_s": work_seconds(job.remaining(now)),
        "attained_s": seconds(job.attained(now).0),
        "memory_mib": spec.profile.memory.0 as f64 / 1e3,
        "gpu_util": spec.profile.gpu_util.map(|util| util.share() * 100.0),
        "priority": spec.priority,
        "user": spec.user.0,
        "exclusive": spec.tolerance == Tolerance::Alone,
        "stoppable": spec.stoppable,
    })
}

/// A running job: what changes while it runs, and its co-located jobs. The rest is known from when it waited.
fn running(draft: &Draft<'_>, job: &Job, now: Time) -> Value {
    let beside: BTreeSet<u32> = job
        .placement()
        .iter()
        .flat_map(|placement| placement.gpus.iter())
        .flat_map(|&gpu| draft.tenants(gpu))
        .map(|&tenant| number(tenant))
        .filter(|&tenant| tenant != number(job.id()))
        .collect();
    json!([
        number(job.id()),
        work_seconds(job.remaining(now)),
        seconds(job.attained(now).0),
        beside,
    ])
}
