//! Preemption by rank: the highest-ranked jobs that the GPUs can hold run, the others wait.
//!
//! The GPUs of co-located jobs are one allocation: it is evicted as a whole, or not at all.

use super::pairing::partner;
use super::queue::Queue;
use std::collections::BTreeSet;
use tandem_core::{Draft, Job, JobId, Placement, Time};

/// Every job of the partition, pending or running, in ascending order of key; ties go to the job
/// submitted first.
pub fn rank_all<K: Copy + Ord>(
    queue: &Queue<K>,
    draft: &Draft<'_>,
    key: impl Fn(&Job, Time) -> K,
) -> Vec<JobId> {
    let now = draft.now();
    sort_by_rank(queue.iter().chain(draft.placed().map(|job| (key(job, now), job.id()))))
}

/// The jobs in ascending order of rank.
pub(super) fn sort_by_rank<R: Ord>(jobs: impl Iterator<Item = (R, JobId)>) -> Vec<JobId> {
    let mut ranked: Vec<(R, JobId)> = jobs.collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, job)| job).collect()
}

/// Runs the highest-ranked jobs on whole GPUs. `ranked` has all jobs of the partition, the highest
/// rank first.
///
/// A running job keeps its GPUs and a pending one takes free GPUs. If it does not fit, lower-ranked
/// jobs are evicted, the lowest rank first, until it does. A job that was evicted without need gets
/// its GPUs back. So a job is preempted only for a higher-ranked one that starts in its place, and no
/// GPU idles that a pending job could use.
pub fn run_highest(draft: &mut Draft<'_>, ranked: &[JobId]) {
    // GPUs that no higher-ranked job holds: a larger gang need not even try. Where an earlier policy
    // has left co-located jobs, the jobs hold fewer GPUs than their gangs add up to.
    let held: u32 = draft.placed().map(|job| job.spec.gpus).sum();
    let busy = draft.up_count() - draft.free_count();
    let mut available = draft.up_count() + held.saturating_sub(busy);
    for (rank, &job) in ranked.iter().enumerate() {
        let gpus = draft.job(job).spec.gpus;
        if draft.placement(job).is_none() {
            let lower = &ranked[rank + 1..];
            let placed = gpus <= available
                && (draft.place_exclusive(job)
                    || evict_for(draft, job, lower.iter(), |other| lower.contains(&other)));
            if !placed {
                continue;
            }
        }
        available = available.saturating_sub(gpus);
    }
}

/// Admits the highest-ranked jobs up to the number of GPUs and makes room for those that wait.
///
/// A job beside an admitted one needs no GPUs of its own. An allocation is evicted only if none of its
/// tenants is admitted and an admitted job finds no other GPUs.
pub fn admit_highest(draft: &mut Draft<'_>, ranked: &[JobId]) {
    let mut available = draft.up_count();
    let mut admitted = BTreeSet::new();
    for &job in ranked {
        let shares = partner(draft, job).is_some_and(|other| admitted.contains(&other));
        let gpus = if shares { 0 } else { draft.job(job).spec.gpus };
        if gpus <= available {
            available -= gpus;
            admitted.insert(job);
        }
    }
    let is_victim = |job: &&JobId| draft.placement(**job).is_some() && !admitted.contains(*job);
    let victims: Vec<JobId> = ranked.iter().filter(is_victim).copied().collect();
    // A gang size for which no set of victims makes room finds none later: victims only become fewer.
    let mut too_large: Vec<u32> = Vec::new();
    for &job in ranked.iter().filter(|job| admitted.contains(job)) {
        let gpus = draft.job(job).spec.gpus;
        if draft.placement(job).is_some() || draft.place_exclusive(job) || too_large.contains(&gpus)
        {
            continue;
        }
        let placed = evict_for(draft, job, victims.iter(), |other| !admitted.contains(&other));
        if !placed && draft.fits_every_gpu(job) {
            too_large.push(gpus);
        }
    }
}

/// Running jobs that the plan so far preempts.
pub fn evicted_jobs(draft: &Draft<'_>) -> Vec<JobId> {
    draft.placed().map(Job::id).filter(|&job| draft.placement(job).is_none()).collect()
}

/// Places `job` on whole GPUs by evicting `victims`, the last one first. A victim that shares its GPUs is
/// evicted together with its partner, if `may_evict` that. What was evicted without need gets its GPUs
/// back; `false` and no change if `job` fits nowhere.
fn evict_for<'a>(
    draft: &mut Draft<'_>,
    job: JobId,
    victims: impl DoubleEndedIterator<Item = &'a JobId>,
    may_evict: impl Fn(JobId) -> bool,
) -> bool {
    let mut evicted: Vec<(JobId, Placement)> = Vec::new();
    let mut placed = false;
    for &victim in victims.rev() {
        if draft.placement(victim).is_none() {
            continue;
        }
        let partner = partner(draft, victim);
        let allocation = [Some(victim), partner];
        let stays = |&job: &JobId| !is_preemptible(draft, job);
        if partner.is_some_and(|other| !may_evict(other)) || allocation.iter().flatten().any(stays)
        {
            continue;
        }
        for tenant in allocation.into_iter().flatten() {
            let placement = draft.placement(tenant).expect("a tenant has GPUs").clone();
            evicted.push((tenant, placement));
            draft.drop(tenant);
        }
        placed = draft.place_exclusive(job);
        if placed {
            break;
        }
    }
    for (tenant, placement) in evicted.into_iter().rev() {
        if placement.gpus.iter().all(|&gpu| !draft.tenants(gpu).contains(&job)) {
            draft.place(tenant, placement);
        }
    }
    placed
}

/// Whether a plan may take GPUs from a job: it can be stopped, or has them only under this plan.
fn is_preemptible(draft: &Draft<'_>, job: JobId) -> bool {
    let job = draft.job(job);
    job.spec.stoppable || job.placement().is_none()
}

#[cfg(test)]
mod tests {
    use crate::testing::{run as run_checked, times, workload};

    /// Start and end of every job, and the number of preemptions.
    fn run(policy: &str, cluster: &str, rows: &str) -> (Vec<(f64, f64)>, u64) {
        let workload = workload(cluster, "job_id,submit_s,gpus,duration_s", rows);
        let run = run_checked(&workload, policy);
        (times(&run), run.metrics.preemptions)
    }

    #[test]
    fn a_short_gang_runs_although_long_jobs_run_on_both_nodes() {
        let rows = "B,0,4,1000000\nF,0,4,5\nC,0,4,1000000\nA,10,8,10\n";
        for policy in ["srtf", "srsf"] {
            // C moves to the free half of the other node and pays the restore.
            let (times, preemptions) = run(policy, "2x8", rows);
            assert_eq!(times[3], (10.0, 20.0), "{policy}");
            assert_eq!((times[2].1, preemptions), (1_000_040.0, 1), "{policy}");
        }
        // The long ones are demoted after 18,000 GPU-seconds, at 4,500 s.
        let (times, _) = run("tiresias", "2x8", rows);
        assert_eq!(times[3], (4500.0, 4510.0));
    }

    #[test]
    fn gpus_do_not_idle_for_a_gang_that_does_not_fit_them() {
        let rows = "B,0,5,1000\nC,0,5,1000\nA,10,6,2000\nD,60,1,5000\n";
        for policy in ["srtf", "tiresias"] {
            let (times, preemptions) = run(policy, "2x8", rows);
            assert_eq!((times[2].0, times[3].0, preemptions), (1000.0, 60.0, 0), "{policy}");
        }
    }

    #[test]
    fn no_job_is_preempted_without_need() {
        let rows = "P,0,2,1000\nF,0,3,5\nQ,0,3,1000\nL,0,1,100000\nA,10,4,3000\nX,20,1,50\n";
        let (times, preemptions) = run("srtf", "2x5", rows);
        assert_eq!((times[3], preemptions), ((0.0, 100_000.0), 0));
    }

    #[test]
    fn the_shorter_job_takes_the_gpus_of_the_longer_and_the_longer_pays_the_restore() {
        let (times, preemptions) = run("srtf", "1x1", "long,0,1,100\nshort,10,1,20\n");
        assert_eq!((times, preemptions), (vec![(0.0, 160.0), (10.0, 30.0)], 1));
    }
}
