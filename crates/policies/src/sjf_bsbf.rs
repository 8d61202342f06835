//! SJF-BSBF (Luo et al., IWQoS 2024), best sharing benefit first: shortest job first; a job that finds
//! no whole GPUs takes what is free and shares GPUs of those residents with whom sharing now is
//! better than waiting for them to end.

use crate::hosts::Hosts;
use crate::pair::Pair;
use crate::registry::Entry;
use crate::sharing::{CONSOLIDATE, Choose, Sharing};
use crate::spec::{Param, Value};
use tandem_core::{Draft, GpuId, Job};

const ORDER: Param = Param {
    name: "order",
    default: Value::Choice { word: "tcon", of: &["tcon", "benefit"] },
    help: "residents by mean finish time of the pair, or by what sharing gains over waiting",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-bsbf",
    summary: "shortest job first, sharing with residents where that beats waiting for them",
    params: &[ORDER, CONSOLIDATE],
    tenants_max: 2,
    build: |settings| {
        let by_benefit = settings.choice(ORDER.name) == "benefit";
        let choose = BestBenefit { by_benefit, willing: Vec::new() };
        Box::new(Sharing::new(choose, settings.flag(CONSOLIDATE.name)))
    },
};

struct BestBenefit {
    by_benefit: bool,
    /// Hosts that pass the test, by position; kept for its allocation.
    willing: Vec<(Pair, usize)>,
}

impl Choose for BestBenefit {
    fn choose(&mut self, draft: &Draft<'_>, guest: &Job, hosts: &Hosts, gpus: &mut Vec<GpuId>) {
        let now = draft.now();
        let twice_guest = guest.twice_remaining(now);
        let mut found = gpus.len();
        self.willing.clear();
        for (index, host) in hosts.all().iter().enumerate() {
            let Some((of_guest, of_host)) = host.rates(draft, guest) else { continue };
            let twice_host = draft.job(host.job).twice_remaining(now);
            let pair = Pair::new(twice_guest, twice_host, of_guest, of_host);
            if pair.pays() {
                self.willing.push((pair, index));
                found += host.gpu_count();
            }
        }
        if found < guest.spec.gpus as usize {
            return;
        }
        // Hosts are in order of submission, which breaks ties.
        if self.by_benefit {
            self.willing.sort_by_key(|(share, _)| std::cmp::Reverse(share.benefit()));
        } else {
            self.willing.sort_by_key(|(pair, _)| pair.together);
        }
        for &(_, index) in &self.willing {
            gpus.extend(hosts.gpus(&hosts.all()[index]));
        }
    }
}
