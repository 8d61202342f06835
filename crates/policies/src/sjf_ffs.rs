//! SJF-FFS (Luo et al., IWQoS 2024): shortest job first; a job that finds no whole GPUs takes what is
//! free and shares the first GPUs beside whose tenants it fits, whatever that costs.

use crate::hosts::Hosts;
use crate::registry::Entry;
use crate::sharing::{ACCUMULATE, CONSOLIDATE, Choose, Seat, Sharing};
use tandem_core::{Draft, Job};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-ffs",
    summary: "shortest job first, sharing the first GPUs that have memory left",
    params: &[ACCUMULATE, CONSOLIDATE],
    tenants_max: 2,
    build: |settings| {
        let choose = FirstFit { accumulate: settings.flag(ACCUMULATE.name) };
        Box::new(Sharing::new(choose, settings))
    },
};

struct FirstFit {
    accumulate: bool,
}

impl Choose for FirstFit {
    fn choose(&mut self, draft: &Draft<'_>, guest: &Job, hosts: &Hosts, seats: &mut Vec<Seat>) {
        let free = seats.len();
        for host in hosts.all() {
            let way = host.ways(draft, guest, self.accumulate).next();
            if let Some(way) = way.filter(|_| host.rates(draft, guest).is_some()) {
                let sub_batches = way.count;
                seats.extend(hosts.gpus(host).map(|gpu| Seat { gpu, sub_batches }));
            }
        }
        seats[free..].sort_unstable_by_key(|seat| seat.gpu);
    }
}
