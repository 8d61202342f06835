//! Turns a plan and the current placements into actions. A plan that repeats the current placements gives
//! none.

use crate::action::Action;
use crate::job::JobId;
use crate::plan::{Change, Placement, Plan};
use crate::state::ClusterState;

/// The actions of a legal plan, which hands over its placements: first the actions that free GPUs, then those
/// that need them.
pub(crate) fn diff(state: &ClusterState, plan: &mut Plan, actions: &mut Vec<Action>) {
    for (job, change) in plan.changes() {
        if *change == Change::Drop {
            actions.push(Action::Stop { job: *job });
        }
    }
    for (job, change) in plan.drain() {
        if let Change::Place(placement) = change {
            actions.extend(action_for(state, job, placement));
        }
    }
}

/// Whether only the budget changes, where that is possible while a job runs.
fn is_live_change(state: &ClusterState, present: &Placement, next: &Placement) -> bool {
    state.rules().live_budgets
        && present.budget != next.budget
        && *present == Placement { budget: present.budget, ..next.clone() }
}

fn action_for(state: &ClusterState, job: JobId, placement: Placement) -> Option<Action> {
    let known = state.job(job);
    match known.placement() {
        None => Some(Action::Start { job, placement, restore: known.must_restore }),
        Some(present) if is_live_change(state, present, &placement) => {
            Some(Action::Budget { job, placement })
        }
        // Other sub-batches or another budget need a restart, even on the same GPUs: a process reads its cap
        // when it starts.
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
