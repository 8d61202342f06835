//! The simulated world: it knows the true durations and rates, carries out actions and reports what happens,
//! as real GPUs do for the daemon.

mod completion;
mod meters;
mod rates;

use crate::links::{Links, spanned_nodes};
use crate::observer::Observer;
use crate::record::Recorder;
use crate::workload::WorkloadJob;
use completion::Completion;
use meters::Meters;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use tandem_core::{
    Action, Cluster, Event, GpuId, Gpus, Interference, JobId, JobMap, JobSpec, NodeId, Placement,
    Ppm, Progress, Ratio, Span, Tenants, Time, Work, only_tenant,
};

/// Costs in the simulated world.
#[derive(Clone, Copy, Debug)]
pub struct WorldOptions {
    /// What remains of a gang's rate on more nodes than necessary.
    pub spread_rate: Ratio,
    /// Restore time of a gang of up to eight GPUs, and of a larger one.
    pub restore: (Span, Span),
    /// Jobs write a checkpoint after this much work.
    pub checkpoint: Span,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            spread_rate: Ratio::ONE,
            restore: (Span::from_secs(40), Span::from_secs(60)),
            checkpoint: Span::from_secs(30 * 60),
        }
    }
}

/// What happened to a job.
#[derive(Clone, Debug, Default)]
pub struct JobOutcome {
    /// First start.
    pub start: Option<Time>,
    /// End.
    pub end: Option<Time>,
    /// Time during which at least one of its GPUs had another tenant.
    pub shared: Span,
    /// Time during which it kept its promise, of a service.
    pub kept: Span,
    /// How often a plan took its GPUs.
    pub preemptions: u32,
    /// How often it lost a GPU.
    pub interruptions: u32,
    /// The nodes of its first placement, as positions in [`SimRun::nodes`](crate::SimRun).
    pub nodes: Range<u32>,
}

/// A job in the world that has started and not ended.
#[derive(Clone, Debug)]
struct WorldJob {
    progress: Progress,
    /// Work that survives a failure because it was saved when the job was stopped.
    saved: Work,
    /// `None` while it waits.
    gpus: Option<Gpus>,
    paused: bool,
    spread: bool,
    /// The cap on its GPUs.
    budget: Ppm,
    /// Its speed under gradient accumulation, relative to whole batches.
    sub_batch_rate: Ratio,
    /// The nodes whose links it uses; none within one node, or where links cost nothing.
    links: Vec<NodeId>,
    shared_since: Option<Time>,
    /// Since when a service keeps its promise.
    kept_since: Option<Time>,
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
            kept_since: None,
            version: 0,
        }
    }

    fn gpus(&self) -> &[GpuId] {
        self.gpus.as_deref().unwrap_or_default()
    }
}

pub(crate) struct World<'a> {
    cluster: &'a Cluster,
    /// By `JobId`.
    jobs: &'a [WorkloadJob],
    truth: &'a dyn Interference,
    options: WorldOptions,
    /// Communication costs of gangs across nodes.
    pub(crate) links: Option<Links>,
    /// Jobs that have started and not ended.
    active: JobMap<WorldJob>,
    pub(crate) outcomes: Vec<JobOutcome>,
    /// Nodes of first placements in allocation order: index within the partition, GPUs.
    pub(crate) nodes: Vec<(u32, u32)>,
    tenants: Vec<Tenants>,
    completions: BinaryHeap<Reverse<Completion>>,
    /// Jobs whose rate may have changed.
    stale_rates: Vec<JobId>,
    /// Reports of the jobs for the next step.
    reports: Vec<Event>,
    pub(crate) meters: Meters,
    pub(crate) restores: u64,
    /// Some GPU has had three or more tenants.
    pub(crate) has_three_tenants: bool,
    pub(crate) recorder: Option<Recorder>,
    /// Measures rates, if the policies learn from them.
    pub(crate) observer: Option<Observer>,
}

impl<'a> World<'a> {
    /// A world without placed jobs at `begin`: links cost nothing, nothing is recorded or measured.
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
            active: JobMap::for_jobs(jobs.len()),
            outcomes: vec![JobOutcome::default(); jobs.len()],
            // Most jobs use one node.
            nodes: Vec::with_capacity(jobs.len()),
            tenants: vec![Tenants::new(); cluster.gpus().len()],
            completions: BinaryHeap::new(),
            stale_rates: Vec::new(),
            reports: Vec::new(),
            meters: Meters { at: begin, ..Meters::default() },
            restores: 0,
            has_three_tenants: false,
            recorder: None,
            observer: None,
            cluster,
            jobs,
        }
    }

    /// Adds a job with progress from before this world began, placed or not. Its rate is known after
    /// [`World::act`].
    #[cold]
    pub(crate) fn adopt(
        &mut self,
        job: JobId,
        placement: Option<&Placement>,
        done: Work,
        now: Time,
    ) {
        let progress = Progress { done, at: now, rate: Ppm::ZERO };
        self.active.insert(job, WorldJob::waiting(progress));
        if let Some(placement) = placement {
            self.place(job, placement, false, now);
        }
    }

    /// The co-located jobs of a job, by id.
    pub(crate) fn beside(&self, job: JobId) -> Vec<JobId> {
        let gpus = self.active.get(job).map_or(&[][..], WorldJob::gpus);
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
        let job_state = self.active.get(completion.job());
        job_state.is_some_and(|job_state| job_state.version == completion.version())
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.meters.advance(now);
    }

    /// Takes the reports of the jobs since the last step.
    pub(crate) fn report(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some((job, colocated)) =
            self.observer.as_mut().and_then(|observer| observer.next_due(now))
        {
            self.observe(job, &colocated);
        }
        match events.is_empty() {
            true => std::mem::swap(events, &mut self.reports),
            false => events.append(&mut self.reports),
        }
    }

    /// Ends every job whose work is complete at `now`.
    pub(crate) fn finish(&mut self, now: Time, events: &mut Vec<Event>) {
        while let Some(&Reverse(completion)) = self.completions.peek()
            && completion.at() <= now
        {
            self.completions.pop();
            if !self.is_due(completion) {
                continue;
            }
            let job = completion.job();
            self.remove(job, now);
            self.active.remove(job);
            self.outcomes[job.index()].end = Some(now);
            events.push(Event::Finished { job });
        }
    }

    /// A GPU is lost: its tenants fall back to their last checkpoint.
    #[cold]
    pub(crate) fn lose(&mut self, gpu: GpuId, now: Time, events: &mut Vec<Event>) {
        let interval = Work::of(self.options.checkpoint).0;
        for job in self.tenants[gpu.index()].clone() {
            self.remove(job, now);
            let job_state = &mut self.active[job];
            let regular = Work(job_state.progress.done.0 / interval * interval);
            job_state.progress.done = regular.max(job_state.saved);
            self.outcomes[job.index()].interruptions += 1;
            events.push(Event::Interrupted { job, kept: job_state.progress.done });
        }
        events.push(Event::GpuDown { gpu });
    }

    /// Carries out the actions, then updates rates and completions.
    pub(crate) fn act(&mut self, now: Time, actions: &[Action]) {
        // All jobs remove before any job is placed: jobs may exchange GPUs.
        for action in actions {
            match action {
                Action::Stop { job } => {
                    self.remove(*job, now);
                    let job_state = &mut self.active[*job];
                    job_state.saved = job_state.progress.done;
                    self.outcomes[job.index()].preemptions += 1;
                }
                Action::Move { job, .. } => {
                    self.remove(*job, now);
                    self.outcomes[job.index()].preemptions += 1;
                }
                Action::Start { .. }
                | Action::Budget { .. }
                | Action::Pause { .. }
                | Action::Resume { .. } => {}
            }
        }
        for action in actions {
            match action {
                Action::Stop { .. } => {}
                Action::Start { job, placement, restore } => {
                    self.place(*job, placement, *restore, now);
                }
                Action::Move { job, placement } => self.place(*job, placement, true, now),
                Action::Budget { job, placement } => self.set_budget(*job, placement.budget),
                Action::Pause { job } => self.set_paused(*job, true),
                Action::Resume { job } => self.set_paused(*job, false),
            }
        }
        self.update_rates(now);
    }

    fn place(&mut self, job: JobId, placement: &Placement, restore: bool, now: Time) {
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
            // An adopted job may run in sub-batches that its description no longer lists.
            count => spec.sub_batch_option(count).map_or(Ratio::ONE, |way| way.rate()),
        };
        let mut links = Vec::new();
        if let Some(network) = &mut self.links {
            links = spanned_nodes(self.cluster, &placement.gpus);
            network.place(job, &links, &mut self.stale_rates);
        }
        let cost = match (restore, spec.gpus <= 8) {
            (false, _) => Span::ZERO,
            (true, true) => self.options.restore.0,
            (true, false) => self.options.restore.1,
        };
        let before = self.active.get(job);
        let done = before.map_or(Work::ZERO, |job_state| job_state.progress.done);
        let job_state = WorldJob {
            progress: Progress { done, at: now + cost, rate: Ppm::ZERO },
            saved: before.map_or(Work::ZERO, |job_state| job_state.saved),
            gpus: Some(placement.gpus.clone()),
            paused: placement.paused,
            spread,
            budget: placement.budget,
            sub_batch_rate,
            links,
            shared_since: None,
            kept_since: None,
            version: before.map_or(0, |job_state| job_state.version),
        };
        self.active.insert(job, job_state);
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
                _ => self.has_three_tenants = true,
            }
            self.stale_rates.extend_from_slice(tenants);
            tenants.push(job);
        }
        self.stale_rates.push(job);
        if let Some(recorder) = &mut self.recorder {
            recorder.place(job, now, placement);
        }
    }

    fn remove(&mut self, job: JobId, now: Time) {
        if self.observer.is_some() {
            self.watch(job, None, now);
        }
        let job_state = &mut self.active[job];
        let done = job_state.progress.done_by(now);
        job_state.progress = Progress { done, at: now, rate: Ppm::ZERO };
        job_state.version += 1;
        if let Some(since) = job_state.shared_since.take() {
            self.outcomes[job.index()].shared += now.since(since);
        }
        if let Some(since) = job_state.kept_since.take() {
            self.outcomes[job.index()].kept += now.since(since);
        }
        let gpus = job_state.gpus.take().unwrap_or_default();
        if let Some(links) = &mut self.links {
            links.remove(job, &std::mem::take(&mut job_state.links), &mut self.stale_rates);
        }
        for gpu in gpus.iter() {
            let tenants = &mut self.tenants[gpu.index()];
            if tenants.len() == 1 {
                *tenants = Tenants::new();
                self.meters.busy_gpus -= 1;
                continue;
            }
            let position = tenants.iter().position(|&tenant| tenant == job);
            tenants.swap_remove(position.expect("a placed job is a tenant of its GPUs"));
            self.stale_rates.extend_from_slice(tenants);
            self.meters.shared_gpus -= u32::from(tenants.len() == 1);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.remove(job, now);
        }
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        self.active[job].paused = paused;
        for gpu in self.active[job].gpus() {
            self.stale_rates.extend(self.tenants[gpu.index()].iter());
        }
        if let Some(links) = &self.links {
            links.touch(&self.active[job].links, &mut self.stale_rates);
        }
    }

    fn set_budget(&mut self, job: JobId, budget: Ppm) {
        self.active[job].budget = budget;
        for gpu in self.active[job].gpus() {
            self.stale_rates.extend(self.tenants[gpu.index()].iter());
        }
    }

    /// Adds the nodes of a placement in allocation order, one entry per node.
    fn push_nodes(&mut self, gpus: &Gpus, first_node: u32) {
        let first = self.nodes.len();
        for (node, range) in gpus.contiguous_ranges(self.cluster) {
            let node = node.0 - first_node;
            let count = u32::try_from(range.len()).expect("GPUs are counted in u32");
            match self.nodes[first..].iter_mut().find(|(index, _)| *index == node) {
                Some((_, merged)) => *merged += count,
                None => self.nodes.push((node, count)),
            }
        }
    }
}
