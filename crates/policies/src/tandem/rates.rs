//! Believed rates of co-located jobs, relative to running alone.

use tandem_core::{Draft, GpuId, Job, JobId, PPM_ONE, Ratio};

/// A rate of one, in parts per million.
pub(super) const ONE: i64 = PPM_ONE as i64;

/// A rate times another, or times a cost, which can be large; both in parts per million.
pub(super) fn times(rate: i64, other: i64) -> i64 {
    // Divisions of 128 bits are slow, and few products need them.
    if let Some(product) = rate.checked_mul(other) {
        return product / ONE;
    }
    let product = i128::from(rate) * i128::from(other) / i128::from(ONE);
    i64::try_from(product).unwrap_or(i64::MAX)
}

/// The rate of a job on a GPU beside `others`; `None` if they do not fit or the job does not tolerate
/// it.
pub(super) fn rate_beside<'a>(
    draft: &Draft<'_>,
    job: &Job,
    others: impl Iterator<Item = &'a Job>,
    gpu: GpuId,
) -> Option<Ratio> {
    draft.rate_beside(job, others, draft.cluster().gpu(gpu).kind)
}

/// The rate of a placed job under the plan so far, as if `without` were not there, in parts per million:
/// the least over its GPUs, with the cost of its sub-batches; zero if the job does not tolerate it.
pub(super) fn rate(draft: &Draft<'_>, job: JobId, without: Option<JobId>) -> i64 {
    let Some(placement) = draft.placement(job) else { return 0 };
    let known = draft.job(job);
    let mut rate = Ratio::ONE;
    let mut last: &[JobId] = &[];
    for &gpu in placement.gpus.iter() {
        let tenants = draft.tenants(gpu);
        // The GPUs of a gang mostly have the same tenants as the one before.
        if tenants.len() < 2 || tenants == last {
            continue;
        }
        last = tenants;
        let others = || tenants.iter().filter(|&&other| other != job && Some(other) != without);
        if others().next().is_some() {
            let here = rate_beside(draft, known, others().map(|&other| draft.job(other)), gpu);
            rate = rate.min(here.unwrap_or(Ratio::ZERO));
        }
    }
    in_sub_batches(draft, job, rate)
}

/// The rate of a placed job with the cost of the sub-batches that it runs in, in parts per million.
pub(super) fn in_sub_batches(draft: &Draft<'_>, job: JobId, rate: Ratio) -> i64 {
    let rate = match draft.placement(job).map_or(1, |placement| placement.sub_batches) {
        1 => rate,
        count => {
            let option = draft.job(job).spec.sub_batch_option(count);
            rate.times(option.map_or(Ratio::ONE, |option| option.rate()))
        }
    };
    ppm(rate)
}

/// A rate in parts per million.
pub(super) fn ppm(rate: Ratio) -> i64 {
    i64::from(rate.ppm().0)
}

/// The jobs that share a GPU with a placed job, by id.
pub(super) fn neighbours(draft: &Draft<'_>, job: JobId) -> Vec<JobId> {
    let Some(placement) = draft.placement(job) else { return Vec::new() };
    let mut others: Vec<JobId> = Vec::new();
    for &gpu in placement.gpus.iter() {
        let tenants = draft.tenants(gpu);
        if tenants.len() > 1 {
            others.extend(tenants.iter().filter(|&&tenant| tenant != job));
        }
    }
    others.sort_unstable();
    others.dedup();
    others
}
