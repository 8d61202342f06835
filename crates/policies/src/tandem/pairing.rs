//! Pairs of gangs of equal size, by minimum-weight matching.

use super::Review;
use super::rates::{ONE, ppm, times};
use super::sharing_gain::{SharedRun, sharing_gain};
use crate::kit::{PairCandidates, PairLimits, PairOffer, PairRates, sub_batches_on};
use tandem_core::{Draft, JobId};

/// Pairs pending jobs with hosts of their gang size where that gains most; `false` if nowhere.
pub(super) fn pair_equal_gangs(draft: &mut Draft<'_>, review: &Review<'_>) -> bool {
    let tuning = review.tuning;
    let limits = PairLimits { jobs: tuning.match_jobs_max, hosts: tuning.match_hosts_max };
    let remaining = |host| review.values.of(host).remaining_ms;
    let candidates = PairCandidates::find(draft, review.values.pending(), limits, remaining);
    candidates.pair(draft, |draft, job, host| offer(draft, review, job, host))
}

/// What all jobs together gain if `job` joins `host` on all its GPUs.
fn offer(draft: &Draft<'_>, review: &Review<'_>, job: JobId, host: JobId) -> Option<PairOffer> {
    let gpus = &draft.placement(host)?.gpus;
    let option = sub_batches_on(draft, draft.job(job), gpus, review.parts.accumulate)?;
    let rates = PairRates::of(draft, draft.job(job), draft.job(host))?;
    let host_rate = ppm(rates.host).max(1);
    let host_value = review.values.of(host);
    let run = SharedRun {
        rate: ppm(rates.own.times(option.rate())).max(1),
        cost: times((ONE - host_rate).max(0), host_value.interference_cost()),
        others_end_ms: host_value.remaining_ms.saturating_mul(ONE) / host_rate,
    };
    let gain = sharing_gain(draft.job(job), review, run);
    (gain > 0).then_some(PairOffer { gain, sub_batches: option.count })
}
