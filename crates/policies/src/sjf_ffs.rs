//! SJF-FFS (Luo et al., IWQoS 2024): shortest job first. A job that finds no whole GPUs takes the free
//! ones and shares the first GPUs that have the memory, at any slow-down.

use crate::Entry;
use crate::kit::{ACCUMULATE, CONSOLIDATE, ChooseHosts, Hosts, ScatterSharing, Slot, keyed};
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
    fn choose(&mut self, draft: &Draft<'_>, job: &Job, hosts: &Hosts, slots: &mut Vec<Slot>) {
        let free = slots.len();
        for host in hosts.all() {
            let option = host.sub_batch_options(draft, job, self.accumulate).next();
            if let Some(option) = option.filter(|_| host.rates(draft, job).is_some()) {
                let sub_batches = option.count;
                slots.extend(hosts.gpus(host).map(|gpu| Slot { gpu, sub_batches }));
            }
        }
        slots[free..].sort_unstable_by_key(|slot| slot.gpu);
    }
}
