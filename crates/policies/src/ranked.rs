//! The common step of the preemptive policies: the highest-ranked jobs that the GPUs can hold run,
//! the others wait.

use tandem_core::{Draft, JobId, Reason};

/// Re-plans a partition for `ranked`, all its jobs with the most deserving first.
///
/// Walking down the ranks, a job that sits stays, and one that waits takes whole GPUs. If it finds no
/// room, those of lower rank leave, the lowest first, until it does; whoever left for nothing stays
/// after all. So nobody is preempted unless somebody of higher rank starts in that place, and no
/// GPUs stay idle that a waiting job could use.
pub(crate) fn run_highest(draft: &mut Draft<'_>, ranked: &[JobId]) {
    // GPUs that nobody of higher rank holds: a larger gang need not even try.
    // Where jobs share that were there before, they hold fewer than they count for.
    let held: u32 = draft.placed().map(|job| job.spec.gpus).sum();
    let busy = draft.up_count() - draft.free_count();
    let mut left = draft.up_count() + held.saturating_sub(busy);
    for (rank, &job) in ranked.iter().enumerate() {
        let gpus = draft.job(job).spec.gpus;
        if draft.placement(job).is_none() {
            let placed = gpus <= left
                && (draft.place_exclusive(job) || place_instead(draft, job, &ranked[rank + 1..]));
            if !placed {
                continue;
            }
        }
        left = left.saturating_sub(gpus);
    }
    draft.explain_others(Reason::Outranked);
}

/// Whether a plan may take a job off its GPUs: it can be stopped, or sits there only under this plan.
fn may_leave(draft: &Draft<'_>, job: JobId) -> bool {
    let job = draft.job(job);
    job.spec.stoppable || job.placement().is_none()
}

/// Places `job` where some of `lower` sit, ranked like them; `false` and no change if it fits nowhere.
fn place_instead(draft: &mut Draft<'_>, job: JobId, lower: &[JobId]) -> bool {
    let mut left = Vec::new();
    let mut placed = false;
    for &victim in lower.iter().rev() {
        let Some(placement) = draft.placement(victim).cloned() else { continue };
        if !may_leave(draft, victim) {
            continue;
        }
        draft.drop(victim);
        left.push((victim, placement));
        placed = draft.place_exclusive(job);
        if placed {
            break;
        }
    }
    for (victim, placement) in left.into_iter().rev() {
        if placement.gpus.iter().all(|&gpu| draft.tenants(gpu).is_empty()) {
            draft.place(victim, placement);
        }
    }
    placed
}
