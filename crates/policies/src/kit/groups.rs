//! Groups of several jobs of equal gang size on the same GPUs.

use crate::kit::restore_ms;
use tandem_core::{
    Draft, GpuId, GpuTypeId, Job, JobId, Memory, Placement, Ratio, SchedulingState, Time,
};

/// Jobs of one gang size that shall run on the same GPUs.
pub struct Group {
    /// Its members.
    pub jobs: Vec<JobId>,
    /// The GPU type on which it shall run, if that matters.
    pub kind: Option<GpuTypeId>,
}

impl Group {
    /// A group on GPUs of any type.
    pub fn anywhere(jobs: Vec<JobId>) -> Self {
        Self { jobs, kind: None }
    }
}

/// The believed rates of jobs that all run on the same GPUs, in the order given: those on GPUs of `kind`, or
/// on the GPU type where each is slowest, if its GPUs are not known yet. `None` if they do not fit into memory
/// together or one of them does not tolerate it. One job alone has a rate of one.
pub fn group_rates(
    draft: &Draft<'_>,
    jobs: &[JobId],
    kind: Option<GpuTypeId>,
) -> Option<Vec<Ratio>> {
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
        for kind in types.filter(|&one| kind.is_none_or(|kind| kind == one)) {
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
pub fn place_groups(draft: &mut Draft<'_>, groups: &[Group]) {
    let mut order: Vec<&Group> = groups.iter().filter(|group| !group.jobs.is_empty()).collect();
    // Stable: groups of one size stay in the order given.
    order.sort_by_key(|group| std::cmp::Reverse(draft.job(group.jobs[0]).spec.gpus));
    let mut homeless = Vec::new();
    for &group in &order {
        match group.jobs.iter().find_map(|&job| own_gpus(draft, job, group.kind)) {
            Some(gpus) => place_all(draft, &group.jobs, &gpus),
            None => homeless.push(group),
        }
    }
    let all_placed = homeless.iter().all(|group| place_group(draft, group));
    if all_placed {
        return;
    }
    for job in groups.iter().flat_map(|group| &group.jobs) {
        draft.drop(*job);
    }
    for group in order {
        place_group(draft, group);
    }
}

/// The GPUs on which a job runs now, if they are of the type and nobody has them under the plan so far.
fn own_gpus(draft: &Draft<'_>, job: JobId, kind: Option<GpuTypeId>) -> Option<Vec<GpuId>> {
    let gpus = &draft.job(job).placement()?.gpus;
    let is_free = |gpu: GpuId| {
        let is_suitable = kind.is_none_or(|kind| draft.cluster().gpu(gpu).kind == kind);
        is_suitable && draft.tenants(gpu).is_empty() && !draft.occupancy().is_closed(gpu)
    };
    gpus.iter().all(|&gpu| is_free(gpu)).then(|| gpus.to_vec())
}

/// Places a group on free GPUs by the placement rule; `false` if there are none.
fn place_group(draft: &mut Draft<'_>, group: &Group) -> bool {
    let Some((&first, _)) = group.jobs.split_first() else { return true };
    let is_placed = match group.kind {
        Some(kind) => draft.place_exclusive_on(first, kind),
        None => draft.place_exclusive(first),
    };
    if !is_placed {
        return false;
    }
    let gpus = draft.placement(first).map(|placement| placement.gpus.to_vec());
    place_all(draft, &group.jobs, &gpus.unwrap_or_default());
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
