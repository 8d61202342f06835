//! Groups of several jobs of equal gang size on the same GPUs.

use crate::kit::restore_ms;
use tandem_core::{
    Draft, GpuId, GpuTypeId, Job, JobId, Memory, Placement, Ratio, SchedulingState, Time,
};

/// The believed rates of jobs that all run on the same GPUs, in the order given: those on the GPU type where
/// each is slowest, because groups are formed before their GPUs are known. `None` if they do not fit into memory
/// together or one of them does not tolerate it. One job alone has a rate of one.
pub fn group_rates(draft: &Draft<'_>, jobs: &[JobId]) -> Option<Vec<Ratio>> {
    let memory = |job: &JobId| draft.job(*job).spec.profile.memory + draft.rules().context;
    let needed = jobs.iter().map(memory).fold(Memory::default(), |sum, memory| sum + memory);
    if needed > draft.cluster().memory_min(draft.partition()) {
        return None;
    }
    let rate = |&job: &JobId| {
        if jobs.len() == 1 {
            return Some(Ratio::ONE);
        }
        let others = jobs.iter().filter(|&&other| other != job).map(|&other| draft.job(other));
        let types = (0..).map(GpuTypeId).take(draft.cluster().types().len());
        let mut slowest: Option<Ratio> = None;
        for kind in types {
            let rate = draft.rate_beside(draft.job(job), others.clone(), kind)?;
            slowest = Some(slowest.map_or(rate, |slowest| slowest.min(rate)));
        }
        slowest
    };
    jobs.iter().map(rate).collect()
}

/// Running jobs that a plan may stop or move. A job that is restoring is not one of them: where restores
/// take longer than the interval between reviews, jobs would restore for ever.
pub fn movable_jobs(draft: &Draft<'_>) -> Vec<JobId> {
    let now = draft.now();
    let movable = |job: &&Job| job.spec.stoppable && !is_restoring(job, now);
    draft.placed().filter(movable).map(Job::id).collect()
}

fn is_restoring(job: &Job, now: Time) -> bool {
    let SchedulingState::Placed { since, .. } = job.state else { return false };
    let restore_us = 1000 * restore_ms(job).unsigned_abs();
    job.must_restore && now.since(since).0 < restore_us
}

/// Places every group on GPUs of its own, with as few moves as it finds: a group stays where one of its
/// members runs. If that leaves a group without room, all are placed anew, the largest gangs first. None of
/// the jobs of `groups` has GPUs under the plan so far. Groups that find no room wait.
pub fn place_groups(draft: &mut Draft<'_>, groups: &[Vec<JobId>]) {
    let mut order: Vec<&Vec<JobId>> = groups.iter().filter(|group| !group.is_empty()).collect();
    // Stable: groups of one size stay in the order given.
    order.sort_by_key(|group| std::cmp::Reverse(draft.job(group[0]).spec.gpus));
    let mut homeless = Vec::new();
    for &group in &order {
        match group.iter().find_map(|&job| own_gpus(draft, job)) {
            Some(gpus) => place_all(draft, group, &gpus),
            None => homeless.push(group),
        }
    }
    let all_placed = homeless.iter().all(|group| place_group(draft, group));
    if all_placed {
        return;
    }
    for job in groups.iter().flatten() {
        draft.drop(*job);
    }
    for group in order {
        place_group(draft, group);
    }
}

/// The GPUs on which a job runs now, if nobody has them under the plan so far.
fn own_gpus(draft: &Draft<'_>, job: JobId) -> Option<Vec<GpuId>> {
    let gpus = &draft.job(job).placement()?.gpus;
    let is_free = |&gpu: &GpuId| draft.tenants(gpu).is_empty() && !draft.occupancy().is_closed(gpu);
    gpus.iter().all(is_free).then(|| gpus.to_vec())
}

/// Places a group on free GPUs by the placement rule; `false` if there are none.
fn place_group(draft: &mut Draft<'_>, group: &[JobId]) -> bool {
    let Some((&first, _)) = group.split_first() else { return true };
    if !draft.place_exclusive(first) {
        return false;
    }
    let gpus = draft.placement(first).map(|placement| placement.gpus.to_vec());
    place_all(draft, group, &gpus.unwrap_or_default());
    true
}

/// Places the members of a group on the same GPUs. A member waits if processes of others hold the memory
/// that it needs there.
fn place_all(draft: &mut Draft<'_>, group: &[JobId], gpus: &[GpuId]) {
    for &job in group {
        let memory = draft.job(job).spec.profile.memory + draft.rules().context;
        draft.drop(job);
        if gpus.iter().all(|&gpu| draft.occupancy().has_memory(gpu, memory)) {
            draft.place(job, Placement::on(gpus.iter().copied()));
        }
    }
}
