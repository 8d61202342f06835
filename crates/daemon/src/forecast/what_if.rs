//! What-if: simulates the present state with and without a change, with the same draws.

use super::{Question, ask};
use crate::api::live_types::{WhatIfAnswer, WhatIfBody, WhatIfJob, WhatIfTotals};
use crate::api::types::SCHEMA;
use crate::command::{AdmissionControl, Caller, Refusal};
use crate::cycle::Present;
use crate::job::JobState;
use crate::request::JobRequest;
use std::sync::Arc;
use std::time::Duration;
use tandem_core::{GpuId, JobId, Time, Work};
use tandem_policies::PolicySpec;
use tandem_sim::forecast::{Forecast, JobForecast, SnapshotJob};

const DRAWS: u32 = 5;
const EVENTS_MAX: u64 = 50_000;
/// Deadline of the draws of each of the two simulations; a longer queue is compared in part.
const TIME: Duration = Duration::from_secs(4);
/// Jobs in the response.
const JOBS_MAX: usize = 200;
/// GPUs that may be added.
const MORE_MAX: u32 = 1024;

/// The two simulations to run.
pub(crate) struct WhatIf {
    before: Question,
    after: Question,
    /// Name and user of each job; an added job is last.
    names: Vec<(String, String)>,
    adds_job: bool,
}

/// Takes a snapshot with and without the change; an error if the change is invalid.
pub(crate) fn of_change(
    present: &Present<'_>,
    caller: &Caller,
    change: WhatIfBody,
) -> Result<WhatIf, Refusal> {
    let scheduler = present.scheduler;
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    if let Some(device) = change.drain.iter().find(|&&device| device >= count) {
        return Err(Refusal::NotFound(format!("there is no GPU {device}")));
    }
    if change.add_devices > MORE_MAX {
        return Err(Refusal::Bad(format!("add_devices: at most {MORE_MAX} can be added")));
    }
    let before = ask(present, None, JobState::Pending, None);
    let mut after = ask(present, None, JobState::Pending, None);
    after.present.closed.extend(change.drain.iter().copied().map(GpuId));
    if change.add_devices > 0 {
        after.present.cluster = Arc::new(scheduler.cluster_with(change.add_devices));
    }
    let name = |&id: &u64| {
        let job = scheduler.job(id).map(|active| &active.job);
        job.map_or_else(Default::default, |job| (job.name(), job.user.clone()))
    };
    let mut names: Vec<(String, String)> = before.ids.iter().map(name).collect();
    let adds_job = change.job.is_some();
    if let Some(request) = change.job {
        if change.add_devices == 0 {
            AdmissionControl::feasible(scheduler, &request)?;
        }
        names.push((request.name.clone().unwrap_or_default(), caller.user.clone()));
        after.add(present, caller, request);
    }
    Ok(WhatIf { before, after, names, adds_job })
}

impl Question {
    fn add(&mut self, present: &Present<'_>, caller: &Caller, request: JobRequest) {
        let number = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        let scheduler = present.scheduler;
        let (spec, estimate) =
            scheduler.spec_of_request(caller, request, JobId(number), present.now.time());
        self.estimates.push(estimate);
        let duration = spec.estimate;
        self.ids.push(scheduler.next_job());
        self.present.jobs.push(SnapshotJob { spec, placement: None, done: Work::ZERO, duration });
    }

    /// The median over the draws of a time of every job, in seconds from now; absent for jobs that do not reach
    /// it in most draws.
    fn medians(
        &self,
        draws: &[Forecast],
        when: fn(&JobForecast) -> Option<Time>,
    ) -> Vec<Option<f64>> {
        let median = |index: usize| {
            let of_job = draws.iter().filter_map(|draw| when(&draw.jobs[index]));
            let mut values: Vec<f64> = of_job.map(|at| self.seconds_to(at)).collect();
            values.sort_by(f64::total_cmp);
            let is_usual = values.len() * 2 > draws.len();
            values.get(values.len() / 2).copied().filter(|_| is_usual)
        };
        (0..self.ids.len()).map(median).collect()
    }

    fn instants(&self, draws: &[Forecast]) -> Instants {
        Instants {
            starts: self.medians(draws, |job| job.start),
            ends: self.medians(draws, |job| job.end),
        }
    }
}

/// When jobs start and end, in seconds from now.
struct Instants {
    starts: Vec<Option<f64>>,
    ends: Vec<Option<f64>>,
}

impl WhatIf {
    /// Runs both simulations.
    pub(crate) fn answer(
        mut self,
        policy_before: &PolicySpec,
        policy: &PolicySpec,
    ) -> WhatIfAnswer {
        let before = self.before.run_draws(policy_before, DRAWS, EVENTS_MAX, TIME);
        let after = self.after.run_draws(policy, DRAWS, EVENTS_MAX, TIME);
        // Compare only draws that both simulations finished.
        let draws = before.len().min(after.len());
        let before = self.before.instants(&before[..draws]);
        let after = self.after.instants(&after[..draws]);
        let count = self.before.ids.len();
        let waits: Vec<usize> =
            (0..count).filter(|&job| self.before.present.jobs[job].placement.is_none()).collect();
        let mut jobs: Vec<WhatIfJob> =
            (0..self.names.len()).map(|index| self.job(index, &before, &after)).collect();
        let change = |job: &WhatIfJob| match (job.id, job.end_before_s, job.end_after_s) {
            // An added job is listed first.
            (None, ..) => f64::INFINITY,
            (_, Some(before), Some(after)) => (after - before).abs(),
            (_, None, None) => 0.0,
            _ => f64::MAX,
        };
        jobs.sort_by(|a, b| change(b).total_cmp(&change(a)).then(a.id.cmp(&b.id)));
        let left_off = jobs.len().saturating_sub(JOBS_MAX) as u64;
        jobs.truncate(JOBS_MAX);
        WhatIfAnswer {
            schema: SCHEMA,
            policy_before: policy_before.text.clone(),
            policy: policy.text.clone(),
            draws: u32::try_from(draws).unwrap_or(u32::MAX),
            before: totals(&before, &after, &waits, count),
            after: totals(&after, &before, &waits, count),
            jobs,
            jobs_left_off: left_off,
        }
    }

    fn job(&self, index: usize, before: &Instants, after: &Instants) -> WhatIfJob {
        let is_added = self.adds_job && index + 1 == self.names.len();
        let waits = self.after.present.jobs[index].placement.is_none();
        let start = |instants: &Instants| instants.starts.get(index).copied().flatten();
        let end = |instants: &Instants| instants.ends.get(index).copied().flatten();
        let (name, user) = self.names[index].clone();
        WhatIfJob {
            id: (!is_added).then(|| self.before.ids[index]),
            name,
            user,
            start_before_s: start(before).filter(|_| waits),
            start_after_s: start(after).filter(|_| waits),
            end_before_s: end(before),
            end_after_s: end(after),
        }
    }
}

/// Sums over the jobs that reach this time in both simulations.
fn totals(own: &Instants, other: &Instants, waits: &[usize], count: usize) -> WhatIfTotals {
    let mean = |values: Vec<f64>| match values.len() {
        0 => 0.0,
        length => values.iter().sum::<f64>() / length as f64,
    };
    let both = |own: &[Option<f64>], other: &[Option<f64>], job: usize| other[job].and(own[job]);
    let ends = (0..count).filter_map(|job| both(&own.ends, &other.ends, job));
    let ends: Vec<f64> = ends.collect();
    let starts = waits.iter().filter_map(|&job| both(&own.starts, &other.starts, job));
    WhatIfTotals {
        jobs: count as u64,
        started: own.starts.iter().take(count).flatten().count() as u64,
        mean_wait_s: mean(starts.collect()),
        last_end_s: ends.iter().copied().fold(0.0, f64::max),
        mean_end_s: mean(ends),
    }
}
