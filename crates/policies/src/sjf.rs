//! Shortest job first, by estimated solo duration, on whole GPUs, without preemption.

use crate::fifo::BACKFILL;
use crate::queue::Queue;
use crate::registry::Entry;
use tandem_core::{Draft, Job, Policy, Span};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf",
    summary: "shortest job first; stops at the first job that does not fit",
    params: &[BACKFILL],
    tenants_max: 1,
    build: |settings| {
        Box::new(Sjf { backfill: settings.flag(BACKFILL.name), queue: Queue::default() })
    },
};

struct Sjf {
    backfill: bool,
    queue: Queue<Span>,
}

impl Policy for Sjf {
    fn enqueue(&mut self, job: &Job) {
        self.queue.insert(job.spec.estimate, job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(job.spec.estimate, job.id(), job.spec.gpus);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        self.queue.place_in_order(draft, self.backfill);
    }
}
