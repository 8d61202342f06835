//! The simulated world: it knows the true durations and rates, carries out actions and reports what
//! happens. It plays the part that real GPUs play for the daemon.

use crate::links::{Links, spanned_nodes};
use crate::observer::{ColocatedJobs, Observer};
use crate::record::Recorder;
use crate::workload::WorkloadJob;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use tandem_core::{
    Action, Cluster, Event, GangGpu, GpuId, Gpus, HalfIfUnfit, Interference, JobId, JobMap,
    JobSpec, NodeId, Placement, Ppm, Profile, Progress, Ratio, Span, Tenant, Tenants, Time, Work,
    gang_rate, only_tenant,
};

/// The costs of this world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// What a gang on more nodes than needed keeps of its rate.
    pub spread_keeps: Ratio,
    /// Time to restore the state of a gang of up to eight GPUs, and of a larger one.
    pub restore: (Span, Span),
    /// Jobs save their state whenever they have done this much more work.
    pub checkpoint: Span,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            spread_keeps: Ratio::ONE,
            restore: (Span::from_secs(40), Span::from_secs(60)),
            checkpoint: Span::from_secs(30 * 60),
        }
    }
}

/// What is known about a job when it is over, and while it runs.
#[derive(Clone, Debug, Default)]
pub struct JobOutcome {
    /// First start.
    pub start: Option<Time>,
    /// End.
    pub end: Option<Time>,
    /// Time during which at least one of its GPUs had another tenant.
    pub shared: Span,
    /// How often a plan took its GPUs away.
    pub preemptions: u32,
    /// How often it lost a GPU.
    pub interruptions: u32,
    /// Where the nodes of the first placement stand in [`SimRun::nodes`](crate::SimRun).
    pub nodes: Range<u32>,
}

/// A job in the world.
#[derive(Clone, Debug)]
struct WorldJob {
    progress: Progress,
    /// Work that would survive a crash because it was saved when the job was stopped.
    saved: Work,
    /// `None` while it waits.
    gpus: Option<Gpus>,
    paused: bool,
    spread: bool,
    /// The most it may use of its GPUs.
    budget: Ppm,
    /// What gradient accumulation leaves of its speed.
    sub_batch_rate: Ratio,
    /// The nodes whose links it uses; none inside a node, or where links cost nothing.
    links: Vec<NodeId>,
    shared_since: Option<Time>,
    /// Completions scheduled under an older version are void.
    version: u32,
}

impl WorldJob {
    /// A job that waits with its progress saved.
    fn waiting(progress: Progress) -> Self {
        Self {
            progress,
            saved: progress.done,
            gpus: None,
            paused: false,
            spread: false,
            budget: Ppm::ONE,
            sub_batch_rate: Ratio::ONE,
            links: Vec::new(),
            shared_since: None,
            version: 0,
        }
    }

    fn gpus(&self) -> &[GpuId] {
        self.gpus.as_deref().unwrap_or_default()
    }
}

/// When a job ends if nothing changes, in order of time, then job: one number, because a heap compares
/// without a branch what it can compare at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Completion(u128);

impl Completion {
    fn new(at: Time, job: JobId, version: u32) -> Self {
        Self(u128::from(at.0) << 64 | u128::from(job.0) << 32 | u128::from(version))
    }

    fn at(self) -> Time {
        Time((self.0 >> 64) as u64)
    }

    fn job(self) -> JobId {
        JobId((self.0 >> 32) as u32)
    }

    /// The version of the job under which it was scheduled.
    fn version(self) -> u32 {
        self.0 as u32
    }
}

/// GPU-time by number of tenants.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meters {
    at: Time,
    /// GPUs with at least one tenant, at present.
    pub(crate) busy_gpus: u32,
    /// GPUs with at least two.
    pub(crate) shared_gpus: u32,
    /// GPU-microseconds with at least one tenant.
    pub(crate) busy: u128,
    /// GPU-microseconds with at least two.
    pub(crate) shared: u128,
}

impl Meters {
    fn advance(&mut self, now: Time) {
        let span = u128::from(now.since(self.at).0);
        self.busy += span * u128::from(self.busy_gpus);
        self.shared += span * u128::from(self.shared_gpus);
        self.at = now;
    }
}

pub(crate) struct World<'a> {
    cluster: &'a Cluster,
    /// By `JobId`.
    jobs: &'a [WorkloadJob],
    truth: &'a dyn Interference,
    options: WorldOptions,
    /// Where gangs across nodes pay for the network.
    pub(crate) links: Option<Links>,
    /// Of jobs that have started and not ended.
    bodies: JobMap<WorldJob>,
    pub(crate) outcomes: Vec<JobOutcome>,
    /// Nodes of first placements in the order touched: index within the partition, GPUs.
    pub(crate) nodes: Vec<(u32, u32)>,
    tenants: Vec<Tenants>,
    completions: BinaryHeap<Reverse<Completion>>,
    /// Jobs whose rate may have changed at this instant.
    unsettled: Vec<JobId>,
    /// What the jobs report about themselves at the next step.
    reports: Vec<Event>,
    pub(crate) meters: Meters,
    pub(crate) restores: u64,
    /// Some GPU has had three tenants or more.
    pub(crate) crowded: bool,
    pub(crate) recorder: Option<Recorder>,
    /// Measures pair rates, if the policies learn from them.
    pub(crate) observer: Option<Observer>,
}

impl<'a> World<'a> {
    /// A world without jobs on GPUs that begins at `begin`: links cost nothing, nothing is recorded or
    /// measured.
    pub(crate) fn new(
        cluster: &'a Cluster,
        jobs: &'a [WorkloadJob],
        truth: &'a dyn Interference,
        options: WorldOptions,
        begin: Time,
    ) -> Self {
        Self {
            truth,
            options,
            links: None,
            bodies: JobMap::for_jobs(jobs.len()),
            outcomes: vec![JobOutcome::default(); jobs.len()],
            // Most jobs sit on one node.
            nodes: Vec::with_capacity(jobs.len()),
            tenants: vec![Tenants::new(); cluster.gpus().len()],
            completions: BinaryHeap::new(),
            unsettled: Vec::new(),
            reports: Vec::new(),
            meters: Meters { at: begin, ..Meters::default() },
            restores: 0,
            crowded: false,
            recorder: None,
            observer: None,
            cluster,
            jobs,
        }
    }

    /// A job has done work before this world began, and may sit on GPUs. Its rate is known once
    /// [`World::act`] has been called.
    #[cold]
    pub(crate) fn adopt(
        &mut self,
        job: JobId,
        placement: Option<&Placement>,
        done: Work,
        now: Time,
    ) {
        let progress = Progress { done, at: now, rate: Ppm::ZERO };
        self.bodies.insert(job, WorldJob::waiting(progress));
        if let Some(placement) = placement {
            self.enter(job, placement, false, now);
        }
    }

    /// Who shares GPUs with a job, by id.
    pub(crate) fn beside(&self, job: JobId) -> Vec<JobId> {
        let gpus = self.bodies.get(job).map_or(&[][..], WorldJob::gpus);
        let tenants = gpus.iter().flat_map(|gpu| self.tenants[gpu.index()].iter().copied());
        let mut others: Vec<JobId> = tenants.filter(|&other| other != job).collect();
        others.sort_unstable();
        others.dedup();
        others
    }

    fn spec(&self, job: JobId) -> &'a JobSpec {
        &self.jobs[job.index()].spec
    }

    /// When the next job ends if nothing changes.
    pub(crate) fn next_completion(&mut self) -> Option<Time> {
        while let Some(&Reverse(completion)) = self.completions.peek() {
            if self.is_due(completion) {
                return Some(completion.at());
            }
            self.completions.pop();
        }
        None
    }

    /// Whether a scheduled completion still holds.
    fn is_due(&self, completion: Completion) -> bool {
        let body = self.bodies.get(completion.job());
        body.is_some_and(|body| body.version == completion.version())
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.meters.advance(now);
    }

    /// Hands over what jobs have reported since the last step.
    pub(crate) fn report(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some((job, company)) =
            self.observer.as_mut().and_then(|observer| observer.next_due(now))
        {
            self.observe(job, &company);
        }
        match events.is_empty() {
            true => std::mem::swap(events, &mut self.reports),
            false => events.append(&mut self.reports),
        }
    }

    /// Ends every job whose work is done at `now`.
    pub(crate) fn finish(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(&Reverse(completion)) = self.completions.peek()
            && completion.at() <= now
        {
            self.completions.pop();
            if !self.is_due(completion) {
                continue;
            }
            let job = completion.job();
            self.leave(job, now);
            self.bodies.remove(job);
            self.outcomes[job.index()].end = Some(now);
            events.push(Event::Finished { job });
        }
    }

    /// A GPU is lost: its tenants fall back to their last checkpoint.
    #[cold]
    pub(crate) fn lose(&mut self, gpu: GpuId, now: Time, events: &mut Vec<Event>) {
        let interval = Work::of(self.options.checkpoint).0;
        for job in self.tenants[gpu.index()].clone() {
            self.leave(job, now);
            let body = &mut self.bodies[job];
            let regular = Work(body.progress.done.0 / interval * interval);
            body.progress.done = regular.max(body.saved);
            self.outcomes[job.index()].interruptions += 1;
            events.push(Event::Interrupted { job, kept: body.progress.done });
        }
        events.push(Event::GpuDown { gpu });
    }

    /// Carries out what the engine decided, then brings rates and completions up to date.
    pub(crate) fn act(&mut self, now: Time, actions: &[Action]) {
        // All that leave go before anyone comes: jobs may change places.
        for action in actions {
            match action {
                Action::Stop { job } => {
                    self.leave(*job, now);
                    let body = &mut self.bodies[*job];
                    body.saved = body.progress.done;
                    self.outcomes[job.index()].preemptions += 1;
                }
                Action::Move { job, .. } => {
                    self.leave(*job, now);
                    self.outcomes[job.index()].preemptions += 1;
                }
                Action::Start { .. } | Action::Pause { .. } | Action::Resume { .. } => {}
            }
        }
        for action in actions {
            match action {
                Action::Stop { .. } => {}
                Action::Start { job, placement, restore } => {
                    self.enter(*job, placement, *restore, now);
                }
                Action::Move { job, placement } => self.enter(*job, placement, true, now),
                Action::Pause { job } => self.set_paused(*job, true),
                Action::Resume { job } => self.set_paused(*job, false),
            }
        }
        self.settle(now);
    }

    fn enter(&mut self, job: JobId, placement: &Placement, restore: bool, now: Time) {
        let spec = self.spec(job);
        let partition = self.cluster.partition(spec.partition);
        let first_node = partition.nodes.start;
        let first = self.nodes.len();
        self.push_nodes(&placement.gpus, first_node);
        let spread = self.nodes.len() - first > partition.fewest_nodes(spec.gpus) as usize;
        let outcome = &mut self.outcomes[job.index()];
        if outcome.start.is_none() {
            outcome.start = Some(now);
            let position = |length: usize| u32::try_from(length).expect("nodes touched are u32");
            outcome.nodes = position(first)..position(self.nodes.len());
        } else {
            self.nodes.truncate(first);
        }
        let sub_batch_rate = match placement.sub_batches {
            1 => Ratio::ONE,
            // A job that was there before may run in a way that it is no longer said to have.
            count => spec.sub_batch_option(count).map_or(Ratio::ONE, |way| way.rate()),
        };
        let mut links = Vec::new();
        if let Some(network) = &mut self.links {
            links = spanned_nodes(self.cluster, &placement.gpus);
            network.enter(job, &links, &mut self.unsettled);
        }
        let cost = match (restore, spec.gpus <= 8) {
            (false, _) => Span::ZERO,
            (true, true) => self.options.restore.0,
            (true, false) => self.options.restore.1,
        };
        let before = self.bodies.get(job);
        let done = before.map_or(Work::ZERO, |body| body.progress.done);
        let body = WorldJob {
            progress: Progress { done, at: now + cost, rate: Ppm::ZERO },
            saved: before.map_or(Work::ZERO, |body| body.saved),
            gpus: Some(placement.gpus.clone()),
            paused: placement.paused,
            spread,
            budget: placement.budget,
            sub_batch_rate,
            links,
            shared_since: None,
            version: before.map_or(0, |body| body.version),
        };
        self.bodies.insert(job, body);
        self.restores += u64::from(restore);
        for &gpu in placement.gpus.iter() {
            let tenants = &mut self.tenants[gpu.index()];
            if tenants.is_empty() {
                *tenants = only_tenant(job);
                self.meters.busy_gpus += 1;
                continue;
            }
            match tenants.len() {
                1 => self.meters.shared_gpus += 1,
                _ => self.crowded = true,
            }
            self.unsettled.extend_from_slice(tenants);
            tenants.push(job);
        }
        self.unsettled.push(job);
        if let Some(recorder) = &mut self.recorder {
            recorder.enter(job, now, placement);
        }
    }

    fn leave(&mut self, job: JobId, now: Time) {
        if self.observer.is_some() {
            self.watch(job, None, now);
        }
        let body = &mut self.bodies[job];
        let done = body.progress.done_by(now);
        body.progress = Progress { done, at: now, rate: Ppm::ZERO };
        body.version += 1;
        if let Some(since) = body.shared_since.take() {
            self.outcomes[job.index()].shared += now.since(since);
        }
        let gpus = body.gpus.take().unwrap_or_default();
        if let Some(links) = &mut self.links {
            links.leave(job, &std::mem::take(&mut body.links), &mut self.unsettled);
        }
        for gpu in gpus.iter() {
            let tenants = &mut self.tenants[gpu.index()];
            if tenants.len() == 1 {
                *tenants = Tenants::new();
                self.meters.busy_gpus -= 1;
                continue;
            }
            let seat = tenants.iter().position(|&tenant| tenant == job);
            tenants.swap_remove(seat.expect("a placed job is a tenant of its GPUs"));
            self.unsettled.extend_from_slice(tenants);
            self.meters.shared_gpus -= u32::from(tenants.len() == 1);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.leave(job, now);
        }
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        self.bodies[job].paused = paused;
        for gpu in self.bodies[job].gpus() {
            self.unsettled.extend(self.tenants[gpu.index()].iter());
        }
        if let Some(links) = &self.links {
            links.touch(&self.bodies[job].links, &mut self.unsettled);
        }
    }

    /// Adds the nodes of a placement in the order touched, GPUs of a node merged.
    fn push_nodes(&mut self, gpus: &Gpus, first_node: u32) {
        let first = self.nodes.len();
        for (node, stretch) in gpus.contiguous_ranges(self.cluster) {
            let node = node.0 - first_node;
            let count = u32::try_from(stretch.len()).expect("GPUs are counted in u32");
            match self.nodes[first..].iter_mut().find(|(index, _)| *index == node) {
                Some((_, merged)) => *merged += count,
                None => self.nodes.push((node, count)),
            }
        }
    }

    /// Recomputes the rates of the jobs that the actions touched, and only of those.
    fn settle(&mut self, now: Time) {
        let mut unsettled = std::mem::take(&mut self.unsettled);
        unsettled.sort_unstable();
        unsettled.dedup();
        for job in unsettled.drain(..) {
            if self.bodies.get(job).is_some_and(|body| body.gpus.is_some()) {
                self.settle_job(job, now);
            }
        }
        self.unsettled = unsettled;
    }

    fn settle_job(&mut self, job: JobId, now: Time) {
        let shares = self.meters.shared_gpus > 0
            && self.bodies[job].gpus().iter().any(|gpu| self.tenants[gpu.index()].len() > 1);
        let rate = self.rate(job, shares);
        if self.observer.is_some() {
            let company = if shares { self.company(job) } else { None };
            self.watch(job, company, now);
        }
        let body = &mut self.bodies[job];
        match (shares, body.shared_since) {
            (true, None) => body.shared_since = Some(now),
            (false, Some(since)) => {
                body.shared_since = None;
                self.outcomes[job.index()].shared += now.since(since);
            }
            _ => {}
        }
        if rate == body.progress.rate {
            return;
        }
        // A job that still restores its state makes no progress before `at`, whatever its rate.
        let at = body.progress.at.max(now);
        body.progress = Progress { done: body.progress.done_by(now), at, rate };
        body.version += 1;
        let left = Work::of(self.jobs[job.index()].duration).saturating_sub(body.progress.done);
        if let Some(span) = left.time_at(rate) {
            // A job that would end at the end of time never does; the run stops when it gets there.
            self.completions.push(Reverse(Completion::new(at + span, job, body.version)));
        }
        self.reports.push(Event::Progress { job, progress: body.progress });
    }

    /// Tells the observer in whose company a job runs from now on, and reports what it saw until now.
    #[cold]
    fn watch(&mut self, job: JobId, company: Option<ColocatedJobs>, now: Time) {
        let Some(observer) = &mut self.observer else { return };
        if let Some(company) = observer.watch(job, company, now) {
            self.observe(job, &company);
        }
    }

    #[cold]
    fn observe(&mut self, job: JobId, company: &ColocatedJobs) {
        let Some(observer) = &mut self.observer else { return };
        let profile = |job: JobId| self.jobs[job.index()].spec.profile;
        let gpu = self.bodies[job].gpus().first().expect("a job that was watched has GPUs");
        let kind = self.cluster.gpu(*gpu).kind;
        let of_job = profile(job);
        let beside: Vec<Vec<Profile>> = company
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

    /// Who shares its GPUs with a job, if all of them run, and at full speed.
    #[cold]
    fn company(&self, job: JobId) -> Option<ColocatedJobs> {
        // What jobs do under caps says little about what they do without.
        let runs = |job: JobId| !self.bodies[job].paused && self.bodies[job].budget == Ppm::ONE;
        let mut company = ColocatedJobs::new();
        for gpu in self.bodies[job].gpus() {
            let tenants = &self.tenants[gpu.index()];
            if !tenants.iter().all(|&tenant| runs(tenant)) {
                return None;
            }
            let others: Vec<JobId> =
                tenants.iter().copied().filter(|&tenant| tenant != job).collect();
            if !others.is_empty() && !company.contains(&others) {
                company.push(others);
            }
        }
        Some(company)
    }

    /// The rate of a job by the rate law, less what spreading and the network cost. The product of pair
    /// rates for three or more tenants is an assumption, and marked as one in the report.
    fn rate(&self, job: JobId, shares: bool) -> Ppm {
        let body = &self.bodies[job];
        if body.paused {
            return Ppm::ZERO;
        }
        let rate = match (self.cluster.types(), shares, body.budget) {
            // Alone on GPUs of one type: the law without a loop over the gang.
            ([only], false, Ppm::ONE) => only.factor.times(body.sub_batch_rate),
            _ => self.shared_rate(job),
        };
        let rate = if body.spread { rate.times(self.options.spread_keeps) } else { rate };
        let rate = if body.links.is_empty() { rate } else { rate.times(self.links_keep(job)) };
        // A job that runs makes some progress, or it would hold its GPUs for ever.
        rate.ppm().max(Ppm(1))
    }

    /// The rate of a gang beside the other tenants of its GPUs that run.
    fn shared_rate(&self, job: JobId) -> Ratio {
        let body = &self.bodies[job];
        let tenant = |job: JobId, budget| Tenant { profile: &self.spec(job).profile, budget };
        let running = move |&other: &JobId| {
            let body = &self.bodies[other];
            (other != job && !body.paused).then(|| tenant(other, body.budget))
        };
        let gpus = body.gpus().iter().map(|&gpu| {
            let kind = self.cluster.gpu(gpu).kind;
            let factor = self.cluster.types()[kind.index()].factor;
            GangGpu { kind, factor, others: self.tenants[gpu.index()].iter().filter_map(running) }
        });
        let own = tenant(job, body.budget);
        let rate = gang_rate(&HalfIfUnfit(self.truth), own, body.sub_batch_rate, gpus);
        rate.expect("a placed job has GPUs")
    }

    /// What the network leaves a gang across nodes of its rate.
    #[cold]
    fn links_keep(&self, job: JobId) -> Ratio {
        let Some(links) = &self.links else { return Ratio::ONE };
        let spec = self.spec(job);
        let fewest = self.cluster.partition(spec.partition).fewest_nodes(spec.gpus);
        let runs = |gang: JobId| !self.bodies[gang].paused;
        links.keeps(spec.profile.class, &self.bodies[job].links, fewest <= 1, runs)
    }
}
