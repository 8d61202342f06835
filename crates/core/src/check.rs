//! Rejects illegal plans. The cost follows the changes of the plan, not the size of the cluster.

use crate::cluster::{GpuId, PartitionId};
use crate::interference::Interference;
use crate::job::{Job, JobId, JobSpec};
use crate::occupancy::{GpuCondition, GpuOccupancy};
use crate::plan::{BUDGET_MIN, Change, Placement, Plan};
use crate::rate::{GangGpu, Tenant, rate_on_gpu};
use crate::state::ClusterState;
use crate::units::{Memory, Ppm, Ratio, Time};
use std::ops::Range;
use thiserror::Error;

/// Why a plan is illegal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Illegal {
    /// The job has ended or was never submitted.
    #[error("plan names job {0:?}, which has ended or was never submitted")]
    NoSuchJob(JobId),
    /// The job belongs to another partition.
    #[error("plan for {partition:?} names job {job:?} of another partition")]
    ForeignJob {
        /// The job.
        job: JobId,
        /// The partition that was planned.
        partition: PartitionId,
    },
    /// Only a placed job can be dropped.
    #[error("plan drops job {0:?}, which is not placed")]
    DropOfWaiting(JobId),
    /// A job that cannot be stopped stays where it is.
    #[error("plan drops or moves job {0:?}, which cannot be stopped")]
    NotStoppable(JobId),
    /// A gang has exactly the GPUs that it asks for.
    #[error("gang of job {job:?} is broken: it needs {wanted} GPUs and is given {given}")]
    BrokenGang {
        /// The job.
        job: JobId,
        /// GPUs it needs.
        wanted: u32,
        /// GPUs it was given.
        given: usize,
    },
    /// A gang cannot have one GPU twice.
    #[error("gang of job {job:?} is broken: it is given {gpu:?} twice")]
    SameGpuTwice {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// The GPU is outside the partition or the cluster.
    #[error("job {job:?} is placed on {gpu:?}, which is not in its partition")]
    ForeignGpu {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// The GPU is lost.
    #[error("job {job:?} is placed on {gpu:?}, which is lost")]
    LostGpu {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// A drained GPU takes no new tenant.
    #[error("job {job:?} is placed on {gpu:?}, which is drained")]
    DrainedGpu {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// More tenants than allowed.
    #[error("{gpu:?} would have {tenants} tenants, {limit} are allowed")]
    TooManyTenants {
        /// The GPU.
        gpu: GpuId,
        /// Tenants under the plan.
        tenants: usize,
        /// The limit.
        limit: usize,
    },
    /// The job cannot run in this number of sub-batches.
    #[error("job {job:?} cannot run in {count} sub-batches")]
    NoSuchSubBatches {
        /// The job.
        job: JobId,
        /// Sub-batches of the placement.
        count: u32,
    },
    /// The budget is outside the allowed range.
    #[error("job {job:?} has a budget of {} ppm; the range is {} to {}", budget.0, BUDGET_MIN.0, Ppm::ONE.0)]
    NoSuchBudget {
        /// The job.
        job: JobId,
        /// The budget.
        budget: Ppm,
    },
    /// The tenants need more memory than the GPU has.
    #[error("{gpu:?} would need {wanted}, it has {available}")]
    MemoryOver {
        /// The GPU.
        gpu: GpuId,
        /// Memory under the plan.
        wanted: Memory,
        /// Memory of the GPU.
        available: Memory,
    },
    /// Two jobs are known not to fit together.
    #[error("jobs {a:?} and {b:?} do not fit together on {gpu:?}")]
    PairDoesNotFit {
        /// One job.
        a: JobId,
        /// The other.
        b: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// A job does not tolerate its rate beside its co-located jobs.
    #[error("job {job:?} does not accept a rate of {rate:?} beside others on {gpu:?}")]
    NotTolerated {
        /// The job.
        job: JobId,
        /// Its rate there.
        rate: Ppm,
        /// The GPU.
        gpu: GpuId,
    },
    /// A wake-up time that has passed already.
    #[error("plan asks to wake at {wake:?}, which is not after {now:?}")]
    WakeNotAhead {
        /// The wake-up time.
        wake: Time,
        /// The instant of the plan.
        now: Time,
    },
}

/// Checks a plan of `partition`. The occupancy must already reflect the plan.
pub(crate) fn check(
    state: &ClusterState,
    interference: &dyn Interference,
    partition: PartitionId,
    plan: &Plan,
    now: Time,
) -> Result<(), Illegal> {
    if let Some(wake) = plan.wake.filter(|&wake| wake <= now) {
        return Err(Illegal::WakeNotAhead { wake, now });
    }
    for (job, change) in plan.changes() {
        check_job(state, partition, *job, change)?;
    }
    for (job, change) in plan.changes() {
        if let Change::Place(placement) = change {
            if is_alone(state, partition, *job, placement) || takes_no_more(state, *job, placement)
            {
                continue;
            }
            check_gpus(state, interference, plan, *job, placement)?;
        }
    }
    Ok(())
}

/// Whether the job is alone on its GPUs and fits their memory, as far as that is known without a look at each
/// GPU.
fn is_alone(
    state: &ClusterState,
    partition: PartitionId,
    job: JobId,
    placement: &Placement,
) -> bool {
    let occupancy = state.occupancy();
    let memory = state.memory_on_gpu(job, placement.sub_batches);
    occupancy.none_shared() && memory <= occupancy.unreserved_memory_min(partition)
}

/// Whether the placement takes no more of its GPUs than the job has already. What is there already does not
/// make a plan illegal, even where it exceeds a limit.
fn takes_no_more(state: &ClusterState, job: JobId, placement: &Placement) -> bool {
    let present = state.find(job).and_then(Job::placement);
    present.is_some_and(|present| {
        let memory = |placement: &Placement| state.memory_on_gpu(job, placement.sub_batches);
        present.gpus == placement.gpus && memory(placement) <= memory(present)
    })
}

fn check_job(
    state: &ClusterState,
    partition: PartitionId,
    job: JobId,
    change: &Change,
) -> Result<(), Illegal> {
    let known = state.find(job).ok_or(Illegal::NoSuchJob(job))?;
    if known.spec.partition != partition {
        return Err(Illegal::ForeignJob { job, partition });
    }
    let Change::Place(placement) = change else {
        return match known.placement() {
            Some(_) if !known.spec.stoppable => Err(Illegal::NotStoppable(job)),
            Some(_) => Ok(()),
            None => Err(Illegal::DropOfWaiting(job)),
        };
    };
    // Other sub-batches in the same place are fine: such a job changes them while it runs.
    let moves = |present: &Placement| {
        let is_capped_anew = present.budget != placement.budget && !state.rules().live_budgets;
        present.gpus != placement.gpus || is_capped_anew
    };
    if !known.spec.stoppable && known.placement().is_some_and(moves) {
        return Err(Illegal::NotStoppable(job));
    }
    let range = &state.cluster().partition(partition).gpus;
    if !(state.occupancy().all_up() && placement.gpus.are_within(range)) {
        check_conditions(state, range, known, placement)?;
    }
    let (wanted, given) = (known.spec.gpus, placement.gpus.len());
    if given != wanted as usize {
        return Err(Illegal::BrokenGang { job, wanted, given });
    }
    let count = placement.sub_batches;
    // A running job may keep sub-batches that its description no longer lists.
    let runs_so = || known.placement().is_some_and(|present| present.sub_batches == count);
    if known.spec.sub_batch_option(count).is_none() && !runs_so() {
        return Err(Illegal::NoSuchSubBatches { job, count });
    }
    let budget = placement.budget;
    if !(BUDGET_MIN..=Ppm::ONE).contains(&budget) {
        return Err(Illegal::NoSuchBudget { job, budget });
    }
    Ok(())
}

/// Whether the GPUs of a placement belong to the partition, whose GPUs are `range`, and accept the job.
#[cold]
fn check_conditions(
    state: &ClusterState,
    range: &Range<u32>,
    known: &Job,
    placement: &Placement,
) -> Result<(), Illegal> {
    let job = known.id();
    for &gpu in placement.gpus.iter() {
        if !range.contains(&gpu.0) {
            return Err(Illegal::ForeignGpu { job, gpu });
        }
        let is_there = || known.placement().is_some_and(|present| present.gpus.contains(&gpu));
        match state.occupancy().condition(gpu) {
            GpuCondition::Lost => return Err(Illegal::LostGpu { job, gpu }),
            GpuCondition::Drained if !is_there() => return Err(Illegal::DrainedGpu { job, gpu }),
            GpuCondition::Up | GpuCondition::Drained => {}
        }
    }
    Ok(())
}

#[inline(never)]
fn check_gpus(
    state: &ClusterState,
    interference: &dyn Interference,
    plan: &Plan,
    job: JobId,
    placement: &Placement,
) -> Result<(), Illegal> {
    placement.gpus.iter().try_for_each(|&gpu| check_gpu(state, interference, plan, gpu, job))
}

fn check_gpu(
    state: &ClusterState,
    interference: &dyn Interference,
    plan: &Plan,
    gpu: GpuId,
    job: JobId,
) -> Result<(), Illegal> {
    let GpuOccupancy { tenants, memory_used, .. } = state.occupancy().gpu(gpu);
    let described = state.cluster().gpu(gpu);
    if *memory_used > described.memory {
        let (wanted, available) = (*memory_used, described.memory);
        return Err(Illegal::MemoryOver { gpu, wanted, available });
    }
    if tenants.len() == 1 {
        return Ok(());
    }
    if tenants.iter().filter(|&&tenant| tenant == job).count() > 1 {
        return Err(Illegal::SameGpuTwice { job, gpu });
    }
    let limit = state.rules().tenants_max;
    if tenants.len() > limit {
        return Err(Illegal::TooManyTenants { gpu, tenants: tenants.len(), limit });
    }
    check_rates(state, interference, plan, gpu)
}

/// Whether the tenants of a GPU fit together, and each of them tolerates its rate.
fn check_rates<'s>(
    state: &'s ClusterState,
    interference: &dyn Interference,
    plan: &Plan,
    gpu: GpuId,
) -> Result<(), Illegal> {
    let kind = state.cluster().gpu(gpu).kind;
    // Without promises nobody is capped, and finding a budget costs a search.
    let is_uncapped = interference.is_pairwise() && !state.has_promises();
    let specs = || state.occupancy().tenants(gpu).iter().map(|&tenant| &state.job(tenant).spec);
    let tenant = |spec: &'s JobSpec| match is_uncapped {
        true => Tenant::uncapped(&spec.profile),
        false => Tenant::of(spec, planned_budget(state, plan, spec.id)),
    };
    for spec in specs() {
        let others = || specs().filter(|other| other.id != spec.id);
        let on = GangGpu { kind, factor: Ratio::ONE, others: others().map(tenant) };
        let Some(rate) = rate_on_gpu(interference, tenant(spec), on) else {
            let fits = |other: &&JobSpec| {
                interference.pair_rate(&spec.profile, &other.profile, kind).is_some()
            };
            let unfit = others().find(|other| !fits(other)).or_else(|| others().next());
            let b = unfit.map_or(spec.id, |other| other.id);
            return Err(Illegal::PairDoesNotFit { a: spec.id, b, gpu });
        };
        if !spec.accepts(rate.ppm()) {
            return Err(Illegal::NotTolerated { job: spec.id, rate: rate.ppm(), gpu });
        }
    }
    Ok(())
}

/// The budget of a tenant under the plan.
fn planned_budget(state: &ClusterState, plan: &Plan, job: JobId) -> Ppm {
    match plan.change(job) {
        Some(Change::Place(placement)) => placement.budget,
        _ => state.job(job).placement().map_or(Ppm::ONE, |placement| placement.budget),
    }
}
