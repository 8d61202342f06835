//! How long a job takes: by its own progress if it shows any, else by what it declared, else by the finished
//! jobs of its class.

use super::{Active, Phase, Scheduler};
use tandem_core::{PPM_ONE, Span, Time};
use tandem_models::expectation::{Expectation, GUESS};

/// How far what a user declares is off: deviations of the logarithm.
const DECLARED: (f64, f64) = (0.3, 0.2);
/// A time limit is a bound, which most jobs stay below.
const LIMIT: (f64, f64) = (0.6, 0.6);
/// What progress leaves open, of the work that is left.
const PROGRESS: (f64, f64) = (0.1, 0.0);
/// The shortest interval at which a job that takes longer than expected is looked at again.
const CHECK_MIN: Span = Span::from_secs(1);

/// Where an estimate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateBasis {
    /// Steps done and steps asked for.
    Progress,
    /// `--estimate`.
    Declared,
    /// Jobs of the class: so many that have finished. None have where one runs longer than was expected.
    Class(usize),
    /// A running job of the class that tells how much it has to do.
    Running,
    /// Other classes.
    Others,
    /// The time limit.
    Limit,
    /// It runs until it is cancelled.
    Service,
    /// Nothing is known.
    Guess,
}

impl EstimateBasis {
    /// In a few words.
    pub fn text(self) -> String {
        match self {
            Self::Progress => "its own progress".to_owned(),
            Self::Declared => "as declared".to_owned(),
            Self::Class(0) => "a guess: a job of its class runs longer than expected".to_owned(),
            Self::Running => "the progress of a running job of its class".to_owned(),
            Self::Class(1) => "one finished job of its class".to_owned(),
            Self::Class(count) => format!("the last {count} finished jobs of its class"),
            Self::Others => "jobs of other classes".to_owned(),
            Self::Limit => "its time limit".to_owned(),
            Self::Service => "none: it runs until it is cancelled".to_owned(),
            Self::Guess => "a guess: nothing is known of its class".to_owned(),
        }
    }

    /// Whether it says next to nothing about a start that depends on it.
    pub fn is_guess(self) -> bool {
        matches!(self, Self::Guess | Self::Others | Self::Class(0))
    }
}

/// How long a job takes alone, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// As likely to be exceeded as not.
    pub median: Span,
    /// Standard deviation of the logarithm: of this job by itself,
    pub own: f64,
    /// and of all jobs of its class together.
    pub common: f64,
    /// Where it comes from.
    pub basis: EstimateBasis,
}

impl Estimate {
    fn new(median: Span, (own, common): (f64, f64), basis: EstimateBasis) -> Self {
        Self { median: median.max(Span(1)), own, common, basis }
    }

    fn of(expected: Expectation, basis: EstimateBasis) -> Self {
        Self::new(expected.median, (expected.own, expected.common), basis)
    }
}

/// An estimate that was exceeded grows: the job is expected to run half as long again as it has run.
pub(super) fn grown(estimate: Span, done: Span) -> Span {
    if done < estimate { estimate } else { Span(done.0.saturating_add(done.0 / 2)) }
}

impl Scheduler {
    /// How long a job takes.
    pub fn estimate(&self, active: &Active) -> Estimate {
        let (job, request) = (&active.job, &active.job.request);
        if request.is_service() {
            return Estimate::new(super::services::ESTIMATE, DECLARED, EstimateBasis::Service);
        }
        let seconds = |seconds: f64| Span((seconds * 1e6).round() as u64);
        let limit = request.time_limit_s.map(seconds);
        let within = |estimate: Estimate| Estimate {
            median: limit.map_or(estimate.median, |limit| estimate.median.min(limit)),
            ..estimate
        };
        if let Some(total) = job.total_us {
            return within(Estimate::new(Span(total), PROGRESS, EstimateBasis::Progress));
        }
        if let Some(declared) = request.estimate_s.map(seconds) {
            return Estimate::new(declared, DECLARED, EstimateBasis::Declared);
        }
        if let Some(expected) = self.learning.expected(&job.class, active.length) {
            let finished =
                self.learning.get(&job.class).map_or(0, |known| known.durations_us.len());
            let basis = match finished {
                0 if self.learning.shows_total(&job.class) => EstimateBasis::Running,
                finished => EstimateBasis::Class(finished),
            };
            return within(Estimate::of(expected, basis));
        }
        if let Some(limit) = limit {
            return Estimate::new(limit, LIMIT, EstimateBasis::Limit);
        }
        match self.learning.expected_by_others() {
            Some(expected) => Estimate::of(expected, EstimateBasis::Others),
            None => Estimate::of(GUESS, EstimateBasis::Guess),
        }
    }

    /// A job told how much it has to do.
    pub(super) fn set_total(&mut self, id: u64, total_us: u64) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.job.total_us = Some(total_us);
        let (class, length) = (active.job.class.clone(), active.length);
        let is_news = self.learning.set_total(&class, id, Span(total_us), length);
        self.jobs.mark_changed(id);
        self.describe(id);
        self.describe_if(&class, is_news);
    }

    /// Looks at a running job again when it has done what was expected of it.
    pub(super) fn watch_estimate(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if !self.setup.learn || active.phase != Phase::Running || active.job.total_us.is_some() {
            return;
        }
        let now = self.now.time();
        let estimate = grown(self.estimate(active).median, Span(active.done_us(now)));
        let left = estimate.0.saturating_sub(active.done_us(now));
        let rate = u64::from(active.rate().0.max(1));
        let wait = (u128::from(left) * u128::from(PPM_ONE) / u128::from(rate)) as u64;
        let at = now + Span(wait).max(CHECK_MIN);
        if active.check_at.is_none_or(|check| at < check || check <= now) {
            self.jobs.get_mut(id).expect("it was found above").check_at = Some(at);
            self.jobs.add_timer(at, id);
        }
    }

    /// A running job may have done what was expected of it: then others of its class will take longer, too.
    pub(super) fn check_estimate(&mut self, id: u64) {
        let now: Time = self.now.time();
        let Some(active) = self.jobs.get(id) else { return };
        if active.check_at.is_none_or(|check| check > now) || active.phase != Phase::Running {
            return;
        }
        let done = Span(active.done_us(now));
        let class = active.job.class.clone();
        if active.job.total_us.is_none() && done >= self.estimate(active).median {
            self.learning.outlived(&class, id, done);
            self.describe_class(&class);
        }
        self.watch_estimate(id);
    }

    /// Describes the jobs of a class again if something about them is news.
    pub(super) fn describe_if(&mut self, class: &str, is_news: bool) {
        if is_news {
            self.describe_class(class);
        }
    }
}
