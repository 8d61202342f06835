//! Our reading of Lucid (ASPLOS'23): shortest job first without preemption. A job that finds no whole
//! GPUs joins the first host of equal gang size if the two together are light enough. The load of each
//! job alone decides that, not measured pairs.

use crate::Entry;
use crate::kit::{Host, Hosts, KeyedPolicy, Next, Queue, keyed};
use tandem_core::{Draft, Job, Placement, Profile, Reason, Time, Utilisation, Work};

pub(crate) const ENTRY: Entry = Entry {
    name: "lucid",
    summary: "shortest job first, pairing gangs of equal size by a score of each",
    params: &[],
    tuning: &[],
    tenants_max: 2,
    build: |_| keyed(Lucid { hosts: Hosts::default() }),
};

/// Larger gangs do not share.
const GPUS_MAX: u32 = 8;
/// The most that the scores of a pair may add up to.
const SCORE_MAX: u32 = 2;
/// Below the first a job is tiny, 0; below the second it is light, 1; above it is heavy, 2.
const LIGHT: Utilisation = Utilisation(25_000);
const HEAVY: Utilisation = Utilisation(60_000);

/// The load of a job on its GPUs; `None` if its utilisation is unknown: then it does not share.
fn score(profile: &Profile) -> Option<u32> {
    let used = profile.gpu_util?;
    Some(u32::from(used >= LIGHT) + u32::from(used >= HEAVY))
}

struct Lucid {
    /// Kept between plans for its allocations.
    hosts: Hosts,
}

impl KeyedPolicy for Lucid {
    type Key = Work;

    fn key(&self, job: &Job, now: Time) -> Work {
        job.remaining(now)
    }

    fn plan(&mut self, queue: &mut Queue<Work>, draft: &mut Draft<'_>) {
        let hosts = &mut self.hosts;
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
            let pending = draft.job(job);
            let accepts = |host: &&Host| accepts(draft, host, pending);
            let accepting = hosts.all().iter().filter(accepts);
            let first = accepting.min_by_key(|host| hosts.gpus(host).next());
            if let Some(placement) = first.map(|host| Placement::on(hosts.gpus(host))) {
                draft.place(job, placement);
                hosts.forget();
            }
            Next::Job
        });
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

/// Whether `host` shares none of its GPUs yet and may share all of them with `job`.
fn accepts(draft: &Draft<'_>, host: &Host, job: &Job) -> bool {
    let tenant = &draft.job(host.job).spec;
    let scores = score(&tenant.profile).zip(score(&job.spec.profile));
    tenant.gpus == job.spec.gpus
        && host.gpu_count() == job.spec.gpus as usize
        && scores.is_some_and(|(one, other)| one + other <= SCORE_MAX)
        && host.sub_batch_options(draft, job, false).next().is_some()
        && host.rates(draft, job).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::simulate;

    #[test]
    fn scores_follow_utilisation() {
        let of = |gpu_util| score(&Profile { gpu_util, ..Profile::default() });
        let percent = |percent: u32| of(Some(Utilisation(percent * 1000)));
        assert_eq!([0, 24, 25, 59, 60, 100].map(percent), [0, 0, 1, 1, 2, 2].map(Some));
        assert_eq!(of(None), None);
    }

    #[test]
    fn lucid_joins_gangs_of_equal_size_whose_scores_allow_it() {
        let second_of = |rows: &str| simulate("lucid", "1x2", rows)[1];
        // 50 % and 50 % are light; they take the same GPUs and leave each other alone.
        assert_eq!(second_of("a,0,2,100,50,\nb,1,2,10,50,\n"), (1.0, 11.0));
        for (why, rows) in [
            ("another gang size", "a,0,2,100,50,\nb,1,1,10,50,\n"),
            ("heavy and light", "a,0,2,100,60,\nb,1,2,10,30,\n"),
            ("unknown", "a,0,2,100,,\nb,1,2,10,10,\n"),
            ("memory", "a,0,2,100,10,14000\nb,1,2,10,10,14000\n"),
        ] {
            assert_eq!(second_of(rows), (100.0, 110.0), "{why}");
        }
        // A tiny one may join a heavy one; the third finds both GPUs shared.
        let three = simulate("lucid", "1x2", "a,0,2,100,60,\nb,1,2,10,20,\nc,2,2,50,20,\n");
        assert_eq!(three[1..], [(1.0, 11.0), (11.0, 61.0)]);
    }
}
