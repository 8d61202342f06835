//! Guests for gangs of their own size: who joins whom is a minimum-weight matching.

use super::Rules;
use super::guests::{gain, way_on};
use super::rates::{slowed, times};
use super::worth::Ledger;
use crate::hosts::lone_by_size;
use std::collections::BTreeMap;
use tandem_core::{Draft, Job, JobId, PPM_ONE, Placement, SubBatch};
use tandem_matching::{Sparse, assign};

/// Of each gang size, this many that are first in line are considered at a time.
const GUESTS_MAX: usize = 64;
/// And this many hosts, beginning with those who have most left: they are hosts for longest.
const HOSTS_MAX: usize = 1024;

/// Gives guests to hosts where that gains most; `false` if nowhere.
pub(super) fn pair_equals(draft: &mut Draft<'_>, ledger: &Ledger, rules: &Rules) -> bool {
    let mut hosts = lone_by_size(draft);
    hosts.retain(|_, hosts| !hosts.is_empty());
    for hosts in hosts.values_mut() {
        if hosts.len() > HOSTS_MAX {
            hosts.sort_by_key(|&host| (std::cmp::Reverse(ledger.of(host).left_ms), host));
            hosts.truncate(HOSTS_MAX);
        }
    }
    let mut guests: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
    for &guest in ledger.waiting() {
        let size = ledger.of(guest).gpus;
        if hosts.contains_key(&size) {
            let guests = guests.entry(size).or_default();
            if guests.len() < GUESTS_MAX {
                guests.push(guest);
            }
        }
    }
    let mut changed = false;
    for (size, guests) in guests {
        changed |= pair(draft, ledger, rules, &guests, &hosts[&size]);
    }
    changed
}

fn pair(
    draft: &mut Draft<'_>,
    ledger: &Ledger,
    rules: &Rules,
    guests: &[JobId],
    hosts: &[JobId],
) -> bool {
    let own_columns = (0_u32..).skip(hosts.len());
    let row = |(&guest, own): (&JobId, u32)| {
        let cell = |(column, &host): (u32, &JobId)| {
            let gain = gain_of_pair(draft, ledger, rules, guest, host)?;
            Some((column, -gain))
        };
        // A column of its own to go on waiting in.
        (0..).zip(hosts).filter_map(cell).chain([(own, 0)]).collect::<Vec<_>>()
    };
    let rows = guests.iter().zip(own_columns).map(row);
    let costs = Sparse::from_rows(hosts.len() + guests.len(), rows);
    let costs = costs.expect("gains are bounded, columns ascend");
    let mut changed = false;
    for (guest, column) in assign(&costs).pairs {
        let Some(&host) = hosts.get(column as usize) else { continue };
        let guest = guests[guest as usize];
        let way = way_beside(draft, rules, draft.job(guest), host).expect("it was offered");
        let gpus = draft.placement(host).expect("a host is placed").gpus.clone();
        let on = Placement::on(gpus.iter().copied());
        draft.place(guest, Placement { sub_batches: way.count, ..on });
        changed = true;
    }
    changed
}

/// What everyone together gains if `guest` joins `host` on all its GPUs; `None` if that is nothing.
fn gain_of_pair(
    draft: &Draft<'_>,
    ledger: &Ledger,
    rules: &Rules,
    guest: JobId,
    host: JobId,
) -> Option<i64> {
    let way = way_beside(draft, rules, draft.job(guest), host)?;
    let kind = draft.cluster().gpu(*draft.placement(host)?.gpus.first()?).kind;
    let (of_guest, of_host) = draft.pair_rates(draft.job(guest), draft.job(host), kind)?;
    let rate = slowed(i64::from(of_guest.0), way.slowdown).max(1);
    let host_rate = i64::from(of_host.0).max(1);
    let cost = times((i64::from(PPM_ONE) - host_rate).max(0), ledger.of(host).delay());
    let host_end_ms = ledger.of(host).left_ms.saturating_mul(i64::from(PPM_ONE)) / host_rate;
    let gain = gain(draft.job(guest), ledger.of(guest), rate, cost, host_end_ms);
    (gain > 0).then_some(gain)
}

/// The way to run `guest` in the memory that `host` leaves on each of its GPUs, if nobody else is there.
fn way_beside(draft: &Draft<'_>, rules: &Rules, guest: &Job, host: JobId) -> Option<SubBatch> {
    let gpus = &draft.placement(host)?.gpus;
    let alone = gpus.iter().all(|&gpu| draft.tenants(gpu).len() == 1);
    way_on(draft, rules, guest, gpus).filter(|_| alone)
}
