//! Forecasts: why a job waits, when it will start, and what-if. The simulator runs the policy forward from the
//! present state, with several draws of the unknown durations.

mod draws;
mod queue;
mod what_if;

pub(crate) use queue::of_queue;
pub(crate) use what_if::of_change;

use crate::api::types::{DeviceReason, Explanation, SCHEMA};
use crate::command::{AdmissionControl, Caller, Refusal};
use crate::cycle::Present;
use crate::job::{JobState, StoredJob};
use crate::reasons::shut_reason;
use crate::request::JobRequest;
use crate::scheduler::{Estimate, OutsideWork, Scheduler, ShutCause};
use draws::{Deadline, ReducedQueue};
use std::sync::Arc;
use tandem_core::{
    BudgetMode, GangGpu, GpuId, Interference, JobId, JobSpec, Placement, Ppm, Ratio, Span, Tenant,
    Time, Tolerance, Work, promise_in_the_way, rate_on_gpu,
};
use tandem_policies::PolicySpec;
use tandem_sim::forecast::{self, Forecast, ForecastOptions, SnapshotJob};

/// Events of a draw, at most. A job that has not started by then starts far in the future.
const EVENTS_MAX: u64 = 200_000;

/// The note for a job that the policy does not know yet, because it waits for something else.
const UNPLANNED: &str = "it is planned once it no longer waits for that";

/// A forecast to be computed: a snapshot of the present, and the job in question.
pub struct Question {
    id: Option<u64>,
    state: JobState,
    waits: Option<String>,
    devices: Vec<DeviceReason>,
    /// Ids of the jobs, by their position in the snapshot.
    ids: Vec<u64>,
    /// Expected duration of each job, and its uncertainty.
    estimates: Vec<Estimate>,
    /// The job in question, if it waits for devices.
    target: Option<usize>,
    /// Work before it of jobs that are not planned yet.
    outside: OutsideWork,
    present: forecast::Snapshot,
    beliefs: Arc<dyn Interference>,
    restore: Span,
}

/// The forecast for a job; `None` if it has ended. Only its owner sees reasons that name files.
pub(crate) fn of_job(present: &Present<'_>, id: u64, sees_all: bool) -> Option<Question> {
    let scheduler = present.scheduler;
    let active = scheduler.job(id)?;
    let view = scheduler.view(id, present.now.time())?;
    let reason = || if sees_all { active.job.reason.clone() } else { active.job.public_reason() };
    let waits = view.waiting.map(|waiting| waiting.text()).or_else(reason);
    let waits = waits.filter(|_| active.job.state != JobState::Running);
    let mut question = ask(present, Some(id), active.job.state, waits);
    question.target = question.ids.iter().position(|&other| other == id);
    let number = u32::try_from(question.ids.len()).unwrap_or(u32::MAX);
    if let Some((spec, estimate)) = scheduler.spec_of_outside(id, JobId(number), present.now.time())
    {
        question.outside = scheduler.work_outside(active.job.uid, Some(id));
        question.target_is(id, spec, estimate);
    }
    if let Some(target) = question.target.filter(|_| active.job.state != JobState::Running) {
        let spec = question.present.jobs[target].spec.clone();
        question.devices = device_reasons(scheduler, &spec, Some(id));
    }
    Some(question)
}

/// The forecast for a job that was not submitted.
pub(crate) fn of_request(
    present: &Present<'_>,
    caller: &Caller,
    mut request: JobRequest,
) -> Result<Question, Refusal> {
    let scheduler = present.scheduler;
    // Classes are kept apart by user.
    let own = crate::class::of_user(&request, &caller.user, false, &[]);
    let own = JobRequest { class: Some(own), ..request.clone() };
    let job = StoredJob { uid: caller.uid, request: Arc::new(own), ..StoredJob::default() };
    if scheduler.classes().get(&scheduler.class_of(&job).0).is_some() {
        request.class.clone_from(&job.request.class);
    }
    AdmissionControl::feasible(scheduler, &request)?;
    let mut question = ask(present, None, JobState::Pending, None);
    let number = u32::try_from(question.ids.len()).unwrap_or(u32::MAX);
    let (spec, estimate) =
        scheduler.spec_of_request(caller, request, JobId(number), present.now.time());
    question.devices = device_reasons(scheduler, &spec, None);
    question.outside = scheduler.work_outside(caller.uid, None);
    question.target_is(scheduler.next_job(), spec, estimate);
    Ok(question)
}

/// The explanation of a job that has ended.
pub(crate) fn of_the_past(job: &StoredJob, policy: String) -> Explanation {
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
        start_note: None,
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
    let (mut jobs, mut estimates) = (Vec::new(), Vec::new());
    for (entry, job) in scheduler.entered() {
        let Some((known, active)) = engine.find(entry).zip(scheduler.job(job)) else { continue };
        estimates.push(scheduler.estimate(active));
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
        estimates,
        target: None,
        outside: OutsideWork::default(),
        present: forecast::Snapshot {
            cluster: Arc::new(engine.cluster().clone()),
            rules: *engine.rules(),
            now,
            jobs,
            closed: (0..count).filter(closed).map(GpuId).collect(),
            reserved: (0..count).filter_map(reserved).collect(),
            shares: scheduler.shares().clone(),
        },
        beliefs: scheduler.engine().learner().snapshot(),
        restore: Span((scheduler.setup().restore_s * 1e6) as u64),
    }
}

impl Question {
    /// The explanation without a forecast.
    pub(crate) fn known(&self, policy: &PolicySpec) -> Explanation {
        let mut answer = blank(self.id, self.state, policy.text.clone());
        answer.waits.clone_from(&self.waits);
        answer.devices.clone_from(&self.devices);
        answer
    }

    /// Adds the job in question, which the engine does not know.
    fn target_is(&mut self, id: u64, spec: JobSpec, estimate: Estimate) {
        self.target = Some(self.ids.len());
        self.ids.push(id);
        self.estimates.push(estimate);
        let duration = spec.estimate;
        let job = SnapshotJob { spec, placement: None, done: Work::ZERO, duration };
        self.present.jobs.push(job);
    }

    /// Computes the forecast.
    pub(crate) fn answer(mut self, policy: &PolicySpec) -> Explanation {
        let mut answer = blank(self.id, self.state, policy.text.clone());
        answer.waits = self.waits.take();
        answer.devices = std::mem::take(&mut self.devices);
        if self.target.is_none() {
            let is_pending = matches!(self.state, JobState::Pending | JobState::Held);
            answer.start_note = is_pending.then(|| UNPLANNED.to_owned());
            return answer;
        }
        self.take_limits_of(policy);
        let deadline = Deadline::new();
        let (target, left_out) = self.shorten();
        let left_out = left_out + self.outside.all;
        let forecasts = self.run_until(policy, target, deadline);
        self.say_when(&mut answer, &forecasts, target, left_out);
        // The first draw uses the expected durations.
        let expected = &forecasts[0];
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
        if self.id.is_none() && expected.reached.is_none() {
            answer.effect_on_others_s = self.effect(policy, expected, target, deadline);
        }
        answer
    }

    /// Leaves out the later jobs of a queue that is too long to be simulated in time. Returns the position of
    /// the job in question in the whole queue, and the work of the jobs before it that were left out.
    fn shorten(&mut self) -> (usize, Work) {
        let target = self.target.unwrap_or(0);
        self.draw(0);
        let ReducedQueue { positions, left_out } = draws::keep(&self.present, target);
        if positions.len() < self.ids.len() {
            self.ids = positions.iter().map(|&at| self.ids[at]).collect();
            self.estimates = positions.iter().map(|&at| self.estimates[at]).collect();
            self.present.jobs = positions.iter().map(|&at| self.present.jobs[at].clone()).collect();
        }
        (positions.binary_search(&target).unwrap_or(0), left_out)
    }

    /// Simulates draws until the deadline; at least one, which may be incomplete.
    fn run_until(
        &mut self,
        policy: &PolicySpec,
        target: usize,
        deadline: Deadline,
    ) -> Vec<Forecast> {
        let mut forecasts = Vec::new();
        // A dry run also reports the effect on other jobs.
        let last = self.id.map(|_| target);
        for draw in 0..draws::DRAWS {
            self.draw(draw);
            let last = if draw == 0 { last } else { Some(target) };
            let forecast = self.run_to(policy, last, deadline);
            let is_complete = forecast.reached.is_none();
            if draw == 0 || is_complete || forecast.jobs[target].start.is_some() {
                forecasts.push(forecast);
            }
            if deadline.has_passed() {
                break;
            }
        }
        self.draw(0);
        forecasts
    }

    /// Sets when the job starts and ends, or why that is not known.
    fn say_when(
        &self,
        answer: &mut Explanation,
        forecasts: &[Forecast],
        target: usize,
        left_out: Work,
    ) {
        let since = |at: Time| at.since(self.present.now).0 as f64 / 1e6;
        let start =
            |forecast: &Forecast| forecast.jobs[target].start.map(since).filter(draws::is_foreseen);
        let starts: Vec<f64> = forecasts.iter().filter_map(start).collect();
        answer.draws = u32::try_from(forecasts.len()).unwrap_or(u32::MAX);
        answer.draws_started = u32::try_from(starts.len()).unwrap_or(u32::MAX);
        let expected = &forecasts[0];
        let ends = forecasts.iter().filter_map(|draw| draw.jobs[target].end).map(since);
        if self.present.jobs[target].placement.is_some() {
            answer.end_in_s = draws::range(ends.collect());
            return;
        }
        let estimates = &self.estimates;
        answer.start_note = draws::too_few_gpus(&self.present, target)
            .or_else(|| draws::unknown(&self.present, expected, estimates, target, self.outside));
        if answer.start_note.is_some() {
            answer.draws_started = 0;
        } else if left_out == Work::ZERO && !starts.is_empty() {
            answer.start_in_s = draws::range(starts);
            answer.end_in_s = draws::range(ends.collect());
        } else if left_out > Work::ZERO || expected.reached.is_some() {
            let start = draws::extrapolate(&self.present, expected, estimates, target, left_out);
            answer.start_in_s = start;
            answer.draws_started = if start.is_some() { answer.draws } else { 0 };
            answer.start_note = Some(match start {
                Some(_) => "extrapolated: the queue is too long to be simulated in time".to_owned(),
                None => "the queue is too long to be simulated in time".to_owned(),
            });
        }
    }

    /// The mean delay of the other jobs that the job causes.
    fn effect(
        &mut self,
        policy: &PolicySpec,
        with: &Forecast,
        target: usize,
        deadline: Deadline,
    ) -> Option<f64> {
        self.present.jobs.remove(target);
        let without = self.run_to(policy, None, deadline);
        let others = with.jobs.iter().enumerate().filter(|(index, _)| *index != target);
        let ends = others.map(|(_, with)| with).zip(&without.jobs);
        let later: Vec<f64> = ends
            .filter_map(|(with, without)| Some((with.end?, without.end?)))
            .map(|(with, without)| (with.0 as f64 - without.0 as f64) / 1e6)
            .collect();
        let is_complete = without.reached.is_none() && !later.is_empty();
        is_complete.then(|| later.iter().sum::<f64>() / later.len() as f64)
    }

    /// The durations of a draw; those of the first are the expected ones.
    fn draw(&mut self, draw: u32) {
        draws::draw(&mut self.present.jobs, &self.estimates, draw);
    }

    /// Another policy may allow another number of tenants per GPU.
    fn take_limits_of(&mut self, policy: &PolicySpec) {
        if self.present.rules.tenants_max > 1 {
            self.present.rules.tenants_max = policy.entry.tenants_max;
        }
    }

    fn run(
        &self,
        policy: &PolicySpec,
        events_max: u64,
        record: bool,
        deadline: Deadline,
    ) -> Forecast {
        let options = ForecastOptions { events_max, record, ..self.options() };
        let goes_on = || !deadline.has_passed();
        forecast::forecast_while(&self.present, policy, &self.beliefs, &options, &goes_on)
    }

    /// Runs the simulation until the job has ended, or to the limit of events.
    fn run_to(&self, policy: &PolicySpec, last: Option<usize>, deadline: Deadline) -> Forecast {
        let options = ForecastOptions { until_end_of: last, ..self.options() };
        let goes_on = || !deadline.has_passed();
        forecast::forecast_while(&self.present, policy, &self.beliefs, &options, &goes_on)
    }

    fn options(&self) -> ForecastOptions {
        let restore = (self.restore, self.restore);
        ForecastOptions { restore, events_max: EVENTS_MAX, ..ForecastOptions::default() }
    }
}

/// A placed job as a tenant for the rate law.
fn tenant(job: &tandem_core::Job) -> Tenant<'_> {
    let budget = job.placement().map_or(Ppm::ONE, |placement| placement.budget);
    Tenant::of(&job.spec, budget)
}

/// Why a job cannot share a device: the job whose promise no budgets would keep.
fn broken_promise(
    scheduler: &Scheduler,
    spec: &JobSpec,
    tenants: &[JobId],
    gpu: GpuId,
) -> Option<String> {
    let engine = scheduler.engine().state();
    let specs: Vec<&JobSpec> =
        tenants.iter().map(|&entry| &engine.job(entry).spec).chain([spec]).collect();
    if !specs.iter().any(|spec| spec.has_promise()) {
        return None;
    }
    let mode = match engine.rules().live_budgets {
        true => BudgetMode::Competitive,
        false => BudgetMode::Off,
    };
    let kind = engine.cluster().gpu(gpu).kind;
    let entry = promise_in_the_way(&specs, scheduler.engine().learner(), kind, mode)?;
    Some(match entry == spec.id {
        true => "this one".to_owned(),
        false => format!("job {}", scheduler.job_of(entry)),
    })
}

/// What a device is like that the plan gives to nobody else: a process may still be there.
fn freed(scheduler: &Scheduler, device: u32, own: Option<u64>) -> String {
    let (mine, others): (Vec<u64>, Vec<u64>) =
        scheduler.present(device).partition(|&job| Some(job) == own);
    let list = || others.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
    match (others.len(), mine.is_empty()) {
        (0, true) => "is free".to_owned(),
        (0, false) => "its own process is still there".to_owned(),
        (1, _) => format!("job {} is leaving", list()),
        _ => format!("jobs {} are leaving", list()),
    }
}

/// Why a device accepts no jobs at all, if so.
fn unavailable(scheduler: &Scheduler, device: u32) -> Option<String> {
    let cause = scheduler.shut_cause(device);
    match &cause {
        Some(ShutCause::Drained(None)) => return Some("is drained".to_owned()),
        Some(ShutCause::Drained(Some(why))) => return Some(format!("is drained ({why})")),
        Some(until @ ShutCause::DrainedUntil(..)) => {
            return Some(format!("is drained {}", shut_reason(until).unwrap_or_default()));
        }
        _ => {}
    }
    if let Some(reason) = scheduler.closed(device) {
        return Some(format!("is closed: {reason}"));
    }
    if let Some(bytes) = scheduler.foreign(device)
        && scheduler.setup().foreign_avoid
    {
        return Some(format!("is used by others, {} MiB", bytes >> 20));
    }
    matches!(cause, Some(ShutCause::Reserved))
        .then(|| "is kept free for a job that is moved".to_owned())
}

/// For each device, why the job does not start there. The job itself does not count.
fn device_reasons(scheduler: &Scheduler, spec: &JobSpec, own: Option<u64>) -> Vec<DeviceReason> {
    let engine = scheduler.engine().state();
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    let reason = |device: u32| {
        if let Some(reason) = unavailable(scheduler, device) {
            return reason;
        }
        let gpu = GpuId(device);
        let tenants: Vec<JobId> = engine.occupancy().tenants(gpu).to_vec();
        let tenants: Vec<JobId> =
            tenants.into_iter().filter(|&entry| Some(scheduler.job_of(entry)) != own).collect();
        if tenants.is_empty() {
            return freed(scheduler, device, own);
        }
        let jobs: Vec<String> =
            tenants.iter().map(|&entry| scheduler.job_of(entry).to_string()).collect();
        let who = match jobs.as_slice() {
            [job] => format!("job {job} is there"),
            jobs => format!("jobs {} are there", jobs.join(" and ")),
        };
        if spec.tolerance == Tolerance::Alone {
            let why = own.and_then(|own| scheduler.why_alone(own));
            let why = why.unwrap_or("as requested or until its class is known");
            return format!("{who}, and this one runs alone, {why}");
        }
        if tenants.len() >= engine.rules().tenants_max {
            return format!("{who}, as many as the policy allows");
        }
        let is_alone = |entry: &&JobId| engine.job(**entry).spec.tolerance == Tolerance::Alone;
        if let Some(&entry) = tenants.iter().find(is_alone) {
            let job = scheduler.job_of(entry);
            let why = scheduler.why_alone(job).unwrap_or("as requested");
            return format!("{who}, and job {job} runs alone, {why}");
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
        if let Some(whose) = broken_promise(scheduler, spec, &tenants, gpu) {
            return format!("{who}, and no budgets would keep the promise of {whose}");
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
