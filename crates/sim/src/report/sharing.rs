//! Which classes shared GPUs, sub-batches, and the cost of sharing.

use super::{cdf, seconds};
use crate::run::SimRun;
use crate::workload::Workload;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tandem_core::{ClassId, GpuId, JobId, Time};

const PAIRS_MAX: usize = 20;

#[derive(Serialize)]
pub(super) struct SharingSummary {
    /// Classes of two tenants and their shared GPU-seconds, the most first.
    pairs: Vec<(String, String, f64)>,
    /// Number of pairs of classes; `pairs` may list fewer.
    all_pairs: usize,
    /// Shared GPU-seconds of all pairs.
    all_gpu_s: f64,
    /// Jobs by their largest number of sub-batches.
    sub_batches: Vec<(u32, usize)>,
    /// Distribution of time on GPUs ÷ solo duration, over the jobs that shared.
    slowdown: Vec<(f64, f64)>,
}

/// The sharing of a run; `None` if there was none, or no history.
pub(super) fn sharing(workload: &Workload, run: &SimRun) -> Option<SharingSummary> {
    let stays = &run.record.as_ref()?.stays;
    let times = shared_times(workload, run);
    if times.is_empty() {
        return None;
    }
    let mut on_gpus = vec![0_u64; workload.len()];
    let mut parts = vec![0_u32; workload.len()];
    for stay in stays {
        let job = stay.job.index();
        on_gpus[job] += stay.to.since(stay.from).0;
        parts[job] = parts[job].max(stay.sub_batches);
    }
    let mut sub_batches: BTreeMap<u32, usize> = BTreeMap::new();
    for count in parts.into_iter().filter(|&count| count > 0) {
        *sub_batches.entry(count).or_default() += 1;
    }
    let shared = (0..workload.len()).filter(|&job| run.outcomes[job].shared.0 > 0);
    let slowdown = |job: usize| on_gpus[job] as f64 / workload.jobs[job].duration.0 as f64;

    let name = |class: Option<ClassId>| match class {
        Some(class) => workload.trace.classes.get(class.0).to_string(),
        None => "no class".to_owned(),
    };
    let mut most: Vec<(ClassPair, u64)> = times.into_iter().collect();
    most.sort_by_key(|&(classes, time)| (Reverse(time), classes));
    let pair = |&([a, b], time): &(ClassPair, u64)| (name(a), name(b), seconds(time));
    Some(SharingSummary {
        all_pairs: most.len(),
        all_gpu_s: most.iter().map(|(_, time)| seconds(*time)).sum(),
        pairs: most.iter().take(PAIRS_MAX).map(pair).collect(),
        sub_batches: sub_batches.into_iter().collect(),
        slowdown: cdf(shared.map(slowdown).collect()),
    })
}

/// An unordered pair of classes, the lower one first.
type ClassPair = [Option<ClassId>; 2];

/// GPU-microseconds during which jobs of two classes shared a GPU.
fn shared_times(workload: &Workload, run: &SimRun) -> BTreeMap<ClassPair, u64> {
    // At equal times, jobs leave before others start.
    let mut changes: Vec<(GpuId, Time, bool, JobId)> = Vec::new();
    for stay in run.record.iter().flat_map(|record| &record.stays) {
        for &gpu in stay.gpus.iter() {
            changes.push((gpu, stay.from, true, stay.job));
            changes.push((gpu, stay.to, false, stay.job));
        }
    }
    changes.sort_unstable();
    let class = |job: JobId| workload.spec(job).profile.class;
    let mut times = BTreeMap::new();
    let mut present: Vec<JobId> = Vec::new();
    let mut since = Time::default();
    for (_, now, enters, job) in changes {
        let span = if present.is_empty() { 0 } else { now.since(since).0 };
        if span > 0 {
            for (at, &one) in present.iter().enumerate() {
                for &other in &present[at + 1..] {
                    let mut classes = [class(one), class(other)];
                    classes.sort_unstable();
                    *times.entry(classes).or_default() += span;
                }
            }
        }
        since = now;
        match enters {
            true => present.push(job),
            false => present.retain(|&tenant| tenant != job),
        }
    }
    times
}
