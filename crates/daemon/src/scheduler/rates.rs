//! How fast jobs run: predicted by the engine's model until it was measured.

use super::active::{Active, Phase};
use super::{Fact, LearnedClass, RateSource, Scheduler};
use tandem_core::{
    GangGpu, GpuTypeId, HalfIfUnfit, Interference, Ppm, Profile, Ratio, Tenant, gang_rate,
};

/// A job whose process is on a device, for the rate law.
struct Neighbour {
    profile: Profile,
    budget: Ppm,
    goes_first: bool,
}

impl Neighbour {
    fn of(scheduler: &Scheduler, active: &Active) -> Self {
        let (profile, budget) = (scheduler.profile(active), active.budget());
        Self { profile, budget, goes_first: active.goes_first() }
    }

    fn tenant(&self) -> Tenant<'_> {
        Tenant { profile: &self.profile, budget: self.budget, goes_first: self.goes_first }
    }
}

/// A rate among co-located jobs, and the standard deviation with which it was measured.
struct MeasuredRate {
    rate: f64,
    noise: f64,
}

impl MeasuredRate {
    /// What the rate would be if nobody were capped or went first; `None` if it does not tell.
    fn without_caps(self, own: &Neighbour, other: &Neighbour, others_rate: f64) -> Option<Self> {
        let Self { rate, noise } = self;
        match (own.goes_first, other.goes_first) {
            (true, false) => None,
            (false, true) => Some(Self { rate: (rate + 1.0 - others_rate).min(1.0), noise }),
            _ => {
                let (kept, part) = (rate.clamp(0.0, 1.0), f64::from(other.budget.0) / 1e6);
                let rest = 1.0 - kept * (1.0 - part);
                Some(Self { rate: kept * part / rest, noise: noise * part / (rest * rest) })
            }
        }
    }
}

impl Scheduler {
    /// The rate of a job beside the jobs whose processes are on its devices, by the engine's model and the
    /// rate law that the check and the simulated world use, too.
    pub(super) fn predicted_rate(&self, active: &Active) -> Ratio {
        let Some(allocation) = &active.allocation else { return Ratio::ONE };
        let others = |&device: &u32| {
            let jobs = self.devices.others(active.job.id, device);
            let jobs = jobs.filter_map(|job| self.jobs.get(job));
            jobs.map(|other| Neighbour::of(self, other)).collect()
        };
        let beside: Vec<Vec<Neighbour>> = allocation.devices.iter().map(others).collect();
        let gpus = beside.iter().map(|others| GangGpu {
            kind: GpuTypeId(0),
            factor: Ratio::ONE,
            others: others.iter().map(Neighbour::tenant),
        });
        let known = self.planner.find(active.entry);
        let option = known.and_then(|known| known.spec.sub_batch_option(allocation.sub_batches));
        let sub_batch_rate = option.map_or(Ratio::ONE, |option| option.rate());
        let own = Neighbour::of(self, active);
        let job = own.tenant();
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

    /// A measured rate of a job as an observation among its present co-located jobs; `None` if it is alone, or if
    /// caps hide what it would be without them.
    pub fn observation(&self, id: u64, rate: f64, noise: f64) -> Option<Fact> {
        let active = self.jobs.get(id)?;
        let class_of = |job: u64| self.jobs.get(job).map(|active| active.job.class.clone());
        let mut beside: Vec<Vec<String>> = Vec::new();
        let mut all: Vec<u64> = Vec::new();
        for &device in &active.allocation.as_ref()?.devices {
            all.extend(self.devices.others(id, device));
            let others: Vec<String> =
                self.devices.others(id, device).filter_map(class_of).collect();
            if !others.is_empty() && !beside.contains(&others) {
                beside.push(others);
            }
        }
        all.sort_unstable();
        all.dedup();
        let MeasuredRate { rate, noise } = self.without_caps(active, &all, rate, noise)?;
        let class = active.job.class.clone();
        (!beside.is_empty()).then_some(Fact::Observed { class, beside, rate, noise })
    }

    /// Beliefs are about jobs that compete freely; the rate law adds what caps and going first change, and is
    /// solved for that here.
    fn without_caps(
        &self,
        active: &Active,
        others: &[u64],
        rate: f64,
        noise: f64,
    ) -> Option<MeasuredRate> {
        let measured = MeasuredRate { rate, noise };
        let own = Neighbour::of(self, active);
        let others = others.iter().filter_map(|&other| self.jobs.get(other));
        let others: Vec<Neighbour> = others.map(|other| Neighbour::of(self, other)).collect();
        let is_free = |one: &Neighbour| one.budget == Ppm::ONE && !one.goes_first;
        if is_free(&own) && others.iter().all(is_free) {
            return Some(measured);
        }
        // A cap of its own hides what the others do, and more than one other cannot be told apart.
        let [other] = &others[..] else { return None };
        let model = HalfIfUnfit(self.planner.engine().learner());
        let others_rate = model.pair_rate(&other.profile, &own.profile, GpuTypeId(0))?;
        let is_capped = own.budget < Ppm::ONE;
        measured.without_caps(&own, other, others_rate.as_f64()).filter(|_| !is_capped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_core::{rate_behind, rate_under_cap};

    fn neighbour(budget: u32, goes_first: bool) -> Neighbour {
        Neighbour { profile: Profile::default(), budget: Ppm(budget), goes_first }
    }

    #[test]
    fn a_rate_beside_a_capped_job_tells_the_rate_without_the_cap() {
        let (own, free) = (neighbour(1_000_000, false), Ratio::new(3, 5));
        for budget in [100_000, 400_000, 900_000] {
            let rate = rate_under_cap(free, Ppm(budget)).as_f64();
            let other = neighbour(budget, false);
            let measured = MeasuredRate { rate, noise: 0.05 };
            let found = measured.without_caps(&own, &other, 1.0).expect("it tells");
            assert!((found.rate - 0.6).abs() < 1e-6, "{}", found.rate);
            // The less the other may do, the less is seen of what it would do.
            assert!(found.noise > 0.05, "{}", found.noise);
        }
    }

    #[test]
    fn a_rate_behind_a_job_that_goes_first_tells_the_rate_if_neither_did() {
        let (own, first) = (neighbour(1_000_000, false), neighbour(1_000_000, true));
        let rate = rate_behind(Ratio::new(4, 5), Ratio::new(7, 10)).as_f64();
        assert!((rate - 0.5).abs() < 1e-6);
        let measured = MeasuredRate { rate, noise: 0.05 };
        let found = measured.without_caps(&own, &first, 0.7).expect("it tells");
        assert!((found.rate - 0.8).abs() < 1e-6);
        let measured = MeasuredRate { rate: 1.0, noise: 0.05 };
        assert!(measured.without_caps(&first, &own, 0.7).is_none(), "it is not slowed down");
    }
}
