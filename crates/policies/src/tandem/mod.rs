//! Tandem's own policy: the jobs with the most value per GPU run, and others run beside them where all
//! together gain.
//!
//! The value of a job is its weight over its remaining time (`value`). At a review
//!
//! 1. co-located jobs that lose by sharing are separated (`unshare`);
//! 2. pending jobs, in order of value per GPU, take free GPUs or preempt jobs whose values add up to less
//!    (`preemption`);
//! 3. jobs that still wait share with hosts of any size and use free GPUs together with theirs, node by
//!    node (`mixed_sharing`);
//! 4. co-located jobs move to GPUs that are still free if that saves time (`unshare`);
//! 5. pairs that stand are matched anew, on a general graph (`kit::repair`).
//!
//! Between reviews, GPUs that fall free go to pending jobs and then to co-located ones. A driver that has
//! learned something about sharing may request steps 1, 3 and 4 at once.

mod colocation;
mod fairness;
mod gang_weight;
mod jct_history;
mod mixed_sharing;
mod overdue;
mod preemption;
mod rates;
mod sharing_gain;
#[cfg(test)]
mod tests;
mod tuning;
mod unshare;
mod value;

use crate::Entry;
use crate::kit::{
    ACCUMULATE, KeyedPolicy, Queue, RepairRule, Reviews, backfill, interval, keyed, repair,
};
use crate::spec::{PolicyParam, Settings, Value};
use fairness::Fairness;
use mixed_sharing::share_mixed;
use preemption::place_by_value;
use tandem_core::{BudgetMode, Draft, Job, JobId, Reason, Time};
use tuning::{TUNING, Tuning};
use unshare::{colocated_by_saving, unshare_losing, unshare_onto_free_gpus};
use value::{JobValues, is_settled, queue_key};

const SLICE: PolicyParam = interval("slice_s", 60);
const FAIRNESS: PolicyParam = PolicyParam {
    name: "fairness",
    default: Value::Share(0),
    help: "0: the lowest mean completion time; 1: users with less GPU time behind them first",
};
const TENANTS: PolicyParam = PolicyParam {
    name: "tenants",
    default: Value::Whole(3),
    help: "the most jobs on one GPU, up to 4",
};
const PATIENCE: PolicyParam = PolicyParam {
    name: "patience",
    default: Value::Whole(16),
    help: "a job that has waited this many times its estimate and the p99 JCT goes first; 0: never",
};
const PREEMPT: PolicyParam = PolicyParam {
    name: "preempt",
    default: Value::Flag(true),
    help: "let jobs of more value take the GPUs of others",
};
const SHARE: PolicyParam =
    PolicyParam { name: "share", default: Value::Flag(true), help: "let jobs share GPUs" };
const MIX: PolicyParam = PolicyParam {
    name: "mix",
    default: Value::Flag(true),
    help: "let a gang share with several hosts of any size, and use free GPUs together with theirs",
};
const PART: PolicyParam = PolicyParam {
    name: "part",
    default: Value::Flag(true),
    help: "end sharing when GPUs fall free or sharing turns out not to pay",
};

const BUDGETS: PolicyParam = PolicyParam {
    name: "budgets",
    default: Value::Choice { word: "competitive", of: &["off", "strict", "competitive"] },
    help: "how the parts of a GPU are capped to keep promises: never, adding up to it, or competing",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "tandem",
    summary: "most value per GPU first, sharing wherever all jobs together gain from it",
    params: &[SLICE, FAIRNESS, PATIENCE, TENANTS, PREEMPT, SHARE, MIX, PART, ACCUMULATE, BUDGETS],
    tuning: TUNING,
    tenants_max: TENANTS_MAX,
    build: |settings| keyed(Tandem::new(settings)),
};

/// What three tenants do to each other is a product of pair rates, an assumption that grows with more.
const TENANTS_MAX: usize = 4;

/// The parts of the policy that are switched on.
struct Parts {
    preempt: bool,
    share: bool,
    mix: bool,
    unshare: bool,
    accumulate: bool,
    budgets: BudgetMode,
    tenants_max: usize,
    patience: u64,
}

struct Tandem {
    parts: Parts,
    tuning: Tuning,
    reviews: Reviews,
    fairness: Fairness,
    values: JobValues,
    /// Co-located jobs, the largest saving by GPUs of their own first, as of the last review.
    colocated: Vec<JobId>,
    /// Where the search of [`share_mixed`] begins; it goes round, so that every node has its turn.
    first_node: u32,
}

/// What the steps of a review read.
struct Review<'a> {
    parts: &'a Parts,
    tuning: &'a Tuning,
    values: &'a JobValues,
}

impl RepairRule for Review<'_> {
    fn delay_cost(&self, job: JobId) -> i64 {
        self.values.of(job).delay_cost
    }

    fn may_move(&self, draft: &Draft<'_>, job: &Job) -> bool {
        job.placement().is_some() && is_settled(job, draft.now(), self.tuning)
    }

    fn horizon_ms(&self) -> i64 {
        self.tuning.share_horizon_ms
    }
}

impl Tandem {
    fn new(settings: &Settings) -> Self {
        let tenants_max = usize::try_from(settings.whole(TENANTS.name)).unwrap_or(TENANTS_MAX);
        let tenants_max = tenants_max.clamp(1, TENANTS_MAX);
        let tuning = Tuning::new(settings);
        let parts = Parts {
            preempt: settings.flag(PREEMPT.name),
            share: settings.flag(SHARE.name) && tenants_max > 1,
            mix: settings.flag(MIX.name),
            unshare: settings.flag(PART.name),
            accumulate: settings.flag(ACCUMULATE.name),
            budgets: match settings.choice(BUDGETS.name) {
                "strict" => BudgetMode::Strict,
                "competitive" => BudgetMode::Competitive,
                _ => BudgetMode::Off,
            },
            tenants_max,
            patience: settings.whole(PATIENCE.name),
        };
        Self {
            parts,
            reviews: Reviews::every(settings.whole(SLICE.name)),
            fairness: Fairness::new(settings.share(FAIRNESS.name), &tuning),
            tuning,
            values: JobValues::default(),
            colocated: Vec::new(),
            first_node: 0,
        }
    }
}

impl KeyedPolicy for Tandem {
    type Key = u128;

    fn key(&self, job: &Job, now: Time) -> u128 {
        queue_key(job, now)
    }

    fn job_ended(&mut self, job: &Job, now: Time) {
        self.fairness.add(job, now);
        self.values.remove(job, now);
    }

    fn plan(&mut self, queue: &mut Queue<u128>, draft: &mut Draft<'_>) {
        let now = draft.now();
        draft.set_budgets(self.parts.budgets);
        if queue.is_empty() && self.colocated.is_empty() {
            // A job that ended may have been the one that others were capped for.
            draft.settle_budgets();
            return;
        }
        // Pairs are judged anew as soon as a belief about them moves.
        let changed = if self.reviews.begin(now) || draft.beliefs_moved() {
            self.review(queue, draft)
        } else if self.parts.share && draft.is_sharing_requested() {
            self.decide_sharing(queue, draft);
            true
        } else {
            backfill(queue, draft);
            unshare_onto_free_gpus(draft, &self.at_review(), &self.colocated);
            true
        };
        draft.settle_budgets();
        draft.explain_others(Reason::Outranked);
        // A review that changed nothing would change nothing again before the next event.
        if changed {
            draft.wake_at(self.reviews.after(now));
        }
    }
}

impl Tandem {
    fn at_review(&self) -> Review<'_> {
        Review { parts: &self.parts, tuning: &self.tuning, values: &self.values }
    }

    /// Plans for all jobs of the partition; `false` if nothing changes.
    fn review(&mut self, queue: &Queue<u128>, draft: &mut Draft<'_>) -> bool {
        let pending = queue.iter().map(|(_, job)| job);
        let patience = self.parts.patience;
        self.values.update(draft, pending, patience, &mut self.fairness, &self.tuning);
        let unshares = self.parts.share && self.parts.unshare;
        let mut changed = false;
        if unshares {
            self.values.update_delay_costs(draft, &self.tuning);
            changed |= unshare_losing(draft, &self.at_review());
        }
        changed |= place_by_value(draft, &self.at_review());
        // Whether the plan is still the one that was searched for jobs to move to free GPUs.
        let mut searched = false;
        if self.parts.share {
            self.values.update_delay_costs(draft, &self.tuning);
            if unshares && draft.free_count() > 0 {
                searched = !self.unshare(draft);
                changed |= !searched;
            }
            if self.parts.mix && self.share(draft) {
                (searched, changed) = (false, true);
            }
        }
        if unshares {
            changed |= !searched && self.unshare(draft);
            changed |= repair(draft, &self.at_review());
        }
        changed
    }

    /// Decides about sharing between two reviews, on request; nobody is preempted for a job of more value.
    fn decide_sharing(&mut self, queue: &mut Queue<u128>, draft: &mut Draft<'_>) {
        let pending = queue.iter().map(|(_, job)| job);
        let patience = self.parts.patience;
        self.values.update(draft, pending, patience, &mut self.fairness, &self.tuning);
        self.values.update_delay_costs(draft, &self.tuning);
        if self.parts.unshare {
            unshare_losing(draft, &self.at_review());
        }
        backfill(queue, draft);
        self.values.update_delay_costs(draft, &self.tuning);
        if self.parts.mix {
            self.share(draft);
        }
        self.unshare(draft);
    }

    /// Places jobs that still wait beside others.
    fn share(&mut self, draft: &mut Draft<'_>) -> bool {
        let mut first_node = self.first_node;
        let review = self.at_review();
        let shared = share_mixed(draft, &review, &mut first_node);
        self.first_node = first_node;
        shared
    }

    /// Moves co-located jobs to free GPUs where that saves time.
    fn unshare(&mut self, draft: &mut Draft<'_>) -> bool {
        self.colocated = colocated_by_saving(draft, &self.values);
        unshare_onto_free_gpus(draft, &self.at_review(), &self.colocated)
    }
}
