//! SJF-FFS (Luo et al., IWQoS 2024): shortest job first; a job that finds no whole GPUs takes what is
//! free and shares the first GPUs beside whose tenants it fits, whatever that costs.

use crate::hosts::Hosts;
use crate::registry::Entry;
use crate::sharing::{CONSOLIDATE, Choose, Sharing};
use tandem_core::{Draft, GpuId, Job};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-ffs",
    summary: "shortest job first, sharing the first GPUs that have memory left",
    params: &[CONSOLIDATE],
    tenants_max: 2,
    build: |settings| Box::new(Sharing::new(FirstFit, settings.flag(CONSOLIDATE.name))),
};

struct FirstFit;

impl Choose for FirstFit {
    fn choose(&mut self, draft: &Draft<'_>, guest: &Job, hosts: &Hosts, gpus: &mut Vec<GpuId>) {
        let free = gpus.len();
        for host in hosts.all().iter().filter(|host| host.rates(draft, guest).is_some()) {
            gpus.extend(hosts.gpus(host));
        }
        gpus[free..].sort_unstable();
    }
}
