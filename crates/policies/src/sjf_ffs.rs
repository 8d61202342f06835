//! SJF-FFS (Luo et al., IWQoS 2024): shortest job first. A job that finds no whole GPUs takes the free
//! ones and shares the first GPUs that have the memory, at any slow-down.

use crate::Entry;
use crate::kit::{ACCUMULATE, CONSOLIDATE, ChooseHosts, Hosts, ScatterSharing, Seat, keyed};
use tandem_core::{Draft, Job};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-ffs",
    summary: "shortest job first, sharing the first GPUs that have memory left",
    params: &[ACCUMULATE, CONSOLIDATE],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        let choose = FirstFit { accumulate: settings.flag(ACCUMULATE.name) };
        keyed(ScatterSharing::new(choose, settings))
    },
};

struct FirstFit {
    accumulate: bool,
}

impl ChooseHosts for FirstFit {
    fn choose(&mut self, draft: &Draft<'_>, job: &Job, hosts: &Hosts, seats: &mut Vec<Seat>) {
        let free = seats.len();
        for host in hosts.all() {
            let way = host.ways(draft, job, self.accumulate).next();
            if let Some(way) = way.filter(|_| host.rates(draft, job).is_some()) {
                let sub_batches = way.count;
                seats.extend(hosts.gpus(host).map(|gpu| Seat { gpu, sub_batches }));
            }
        }
        seats[free..].sort_unstable_by_key(|seat| seat.gpu);
    }
}
