//! Turns a plan and the present into the actions that lead from one to the other. A plan that
//! repeats the present gives none.

use crate::action::Action;
use crate::job::JobId;
use crate::plan::{Change, Placement, Plan};
use crate::state::ClusterState;

/// The actions for a legal plan, which hands its placements over to them: first those that free
/// GPUs, then those that need them.
pub(crate) fn diff(state: &ClusterState, plan: &mut Plan, actions: &mut Vec<Action>) {
    for (job, change) in plan.changes() {
        if *change == Change::Drop {
            actions.push(Action::Stop { job: *job });
        }
    }
    for (job, change) in plan.drain() {
        if let Change::Place(placement) = change {
            actions.extend(seat(state, job, placement));
        }
    }
}

fn seat(state: &ClusterState, job: JobId, placement: Placement) -> Option<Action> {
    let known = state.job(job);
    match known.placement() {
        None => Some(Action::Start { job, placement, restore: known.must_restore }),
        // Another number of sub-batches takes a restart, even in the same place, and so does another
        // budget: a cap is read when a process starts.
        Some(present)
            if present.gpus != placement.gpus
                || present.sub_batches != placement.sub_batches
                || present.budget != placement.budget =>
        {
            Some(Action::Move { job, placement })
        }
        Some(present) if present.paused == placement.paused => None,
        Some(_) if placement.paused => Some(Action::Pause { job }),
        Some(_) => Some(Action::Resume { job }),
    }
}
