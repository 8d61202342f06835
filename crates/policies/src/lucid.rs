//! Our reading of Lucid (ASPLOS'23): shortest job first without preemption; a job that finds no whole
//! GPUs joins the first job of equal gang size that has its GPUs to itself, if the two together are
//! light enough. Whether they are is judged by each alone, not by measured pairs.

use crate::hosts::{Host, Hosts};
use crate::queue::{Next, Queue};
use crate::registry::Entry;
use tandem_core::{Draft, Job, Placement, Policy, Profile, Reason, Time, Utilisation, Work};

pub(crate) const ENTRY: Entry = Entry {
    name: "lucid",
    summary: "shortest job first, pairing gangs of equal size by a score of each",
    params: &[],
    tenants_max: 2,
    build: |_| Box::new(Lucid { queue: Queue::default(), hosts: Hosts::default() }),
};

/// Larger gangs do not share.
const GPUS_MAX: u32 = 8;
/// Scores of a pair add up to this at most.
const SCORE_MAX: u32 = 2;
/// Below the first a job is tiny, 0; below the second it is light, 1; above it is heavy, 2.
const LIGHT: Utilisation = Utilisation(25_000);
const HEAVY: Utilisation = Utilisation(60_000);

/// How much of a GPU a job wants; `None` if nothing is known, and then it does not share.
fn score(profile: &Profile) -> Option<u32> {
    let wanted = profile.gpu_util?;
    Some(u32::from(wanted >= LIGHT) + u32::from(wanted >= HEAVY))
}

struct Lucid {
    queue: Queue<Work>,
    /// Kept from pass to pass for its allocations.
    hosts: Hosts,
}

impl Policy for Lucid {
    fn enqueue(&mut self, job: &Job) {
        // What remains stands still while a job waits, so any instant will do.
        self.queue.insert(job.remaining(Time(0)), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(job.remaining(Time(0)), job.id(), job.spec.gpus);
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        let Self { queue, hosts } = self;
        hosts.forget();
        queue.walk(|job, size| {
            if draft.place_exclusive(job) {
                hosts.forget();
                return Next::Job;
            }
            if size > GPUS_MAX || size > draft.single_tenant_count() {
                return Next::after_no_room(draft, job);
            }
            hosts.read(draft);
            let guest = draft.job(job);
            let takes = |host: &&Host| takes(draft, host, guest);
            let first = hosts.all().iter().filter(takes).min_by_key(|host| hosts.gpus(host).next());
            if let Some(placement) = first.map(|host| Placement::on(hosts.gpus(host))) {
                draft.place(job, placement);
                hosts.forget();
            }
            Next::Job
        });
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

/// Whether `host` has no guest anywhere and `guest` is one for it.
fn takes(draft: &Draft<'_>, host: &Host, guest: &Job) -> bool {
    let resident = &draft.job(host.job).spec;
    let scores = score(&resident.profile).zip(score(&guest.spec.profile));
    resident.gpus == guest.spec.gpus
        && host.gpu_count() == guest.spec.gpus as usize
        && scores.is_some_and(|(one, other)| one + other <= SCORE_MAX)
        && host.ways(draft, guest, false).next().is_some()
        && host.rates(draft, guest).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_follow_utilisation() {
        let of = |gpu_util| score(&Profile { gpu_util, ..Profile::default() });
        let percent = |percent: u32| of(Some(Utilisation(percent * 1000)));
        assert_eq!([0, 24, 25, 59, 60, 100].map(percent), [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(of(None), None);
    }
}
