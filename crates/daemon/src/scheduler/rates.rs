//! How fast jobs run: predicted by the engine's model until it was measured.

use super::active::{Active, Phase};
use super::{Fact, LearnedClass, RateSource, Scheduler};
use tandem_core::{GangGpu, GpuTypeId, HalfIfUnfit, Ppm, Profile, Ratio, Tenant, gang_rate};

impl Scheduler {
    /// The rate of a job beside the jobs whose processes are on its devices, by the engine's model and the
    /// rate law that the check and the simulated world use, too.
    pub(super) fn predicted_rate(&self, active: &Active) -> Ratio {
        let Some(allocation) = &active.allocation else { return Ratio::ONE };
        let profile = self.profile(active);
        let others = |&device: &u32| {
            let jobs = self.devices.others(active.job.id, device);
            let jobs = jobs.filter_map(|job| self.jobs.get(job));
            jobs.map(|other| (self.profile(other), other.budget())).collect()
        };
        let beside: Vec<Vec<(Profile, Ppm)>> = allocation.devices.iter().map(others).collect();
        let gpus = beside.iter().map(|others| GangGpu {
            kind: GpuTypeId(0),
            factor: Ratio::ONE,
            others: others.iter().map(|(profile, budget)| Tenant { profile, budget: *budget }),
        });
        let known = self.planner.find(active.entry);
        let option = known.and_then(|known| known.spec.sub_batch_option(allocation.sub_batches));
        let sub_batch_rate = option.map_or(Ratio::ONE, |option| option.rate());
        let job = Tenant { profile: &profile, budget: active.budget() };
        let model = HalfIfUnfit(self.planner.engine().learner());
        gang_rate(&model, job, sub_batch_rate, gpus).unwrap_or(Ratio::ONE)
    }

    /// What the engine knows about a job's use of a GPU; at least its class.
    fn profile(&self, active: &Active) -> Profile {
        let known = self.planner.find(active.entry);
        known.map_or_else(
            || Profile { class: self.learning.find(&active.job.class), ..Profile::default() },
            |known| known.spec.profile,
        )
    }

    /// Where co-located jobs changed, rates are predicted until they are measured.
    pub(super) fn refresh_rates(&mut self) {
        let now = self.now.time();
        let mut jobs = self.devices.take_touched();
        jobs.append(&mut self.processes.take_left());
        jobs.sort_unstable();
        jobs.dedup();
        for id in jobs {
            let Some(active) = self.jobs.get(id) else { continue };
            let is_shared = !self.co_located(id).is_empty();
            let rate = if active.phase == Phase::Running {
                self.predicted_rate(active).ppm().max(Ppm(1))
            } else {
                Ppm::ZERO
            };
            let active = self.jobs.get_mut(id).expect("it was found above");
            active.stop_clock(now);
            if active.phase == Phase::Running {
                active.since = Some((now, is_shared));
            }
            if self.setup.believe_rates {
                active.pace.set_rate(now, rate);
                self.tell_progress(id);
            }
            self.jobs.mark_changed(id);
            self.watch_estimate(id);
        }
    }

    /// How the rate of a job was found out; `None` if it shares a device and nothing is known about that.
    pub(super) fn rate_source(&self, active: &Active) -> Option<RateSource> {
        if active.rate_is_measured() {
            return Some(active.rate_source());
        }
        let others = self.co_located(active.job.id);
        let own = self.learning.get(&active.job.class);
        let is_known = |class: Option<&LearnedClass>| {
            class.is_some_and(|class| class.duty.is_some() || !class.solo.is_empty())
        };
        let is_predicted = others.iter().filter_map(|&other| self.jobs.get(other)).all(|other| {
            let class = &other.job.class;
            own.is_some_and(|own| own.measurements(class) > 0)
                || (is_known(own) && is_known(self.learning.get(class)))
        });
        is_predicted.then_some(RateSource::Prediction)
    }

    /// A measured rate of a job as an observation among its present co-located jobs; `None` if it is alone.
    pub fn observation(&self, id: u64, rate: f64, noise: f64) -> Option<Fact> {
        let active = self.jobs.get(id)?;
        let class_of = |job: u64| self.jobs.get(job).map(|active| active.job.class.clone());
        let mut beside: Vec<Vec<String>> = Vec::new();
        for &device in &active.allocation.as_ref()?.devices {
            let is_capped =
                |job: u64| self.jobs.get(job).is_some_and(|one| one.budget() < Ppm::ONE);
            // Beliefs are about jobs that compete freely; the rate law adds what caps change.
            if is_capped(id) || self.devices.others(id, device).any(is_capped) {
                return None;
            }
            let others: Vec<String> =
                self.devices.others(id, device).filter_map(class_of).collect();
            if !others.is_empty() && !beside.contains(&others) {
                beside.push(others);
            }
        }
        let class = active.job.class.clone();
        (!beside.is_empty()).then_some(Fact::Observed { class, beside, rate, noise })
    }
}
