//! The rate law: how fast a gang runs beside its co-located jobs.
//!
//! On each GPU a job runs at the product of its pair rates with the other tenants, each as far as the
//! other's budget goes, or at the model's group rate where groups count. A gang trains synchronously, so the slowest of its GPUs
//! sets its rate. Gradient accumulation costs its part of that. The check, the simulated world, the
//! policies and the daemon all use these functions.

use crate::cluster::GpuTypeId;
use crate::interference::Interference;
use crate::job::{JobSpec, Profile};
use crate::units::{PPM_ONE, Ppm, Ratio, Utilisation};
use smallvec::SmallVec;

/// The least that is left to a job beside another that goes first.
const BEHIND_MIN: Ppm = Ppm(PPM_ONE / 100);

/// A job on a GPU, as the rate law and the interference models see it.
#[derive(Clone, Copy, Debug)]
pub struct Tenant<'a> {
    /// What it does to the GPU.
    pub profile: &'a Profile,
    /// The most of the GPU's SMs that it may occupy.
    pub budget: Ppm,
    /// What it does goes before the work of the others, which get what it leaves.
    pub goes_first: bool,
}

impl<'a> Tenant<'a> {
    /// A tenant without a cap.
    pub fn uncapped(profile: &'a Profile) -> Self {
        Self { profile, budget: Ppm::ONE, goes_first: false }
    }

    /// A job within its budget.
    pub fn of(spec: &'a JobSpec, budget: Ppm) -> Self {
        Self { profile: &spec.profile, budget, goes_first: spec.promise.goes_first }
    }
}

/// One GPU of a gang.
#[derive(Clone, Copy, Debug)]
pub struct GangGpu<O> {
    /// Its type, by which pair rates may differ.
    pub kind: GpuTypeId,
    /// The speed of a lone job there: the type's factor for a rate relative to the reference GPU,
    /// [`Ratio::ONE`] for a rate relative to running alone on this GPU.
    pub factor: Ratio,
    /// The other tenants that run there: paused ones do not slow anybody down.
    pub others: O,
}

/// The rate of a gang, rounded nowhere but in the last place of a [`Ratio`]; `None` if the job does not
/// fit beside its co-located jobs on one of its GPUs, or has no GPUs.
///
/// `sub_batch_rate` is what gradient accumulation leaves of its speed,
/// [`SubBatch::rate`](crate::SubBatch::rate); [`Ratio::ONE`] in whole batches.
///
/// ```
/// use tandem_core::{ClosedForm, GangGpu, GpuTypeId, Ppm, Profile, Ratio, Tenant, Utilisation};
/// use tandem_core::gang_rate;
///
/// let busy = |percent: u32| Profile {
///     gpu_util: Some(Utilisation(percent * 1000)),
///     ..Profile::default()
/// };
/// let (job, light, heavy) = (busy(80), busy(20), busy(80));
/// let gpu = |other| GangGpu {
///     kind: GpuTypeId(0),
///     factor: Ratio::ONE,
///     others: [Tenant::uncapped(other)],
/// };
/// // Two GPUs with different co-located jobs: the slower one counts.
/// let gpus = [gpu(&light), gpu(&heavy)];
/// let rate = gang_rate(&ClosedForm, Tenant::uncapped(&job), Ratio::ONE, gpus);
/// assert_eq!(rate.map(Ratio::ppm), Some(Ppm(625_000)));
/// ```
pub fn gang_rate<'a, I, O>(
    interference: &I,
    job: Tenant<'_>,
    sub_batch_rate: Ratio,
    gpus: impl IntoIterator<Item = GangGpu<O>>,
) -> Option<Ratio>
where
    I: Interference + ?Sized,
    O: IntoIterator<Item = Tenant<'a>>,
{
    let is_pairwise = interference.is_pairwise();
    let mut slowest: Option<Ratio> = None;
    for gpu in gpus {
        let rate = on_gpu(interference, is_pairwise, job, gpu)?;
        slowest = Some(slowest.map_or(rate, |slowest| slowest.min(rate)));
    }
    Some(slowest?.times(sub_batch_rate))
}

/// The rate of a job on one GPU, as [`gang_rate`] computes it; `None` if it does not fit there beside the
/// others.
pub fn rate_on_gpu<'a, I, O>(interference: &I, job: Tenant<'_>, gpu: GangGpu<O>) -> Option<Ratio>
where
    I: Interference + ?Sized,
    O: IntoIterator<Item = Tenant<'a>>,
{
    on_gpu(interference, interference.is_pairwise(), job, gpu)
}

#[inline]
fn on_gpu<'a, I, O>(
    interference: &I,
    is_pairwise: bool,
    job: Tenant<'_>,
    gpu: GangGpu<O>,
) -> Option<Ratio>
where
    I: Interference + ?Sized,
    O: IntoIterator<Item = Tenant<'a>>,
{
    let GangGpu { kind, factor, others } = gpu;
    if !is_pairwise {
        let others: SmallVec<[Tenant<'a>; 8]> = others.into_iter().collect();
        return Some(factor.times(interference.group_rate(job, &others, kind)?));
    }
    let beside = others.into_iter().try_fold(factor, |rate, other| {
        let pair_rate = interference.pair_rate(job.profile, other.profile, kind)?;
        let beside = match (job.goes_first, other.goes_first) {
            (true, false) => Ratio::ONE,
            (false, true) => {
                let others_rate = interference.pair_rate(other.profile, job.profile, kind)?;
                rate_behind(pair_rate, others_rate)
            }
            _ => rate_under_cap(pair_rate, other.budget),
        };
        Some(rate.times(beside))
    })?;
    match job.budget {
        Ppm::ONE => Some(beside),
        budget => Some(beside.min(factor.times(own_cap_rate(job.profile, budget)))),
    }
}

/// What a job keeps of its speed beside another with this budget, if it keeps `rate` beside it without a
/// cap: `r / (r + v (1 − r))`.
#[inline]
pub fn rate_under_cap(rate: Ratio, budget: Ppm) -> Ratio {
    if budget == Ppm::ONE || rate >= Ratio::ONE || rate == Ratio::ZERO {
        return rate;
    }
    let lost = Ratio::ONE.minus(rate).times(part(budget));
    rate.times(rate.plus(lost).inverse())
}

/// What a job keeps of its speed beside another that goes first, if they keep `rate` and `others_rate` where
/// neither does: both together do as much, and the other does not slow down.
pub fn rate_behind(rate: Ratio, others_rate: Ratio) -> Ratio {
    let lost = Ratio::ONE.minus(others_rate.min(Ratio::ONE));
    rate.minus(lost.min(rate)).max(part(BEHIND_MIN))
}

/// The largest budget of another job at which a job keeps `wanted`, if it keeps `rate` beside it without
/// a cap.
pub fn cap_for_rate(rate: Ratio, wanted: Ppm) -> Ppm {
    let wanted = part(wanted);
    if rate >= wanted {
        return Ppm::ONE;
    }
    // r (1 − y) / (y (1 − r))
    let lost = wanted.times(Ratio::ONE.minus(rate));
    let kept = rate.times(Ratio::ONE.minus(wanted));
    kept.times(lost.inverse()).ppm().min(Ppm::ONE)
}

/// The rate that a job can have within its own budget: all of it if it needs no more.
fn own_cap_rate(profile: &Profile, budget: Ppm) -> Ratio {
    let util = profile.gpu_util.unwrap_or(Utilisation::FULL).0.clamp(1, Utilisation::FULL.0);
    let needed = u64::from(util) * u64::from(PPM_ONE / Utilisation::FULL.0);
    Ratio::new(u64::from(budget.0), needed).min(Ratio::ONE)
}

fn part(of: Ppm) -> Ratio {
    Ratio::new(u64::from(of.0), u64::from(PPM_ONE))
}

/// A model for jobs that are on their GPUs already: beside a job that it does not fit with by the model, a
/// job keeps half of its speed. No plan puts such jobs together, but they may have been there before.
#[derive(Clone, Copy, Debug)]
pub struct HalfIfUnfit<'a, I: ?Sized>(pub &'a I);

impl<I: Interference + ?Sized> Interference for HalfIfUnfit<'_, I> {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        Some(self.0.pair_rate(job, beside, gpu).unwrap_or(Ratio::HALF))
    }

    fn is_pairwise(&self) -> bool {
        self.0.is_pairwise()
    }

    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], gpu: GpuTypeId) -> Option<Ratio> {
        Some(self.0.group_rate(job, beside, gpu).unwrap_or(Ratio::HALF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::ClosedForm;
    use crate::job::ClassId;
    use crate::sub_batch::SubBatch;
    use crate::units::Memory;
    use proptest::prelude::*;

    const KIND: GpuTypeId = GpuTypeId(0);

    fn busy(percent: u32) -> Profile {
        Profile { gpu_util: Some(Utilisation(percent * 1000)), ..Profile::default() }
    }

    fn class(class: u32) -> Profile {
        Profile { class: Some(ClassId(class)), ..Profile::default() }
    }

    fn gpu<'a>(factor: Ratio, others: &'a [Tenant<'a>]) -> GangGpu<Vec<Tenant<'a>>> {
        GangGpu { kind: KIND, factor, others: others.to_vec() }
    }

    /// Pair rates by class; a rate of zero is a pair that does not fit.
    struct Table(Vec<Vec<u32>>);

    impl Interference for Table {
        fn pair_rate(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Option<Ratio> {
            let (a, b) = job.class.zip(beside.class)?;
            let ppm = self.0[a.index()][b.index()];
            (ppm > 0).then(|| Ratio::new(u64::from(ppm), 1_000_000))
        }
    }

    /// Each tenant has its budget, divided by all budgets where those are more than the GPU.
    struct Proportional;

    impl Interference for Proportional {
        fn pair_rate(&self, _: &Profile, _: &Profile, _: GpuTypeId) -> Option<Ratio> {
            unreachable!("a model of groups is asked for groups")
        }

        fn is_pairwise(&self) -> bool {
            false
        }

        fn group_rate(
            &self,
            job: Tenant<'_>,
            beside: &[Tenant<'_>],
            _: GpuTypeId,
        ) -> Option<Ratio> {
            let sum: u32 = beside.iter().map(|tenant| tenant.budget.0).sum();
            let all = u64::from(job.budget.0 + sum).max(1_000_000);
            Some(Ratio::new(u64::from(job.budget.0), all))
        }
    }

    #[test]
    fn the_slowest_gpu_of_a_gang_counts_and_not_the_product_over_its_gpus() {
        let (job, light, heavy) = (busy(80), busy(40), busy(60));
        let (light, heavy) = ([Tenant::uncapped(&light)], [Tenant::uncapped(&heavy)]);
        let rate = |gpus: &[&[Tenant<'_>]]| {
            let gpus = gpus.iter().map(|others| gpu(Ratio::ONE, others));
            gang_rate(&ClosedForm, Tenant::uncapped(&job), Ratio::ONE, gpus).unwrap()
        };
        assert_eq!(rate(&[&light]).ppm(), Ppm(833_333));
        assert_eq!(rate(&[&heavy]).ppm(), Ppm(714_286));
        assert_eq!(rate(&[&light, &heavy]).ppm(), Ppm(714_286));
        assert_eq!(rate(&[&light, &[]]).ppm(), Ppm(833_333));
        assert_eq!(rate(&[&[], &[]]), Ratio::ONE);
        let nowhere: [GangGpu<[Tenant<'_>; 0]>; 0] = [];
        assert_eq!(gang_rate(&ClosedForm, Tenant::uncapped(&job), Ratio::ONE, nowhere), None);
    }

    #[test]
    fn the_factor_of_each_gpu_counts_before_the_minimum() {
        let (job, other) = (busy(80), busy(80));
        let other = [Tenant::uncapped(&other)];
        // A slow GPU alone and a fast one beside another job: 0.5 and 1.2 × 0.625.
        let gpus = [gpu(Ratio::new(1, 2), &[]), gpu(Ratio::new(12, 10), &other)];
        let rate = gang_rate(&ClosedForm, Tenant::uncapped(&job), Ratio::ONE, gpus).unwrap();
        assert_eq!(rate.ppm(), Ppm(500_000));
        let gpus = [gpu(Ratio::new(9, 10), &[]), gpu(Ratio::new(12, 10), &other)];
        let rate = gang_rate(&ClosedForm, Tenant::uncapped(&job), Ratio::ONE, gpus).unwrap();
        assert_eq!(rate.ppm(), Ppm(750_000));
    }

    #[test]
    fn budgets_reach_models_of_groups() {
        let profile = busy(50);
        let tenant = |budget| Tenant { budget: Ppm(budget), ..Tenant::uncapped(&profile) };
        let rate = |job, others: &[Tenant<'_>]| {
            gang_rate(&Proportional, job, Ratio::ONE, [gpu(Ratio::ONE, others)]).unwrap().ppm()
        };
        assert_eq!(rate(tenant(300_000), &[]), Ppm(300_000));
        assert_eq!(rate(tenant(300_000), &[tenant(700_000)]), Ppm(300_000));
        assert_eq!(rate(tenant(500_000), &[tenant(500_000), tenant(250_000)]), Ppm(400_000));
    }

    #[test]
    fn a_capped_neighbour_costs_less_and_a_cap_bounds_its_owner() {
        let (full, half) = (busy(100), busy(50));
        let tenant = |profile, budget| Tenant { budget: Ppm(budget), ..Tenant::uncapped(profile) };
        let rate = |job, other| {
            gang_rate(&ClosedForm, job, Ratio::ONE, [gpu(Ratio::ONE, &[other])]).unwrap().ppm()
        };
        // The fair division of two that want everything: 1 / (1 + v).
        let all = tenant(&full, 1_000_000);
        assert_eq!(rate(all, all), Ppm(500_000));
        assert_eq!(rate(all, tenant(&full, 250_000)), Ppm(800_000));
        assert_eq!(rate(tenant(&full, 250_000), all), Ppm(250_000));
        assert_eq!(rate(tenant(&half, 250_000), tenant(&half, 250_000)), Ppm(500_000));
        for (rate, wanted) in [(500_000, 800_000), (625_000, 833_334), (900_000, 950_000)] {
            let rate = Ratio::new(rate, 1_000_000);
            let cap = cap_for_rate(rate, Ppm(wanted));
            let kept = rate_under_cap(rate, cap).ppm();
            assert!(kept.0.abs_diff(wanted) <= 1, "{kept:?} of {wanted}");
        }
        assert_eq!(cap_for_rate(Ratio::HALF, Ppm(400_000)), Ppm::ONE);
    }

    #[test]
    fn sub_batches_cost_their_part_once() {
        let (job, other) = (busy(80), busy(80));
        let others = [Tenant::uncapped(&other)];
        let parts = SubBatch { count: 4, slowdown: Ratio::new(5, 4), memory: Memory(1) };
        let gpus = || [gpu(Ratio::ONE, &others), gpu(Ratio::ONE, &others)];
        let rate = gang_rate(&ClosedForm, Tenant::uncapped(&job), parts.rate(), gpus()).unwrap();
        assert_eq!(rate.ppm(), Ppm(500_000));
        let whole = SubBatch { count: 1, slowdown: Ratio::ONE, memory: Memory(1) };
        let rate = gang_rate(&ClosedForm, Tenant::uncapped(&job), whole.rate(), gpus()).unwrap();
        assert_eq!(rate.ppm(), Ppm(625_000));
    }

    #[test]
    fn a_pair_that_does_not_fit_has_no_rate_and_half_of_it_where_it_exists_already() {
        let table = Table(vec![vec![900_000, 800_000, 0], vec![700_000; 3], vec![0; 3]]);
        let profiles: Vec<Profile> = (0..3).map(class).collect();
        let tenant = |index: usize| Tenant::uncapped(&profiles[index]);
        let (fits, unfit) = ([tenant(1)], [tenant(1), tenant(2)]);
        let gpus = || [gpu(Ratio::ONE, &fits), gpu(Ratio::ONE, &unfit)];
        assert_eq!(gang_rate(&table, tenant(0), Ratio::ONE, gpus()), None);
        assert_eq!(rate_on_gpu(&table, tenant(0), gpu(Ratio::ONE, &unfit)), None);
        let rate = gang_rate(&HalfIfUnfit(&table), tenant(0), Ratio::ONE, gpus());
        assert_eq!(rate.map(Ratio::ppm), Some(Ppm(400_000)));
    }

    proptest! {
        /// Against floating point: for every GPU the product, of all GPUs the least.
        #[test]
        fn the_law_is_the_least_product_of_pair_rates(
            table in prop::collection::vec(prop::collection::vec(0_u32..1_200_000, 4), 4),
            job in 0_usize..4,
            gpus in prop::collection::vec(
                (100_000_u64..2_000_000, prop::collection::vec(0_usize..4, 0..4)),
                1..6,
            ),
            keeps in 200_000_u64..=1_000_000,
        ) {
            let profiles: Vec<Profile> = (0..4).map(class).collect();
            let mut expected = Some(f64::INFINITY);
            for (factor, others) in &gpus {
                let mut rate = *factor as f64 / 1e6;
                for &other in others {
                    rate *= f64::from(table[job][other]) / 1e6;
                    if table[job][other] == 0 {
                        expected = None;
                    }
                }
                expected = expected.map(|least| least.min(rate));
            }
            let expected = expected.map(|rate| rate * keeps as f64 / 1e6);
            let model = Table(table);
            let described = gpus.iter().map(|(factor, others)| GangGpu {
                kind: KIND,
                factor: Ratio::new(*factor, 1_000_000),
                others: others.iter().map(|&other| Tenant::uncapped(&profiles[other])),
            });
            let job = Tenant::uncapped(&profiles[job]);
            let rate = gang_rate(&model, job, Ratio::new(keeps, 1_000_000), described);
            prop_assert_eq!(rate.is_some(), expected.is_some());
            if let Some((rate, expected)) = rate.zip(expected) {
                prop_assert!((rate.as_f64() - expected).abs() < 1e-10, "{rate:?} {expected}");
            }
        }
    }
}
