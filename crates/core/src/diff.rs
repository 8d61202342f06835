//! Turns a plan and the present into the actions that lead from one to the other. A plan that
//! repeats the present gives none.

use crate::action::Action;
use crate::job::JobId;
use crate::plan::{Change, Placement, Plan};
use crate::state::State;

/// The actions for a legal plan: first those that free GPUs, then those that need them.
pub(crate) fn diff(state: &State, plan: &Plan, actions: &mut Vec<Action>) {
    for (job, change) in plan.changes() {
        if *change == Change::Drop {
            actions.push(Action::Stop { job: *job });
        }
    }
    for (job, change) in plan.changes() {
        if let Change::Place(placement) = change {
            actions.extend(seat(state, *job, placement));
        }
    }
}

fn seat(state: &State, job: JobId, wanted: &Placement) -> Option<Action> {
    let known = state.job(job);
    let placement = wanted.clone();
    match known.placement() {
        None => Some(Action::Start { job, placement, restore: known.must_restore }),
        Some(present) if present.gpus != wanted.gpus => Some(Action::Move { job, placement }),
        Some(present) if present.paused == wanted.paused => None,
        Some(_) if wanted.paused => Some(Action::Pause { job }),
        Some(_) => Some(Action::Resume { job }),
    }
}
