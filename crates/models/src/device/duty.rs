//! The duty law: throughput of n equal processes from the utilisation of one of them alone.

use tandem_core::{GpuTypeId, Interference, PPM_ONE, Profile, Ratio, Tenant, Utilisation};

/// One measurement: n concurrent copies of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyPoint {
    /// Copies.
    pub copies: u32,
    /// Utilisation of one copy, relative to what the GPU could do at its batch size.
    pub duty: f64,
    /// Throughput of all ÷ throughput of one alone.
    pub stp: f64,
}

/// STP(n) = ((1/n)ᵖ + (u/η)ᵖ)^(−1/p): n copies gain n-fold until the GPU is full, with a bend between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyLaw {
    /// The utilisation that copies reach together.
    pub eta: f64,
    /// Sharpness of the bend.
    pub exponent: f64,
}

impl DutyLaw {
    /// For a duty of solo throughput ÷ the best over batch sizes.
    pub const BY_BATCH: DutyLaw = DutyLaw { eta: 1.04, exponent: 3.0 };
    /// For a duty of solo throughput ÷ the scaled-up throughput of one small slice of the GPU.
    pub const BY_SLICE: DutyLaw = DutyLaw { eta: 0.98, exponent: 4.0 };

    /// Throughput of `copies` ÷ throughput of one alone; exactly 1 for one.
    pub fn stp(&self, copies: u32, duty: f64) -> f64 {
        if copies <= 1 {
            return f64::from(copies);
        }
        let (each, full) = (1.0 / f64::from(copies), duty / self.eta);
        (each.powf(self.exponent) + full.powf(self.exponent)).powf(-1.0 / self.exponent)
    }

    /// Mean relative error; zero without points.
    pub fn error(&self, points: &[DutyPoint]) -> f64 {
        let errors = points.iter().map(|point| self.relative(point));
        errors.sum::<f64>() / points.len().max(1) as f64
    }

    /// Absolute relative error at one point.
    pub fn relative(&self, point: &DutyPoint) -> f64 {
        (self.stp(point.copies, point.duty) / point.stp - 1.0).abs()
    }

    /// The law with the smallest mean error: η in steps of 0.02, the exponent in steps of a half.
    pub fn fit(points: &[DutyPoint]) -> Self {
        let etas = (35..=65).map(|step| f64::from(step) / 50.0);
        let laws = etas.flat_map(|eta| {
            (2..=20).map(move |step| DutyLaw { eta, exponent: f64::from(step) / 2.0 })
        });
        let errors = laws.map(|law| (law, law.error(points)));
        let best = errors.min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(Self::BY_BATCH, |(law, _)| law)
    }
}

/// The duty law for different tenants within budgets, from the solo utilisation of each.
///
/// Tenant i uses e = min(u, v) of the GPU. With f(x) = (1 + (x/η)ᵖ)^(−1/p) its rate is e/u · f(Σe)/f(e): the
/// cap limits its use, the others slow it by theirs, and alone the law is exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyShares {
    /// The utilisation that tenants reach together.
    pub eta: f64,
    /// Sharpness of the bend.
    pub exponent: f64,
}

impl Default for DutyShares {
    /// For the utilisation that drivers report: the share of time with a kernel in flight. It exceeds the
    /// share of busy SMs, so that the sum over tenants may pass 1.
    fn default() -> Self {
        Self { eta: 1.2, exponent: 4.0 }
    }
}

impl DutyShares {
    /// The rate of a tenant of this duty and budget beside others.
    pub fn kept(&self, own: (f64, f64), others: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        let (duty, budget) = own;
        let used = duty.min(budget);
        let pressed: f64 = others.into_iter().map(|(duty, budget)| duty.min(budget)).sum();
        let capped = if duty > budget { budget / duty } else { 1.0 };
        capped * self.bend(used + pressed) / self.bend(used)
    }

    fn bend(&self, load: f64) -> f64 {
        (1.0 + (load / self.eta).powf(self.exponent)).powf(-1.0 / self.exponent)
    }
}

/// The larger of both utilisations; 100 % if neither is known.
fn duty(profile: &Profile) -> f64 {
    let known = profile.gpu_util.max(profile.bandwidth_util);
    known.unwrap_or(Utilisation::FULL).share()
}

impl Interference for DutyShares {
    fn pair_rate(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Option<Ratio> {
        Some(Ratio::from_f64(self.kept((duty(job), 1.0), [(duty(beside), 1.0)])))
    }

    fn is_pairwise(&self) -> bool {
        false
    }

    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], _: GpuTypeId) -> Option<Ratio> {
        let of = |tenant: &Tenant<'_>| {
            (duty(tenant.profile), f64::from(tenant.budget.0) / f64::from(PPM_ONE))
        };
        Some(Ratio::from_f64(self.kept(of(&job), beside.iter().map(of))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_core::Ppm;

    #[test]
    fn different_tenants_slow_each_other_by_their_use_and_a_cap_limits_it() {
        let law = DutyShares::default();
        assert_eq!(law.kept((0.9, 1.0), []), 1.0);
        assert_eq!(law.kept((0.8, 0.4), []), 0.5);
        let beside = |other: f64, cap: f64| law.kept((0.5, 1.0), [(other, cap)]);
        assert!((beside(1e-6, 1.0) - 1.0).abs() < 1e-5, "one that does nothing takes nothing");
        assert!(beside(0.5, 1.0) > beside(0.9, 1.0) && beside(0.9, 0.3) > beside(0.9, 1.0));
        // Three tenants that fill the GPU have a third of what fits each, and a little more than alone.
        let full = law.kept((1.0, 1.0), [(1.0, 1.0), (1.0, 1.0)]);
        assert!((0.33..0.47).contains(&full), "{full}");
    }

    #[test]
    fn groups_differ_from_their_pairs_and_unknown_jobs_use_everything() {
        let law = DutyShares::default();
        let profile = |percent: u32| Profile {
            gpu_util: Some(Utilisation(percent * 1000)),
            bandwidth_util: Some(Utilisation(1000)),
            ..Profile::default()
        };
        let [small, large, unknown] = [profile(30), profile(90), Profile::default()];
        let tenant = |profile, budget| Tenant { budget: Ppm(budget), ..Tenant::uncapped(profile) };
        let gpu = GpuTypeId(0);
        let pair = law.pair_rate(&small, &large, gpu).unwrap();
        let as_group = law.group_rate(tenant(&small, PPM_ONE), &[tenant(&large, PPM_ONE)], gpu);
        assert_eq!(as_group, Some(pair));
        let capped = law.group_rate(tenant(&small, PPM_ONE), &[tenant(&large, 300_000)], gpu);
        assert!(capped > Some(pair));
        assert!(law.pair_rate(&small, &unknown, gpu).unwrap() < pair);
        assert!(!law.is_pairwise());
    }

    #[test]
    fn one_is_exact_idle_copies_add_up_and_full_ones_gain_nothing() {
        let law = DutyLaw::BY_BATCH;
        assert_eq!(law.stp(1, 0.9), 1.0);
        assert!((law.stp(4, 0.01) - 4.0).abs() < 1e-3);
        assert!((law.stp(4, 1.0) - 1.04).abs() < 0.02);
        assert!(law.stp(3, 0.4) > law.stp(2, 0.4) && law.stp(3, 0.4) > law.stp(3, 0.5));
    }

    #[test]
    fn a_law_is_found_again_from_its_own_points() {
        let law = DutyLaw { eta: 0.9, exponent: 5.0 };
        let points: Vec<DutyPoint> = (2..6)
            .flat_map(|copies| {
                (1..10).map(move |tenth| {
                    let duty = f64::from(tenth) / 10.0;
                    DutyPoint { copies, duty, stp: law.stp(copies, duty) }
                })
            })
            .collect();
        assert_eq!(DutyLaw::fit(&points), law);
        assert_eq!(law.error(&points), 0.0);
        assert!(DutyLaw::BY_BATCH.error(&points) > 0.0);
    }
}
