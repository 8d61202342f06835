//! Promises to jobs that share a GPU, and the budgets that keep them.
//!
//! A budget caps what a tenant may use of a GPU. Budgets may add up to more than the GPU: then tenants compete, and
//! each is slowed down by what the others may use. A job with rate `r` beside an uncapped job has rate
//! `r / (r + v (1 − r))` beside one with budget `v`, and never more than its own budget allows. Two jobs that each
//! want the whole GPU have `r` = 1/2, which gives `1 / (1 + v)`.

use crate::cluster::GpuTypeId;
use crate::interference::Interference;
use crate::job::{JobId, JobSpec, Tolerance};
use crate::plan::BUDGET_MIN;
use crate::rate::{GangGpu, Tenant, cap_for_rate, rate_on_gpu};
use crate::units::{PPM_ONE, Ppm, Ratio, Utilisation};
use smallvec::SmallVec;

/// What a job was promised when it shares, apart from its [`Tolerance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// The job is a service. A budget below one slows down each of its requests.
    pub is_service: bool,
    /// The least rate at which it keeps its promised latency; zero without such a promise.
    pub least_rate: Ppm,
    /// The least part of each GPU that the other tenants' budgets must leave it; zero without such a promise.
    pub floor: Ppm,
    /// What it does goes before the work of the other tenants, so that they do not slow it down.
    pub goes_first: bool,
}

/// How budgets are chosen for jobs that share a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BudgetMode {
    /// No job is capped.
    #[default]
    Off,
    /// On a GPU with a promise, budgets add up to at most the GPU.
    Strict,
    /// Budgets may add up to more. Only jobs that would break another's promise are capped.
    Competitive,
}

/// Budgets of the tenants of a GPU, in the order of the tenants.
pub type Budgets = SmallVec<[Ppm; 4]>;

/// Budgets are multiples of this.
const STEP: u32 = PPM_ONE / 100;
/// Step of the search for more than two tenants.
const COARSE: u32 = 5 * STEP;

impl JobSpec {
    /// Whether it was promised anything for when it shares.
    pub fn has_promise(&self) -> bool {
        let Promise { least_rate, floor, goes_first, .. } = self.promise;
        let tolerates_all = self.tolerance == Tolerance::Any || self.tolerance == Tolerance::Alone;
        !tolerates_all || goes_first || least_rate > Ppm::ZERO || floor > Ppm::ZERO
    }

    /// Whether `rate` keeps its promise and its tolerance.
    pub fn accepts(&self, rate: Ppm) -> bool {
        rate >= self.promise.least_rate && self.tolerance.accepts(rate)
    }

    /// The least rate that it accepts.
    pub fn least_rate(&self) -> Ppm {
        let tolerated = match self.tolerance {
            Tolerance::Slowdown(most) => {
                let (one, most) = (u64::from(PPM_ONE), u64::from(most.max(1)));
                Ppm(u32::try_from((one * one).div_ceil(most)).unwrap_or(PPM_ONE))
            }
            Tolerance::Any => Ppm::ZERO,
            Tolerance::Alone => Ppm::ONE,
        };
        tolerated.max(self.promise.least_rate)
    }

    /// The part of a GPU that it needs for a rate of one.
    fn demand(&self) -> Ppm {
        // While a service answers a request it wants the whole GPU, however low its mean utilisation is.
        let util = self.profile.gpu_util.filter(|_| !self.promise.is_service);
        let util = util.unwrap_or(Utilisation::FULL).0.min(Utilisation::FULL.0);
        Ppm(util.max(1) * (PPM_ONE / Utilisation::FULL.0))
    }
}

/// The job whose promise would be broken under any budgets of this mode if these jobs shared a GPU of `kind`;
/// `None` if budgets keep all promises.
pub fn promise_in_the_way(
    specs: &[&JobSpec],
    interference: &dyn Interference,
    kind: GpuTypeId,
    mode: BudgetMode,
) -> Option<JobId> {
    GpuTenants { specs, interference, kind }.choose(mode).err()
}

/// The tenants of one GPU, for which budgets are chosen.
pub(crate) struct GpuTenants<'a> {
    pub(crate) specs: &'a [&'a JobSpec],
    pub(crate) interference: &'a dyn Interference,
    pub(crate) kind: GpuTypeId,
}

impl GpuTenants<'_> {
    /// Budgets that keep every promise, or a job whose promise cannot be kept.
    pub(crate) fn choose(&self, mode: BudgetMode) -> Result<Budgets, JobId> {
        let all: Budgets = self.specs.iter().map(|_| Ppm::ONE).collect();
        let is_promised = self.specs.iter().any(|spec| spec.has_promise());
        match mode {
            BudgetMode::Strict if is_promised && self.specs.len() > 1 => self.divided(),
            BudgetMode::Competitive if self.broken(&all).is_some() => match self.specs.len() {
                2 => self.competing_pair(),
                _ => self.competing(),
            },
            BudgetMode::Off => self.broken(&all).map_or(Ok(all), Err),
            BudgetMode::Strict | BudgetMode::Competitive => Ok(all),
        }
    }

    /// The rate of a tenant under budgets.
    pub(crate) fn rate(&self, index: usize, budgets: &[Ppm]) -> Option<Ratio> {
        let tenant = |index: usize| Tenant::of(self.specs[index], budgets[index]);
        let others = (0..self.specs.len()).filter(|&other| other != index).map(tenant);
        let on = GangGpu { kind: self.kind, factor: Ratio::ONE, others };
        let rate = rate_on_gpu(self.interference, tenant(index), on)?;
        let is_service = self.specs[index].promise.is_service;
        let most = if is_service { ratio(budgets[index]) } else { Ratio::MAX };
        Some(rate.min(most))
    }

    /// The first job whose promise these budgets break.
    fn broken(&self, budgets: &[Ppm]) -> Option<JobId> {
        let sum: u32 = budgets.iter().map(|budget| budget.0).sum();
        let is_broken = |index: usize| {
            let spec = self.specs[index];
            let others = sum - budgets[index].0;
            let floor = spec.promise.floor;
            let is_sure = budgets[index] >= floor && others.saturating_add(floor.0) <= PPM_ONE;
            let has_floor = floor == Ppm::ZERO || is_sure;
            let rate = self.rate(index, budgets);
            !has_floor || rate.is_none_or(|rate| !spec.accepts(rate.ppm()))
        };
        (0..self.specs.len()).find(|&index| is_broken(index)).map(|index| self.specs[index].id)
    }

    /// For two tenants: each gets the largest budget that keeps the other's promise.
    fn competing_pair(&self) -> Result<Budgets, JobId> {
        let mut budgets: Budgets = SmallVec::new();
        for (spec, promised) in [(0, 1), (1, 0)].map(|(a, b)| (self.specs[a], self.specs[b])) {
            let fits = self.interference.pair_rate(&promised.profile, &spec.profile, self.kind);
            let rate = fits.ok_or(promised.id)?;
            let most = cap_for_rate(rate, promised.least_rate());
            let most = most.0.min(PPM_ONE - promised.promise.floor.0.min(PPM_ONE));
            let most = Ppm(most / STEP * STEP);
            if most < BUDGET_MIN {
                return Err(promised.id);
            }
            budgets.push(most);
        }
        self.broken(&budgets).map_or(Ok(budgets), Err)
    }

    /// For more tenants: the largest equal budget that keeps all promises, for the jobs without a promise, or for
    /// all jobs if each has one.
    fn competing(&self) -> Result<Budgets, JobId> {
        let is_free = |spec: &&&JobSpec| !spec.has_promise();
        let has_free = self.specs.iter().filter(is_free).count() > 0;
        let mut last = None;
        for most in (BUDGET_MIN.0..PPM_ONE).step_by(COARSE as usize).rev() {
            let budget = |spec: &&JobSpec| match has_free && spec.has_promise() {
                true => Ppm::ONE,
                false => Ppm(most),
            };
            let budgets: Budgets = self.specs.iter().map(budget).collect();
            last = self.broken(&budgets);
            if last.is_none() {
                return Ok(budgets);
            }
        }
        Err(last.unwrap_or(self.specs[0].id))
    }

    /// Jobs with a promise get what they need, the others divide the rest equally.
    fn divided(&self) -> Result<Budgets, JobId> {
        let promised = |spec: &JobSpec| spec.has_promise();
        let free = self.specs.iter().filter(|spec| !promised(spec)).count();
        let free = u32::try_from(free).unwrap_or(u32::MAX);
        let mut last = self.specs.iter().find(|spec| promised(spec)).map(|spec| spec.id);
        for more in (0..PPM_ONE).step_by(COARSE as usize) {
            let need = |spec: &&JobSpec| {
                let rate = ratio(spec.least_rate()).times(ratio(spec.demand())).ppm();
                let need = rate.max(spec.promise.floor).max(BUDGET_MIN).0 + more;
                need.div_ceil(STEP) * STEP
            };
            let needs: u32 = self.specs.iter().filter(|spec| promised(spec)).map(need).sum();
            if needs + free * BUDGET_MIN.0 > PPM_ONE {
                break;
            }
            let each = (PPM_ONE - needs).checked_div(free).unwrap_or(0) / STEP * STEP;
            let budget = |spec: &&JobSpec| Ppm(if promised(spec) { need(spec) } else { each });
            let budgets: Budgets = self.specs.iter().map(budget).collect();
            last = self.broken(&budgets);
            if last.is_none() {
                return Ok(budgets);
            }
        }
        Err(last.unwrap_or(self.specs[0].id))
    }
}

fn ratio(part: Ppm) -> Ratio {
    Ratio::new(u64::from(part.0), u64::from(PPM_ONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interference::ClosedForm;
    use crate::job::Profile;
    use proptest::prelude::*;

    fn spec(id: u32, percent: u32) -> JobSpec {
        let gpu_util = Some(Utilisation(percent * 1000));
        JobSpec { profile: Profile { gpu_util, ..Profile::default() }, ..JobSpec::plain(id) }
    }

    fn service(id: u32, percent: u32, least_ppm: u32) -> JobSpec {
        let least_rate = Ppm(least_ppm);
        let promise = Promise { is_service: true, least_rate, ..Promise::default() };
        JobSpec { promise, ..spec(id, percent) }
    }

    fn choose(specs: &[&JobSpec], mode: BudgetMode) -> Result<Vec<u32>, JobId> {
        let tenants = GpuTenants { specs, interference: &ClosedForm, kind: GpuTypeId(0) };
        let budgets = tenants.choose(mode)?;
        Ok(budgets.iter().map(|budget| budget.0 / STEP).collect())
    }

    #[test]
    fn without_promises_nobody_is_capped() {
        let (a, b) = (spec(0, 100), spec(1, 100));
        for mode in [BudgetMode::Off, BudgetMode::Strict, BudgetMode::Competitive] {
            assert_eq!(choose(&[&a, &b], mode), Ok(vec![100, 100]));
        }
    }

    #[test]
    fn competing_leaves_more_than_a_division_at_the_same_promise() {
        let (service, training) = (service(0, 100, 600_000), spec(1, 100));
        assert_eq!(choose(&[&service, &training], BudgetMode::Off), Err(JobId(0)));
        // 1 / (1 + 0.66) is just above 0.6.
        let competitive = choose(&[&service, &training], BudgetMode::Competitive);
        assert_eq!(competitive, Ok(vec![100, 66]));
        assert_eq!(choose(&[&service, &training], BudgetMode::Strict), Ok(vec![60, 40]));
    }

    #[test]
    fn a_service_that_goes_first_needs_no_caps_unless_it_meets_another() {
        let first = |id, least_ppm| {
            let plain = service(id, 80, least_ppm);
            JobSpec { promise: Promise { goes_first: true, ..plain.promise }, ..plain }
        };
        let (one, training) = (first(0, 950_000), spec(1, 100));
        for mode in [BudgetMode::Off, BudgetMode::Competitive] {
            assert_eq!(choose(&[&one, &training], mode), Ok(vec![100, 100]));
        }
        let (one, other) = (first(0, 950_000), first(1, 950_000));
        assert!(choose(&[&one, &other], BudgetMode::Competitive).is_err());
        // At half of their speed they fit beside each other, and training takes nothing from them.
        let (one, other) = (first(0, 500_000), first(1, 500_000));
        assert!(choose(&[&one, &other, &training], BudgetMode::Competitive).is_ok());
    }

    #[test]
    fn a_promise_that_no_budget_keeps_is_named() {
        let (tight, training) = (service(3, 100, 950_000), spec(1, 100));
        for mode in [BudgetMode::Off, BudgetMode::Strict, BudgetMode::Competitive] {
            assert_eq!(choose(&[&training, &tight], mode), Err(JobId(3)));
        }
        // Two floors of 60 % are more than a GPU.
        let floor = Promise { floor: Ppm(600_000), ..Promise::default() };
        let (a, b) = (JobSpec { promise: floor, ..spec(0, 50) }, spec(1, 50));
        let both = JobSpec { promise: floor, ..b.clone() };
        assert_eq!(choose(&[&a, &both], BudgetMode::Strict), Err(JobId(0)));
        assert!(choose(&[&a, &both], BudgetMode::Competitive).is_err());
        assert_eq!(choose(&[&a, &b], BudgetMode::Competitive), Ok(vec![100, 40]));
    }

    #[test]
    fn a_slow_down_that_is_too_much_without_caps_is_kept_by_one() {
        let limited = JobSpec { tolerance: Tolerance::Slowdown(1_200_000), ..spec(0, 80) };
        let other = spec(1, 80);
        assert_eq!(choose(&[&limited, &other], BudgetMode::Off), Err(JobId(0)));
        let budgets = choose(&[&limited, &other], BudgetMode::Competitive);
        assert_eq!(budgets, Ok(vec![100, 33]));
        let (third, both) = (spec(2, 30), [&limited, &other]);
        let three = choose(&[both[0], both[1], &third], BudgetMode::Competitive).unwrap();
        assert!(three[0] == 100 && three[1] == three[2] && three[1] < 33, "{three:?}");
    }

    proptest! {
        /// Whatever is chosen keeps every promise, and a division is one.
        #[test]
        fn chosen_budgets_keep_every_promise(
            utils in prop::collection::vec(5_u32..=100, 2..5),
            least in prop::collection::vec(0_u32..=1_000_000, 4),
            floors in prop::collection::vec(0_u32..=500_000, 4),
            services in prop::collection::vec(any::<bool>(), 4),
        ) {
            let specs: Vec<JobSpec> = (0..)
                .zip(&utils)
                .map(|(id, &util)| {
                    let index = id as usize;
                    let promise = Promise {
                        is_service: services[index],
                        least_rate: if services[index] { Ppm(least[index]) } else { Ppm::ZERO },
                        floor: if least[index] % 2 == 0 { Ppm(floors[index]) } else { Ppm::ZERO },
                        goes_first: services[index] && least[index] % 3 == 0,
                    };
                    JobSpec { promise, ..spec(id, util) }
                })
                .collect();
            let specs: Vec<&JobSpec> = specs.iter().collect();
            let tenants = GpuTenants { specs: &specs, interference: &ClosedForm, kind: GpuTypeId(0) };
            for mode in [BudgetMode::Off, BudgetMode::Strict, BudgetMode::Competitive] {
                let Ok(budgets) = tenants.choose(mode) else { continue };
                prop_assert_eq!(tenants.broken(&budgets), None);
                prop_assert!(budgets.iter().all(|&budget| budget >= BUDGET_MIN));
                let sum: u32 = budgets.iter().map(|budget| budget.0).sum();
                let is_promised = specs.iter().any(|spec| spec.has_promise());
                prop_assert!(mode != BudgetMode::Strict || !is_promised || sum <= PPM_ONE);
            }
        }
    }
}
