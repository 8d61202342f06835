//! Shortest job first, by estimated solo duration, on whole GPUs, without preemption.

use crate::Entry;
use crate::kit::{BACKFILL, KeyedPolicy, Queue, keyed, place_in_order};
use tandem_core::{Draft, Job, Span, Time};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf",
    summary: "shortest job first; stops at the first job that does not fit",
    params: &[BACKFILL],
    tuning: &[],
    tenants_max: 1,
    build: |settings| keyed(Sjf { backfill: settings.flag(BACKFILL.name) }),
};

struct Sjf {
    backfill: bool,
}

impl KeyedPolicy for Sjf {
    type Key = Span;

    fn key(&self, job: &Job, _: Time) -> Span {
        job.spec.estimate
    }

    fn plan(&mut self, queue: &mut Queue<Span>, draft: &mut Draft<'_>) {
        place_in_order(queue, draft, self.backfill);
    }
}
