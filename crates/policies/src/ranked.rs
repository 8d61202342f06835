//! The common step of the preemptive policies: the highest-ranked jobs that the GPUs can hold run,
//! the others wait.

use tandem_core::{Draft, JobId, Reason};

/// Re-plans a partition for `ranked`, all its jobs with the most deserving first.
///
/// Walking down the ranks, a job is admitted if its gang fits into the GPUs not yet promised to
/// those above it. Placed jobs that were not admitted leave; admitted jobs that wait are placed in
/// order. Where the gaps are too scattered for them, those that were to leave stay where they are:
/// nobody is preempted for nothing.
pub(crate) fn run_highest(draft: &mut Draft<'_>, ranked: &[JobId]) {
    let mut unpromised = draft.up_count();
    let mut leaving = Vec::new();
    let mut entering = Vec::new();
    for &job in ranked {
        let gpus = draft.job(job).spec.gpus;
        let placed = draft.placement(job).is_some();
        if gpus <= unpromised {
            unpromised -= gpus;
            if !placed {
                entering.push(job);
            }
        } else if placed {
            leaving.push(job);
        }
    }
    if entering.is_empty() {
        draft.explain_others(Reason::Outranked);
        return;
    }
    let left: Vec<_> = leaving
        .into_iter()
        .map(|job| {
            let placement = draft.placement(job).expect("only placed jobs leave").clone();
            draft.drop(job);
            (job, placement)
        })
        .collect();
    for job in entering {
        if !draft.place_alone(job) {
            draft.explain(job, Reason::NoRoom { free: draft.free_count() });
        }
    }
    for (job, placement) in left {
        let still_free = placement.gpus.iter().all(|&gpu| draft.tenants(gpu).is_empty());
        if still_free {
            draft.place(job, placement);
        }
    }
    draft.explain_others(Reason::Outranked);
}
