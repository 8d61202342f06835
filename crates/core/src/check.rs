//! Rejects an illegal plan, whoever made it. It trusts neither the policy nor the draft: it looks
//! at the plan and at the present only, and costs what the plan touches.

use crate::cluster::{GpuId, PartitionId};
use crate::interference::Interference;
use crate::job::{JobId, State as JobState};
use crate::occupancy::Tenants;
use crate::plan::{Change, Plan};
use crate::state::State;
use crate::units::{Memory, Time};
use thiserror::Error;

/// Why a plan is illegal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Illegal {
    /// No such job.
    #[error("plan names unknown job {0:?}")]
    UnknownJob(JobId),
    /// The job belongs elsewhere.
    #[error("plan for {partition:?} names job {job:?} of another partition")]
    ForeignJob {
        /// The job.
        job: JobId,
        /// The partition that was planned.
        partition: PartitionId,
    },
    /// The job is over.
    #[error("plan names job {0:?}, which has ended")]
    EndedJob(JobId),
    /// Only a placed job can be dropped.
    #[error("plan drops job {0:?}, which is not placed")]
    DropOfWaiting(JobId),
    /// All or nothing.
    #[error("gang of job {job:?} is broken: it needs {wanted} GPUs and is given {given}")]
    BrokenGang {
        /// The job.
        job: JobId,
        /// GPUs it needs.
        wanted: u32,
        /// GPUs it was given.
        given: usize,
    },
    /// One GPU for two of the gang.
    #[error("gang of job {job:?} is broken: it is given {gpu:?} twice")]
    SameGpuTwice {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// Outside the partition or the cluster.
    #[error("job {job:?} is placed on {gpu:?}, which is not in its partition")]
    ForeignGpu {
        /// The job.
        job: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// On a lost GPU.
    #[error("job {job:?} is placed on {gpu:?}, which is lost")]
    LostGpu {
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
    /// Memory over.
    #[error("{gpu:?} would need {wanted}, it has {available}")]
    MemoryOver {
        /// The GPU.
        gpu: GpuId,
        /// Memory under the plan.
        wanted: Memory,
        /// Memory of the GPU.
        available: Memory,
    },
    /// A pair that is known not to fit.
    #[error("jobs {a:?} and {b:?} do not fit together on {gpu:?}")]
    PairDoesNotFit {
        /// One job.
        a: JobId,
        /// The other.
        b: JobId,
        /// The GPU.
        gpu: GpuId,
    },
    /// A wake that would never come, or would come for ever.
    #[error("plan asks to wake at {wake:?}, which is not after {now:?}")]
    WakeNotAhead {
        /// The wish.
        wake: Time,
        /// The instant of the plan.
        now: Time,
    },
}

/// Checks a plan of `partition` against the present.
pub fn check(
    state: &State,
    interference: &dyn Interference,
    partition: PartitionId,
    plan: &Plan,
    now: Time,
) -> Result<(), Illegal> {
    if let Some(wake) = plan.wake.filter(|&wake| wake <= now) {
        return Err(Illegal::WakeNotAhead { wake, now });
    }
    let mut seats: Vec<(GpuId, JobId)> = Vec::new();
    for (&job, change) in &plan.changes {
        check_job(state, partition, job, change)?;
        if let Change::Place(placement) = change {
            seats.extend(placement.gpus.iter().map(|&gpu| (gpu, job)));
        }
    }
    seats.sort_unstable();
    if let Some(pair) = seats.windows(2).find(|pair| pair[0] == pair[1]) {
        let (gpu, job) = pair[0];
        return Err(Illegal::SameGpuTwice { job, gpu });
    }
    let mut tenants = Tenants::new();
    for seats in seats.chunk_by(|a, b| a.0 == b.0) {
        let gpu = seats[0].0;
        let stays = |tenant: &JobId| !plan.changes.contains_key(tenant);
        tenants.clear();
        tenants.extend(seats.iter().map(|&(_, job)| job));
        tenants.extend(state.occupancy().tenants(gpu).iter().copied().filter(stays));
        check_gpu(state, interference, gpu, &tenants)?;
    }
    Ok(())
}

fn check_job(
    state: &State,
    partition: PartitionId,
    job: JobId,
    change: &Change,
) -> Result<(), Illegal> {
    let known = state.jobs().get(job.index()).ok_or(Illegal::UnknownJob(job))?;
    if known.spec.partition != partition {
        return Err(Illegal::ForeignJob { job, partition });
    }
    if matches!(known.state, JobState::Finished | JobState::Cancelled) {
        return Err(Illegal::EndedJob(job));
    }
    let Change::Place(placement) = change else {
        return match known.placement() {
            Some(_) => Ok(()),
            None => Err(Illegal::DropOfWaiting(job)),
        };
    };
    let range = &state.cluster().partition(partition).gpus;
    for &gpu in &placement.gpus {
        if !range.contains(&gpu.0) {
            return Err(Illegal::ForeignGpu { job, gpu });
        }
        if state.occupancy().is_down(gpu) {
            return Err(Illegal::LostGpu { job, gpu });
        }
    }
    let (wanted, given) = (known.spec.gpus, placement.gpus.len());
    if given != wanted as usize {
        return Err(Illegal::BrokenGang { job, wanted, given });
    }
    Ok(())
}

fn check_gpu(
    state: &State,
    interference: &dyn Interference,
    gpu: GpuId,
    tenants: &[JobId],
) -> Result<(), Illegal> {
    let limit = state.rules().tenants_max;
    if tenants.len() > limit {
        return Err(Illegal::TooManyTenants { gpu, tenants: tenants.len(), limit });
    }
    let described = state.cluster().gpu(gpu);
    let mut wanted = Memory::default();
    for &job in tenants {
        wanted += state.memory_on_gpu(job);
    }
    if wanted > described.memory {
        return Err(Illegal::MemoryOver { gpu, wanted, available: described.memory });
    }
    for (index, &a) in tenants.iter().enumerate() {
        for &b in &tenants[index + 1..] {
            let (one, other) = (&state.job(a).spec.profile, &state.job(b).spec.profile);
            if interference.rate(one, other, described.kind).is_none() {
                return Err(Illegal::PairDoesNotFit { a, b, gpu });
            }
        }
    }
    Ok(())
}
