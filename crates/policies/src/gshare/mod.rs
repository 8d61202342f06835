//! G-Share (Lin et al., 2026): time slices decide who runs, a minimum-weight matching who shares.
//!
//! An allocation is a set of GPUs with one or two tenants, both on all of it. At the end of a slice all
//! jobs are ranked by what remains of them, as many are admitted as the GPUs can hold, and an
//! allocation makes way if none of its tenants is admitted and an admitted job has no other place.
//! Between slices arrivals and completions only fill. Whoever still waits may become the guest of an
//! allocation of its size: which of whom is a matching that minimises the sum of predicted
//! completion times.

mod forecast;
mod waiting;

use crate::hosts::lone_by_size;
use crate::registry::Entry;
use crate::reviews::{self, Reviews};
use crate::spec::{Param, Value};
use forecast::{Forecast, together};
use std::collections::BTreeSet;
use tandem_core::{Draft, Job, JobId, Placement, Policy, Reason, Span, Time};
use tandem_matching::{Sparse, assign};
use waiting::Waiting;

const SLICE: Param = reviews::interval("slice_s", 600);
const AGE: Param = Param {
    name: "age_h",
    default: Value::Whole(24),
    help: "hours of waiting after which a job goes to the front",
};
const PRICE: Param = Param {
    name: "price_percent",
    default: Value::Whole(5),
    help: "price of GPU time that a pair withholds from the queue, in percent of the mean delay",
};
const SHARE: Param =
    Param { name: "share", default: Value::Flag(true), help: "false: slices without sharing" };

pub(crate) const ENTRY: Entry = Entry {
    name: "gshare",
    summary: "least remaining time in slices, guests by minimum-weight matching",
    params: &[SLICE, AGE, PRICE, SHARE],
    tenants_max: 2,
    build: |settings| {
        Box::new(GShare {
            reviews: Reviews::every(settings.whole(SLICE.name)),
            age: Span::from_secs(settings.whole(AGE.name).saturating_mul(3600)),
            price_percent: settings.whole(PRICE.name).min(1_000_000),
            shares: settings.flag(SHARE.name),
            waiting: Waiting::default(),
            reviewed: None,
        })
    },
};

/// Of each gang size, this many that are first in line are considered as guests at a time: enough for
/// every host there is in all but the largest partitions.
const GUESTS_MAX: usize = 64;

struct GShare {
    reviews: Reviews,
    age: Span,
    price_percent: u64,
    shares: bool,
    waiting: Waiting,
    /// The last review, so that being asked twice at one instant does not make two of it.
    reviewed: Option<Time>,
}

impl Policy for GShare {
    fn enqueue(&mut self, job: &Job) {
        self.waiting.insert(job, Time(0));
    }

    fn dequeue(&mut self, job: &Job) {
        self.waiting.remove(job, Time(0));
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let now = draft.now();
        let is_review = self.reviews.is_at(now) && self.reviewed != Some(now);
        let mut left = Vec::new();
        if is_review {
            self.reviewed = Some(now);
            self.part_pairs(draft);
            self.review(draft);
            let leaves = |job: &&Job| draft.placement(job.id()).is_none();
            left.extend(draft.placed().filter(leaves).map(Job::id));
        }
        // Whoever had to leave may find another place at once; the engine says if it waits in the end.
        left.iter().for_each(|&job| self.waiting.insert(draft.job(job), now));
        self.waiting.fill(draft, self.age);
        if self.shares {
            // Guests that have found a host wait no longer, which makes sharing cheaper for the rest.
            while self.seat_guests(draft) {}
        }
        left.iter().for_each(|&job| self.waiting.remove(draft.job(job), now));
        draft.explain_others(Reason::Outranked);
        draft.wake_at(self.reviews.after(now));
    }
}

impl GShare {
    /// Beliefs change: a pair that is no longer thought to gain anything is parted.
    fn part_pairs(&self, draft: &mut Draft<'_>) {
        let now = draft.now();
        let mut leavers = Vec::new();
        for host in draft.placed() {
            let Some(guest) = partner(draft, host.id()) else { continue };
            let guest = draft.job(guest);
            let key = |job: &Job| (job.remaining(now), job.id());
            // Seen from the one that stays, so that each pair is looked at once.
            if key(host) < key(guest) && together(draft, guest, host).is_none() {
                let leaver = [guest, host].into_iter().find(|job| job.spec.stoppable);
                leavers.extend(leaver.map(Job::id));
            }
        }
        leavers.into_iter().for_each(|job| draft.drop(job));
    }

    /// Admits the jobs with the least left until the GPUs are taken, and makes room for those.
    fn review(&self, draft: &mut Draft<'_>) {
        let ranked = self.waiting.ranked(draft, self.age);
        let mut left = draft.up_count();
        let mut admitted = BTreeSet::new();
        for &job in &ranked {
            let with_partner = partner(draft, job).is_some_and(|other| admitted.contains(&other));
            let gpus = if with_partner { 0 } else { draft.job(job).spec.gpus };
            if gpus <= left {
                left -= gpus;
                admitted.insert(job);
            }
        }
        let is_admitted = |job: &JobId| admitted.contains(job);
        for job in ranked.iter().filter(|job| is_admitted(job)) {
            if draft.placement(*job).is_none() && !draft.place_exclusive(*job) {
                make_room(draft, *job, &ranked, is_admitted);
            }
        }
    }

    /// Gives guests to hosts where that lowers the sum of completion times most; `false` if nowhere.
    fn seat_guests(&mut self, draft: &mut Draft<'_>) -> bool {
        let hosts = lone_by_size(draft);
        let has_hosts = |size: u32| hosts.contains_key(&size);
        let guests = self.waiting.first_by_size(draft, self.age, GUESTS_MAX, has_hosts);
        if guests.is_empty() {
            return false;
        }
        let (waiting, started) = self.waiting.ranked_waiting(draft, self.age);
        let forecast = Forecast::new(draft, &waiting, &started, self.price_percent);
        let mut seated = false;
        for (size, guests) in guests {
            let hosts = &hosts[&size];
            let own_columns = (0_u32..).skip(hosts.len());
            let row = |(guest, own): (&JobId, u32)| {
                let cell = |(column, host): (u32, &JobId)| {
                    Some((column, -forecast.gain(draft, *guest, *host)?))
                };
                let cells = (0..).zip(hosts).filter_map(cell);
                // A column of its own to go on waiting in.
                cells.chain([(own, 0)]).collect::<Vec<_>>()
            };
            let rows = guests.iter().zip(own_columns).map(row);
            let costs = Sparse::from_rows(hosts.len() + guests.len(), rows);
            let costs = costs.expect("gains are bounded, columns ascend");
            for (guest, column) in assign(&costs).pairs {
                let Some(host) = hosts.get(column as usize) else { continue };
                let gpus = draft.placement(*host).expect("a host is placed").gpus.clone();
                draft.place(guests[guest as usize], Placement::on(gpus.iter().copied()));
                seated = true;
            }
        }
        seated
    }
}

/// The other tenant of a job's allocation under the plan so far.
fn partner(draft: &Draft<'_>, job: JobId) -> Option<JobId> {
    let first = *draft.placement(job)?.gpus.first()?;
    draft.tenants(first).iter().copied().find(|&tenant| tenant != job)
}

/// Places `job` where allocations without an admitted tenant stand, the lowest ranks first; whoever
/// left for nothing stays after all.
fn make_room(
    draft: &mut Draft<'_>,
    job: JobId,
    ranked: &[JobId],
    is_admitted: impl Fn(&JobId) -> bool,
) {
    let mut left: Vec<Vec<(JobId, Placement)>> = Vec::new();
    for &victim in ranked.iter().rev() {
        let tenants: Vec<JobId> =
            [Some(victim), partner(draft, victim)].into_iter().flatten().collect();
        let stays = |job: &JobId| is_admitted(job) || !draft.job(*job).spec.stoppable;
        if draft.placement(victim).is_none() || tenants.iter().any(stays) {
            continue;
        }
        let placement = |&job: &JobId| (job, draft.placement(job).expect("is placed").clone());
        let allocation: Vec<_> = tenants.iter().map(placement).collect();
        tenants.iter().for_each(|&tenant| draft.drop(tenant));
        left.push(allocation);
        if draft.place_exclusive(job) {
            break;
        }
    }
    for (tenant, placement) in left.into_iter().rev().flatten() {
        if placement.gpus.iter().all(|&gpu| !draft.tenants(gpu).contains(&job)) {
            draft.place(tenant, placement);
        }
    }
}
