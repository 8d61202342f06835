//! Pairs of gangs of equal size: the pending job runs on all GPUs of its host.
//!
//! Which pending job joins which host is a minimum-weight matching of gains, so that one good host is
//! not taken by the first job that fits.

use super::hosts::hosts_by_size;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tandem_core::{Draft, GpuId, GpuTypeId, Job, JobId, Placement, Ppm, Ratio, SubBatch};
use tandem_matching::{Sparse, assign};

/// Larger gains count as this, so that the matching can add them up.
const GAIN_MAX: i64 = 1 << 50;

/// What a pair gains, and how the joining job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairOffer {
    /// Above zero, in any unit that adds up.
    pub gain: i64,
    /// The number of sub-batches in which the joining job computes each batch.
    pub sub_batches: u32,
}

/// The believed rates of two co-located jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRates {
    /// Of the joining job.
    pub own: Ratio,
    /// Of its host.
    pub host: Ratio,
}

impl PairRates {
    /// The rates of `job` beside `host`, which is placed; `None` if they do not fit together or one of
    /// them does not tolerate it.
    pub fn of(draft: &Draft<'_>, job: &Job, host: &Job) -> Option<Self> {
        let gpu = *draft.placement(host.id())?.gpus.first()?;
        let kind = draft.cluster().gpu(gpu).kind;
        let own = draft.rate_beside(job, [host], kind)?;
        Some(Self { own, host: draft.rate_beside(host, [job], kind)? })
    }

    /// Each rate one standard deviation higher: a pair that loses even then should part.
    #[must_use]
    pub fn raised(self, draft: &Draft<'_>, job: &Job, host: &Job) -> Self {
        let doubt = Self::deviations(draft, job, host);
        Self { own: self.own.plus(doubt.own), host: self.host.plus(doubt.host) }
    }

    /// Each rate one standard deviation lower: a pair that gains even then is worth a restore.
    #[must_use]
    pub fn lowered(self, draft: &Draft<'_>, job: &Job, host: &Job) -> Self {
        let doubt = Self::deviations(draft, job, host);
        Self { own: self.own.minus(doubt.own), host: self.host.minus(doubt.host) }
    }

    fn deviations(draft: &Draft<'_>, job: &Job, host: &Job) -> Self {
        let gpu = draft.placement(host.id()).and_then(|on| on.gpus.first().copied());
        let kind = gpu.map_or(GpuTypeId(0), |gpu| draft.cluster().gpu(gpu).kind);
        let (own, host) = (&job.spec.profile, &host.spec.profile);
        let interference = draft.interference();
        Self {
            own: interference.pair_deviation(own, host, kind),
            host: interference.pair_deviation(host, own, kind),
        }
    }

    /// Both rates together: above one the GPU does more work than with one tenant.
    pub fn sum(self) -> Ppm {
        Ppm(self.own.ppm().0.saturating_add(self.host.ppm().0))
    }
}

/// The fewest sub-batches in which `job` fits the free memory of all of `gpus`: whole batches, or more
/// if it may `accumulate`.
pub fn sub_batches_on(
    draft: &Draft<'_>,
    job: &Job,
    gpus: &[GpuId],
    accumulate: bool,
) -> Option<SubBatch> {
    let context = draft.rules().context;
    let fits = |option: &SubBatch| {
        gpus.iter().all(|&gpu| {
            let used = draft.occupancy().memory_used(gpu);
            used + option.memory + context <= draft.cluster().gpu(gpu).memory
        })
    };
    job.spec.sub_batch_options().take(if accumulate { usize::MAX } else { 1 }).find(fits)
}

/// Bounds on the size of a matching, which takes longer than linear time.
#[derive(Clone, Copy, Debug)]
pub struct PairLimits {
    /// Pending jobs of each gang size, the first in rank.
    pub jobs: usize,
    /// Hosts of each gang size, those with the longest remaining time.
    pub hosts: usize,
}

/// The other tenant of a job's first GPU under the plan so far; of its whole allocation, where all
/// tenants hold the same GPUs.
pub fn partner(draft: &Draft<'_>, job: JobId) -> Option<JobId> {
    let first = *draft.placement(job)?.gpus.first()?;
    draft.tenants(first).iter().copied().find(|&tenant| tenant != job)
}

/// Pending jobs and the hosts of their gang size, which share none of their GPUs.
pub struct PairCandidates {
    /// By gang size: pending jobs in order of rank, hosts.
    by_size: Vec<(Vec<JobId>, Vec<JobId>)>,
}

impl PairCandidates {
    /// Candidates of the jobs of `pending`, which are in order of rank, that still wait under the plan
    /// so far. `remaining` is what hosts are ordered by if they are too many.
    pub fn find<R: Ord>(
        draft: &Draft<'_>,
        pending: &[JobId],
        limits: PairLimits,
        remaining: impl Fn(JobId) -> R,
    ) -> Self {
        let mut hosts = hosts_by_size(draft);
        hosts.retain(|_, hosts| {
            hosts.retain(|&host| is_only_tenant(draft, host));
            !hosts.is_empty()
        });
        let mut jobs: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
        if !hosts.is_empty() {
            for &job in pending.iter().filter(|&&job| draft.placement(job).is_none()) {
                let size = draft.job(job).spec.gpus;
                if hosts.contains_key(&size) {
                    let jobs = jobs.entry(size).or_default();
                    if jobs.len() < limits.jobs {
                        jobs.push(job);
                    }
                }
            }
        }
        let with_hosts = |(size, jobs)| {
            let mut hosts = hosts.remove(&size).expect("jobs without hosts are left out");
            if hosts.len() > limits.hosts {
                hosts.sort_by_key(|&host| (Reverse(remaining(host)), host));
                hosts.truncate(limits.hosts);
            }
            (jobs, hosts)
        };
        Self { by_size: jobs.into_iter().map(with_hosts).collect() }
    }

    /// Whether no pair is possible.
    pub fn is_empty(&self) -> bool {
        self.by_size.is_empty()
    }

    /// Places pending jobs beside hosts so that the gains add up to the most; `false` if no pair gains.
    /// `offer` says what a pair of a pending job and a host gains, if anything.
    pub fn pair(
        self,
        draft: &mut Draft<'_>,
        offer: impl Fn(&Draft<'_>, JobId, JobId) -> Option<PairOffer>,
    ) -> bool {
        let mut paired = false;
        for (jobs, hosts) in self.by_size {
            for (job, host) in best_pairs(draft, &jobs, &hosts, &offer) {
                let offer = offer(draft, job, host).expect("the matching takes only offers");
                let gpus = draft.placement(host).expect("a host has GPUs").gpus.clone();
                let on = Placement::on(gpus.iter().copied());
                draft.place(job, Placement { sub_batches: offer.sub_batches, ..on });
                paired = true;
            }
        }
        paired
    }
}

/// Whether a job shares none of its GPUs.
fn is_only_tenant(draft: &Draft<'_>, job: JobId) -> bool {
    let placement = draft.placement(job);
    placement.is_some_and(|on| on.gpus.iter().all(|&gpu| draft.tenants(gpu).len() == 1))
}

/// The pairs whose gains add up to the most.
fn best_pairs(
    draft: &Draft<'_>,
    jobs: &[JobId],
    hosts: &[JobId],
    offer: impl Fn(&Draft<'_>, JobId, JobId) -> Option<PairOffer>,
) -> Vec<(JobId, JobId)> {
    let wait_columns = (0_u32..).skip(hosts.len());
    let row = |(&job, wait): (&JobId, u32)| {
        let cell = |(column, &host): (u32, &JobId)| {
            let offer = offer(draft, job, host)?;
            Some((column, -offer.gain.clamp(0, GAIN_MAX)))
        };
        // A column of its own, at no cost: the job goes on waiting.
        (0..).zip(hosts).filter_map(cell).chain([(wait, 0)]).collect::<Vec<_>>()
    };
    let rows = jobs.iter().zip(wait_columns).map(row);
    let costs = Sparse::from_rows(hosts.len() + jobs.len(), rows);
    let costs = costs.expect("gains are bounded and columns ascend");
    let pairs = assign(&costs).pairs.into_iter();
    let with_host =
        |(job, column): (u32, u32)| Some((jobs[job as usize], *hosts.get(column as usize)?));
    pairs.filter_map(with_host).collect()
}
