//! First in, first out, on whole GPUs.

use crate::Entry;
use crate::kit::{BACKFILL, KeyedPolicy, Queue, keyed, place_in_order};
use tandem_core::{Draft, Job, Time};

pub(crate) const ENTRY: Entry = Entry {
    name: "fifo",
    summary: "first in, first out; stops at the first job that does not fit",
    params: &[BACKFILL],
    tuning: &[],
    tenants_max: 1,
    build: |settings| keyed(Fifo { backfill: settings.flag(BACKFILL.name) }),
};

struct Fifo {
    backfill: bool,
}

impl KeyedPolicy for Fifo {
    /// Job ids are in order of submission, and ties of keys go to the smaller id.
    type Key = ();

    fn key(&self, _: &Job, _: Time) {}

    fn plan(&mut self, queue: &mut Queue<()>, draft: &mut Draft<'_>) {
        place_in_order(queue, draft, self.backfill);
    }
}
