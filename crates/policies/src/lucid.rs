//! Lucid (ASPLOS'23): shortest job first without preemption. A job that finds no whole GPUs joins the first
//! host of equal gang size if the two together are light enough. The load of each job alone decides that, not
//! measured pairs.
//!
//! From the paper: packing of equal gangs by a sharing score of each (indolent packing). By
//! parameters also the rest of its published code: jobs ranked by duration × GPUs (`order=service`), a guest
//! that is at most twice as long as its host (`binder=time-aware`), and no packing while few jobs come
//! (`busy_jobs=2`; the paper predicts the next hour, here the last one counts).
//!
//! Ours: the thresholds of the score, and whole GPUs before sharing. Left out: the profiler, whose task is to
//! find utilisations, which traces state and the daemon measures.

use crate::Entry;
use crate::kit::{Host, Hosts, KeyedPolicy, Next, Queue, keyed};
use crate::spec::{PolicyParam, Value};
use tandem_core::{Draft, Job, Placement, Profile, Reason, Span, Time, Utilisation, Work};

const ORDER: PolicyParam = PolicyParam {
    name: "order",
    default: Value::Choice { word: "time", of: &["time", "service"] },
    help: "rank jobs by remaining time, or by remaining time x GPUs",
};
const BINDER: PolicyParam = PolicyParam {
    name: "binder",
    default: Value::Choice { word: "first", of: &["first", "time-aware"] },
    help: "join any host, or only one at least half as long",
};
const BUSY_JOBS: PolicyParam = PolicyParam {
    name: "busy_jobs",
    default: Value::Whole(0),
    help: "share only if more jobs than this were submitted in the last hour",
};
/// The period of `busy_jobs`.
const HOUR: Span = Span::from_secs(3600);

pub(crate) const ENTRY: Entry = Entry {
    name: "lucid",
    summary: "shortest job first, pairing gangs of equal size by a score of each",
    params: &[ORDER, BINDER, BUSY_JOBS],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        keyed(Lucid {
            hosts: Hosts::default(),
            by_service: settings.choice(ORDER.name) == "service",
            binder: Binder { is_time_aware: settings.choice(BINDER.name) == "time-aware" },
            busy_jobs: settings.whole(BUSY_JOBS.name),
            ended: Vec::new(),
        })
    },
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
    by_service: bool,
    binder: Binder,
    busy_jobs: u64,
    /// Submissions of jobs that have ended, within the last hour.
    ended: Vec<Time>,
}

impl Lucid {
    /// Whether enough jobs were submitted in the last hour for sharing to be worthwhile.
    fn is_busy(&mut self, queue: &Queue<Work>, draft: &Draft<'_>) -> bool {
        if self.busy_jobs == 0 {
            return true;
        }
        let now = draft.now();
        let is_recent = |submit: Time| now.since(submit) <= HOUR;
        self.ended.retain(|&submit| is_recent(submit));
        let pending = queue.iter().map(|(_, job)| draft.job(job));
        let here = pending.chain(draft.placed()).filter(|job| is_recent(job.spec.submit)).count();
        (here + self.ended.len()) as u64 > self.busy_jobs
    }
}

impl KeyedPolicy for Lucid {
    type Key = Work;

    fn key(&self, job: &Job, now: Time) -> Work {
        let gpus = if self.by_service { job.spec.gpus } else { 1 };
        Work(job.remaining(now).0 * u128::from(gpus))
    }

    fn job_ended(&mut self, job: &Job, _: Time) {
        if self.busy_jobs > 0 {
            self.ended.push(job.spec.submit);
        }
    }

    fn plan(&mut self, queue: &mut Queue<Work>, draft: &mut Draft<'_>) {
        let is_busy = self.is_busy(queue, draft);
        let Self { hosts, binder, .. } = self;
        hosts.forget();
        queue.walk(|job, size| {
            if draft.place_exclusive(job) {
                hosts.forget();
                return Next::Job;
            }
            if !is_busy || size > GPUS_MAX || size > draft.single_tenant_count() {
                return Next::after_no_room(draft, job);
            }
            hosts.read(draft);
            let pending = draft.job(job);
            let accepts = |host: &&Host| binder.accepts(draft, host, pending);
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

/// Chooses hosts.
struct Binder {
    is_time_aware: bool,
}

impl Binder {
    /// Whether `host` shares none of its GPUs yet and may share all of them with `job`.
    fn accepts(&self, draft: &Draft<'_>, host: &Host, job: &Job) -> bool {
        let tenant = &draft.job(host.job).spec;
        let scores = score(&tenant.profile).zip(score(&job.spec.profile));
        // Twice the remaining time of the host is what it states.
        let is_short = || job.remaining(draft.now()) <= host.twice_remaining;
        tenant.gpus == job.spec.gpus
            && host.gpu_count() == job.spec.gpus as usize
            && scores.is_some_and(|(one, other)| one + other <= SCORE_MAX)
            && (!self.is_time_aware || is_short())
            && host.sub_batch_options(draft, job, false).next().is_some()
            && host.rates(draft, job).is_some()
    }
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

    #[test]
    fn the_time_aware_binder_keeps_long_jobs_from_short_hosts() {
        // At 1 s the host has 99 s left: a guest of 198 s may join, one of 199 s may not.
        let start = |seconds: u32| {
            let rows = format!("a,0,1,100,50,\nb,1,1,{seconds},50,\n");
            simulate("lucid:binder=time-aware", "1x1", &rows)[1].0
        };
        assert_eq!((start(198), start(199)), (1.0, 100.0));
    }

    #[test]
    fn jobs_share_only_if_enough_were_submitted_in_the_last_hour() {
        let rows = "a,0,1,8000,50,\nb,1,1,10,50,\nc,2,1,20,50,\nd,7300,1,10,50,\n";
        let times = simulate("lucid:busy_jobs=2", "1x1", rows);
        // With the third submission b may join; at 7,300 s d is the only one of the last hour.
        assert_eq!((times[1].0, times[3].0), (2.0, 8000.0), "{times:?}");
    }

    #[test]
    fn jobs_are_ranked_by_time_or_by_service() {
        let rows = "x,0,2,50,100,\nwide,1,2,60,100,\nthin,2,1,100,100,\n";
        let starts = |policy: &str| {
            let times = simulate(policy, "1x2", rows);
            (times[1].0, times[2].0)
        };
        assert_eq!(starts("lucid"), (50.0, 110.0));
        // 60 s on two GPUs are 120 s of service.
        assert_eq!(starts("lucid:order=service"), (150.0, 50.0));
    }
}
