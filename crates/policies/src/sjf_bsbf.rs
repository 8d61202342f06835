//! SJF-BSBF (Luo et al., IWQoS 2024), best sharing benefit first: shortest job first; a job that finds
//! no whole GPUs takes what is free and shares GPUs of those residents with whom sharing now is
//! better than waiting for them to end.

use crate::hosts::{Host, Hosts};
use crate::pair::Finish;
use crate::registry::Entry;
use crate::sharing::{ACCUMULATE, CONSOLIDATE, Choose, Seat, Sharing};
use crate::spec::{Param, Value};
use std::cmp::Reverse;
use tandem_core::{Draft, Job, Work};

const ORDER: Param = Param {
    name: "order",
    default: Value::Choice { word: "tcon", of: &["tcon", "benefit"] },
    help: "residents by mean finish time of the pair, or by what sharing gains over waiting",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "sjf-bsbf",
    summary: "shortest job first, sharing with residents where that beats waiting for them",
    params: &[ACCUMULATE, ORDER, CONSOLIDATE],
    tenants_max: 2,
    build: |settings| {
        let choose = BestBenefit {
            accumulate: settings.flag(ACCUMULATE.name),
            by_benefit: settings.choice(ORDER.name) == "benefit",
            offers: Vec::new(),
        };
        Box::new(Sharing::new(choose, settings))
    },
};

struct BestBenefit {
    accumulate: bool,
    by_benefit: bool,
    /// Of hosts, by position; kept for its allocation.
    offers: Vec<(Offer, usize)>,
}

/// Sharing with a host where that pays.
#[derive(Clone, Copy)]
struct Offer {
    /// Mean finish time of the two.
    together: Finish,
    /// What that gains over waiting for the host to end.
    benefit: Finish,
    /// The parts in which the guest computes its batches.
    sub_batches: u32,
}

impl BestBenefit {
    /// The best way to share with `host`, if sharing beats waiting; equality is not sharing.
    fn offer(
        &self,
        draft: &Draft<'_>,
        guest: &Job,
        twice_left: Work,
        host: &Host,
    ) -> Option<Offer> {
        let mut ways = host.ways(draft, guest, self.accumulate).peekable();
        ways.peek()?;
        let (of_guest, of_host) = host.rates(draft, guest)?;
        let (together, sub_batches) = ways
            .map(|way| {
                let guest = (twice_left.times(way.slowdown), of_guest);
                (Finish::together(guest, (host.twice_left, of_host)), way.count)
            })
            .min()?;
        let in_turn = Finish::in_turn(twice_left, host.twice_left);
        (together < in_turn).then(|| Offer {
            together,
            benefit: in_turn.since(together),
            sub_batches,
        })
    }
}

impl Choose for BestBenefit {
    fn choose(&mut self, draft: &Draft<'_>, guest: &Job, hosts: &Hosts, seats: &mut Vec<Seat>) {
        let twice_left = guest.twice_remaining(draft.now());
        let mut found = seats.len();
        self.offers.clear();
        for (index, host) in hosts.all().iter().enumerate() {
            if let Some(offer) = self.offer(draft, guest, twice_left, host) {
                self.offers.push((offer, index));
                found += host.gpu_count();
            }
        }
        if found < guest.spec.gpus as usize {
            return;
        }
        // The sort is stable and hosts are in order of submission, which breaks ties.
        if self.by_benefit {
            self.offers.sort_by_key(|(offer, _)| Reverse(offer.benefit));
        } else {
            self.offers.sort_by_key(|(offer, _)| offer.together);
        }
        for &(Offer { sub_batches, .. }, index) in &self.offers {
            let gpus = hosts.gpus(&hosts.all()[index]);
            seats.extend(gpus.map(|gpu| Seat { gpu, sub_batches }));
        }
    }
}
