//! How much jobs slow each other down on a GPU, as policies and the world ask for it.

use crate::cluster::GpuTypeId;
use crate::job::{ClassId, Profile};
use crate::rate::Tenant;
use crate::units::{Memory, Ratio, Utilisation};
use std::sync::Arc;

/// A model of co-location. The world has a true one, the policies a believed one.
pub trait Interference: Send + Sync {
    /// Speed of `job` next to `beside` on a GPU of kind `gpu`, relative to its speed alone there;
    /// `None` if the two do not fit in its memory together.
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio>;

    /// Standard deviation of a believed pair rate; zero where the rate is known.
    fn pair_deviation(&self, _job: &Profile, _beside: &Profile, _gpu: GpuTypeId) -> Ratio {
        Ratio::ZERO
    }

    /// Whether groups and budgets follow from [`Interference::pair_rate`] alone: the rate of a job among several
    /// is the product of its pair rates, whatever the budgets.
    fn is_pairwise(&self) -> bool {
        true
    }

    /// Speed of `job` next to all of `beside` on a GPU of kind `gpu`, each within its budget, relative to
    /// its speed alone there without one; `None` if they do not fit in its memory together.
    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], gpu: GpuTypeId) -> Option<Ratio> {
        beside.iter().try_fold(Ratio::ONE, |rate, other| {
            Some(rate.times(self.pair_rate(job.profile, other.profile, gpu)?))
        })
    }
}

/// The model that an engine plans with, which may learn from what its driver observes.
pub trait Learner: Interference {
    /// Adds a class of jobs by its name. Classes are numbered in order; a model that does not learn
    /// ignores it.
    fn add_class(&mut self, _class: ClassId, _name: &str) {}

    /// A class, which was added before, has shown what it does alone; a model that does not learn ignores it.
    fn describe_class(&mut self, _class: ClassId, _traits: &ClassTraits) {}

    /// Learns from an observed rate; a model that does not learn ignores it. Returns whether a believed
    /// rate moved by more than its standard deviation, so that the pairs that stand may not be the best
    /// ones any more.
    fn observe(&mut self, _: &Observation) -> bool {
        false
    }

    /// The model as it is now. Later observations do not change the copy, so other threads can read it.
    fn snapshot(&self) -> Arc<dyn Interference>;
}

/// What jobs of a class do while they run alone, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassTraits {
    /// Share of time during which they use their GPU.
    pub gpu_util: Option<Utilisation>,
    /// Memory on each GPU.
    pub memory: Option<Memory>,
    /// Steps per second.
    pub steps_per_s: Option<Ratio>,
    /// They report steps, so a wrong prediction about them is noticed.
    pub reports: bool,
}

/// What a job showed about itself while it ran beside the same others for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The job.
    pub job: Profile,
    /// Who was beside it on each of its GPUs, where that differs: the GPU that is slowest counts.
    pub beside: Vec<Vec<Profile>>,
    /// The kind of GPU.
    pub gpu: GpuTypeId,
    /// Its speed relative to its speed alone there.
    pub rate: Ratio,
    /// Standard deviation of such a measurement.
    pub noise: Ratio,
}

/// A model that several runs share and none changes.
impl Interference for Arc<dyn Interference> {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        self.as_ref().pair_rate(job, beside, gpu)
    }

    fn pair_deviation(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Ratio {
        self.as_ref().pair_deviation(job, beside, gpu)
    }

    fn is_pairwise(&self) -> bool {
        self.as_ref().is_pairwise()
    }

    fn group_rate(&self, job: Tenant<'_>, beside: &[Tenant<'_>], gpu: GpuTypeId) -> Option<Ratio> {
        self.as_ref().group_rate(job, beside, gpu)
    }
}

impl Learner for Arc<dyn Interference> {
    fn snapshot(&self) -> Arc<dyn Interference> {
        self.clone()
    }
}

/// The closed form used when nothing was measured: two jobs that together want more than the whole
/// GPU get their part of it, `min(1, 100 / (util_a + util_b))`. A job of unknown utilisation is
/// taken to want all of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClosedForm;

impl Interference for ClosedForm {
    fn pair_rate(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Option<Ratio> {
        let wanted = |profile: &Profile| u64::from(profile.gpu_util.unwrap_or(Utilisation::FULL).0);
        let (full, sum) = (u64::from(Utilisation::FULL.0), wanted(job) + wanted(beside));
        Some(if sum <= full { Ratio::ONE } else { Ratio::new(full, sum) })
    }
}

impl Learner for ClosedForm {
    fn snapshot(&self) -> Arc<dyn Interference> {
        Arc::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Ppm;

    #[test]
    fn the_closed_form_divides_the_gpu_only_when_it_is_wanted_twice() {
        let profile = |percent: u32| Profile {
            gpu_util: Some(Utilisation(percent * 1000)),
            ..Profile::default()
        };
        let rate =
            |a: &Profile, b: &Profile| ClosedForm.pair_rate(a, b, GpuTypeId(0)).unwrap().ppm();
        assert_eq!(rate(&profile(40), &profile(60)), Ppm::ONE);
        assert_eq!(rate(&profile(90), &profile(60)), Ppm(666_667));
        assert_eq!(rate(&Profile::default(), &Profile::default()), Ppm(500_000));
    }
}
