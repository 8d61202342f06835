//! Why a job waits, when it will start, and what if: the simulator runs the policy forward from the present,
//! with several draws of the unknown durations.

use crate::api::types::{DeviceReason, Explanation, SCHEMA};
use crate::command::{Admission, Caller, Refusal};
use crate::cycle::Present;
use crate::job::{Job, JobState};
use crate::request::JobRequest;
use crate::scheduler::Scheduler;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::sync::Arc;
use tandem_core::{
    GangGpu, GpuId, Interference, JobId, JobSpec, Placement, Ppm, Ratio, Span, Tenant, Time,
    Tolerance, Work, rate_on_gpu,
};
use tandem_policies::PolicySpec;
use tandem_sim::forecast::{self, Forecast, ForecastOptions, SnapshotJob};

const DRAWS: u32 = 9;
/// How far estimates are off: the logarithm of the ratio has this standard deviation.
const SPREAD: f64 = 0.4;
/// Events that a draw may take: on a queue so long that it is not enough, the start is far away.
const EVENTS_MAX: u64 = 200_000;

/// The present as the simulator takes it, and a job in it.
pub struct Question {
    id: Option<u64>,
    state: JobState,
    waits: Option<String>,
    devices: Vec<DeviceReason>,
    /// Jobs by their number in the forecast.
    ids: Vec<u64>,
    /// The job in question, if the scheduler has heard of it.
    target: Option<usize>,
    present: forecast::Snapshot,
    beliefs: Arc<dyn Interference>,
    restore: Span,
}

/// A question about a job; `None` if it has ended. Only its owner sees reasons that name files.
pub(crate) fn of_job(present: &Present<'_>, id: u64, sees_all: bool) -> Option<Question> {
    let scheduler = present.scheduler;
    let active = scheduler.job(id)?;
    let view = scheduler.view(id, present.now.time())?;
    let reason = || if sees_all { active.job.reason.clone() } else { active.job.public_reason() };
    let waits = view.waiting.map(|waiting| waiting.text()).or_else(reason);
    let waits = waits.filter(|_| active.job.state != JobState::Running);
    let mut question = ask(present, Some(id), active.job.state, waits);
    question.target = question.ids.iter().position(|&other| other == id);
    if let Some(target) = question.target.filter(|_| active.job.state != JobState::Running) {
        let spec = question.present.jobs[target].spec.clone();
        question.devices = device_reasons(scheduler, &spec);
    }
    Some(question)
}

/// A question about a job that was not submitted.
pub(crate) fn of_request(
    present: &Present<'_>,
    caller: &Caller,
    request: JobRequest,
) -> Result<Question, Refusal> {
    let scheduler = present.scheduler;
    let admission = Admission { scheduler, next_job: scheduler.next_job(), daemon_uid: caller.uid };
    admission.feasible(&request)?;
    let mut question = ask(present, None, JobState::Pending, None);
    let number = u32::try_from(question.ids.len()).unwrap_or(u32::MAX);
    let spec = scheduler.spec_of_request(caller.uid, request, JobId(number), present.now.time());
    question.devices = device_reasons(scheduler, &spec);
    question.target = Some(question.ids.len());
    question.ids.push(scheduler.next_job());
    let duration = spec.estimate;
    let job = SnapshotJob { spec, placement: None, done: Work::ZERO, duration };
    question.present.jobs.push(job);
    Ok(question)
}

/// The answer for a job that has ended.
pub(crate) fn of_the_past(job: &Job, policy: String) -> Explanation {
    let mut explanation = blank(Some(job.id), job.state, policy);
    explanation.waits = None;
    explanation
}

fn blank(id: Option<u64>, state: JobState, policy: String) -> Explanation {
    Explanation {
        schema: SCHEMA,
        id,
        state,
        policy,
        waits: None,
        devices: Vec::new(),
        ahead: Vec::new(),
        after: Vec::new(),
        start_in_s: None,
        end_in_s: None,
        beside: Vec::new(),
        slowdown: None,
        draws_started: 0,
        draws: 0,
        effect_on_others_s: None,
    }
}

fn ask(present: &Present<'_>, id: Option<u64>, state: JobState, waits: Option<String>) -> Question {
    let scheduler = present.scheduler;
    let now = present.now.time();
    let engine = scheduler.engine().state();
    let mut ids = Vec::new();
    let mut jobs = Vec::new();
    for (entry, job) in scheduler.entered() {
        let Some(known) = engine.find(entry) else { continue };
        let number = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        ids.push(job);
        jobs.push(SnapshotJob {
            spec: JobSpec { id: JobId(number), ..known.spec.clone() },
            placement: known.placement().cloned(),
            done: known.progress.done_by(now),
            duration: known.spec.estimate,
        });
    }
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    let closed = |&device: &u32| scheduler.is_shut(device);
    let reserved = |device| {
        let bytes = scheduler.foreign(device)?;
        Some((GpuId(device), crate::scheduler::memory(bytes)))
    };
    Question {
        id,
        state,
        waits,
        devices: Vec::new(),
        ids,
        target: None,
        present: forecast::Snapshot {
            cluster: Arc::new(engine.cluster().clone()),
            rules: *engine.rules(),
            now,
            jobs,
            closed: (0..count).filter(closed).map(GpuId).collect(),
            reserved: (0..count).filter_map(reserved).collect(),
        },
        beliefs: scheduler.engine().learner().snapshot(),
        restore: Span((scheduler.setup().restore_s * 1e6) as u64),
    }
}

impl Question {
    /// Runs the policy forward.
    pub(crate) fn answer(mut self, policy: &PolicySpec) -> Explanation {
        let mut answer = blank(self.id, self.state, policy.text.clone());
        answer.waits = self.waits.take();
        answer.devices = std::mem::take(&mut self.devices);
        let Some(target) = self.target else { return answer };
        // Another policy than the daemon's may put more jobs on a GPU, or fewer.
        if self.present.rules.tenants_max > 1 {
            self.present.rules.tenants_max = policy.entry.tenants_max;
        }
        answer.draws = DRAWS;
        let mut draws: Vec<Forecast> = Vec::new();
        for draw in 0..DRAWS {
            self.draw(draw);
            draws.push(self.run(policy));
        }
        let since = |at: Time| at.since(self.present.now).0 as f64 / 1e6;
        let range = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let middle = values.get(values.len() / 2)?;
            Some([*values.first()?, *middle, *values.last()?])
        };
        let started = |forecast: &Forecast| forecast.jobs[target].start;
        let starts: Vec<f64> = draws.iter().filter_map(started).map(since).collect();
        answer.draws_started = u32::try_from(starts.len()).unwrap_or(u32::MAX);
        if self.present.jobs[target].placement.is_none() {
            answer.start_in_s = range(starts);
        }
        answer.end_in_s =
            range(draws.iter().filter_map(|draw| draw.jobs[target].end).map(since).collect());
        // The first draw takes the estimates at their word.
        let expected = &draws[0];
        let own = &expected.jobs[target];
        let id = |job: &JobId| self.ids[job.index()];
        answer.beside = own.beside.iter().map(id).collect();
        answer.slowdown = own.end.is_some().then_some(own.slowdown);
        if let Some(start) = own.start.filter(|_| self.present.jobs[target].placement.is_none()) {
            for (index, other) in
                expected.jobs.iter().enumerate().filter(|(index, _)| *index != target)
            {
                let is_placed = self.present.jobs[index].placement.is_some();
                if is_placed && other.end.is_some_and(|end| end <= start) {
                    answer.after.push(self.ids[index]);
                }
                if !is_placed && other.start.is_some_and(|other| other < start) {
                    answer.ahead.push(self.ids[index]);
                }
            }
        }
        if self.id.is_none() {
            answer.effect_on_others_s = self.effect(policy, expected, target);
        }
        answer
    }

    /// How much later the others end on average because of the job.
    fn effect(&mut self, policy: &PolicySpec, with: &Forecast, target: usize) -> Option<f64> {
        self.draw(0);
        self.present.jobs.truncate(target);
        let without = self.run(policy);
        let ends = with.jobs.iter().zip(&without.jobs);
        let later: Vec<f64> = ends
            .filter_map(|(with, without)| Some((with.end?, without.end?)))
            .map(|(with, without)| (with.0 as f64 - without.0 as f64) / 1e6)
            .collect();
        (!later.is_empty()).then(|| later.iter().sum::<f64>() / later.len() as f64)
    }

    /// Durations of a draw; the first is what is expected.
    fn draw(&mut self, draw: u32) {
        let mut random = ChaCha8Rng::seed_from_u64(u64::from(draw));
        for job in &mut self.present.jobs {
            let normal: f64 = StandardNormal.sample(&mut random);
            let factor = if draw == 0 { 1.0 } else { (SPREAD * normal).exp() };
            let drawn = Span((job.spec.estimate.0 as f64 * factor) as u64);
            // A job that has run longer than expected is assumed to take half as long again.
            let done = job.done.0 / 1_000_000;
            let least = u64::try_from(done + done / 2).unwrap_or(u64::MAX);
            let outlived = Work::of(drawn) <= job.done;
            job.duration = if outlived { Span(least.max(1)) } else { drawn.max(Span(1)) };
        }
    }

    fn run(&self, policy: &PolicySpec) -> Forecast {
        let restore = (self.restore, self.restore);
        let options = ForecastOptions { restore, horizon: None, events_max: EVENTS_MAX };
        forecast::forecast(&self.present, policy, &self.beliefs, &options)
    }
}

/// A placed job as the rate law sees it.
fn tenant(job: &tandem_core::Job) -> Tenant<'_> {
    let budget = job.placement().map_or(Ppm::ONE, |placement| placement.budget);
    Tenant { profile: &job.spec.profile, budget }
}

/// What keeps a job from each device.
fn device_reasons(scheduler: &Scheduler, spec: &JobSpec) -> Vec<DeviceReason> {
    let engine = scheduler.engine().state();
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    let reason = |device: u32| {
        if scheduler.is_drained(device) {
            return "is drained".to_owned();
        }
        if let Some(reason) = scheduler.closed(device) {
            return format!("is closed: {reason}");
        }
        if let Some(bytes) = scheduler.foreign(device)
            && scheduler.setup().foreign_avoid
        {
            return format!("is used by others, {} MiB", bytes >> 20);
        }
        let gpu = GpuId(device);
        let tenants = engine.occupancy().tenants(gpu);
        if tenants.is_empty() {
            return "is free".to_owned();
        }
        let jobs: Vec<String> =
            tenants.iter().map(|&entry| scheduler.job_of(entry).to_string()).collect();
        let who = format!("job {} is there", jobs.join(" and job "));
        if spec.tolerance == Tolerance::Alone {
            return format!(
                "{who}, and this one runs alone, as requested or until its class is known"
            );
        }
        if tenants.len() >= engine.rules().tenants_max {
            return format!("{who}, as many as the policy allows");
        }
        let is_alone = |entry: &&JobId| engine.job(**entry).spec.tolerance == Tolerance::Alone;
        if let Some(&entry) = tenants.iter().find(is_alone) {
            let job = scheduler.job_of(entry);
            return format!(
                "{who}, and job {job} runs alone, as requested or until its class is known"
            );
        }
        let memory = |placement: Option<&Placement>| placement.map_or(1, |at| at.sub_batches);
        let used: u64 = tenants
            .iter()
            .map(|&entry| engine.memory_on_gpu(entry, memory(engine.job(entry).placement())).0)
            .sum();
        let capacity = engine.cluster().gpu(gpu).memory.0;
        if used + spec.profile.memory.0 > capacity {
            let free = tandem_core::Memory(capacity.saturating_sub(used));
            return format!("{who}, {free} are free, {} are needed", spec.profile.memory);
        }
        let others = tenants.iter().map(|&entry| (entry, tenant(engine.job(entry))));
        let others: Vec<(JobId, Tenant<'_>)> = others.collect();
        let rate = |job: Tenant<'_>, beside: &[Tenant<'_>]| {
            let kind = engine.cluster().gpu(gpu).kind;
            let gpu = GangGpu { kind, factor: Ratio::ONE, others: beside.iter().copied() };
            let rate = rate_on_gpu(scheduler.engine().learner(), job, gpu);
            rate.map_or(0.0, |rate| rate.as_f64())
        };
        let new = Tenant::uncapped(&spec.profile);
        let beside: Vec<Tenant<'_>> = others.iter().map(|(_, other)| *other).collect();
        let own = rate(new, &beside);
        let of_other = |(entry, other): &(JobId, Tenant<'_>)| {
            let beside = others.iter().filter(|(job, _)| job != entry).map(|(_, other)| *other);
            let beside: Vec<Tenant<'_>> = beside.chain([new]).collect();
            rate(*other, &beside)
        };
        let sum: f64 = others.iter().map(of_other).sum();
        format!("{who}; beside it this one would run at {own:.2}, the others at {sum:.2} in all")
    };
    (0..count).map(|device| DeviceReason { device, reason: reason(device) }).collect()
}
