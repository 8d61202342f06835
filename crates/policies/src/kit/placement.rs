//! Whole GPUs for pending jobs, in order, without preemption.

use super::queue::{Next, Queue};
use crate::spec::{PolicyParam, Value};
use tandem_core::{Draft, JobId, Reason};

/// The parameter of policies that walk their queue in order.
pub const BACKFILL: PolicyParam = PolicyParam {
    name: "backfill",
    default: Value::Flag(false),
    help: "pass a job that does not fit instead of stopping there",
};

/// Gives whole GPUs to pending jobs in the order of their keys and says why the others wait. At a job
/// that does not fit it stops, or with `backfill` goes on with the next one.
pub fn place_in_order<K: Copy + Ord>(queue: &mut Queue<K>, draft: &mut Draft<'_>, backfill: bool) {
    let stopped_at = queue.walk(|job, _| match draft.place_exclusive(job) {
        true => Next::Job,
        false if backfill => Next::after_no_room(draft, job),
        false => Next::Stop,
    });
    let no_room = Reason::NoRoom { free: draft.free_count() };
    match stopped_at {
        Some(blocked) => {
            draft.explain(blocked, no_room);
            draft.explain_others(Reason::Behind(blocked));
        }
        None => draft.explain_others(no_room),
    }
}

/// Gives free GPUs to the pending jobs that fit, in the order of their keys.
pub fn backfill<K: Copy + Ord>(queue: &mut Queue<K>, draft: &mut Draft<'_>) {
    if draft.free_count() == 0 {
        return;
    }
    queue.walk(|job, _| match draft.place_exclusive(job) {
        true => Next::Job,
        false => Next::after_no_room(draft, job),
    });
}

/// Gives free GPUs to those of `jobs` that have none and fit, in the order given.
pub fn place_ranked(draft: &mut Draft<'_>, jobs: impl IntoIterator<Item = JobId>) {
    // Free GPUs only become fewer here, so a gang size that did not fit does not fit later.
    let mut too_large: Vec<u32> = Vec::new();
    for job in jobs {
        if draft.free_count() == 0 {
            return;
        }
        let gpus = draft.job(job).spec.gpus;
        if draft.placement(job).is_some() || too_large.contains(&gpus) {
            continue;
        }
        if !draft.place_exclusive(job) && draft.fits_every_gpu(job) {
            too_large.push(gpus);
        }
    }
}
