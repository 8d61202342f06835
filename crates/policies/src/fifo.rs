//! First in, first out, on whole GPUs.

use crate::queue::Queue;
use crate::registry::Entry;
use crate::spec::{Param, Value};
use tandem_core::{Draft, Job, Policy};

pub(crate) const ENTRY: Entry = Entry {
    name: "fifo",
    summary: "first in, first out; stops at the first job that does not fit",
    params: &[BACKFILL],
    tenants_max: 1,
    build: |settings| {
        Box::new(Fifo { backfill: settings.flag(BACKFILL.name), queue: Queue::default() })
    },
};

/// Shared with the other policy that walks its queue in order.
pub(crate) const BACKFILL: Param = Param {
    name: "backfill",
    default: Value::Flag(false),
    help: "pass a job that does not fit instead of stopping there",
};

struct Fifo {
    backfill: bool,
    /// Ids are given in order of submission, so the id is order enough.
    queue: Queue<()>,
}

impl Policy for Fifo {
    fn enqueue(&mut self, job: &Job) {
        self.queue.insert((), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove((), job.id(), job.spec.gpus);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        self.queue.place_in_order(draft, self.backfill);
    }
}
