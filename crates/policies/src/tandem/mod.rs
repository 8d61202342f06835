//! Tandem's own policy: whoever finishes most per GPU-time runs, and whoever else can run beside
//! them at a profit does.
//!
//! Every job has a value, its urgency over its remaining time. At a review the jobs that wait are
//! tried in order of value per GPU: one takes free GPUs, or those of residents whose values add up to
//! less than its own (`room`). The rest may be guests: of gangs of their own size by a
//! minimum-weight matching (`pairs`), of any mixture of residents and free GPUs node by node
//! (`guests`). Between reviews GPUs that fall free go to whoever waits, and then to guests who are
//! better off alone (`partings`). What a moment of a job's progress is worth to everyone is in
//! `worth`, with what is special about `gangs`, and who slows whom in `rates` and `company`.

mod company;
mod fairness;
mod gangs;
mod guests;
mod pairs;
mod partings;
mod rates;
mod room;
mod usual;
mod worth;

use crate::queue::{Next, Queue};
use crate::registry::Entry;
use crate::reviews::{self, Reviews};
use crate::spec::{Param, Settings, Value};
use fairness::Fairness;
use tandem_core::{Draft, Job, JobId, Policy, Reason, Time};
use worth::{Ledger, rank};

const SLICE: Param = reviews::interval("slice_s", 60);
const FAIRNESS: Param = Param {
    name: "fairness",
    default: Value::Share(0),
    help: "0: the lowest mean completion time; 1: users with less GPU time behind them first",
};
const TENANTS: Param = Param {
    name: "tenants",
    default: Value::Whole(3),
    help: "how many jobs may sit on one GPU, at most 4",
};
const PREEMPT: Param = Param {
    name: "preempt",
    default: Value::Flag(true),
    help: "let jobs of more value take the GPUs of others",
};
const SHARE: Param =
    Param { name: "share", default: Value::Flag(true), help: "let jobs share GPUs" };
const MATCH: Param = Param {
    name: "match",
    default: Value::Flag(true),
    help: "pair gangs of equal size by minimum-weight matching",
};
const MIX: Param = Param {
    name: "mix",
    default: Value::Flag(true),
    help: "let a guest use residents of other sizes, several of them, and free GPUs together",
};
const PART: Param = Param {
    name: "part",
    default: Value::Flag(true),
    help: "part jobs that share when GPUs fall free or sharing turns out not to pay",
};
const ACCUMULATE: Param = Param {
    name: "accumulate",
    default: Value::Flag(true),
    help: "let a guest run in sub-batches where that makes it fit",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "tandem",
    summary: "most value per GPU first, sharing wherever everyone together gains from it",
    params: &[SLICE, FAIRNESS, TENANTS, PREEMPT, SHARE, MATCH, MIX, PART, ACCUMULATE],
    tenants_max: 4,
    build: |settings| Box::new(Tandem::new(settings)),
};

/// What a plan may do.
struct Rules {
    preempt: bool,
    share: bool,
    matching: bool,
    mix: bool,
    part: bool,
    accumulate: bool,
    tenants_max: usize,
}

struct Tandem {
    rules: Rules,
    reviews: Reviews,
    fairness: Fairness,
    ledger: Ledger,
    queue: Queue<u128>,
    /// Jobs that share, those with the most to gain from GPUs of their own first, as of the last review.
    sharing: Vec<JobId>,
    /// The last review, so that being asked twice at one instant does not make two of it.
    reviewed: Option<Time>,
    /// Where the search for seats begins; it goes round, so that no node is left out for ever.
    first_node: u32,
}

impl Tandem {
    fn new(settings: &Settings) -> Self {
        let tenants_max = settings.whole(TENANTS.name).clamp(1, 4);
        let rules = Rules {
            preempt: settings.flag(PREEMPT.name),
            share: settings.flag(SHARE.name) && tenants_max > 1,
            matching: settings.flag(MATCH.name),
            mix: settings.flag(MIX.name),
            part: settings.flag(PART.name),
            accumulate: settings.flag(ACCUMULATE.name),
            tenants_max: usize::try_from(tenants_max).expect("at most four"),
        };
        Self {
            rules,
            reviews: Reviews::every(settings.whole(SLICE.name)),
            fairness: Fairness::new(settings.share(FAIRNESS.name)),
            ledger: Ledger::default(),
            queue: Queue::default(),
            sharing: Vec::new(),
            reviewed: None,
            first_node: 0,
        }
    }
}

impl Policy for Tandem {
    fn enqueue(&mut self, job: &Job) {
        self.queue.insert(rank(job), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(rank(job), job.id(), job.spec.gpus);
    }

    fn job_ended(&mut self, job: &Job, now: Time) {
        self.fairness.add(job, now);
        self.ledger.close(job, now);
    }

    fn wants_jobs_ended_elsewhere(&self) -> bool {
        true
    }

    fn job_ended_elsewhere(&mut self, job: &Job, now: Time) {
        self.ledger.hear(job, now);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        let now = draft.now();
        if self.queue.is_empty() && self.sharing.is_empty() {
            return;
        }
        let reviews = self.reviews.is_at(now) && self.reviewed != Some(now);
        let changed = if reviews {
            self.reviewed = Some(now);
            self.review(draft)
        } else {
            self.fill(draft);
            partings::part_to_free(draft, &self.ledger, &self.sharing);
            true
        };
        draft.explain_others(Reason::Outranked);
        // Nothing more can come of a review that changed nothing before something else happens.
        if changed {
            draft.wake_at(self.reviews.after(now));
        }
    }
}

impl Tandem {
    /// Gives whole GPUs to whoever finds some, in order.
    fn fill(&mut self, draft: &mut Draft<'_>) {
        if draft.free_count() == 0 {
            return;
        }
        self.queue.walk(|job, _| match draft.place_exclusive(job) {
            true => Next::Job,
            false => Next::after_no_room(draft, job),
        });
    }

    /// Weighs everything again; `false` if all stays as it is.
    fn review(&mut self, draft: &mut Draft<'_>) -> bool {
        let Self { rules, ledger, .. } = self;
        ledger.read(draft, self.queue.iter().map(|(_, job)| job), &mut self.fairness);
        let mut changed = false;
        if rules.share && rules.part {
            ledger.price(draft);
            changed |= partings::part_losers(draft, ledger);
        }
        changed |= room::place_most_valuable(draft, ledger, rules.preempt);
        if rules.share {
            ledger.price(draft);
            if rules.part && draft.free_count() > 0 {
                changed |= partings::part_to_free(
                    draft,
                    ledger,
                    &partings::sharing_by_saving(draft, ledger),
                );
            }
            if rules.matching {
                changed |= pairs::pair_equals(draft, ledger, rules);
            }
            if rules.mix {
                changed |= guests::seat(draft, ledger, rules, &mut self.first_node);
            }
            if rules.part {
                self.sharing = partings::sharing_by_saving(draft, ledger);
                changed |= partings::part_to_free(draft, ledger, &self.sharing);
            }
        }
        changed
    }
}
