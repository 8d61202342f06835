//! The true rates of jobs, and what observers see of them.

use super::World;
use super::completion::Completion;
use crate::observer::ColocatedJobs;
use std::cmp::Reverse;
use tandem_core::{
    Event, GangGpu, HalfIfUnfit, JobId, Ppm, Profile, Progress, Ratio, Tenant, Time, Work,
    gang_rate,
};

impl World<'_> {
    /// Updates the rates of the jobs that the actions affect, and only of those.
    pub(super) fn update_rates(&mut self, now: Time) {
        let mut stale_rates = std::mem::take(&mut self.stale_rates);
        stale_rates.sort_unstable();
        stale_rates.dedup();
        for job in stale_rates.drain(..) {
            if self.active.get(job).is_some_and(|job_state| job_state.gpus.is_some()) {
                self.update_rate(job, now);
            }
        }
        self.stale_rates = stale_rates;
    }

    fn update_rate(&mut self, job: JobId, now: Time) {
        let shares = self.meters.shared_gpus > 0
            && self.active[job].gpus().iter().any(|gpu| self.tenants[gpu.index()].len() > 1);
        let mut rate = self.rate(job, shares);
        if self.spec(job).promise.is_service {
            self.note_promise(job, rate, now);
            // It ends when it is cancelled, however fast it is.
            rate = if self.active[job].paused { Ppm::ZERO } else { Ppm::ONE };
        }
        if self.observer.is_some() {
            let colocated = if shares { self.colocated(job) } else { None };
            self.watch(job, colocated, now);
        }
        let job_state = &mut self.active[job];
        match (shares, job_state.shared_since) {
            (true, None) => job_state.shared_since = Some(now),
            (false, Some(since)) => {
                job_state.shared_since = None;
                self.outcomes[job.index()].shared += now.since(since);
            }
            _ => {}
        }
        if rate == job_state.progress.rate {
            return;
        }
        // A job that restores its state makes no progress before `at`, whatever its rate.
        let at = job_state.progress.at.max(now);
        job_state.progress = Progress { done: job_state.progress.done_by(now), at, rate };
        job_state.version += 1;
        let left =
            Work::of(self.jobs[job.index()].duration).saturating_sub(job_state.progress.done);
        if let Some(span) = left.time_at(rate) {
            // A completion at the end of time never happens: the run stops there.
            self.completions.push(Reverse(Completion::new(at + span, job, job_state.version)));
        }
        self.reports.push(Event::Progress { job, progress: job_state.progress });
    }

    /// Counts the time in which a service keeps its promise.
    #[cold]
    fn note_promise(&mut self, job: JobId, rate: Ppm, now: Time) {
        let least = self.spec(job).promise.least_rate;
        let job_state = &mut self.active[job];
        // A cap slows down every request, although on average it may leave room.
        let is_kept = rate.min(job_state.budget) >= least && !job_state.paused;
        match (is_kept, job_state.kept_since) {
            (true, None) => job_state.kept_since = Some(now),
            (false, Some(since)) => {
                job_state.kept_since = None;
                self.outcomes[job.index()].kept += now.since(since);
            }
            _ => {}
        }
    }

    /// Tells the observer the co-located jobs of a job from now on, and reports the measurement until now.
    #[cold]
    pub(super) fn watch(&mut self, job: JobId, colocated: Option<ColocatedJobs>, now: Time) {
        let Some(observer) = &mut self.observer else { return };
        if let Some(colocated) = observer.watch(job, colocated, now) {
            self.observe(job, &colocated);
        }
    }

    #[cold]
    pub(super) fn observe(&mut self, job: JobId, colocated: &ColocatedJobs) {
        let Some(observer) = &mut self.observer else { return };
        let profile = |job: JobId| self.jobs[job.index()].spec.profile;
        let gpu = self.active[job].gpus().first().expect("a job that was watched has GPUs");
        let kind = self.cluster.gpu(*gpu).kind;
        let of_job = profile(job);
        let beside: Vec<Vec<Profile>> = colocated
            .iter()
            .map(|others| others.iter().map(|&other| profile(other)).collect())
            .collect();
        let gpus = beside.iter().map(|others| GangGpu {
            kind,
            factor: Ratio::ONE,
            others: others.iter().map(Tenant::uncapped),
        });
        if let Some(rate) = gang_rate(self.truth, Tenant::uncapped(&of_job), Ratio::ONE, gpus) {
            let observation = observer.measure(of_job, beside, kind, rate);
            self.reports.push(Event::Observed(observation));
        }
    }

    /// The co-located jobs of a job on each GPU, if all of them run without caps.
    #[cold]
    fn colocated(&self, job: JobId) -> Option<ColocatedJobs> {
        // Rates under caps say little about rates without.
        let runs = |job: JobId| !self.active[job].paused && self.active[job].budget == Ppm::ONE;
        let mut colocated = ColocatedJobs::new();
        for gpu in self.active[job].gpus() {
            let tenants = &self.tenants[gpu.index()];
            if !tenants.iter().all(|&tenant| runs(tenant)) {
                return None;
            }
            let others: Vec<JobId> =
                tenants.iter().copied().filter(|&tenant| tenant != job).collect();
            if !others.is_empty() && !colocated.contains(&others) {
                colocated.push(others);
            }
        }
        Some(colocated)
    }

    /// The rate of a job by the rate law, less the costs of spreading and of the network. The product of pair
    /// rates for three or more tenants is an assumption, and the report marks it as one.
    fn rate(&self, job: JobId, shares: bool) -> Ppm {
        let job_state = &self.active[job];
        if job_state.paused {
            return Ppm::ZERO;
        }
        let rate = match (self.cluster.types(), shares, job_state.budget) {
            // Alone on GPUs of one type: the law without a loop over the gang.
            ([only], false, Ppm::ONE) => only.factor.times(job_state.sub_batch_rate),
            _ => self.shared_rate(job),
        };
        let rate = if job_state.spread { rate.times(self.options.spread_rate) } else { rate };
        let rate = if job_state.links.is_empty() { rate } else { rate.times(self.links_rate(job)) };
        // A running job makes some progress, or it would hold its GPUs for ever.
        rate.ppm().max(Ppm(1))
    }

    /// The rate of a gang beside the other running tenants of its GPUs.
    fn shared_rate(&self, job: JobId) -> Ratio {
        let job_state = &self.active[job];
        let tenant = |job: JobId, budget| Tenant::of(self.spec(job), budget);
        let running_tenant = move |&other: &JobId| {
            let job_state = &self.active[other];
            (other != job && !job_state.paused).then(|| tenant(other, job_state.budget))
        };
        let gpus = job_state.gpus().iter().map(|&gpu| {
            let kind = self.cluster.gpu(gpu).kind;
            let factor = self.cluster.types()[kind.index()].factor;
            GangGpu {
                kind,
                factor,
                others: self.tenants[gpu.index()].iter().filter_map(running_tenant),
            }
        });
        let own = tenant(job, job_state.budget);
        let rate = gang_rate(&HalfIfUnfit(self.truth), own, job_state.sub_batch_rate, gpus);
        rate.expect("a placed job has GPUs")
    }

    /// What remains of the rate of a gang across nodes that shares its links.
    #[cold]
    fn links_rate(&self, job: JobId) -> Ratio {
        let Some(links) = &self.links else { return Ratio::ONE };
        let spec = self.spec(job);
        let fewest = self.cluster.partition(spec.partition).fewest_nodes(spec.gpus);
        let runs = |gang: JobId| !self.active[gang].paused;
        links.rate(spec.profile.class, &self.active[job].links, fewest <= 1, runs)
    }
}
