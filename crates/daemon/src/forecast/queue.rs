//! The forecast of the whole queue: when and where every job starts and ends.

use super::draws::Deadline;
use super::{Question, ask};
use crate::api::live_types::{ForecastJob, ForecastPlacement, QueueForecast};
use crate::api::types::SCHEMA;
use crate::cycle::Present;
use crate::job::JobState;
use crate::time::iso;
use std::time::Duration;
use tandem_core::Time;
use tandem_policies::PolicySpec;
use tandem_sim::forecast::Forecast;

/// Pages refresh this forecast all the time, so it has fewer draws and a shorter horizon than that of a single
/// job.
const DRAWS: u32 = 5;
const EVENTS_MAX: u64 = 20_000;
/// Deadline of all draws. In a queue that is too long, the later jobs have no start.
const TIME: Duration = Duration::from_secs(2);
/// Placements in a response, earliest first.
const PLACEMENTS_MAX: usize = 4_000;

/// A forecast of the queue to be computed.
pub(crate) struct QueueQuestion {
    question: Question,
    /// Why each job waits.
    waits: Vec<Option<String>>,
    /// The time of the snapshot.
    unix_us: u64,
}

/// Takes a snapshot of the queue.
pub(crate) fn of_queue(present: &Present<'_>) -> QueueQuestion {
    let question = ask(present, None, JobState::Pending, None);
    let waits = |&id: &u64| {
        let view = present.scheduler.view(id, present.now.time())?;
        view.waiting.map(|waiting| waiting.text())
    };
    let waits = question.ids.iter().map(waits).collect();
    QueueQuestion { question, waits, unix_us: present.now.unix_us }
}

impl QueueQuestion {
    /// Computes the forecast.
    pub(crate) fn answer(self, policy: &PolicySpec) -> QueueForecast {
        let Self { mut question, waits, unix_us } = self;
        let draws = question.run_draws(policy, DRAWS, EVENTS_MAX, TIME);
        let job = |(index, waits)| ForecastJob { waits, ..question.range_of(index, &draws) };
        QueueForecast {
            schema: SCHEMA,
            time: iso(unix_us),
            policy: policy.text.clone(),
            draws: u32::try_from(draws.len()).unwrap_or(u32::MAX),
            jobs: waits.into_iter().enumerate().map(job).collect(),
            placements: question.placements(&draws[0]),
        }
    }
}

impl Question {
    /// Simulates draws until the deadline; at least one, which may be incomplete. Records the placements of the
    /// first.
    pub(super) fn run_draws(
        &mut self,
        policy: &PolicySpec,
        draws: u32,
        events_max: u64,
        time: Duration,
    ) -> Vec<Forecast> {
        self.take_limits_of(policy);
        let deadline = Deadline::after(time);
        let mut forecasts = Vec::new();
        for draw in 0..draws {
            self.draw(draw);
            let forecast = self.run(policy, events_max, draw == 0, deadline);
            let is_late = deadline.has_passed();
            // A draw that was cut short would only count jobs that start early.
            if draw == 0 || !is_late {
                forecasts.push(forecast);
            }
            if is_late {
                break;
            }
        }
        forecasts
    }

    /// Seconds from now.
    pub(super) fn seconds_to(&self, at: Time) -> f64 {
        at.since(self.present.now).0 as f64 / 1e6
    }

    fn range_of(&self, index: usize, draws: &[Forecast]) -> ForecastJob {
        let range = |when: fn(&tandem_sim::forecast::JobForecast) -> Option<Time>| {
            let values = draws.iter().filter_map(|draw| when(&draw.jobs[index]));
            super::draws::range(values.map(|at| self.seconds_to(at)).collect())
        };
        let waits = self.present.jobs[index].placement.is_none();
        ForecastJob {
            id: self.ids[index],
            start_in_s: if waits { range(|job| job.start) } else { None },
            end_in_s: range(|job| job.end),
            waits: None,
        }
    }

    fn placements(&self, expected: &Forecast) -> Vec<ForecastPlacement> {
        let placement = |stay: &tandem_sim::Stay| ForecastPlacement {
            job: self.ids[stay.job.index()],
            devices: stay.gpus.iter().map(|gpu| gpu.0).collect(),
            from_s: self.seconds_to(stay.from),
            to_s: self.seconds_to(stay.to),
        };
        let mut placements: Vec<ForecastPlacement> = expected.stays.iter().map(placement).collect();
        placements.sort_by(|a, b| a.from_s.total_cmp(&b.from_s).then(a.job.cmp(&b.job)));
        placements.truncate(PLACEMENTS_MAX);
        placements
    }
}
