//! How long jobs of a class take: by those that have finished, by what running ones show of their progress, and
//! by those that run longer than was expected.

use super::classes::{ClassTable, LearnedClass, push_latest};
use crate::class::JobLength;
use std::collections::BTreeMap;
use tandem_core::Span;
use tandem_models::expectation::{self, Expectation};

/// Finished jobs of a class that are remembered.
const DURATIONS_MAX: usize = 16;
/// Running jobs of a class that are asked.
const RUNNING_MAX: usize = 16;
/// Jobs are described again when their estimate changes by more than this factor.
const ESTIMATE_CHANGE: f64 = 1.1;
/// Jobs whose lengths differ by less than this factor are compared as they are.
const SAME_LENGTH: f64 = 1.25;

/// How long a job took, and what it had to do if its arguments told.
#[derive(Clone, Copy)]
struct Duration {
    span: Span,
    length: Option<JobLength>,
}

/// What running jobs tell about others of their class, by class and job.
#[derive(Default)]
pub(super) struct RunningJobs {
    /// Work done by jobs that take longer than was expected.
    outlived: BTreeMap<String, BTreeMap<u64, Span>>,
    /// Work in all of jobs that show their progress.
    totals: BTreeMap<String, BTreeMap<u64, (Span, Option<JobLength>)>>,
}

impl RunningJobs {
    /// Forgets a job; its class if it told anything.
    fn forget(&mut self, job: u64) -> Option<String> {
        let outlived = remove(&mut self.outlived, job);
        remove(&mut self.totals, job).or(outlived)
    }
}

/// Takes a job out of its class.
fn remove<T>(classes: &mut BTreeMap<String, BTreeMap<u64, T>>, job: u64) -> Option<String> {
    let class = classes.iter().find(|(_, jobs)| jobs.contains_key(&job));
    let class = class.map(|(class, _)| class.clone())?;
    let jobs = classes.get_mut(&class)?;
    jobs.remove(&job);
    if jobs.is_empty() {
        classes.remove(&class);
    }
    Some(class)
}

impl LearnedClass {
    /// The jobs that have finished, the latest last.
    fn finished(&self) -> impl Iterator<Item = Duration> {
        let unknown = self.durations_us.len().saturating_sub(self.lengths.len());
        let lengths = std::iter::repeat_n(None, unknown).chain(self.lengths.iter().copied());
        let durations = self.durations_us.iter().map(|&us| Span(us));
        durations.zip(lengths).map(|(span, length)| Duration { span, length })
    }

    /// The median duration of finished jobs, in seconds.
    pub(super) fn typical_s(&self) -> Option<f64> {
        let mut durations = self.durations_us.clone();
        durations.sort_unstable();
        durations.get(durations.len() / 2).map(|&us| us as f64 / 1e6)
    }
}

impl ClassTable {
    /// How long a job of a class takes that has so much to do, by those that have finished and those that run;
    /// `None` if they tell nothing.
    pub fn expected(&self, name: &str, length: Option<JobLength>) -> Option<Expectation> {
        let known = self.get(name);
        let finished = known.into_iter().flat_map(LearnedClass::finished);
        let running = self.running.totals.get(name).into_iter().flat_map(BTreeMap::values);
        let running = running.take(RUNNING_MAX).map(|&(span, length)| Duration { span, length });
        let (spans, factor) =
            as_long_as(length, &finished.chain(running).collect::<Vec<Duration>>());
        let outlived = self.running.outlived.get(name).into_iter().flat_map(BTreeMap::values);
        let outlived: Vec<Span> = outlived.copied().collect();
        Some(expectation::of_class(&spans, &outlived)?.scaled(factor))
    }

    /// Whether a running job of a class tells how long it takes.
    pub(super) fn shows_total(&self, name: &str) -> bool {
        self.running.totals.contains_key(name)
    }

    /// What other classes tell about one that was never seen to finish.
    pub fn expected_by_others(&self) -> Option<Expectation> {
        let finished = self.iter().filter(|(_, class)| !class.durations_us.is_empty());
        let medians = finished.filter_map(|(name, _)| Some(self.expected(name, None)?.median));
        expectation::of_others(medians)
    }

    /// A running job takes longer than was expected.
    pub(super) fn outlived(&mut self, name: &str, job: u64, done: Span) {
        self.running.outlived.entry(name.to_owned()).or_default().insert(job, done);
    }

    /// A running job has told how much it has to do; whether others of its class are now expected to take
    /// notably longer or shorter.
    pub(super) fn set_total(
        &mut self,
        name: &str,
        job: u64,
        total: Span,
        length: Option<JobLength>,
    ) -> bool {
        let before = self.expected(name, length);
        self.running.forget(job);
        self.running.totals.entry(name.to_owned()).or_default().insert(job, (total, length));
        is_news(before, self.expected(name, length))
    }

    /// A running job is over; its class if it told something about others.
    pub(super) fn forget_running(&mut self, job: u64) -> Option<String> {
        self.running.forget(job)
    }

    /// A job has finished after so much work; whether other jobs of the class are now expected to take
    /// notably longer or shorter.
    pub(super) fn finished(
        &mut self,
        name: &str,
        job: u64,
        duration: Span,
        length: Option<JobLength>,
    ) -> bool {
        let before = self.expected(name, length);
        self.running.forget(job);
        let class = self.learn(name);
        push_latest(&mut class.durations_us, duration.0, DURATIONS_MAX);
        push_latest(&mut class.lengths, length, DURATIONS_MAX);
        self.compare_siblings(name);
        is_news(before, self.expected(name, length))
    }
}

/// What durations tell about a job that has so much to do: those of jobs that had as much, else all of them in
/// proportion; and by how much their lengths differ. Where lengths are not known, they count as they are.
fn as_long_as(length: Option<JobLength>, durations: &[Duration]) -> (Vec<Span>, f64) {
    let ratio = |duration: &Duration| length.zip(duration.length).and_then(|(a, b)| a.ratio(b));
    let is_same = |ratio: f64| (1.0 / SAME_LENGTH..=SAME_LENGTH).contains(&ratio);
    let scale = |(duration, ratio): (&Duration, f64)| {
        Span((duration.span.0 as f64 * ratio).min(LONGEST) as u64)
    };
    let compared: Vec<(&Duration, f64)> =
        durations.iter().filter_map(|duration| Some((duration, ratio(duration)?))).collect();
    if compared.is_empty() {
        return (durations.iter().map(|duration| duration.span).collect(), 1.0);
    }
    let same: Vec<Span> =
        compared.iter().copied().filter(|(_, ratio)| is_same(*ratio)).map(scale).collect();
    if !same.is_empty() {
        return (same, 1.0);
    }
    let nearest = compared.iter().map(|(_, ratio)| *ratio);
    let nearest = nearest.min_by(|a, b| a.ln().abs().total_cmp(&b.ln().abs())).unwrap_or(1.0);
    (compared.into_iter().map(scale).collect(), nearest)
}

/// Estimates are no longer than this: about 300 years, in microseconds.
const LONGEST: f64 = 1e16;

fn is_news(before: Option<Expectation>, after: Option<Expectation>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    let ratio = after.median.0 as f64 / before.median.0.max(1) as f64;
    !(1.0 / ESTIMATE_CHANGE..ESTIMATE_CHANGE).contains(&ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::LengthUnit;

    fn steps(count: f64) -> Option<JobLength> {
        Some(JobLength { unit: LengthUnit::Steps, count })
    }

    fn expected_s(classes: &ClassTable, length: Option<JobLength>) -> f64 {
        let expected = classes.expected("a", length).expect("something is known");
        expected.median.0 as f64 / 1e6
    }

    #[test]
    fn a_short_trial_says_little_about_a_long_run() {
        let mut classes = ClassTable::new(BTreeMap::new());
        classes.finished("a", 1, Span::from_secs(5), steps(50.0));
        assert_eq!(expected_s(&classes, steps(50.0)), 5.0);
        assert_eq!(expected_s(&classes, steps(100_000.0)), 10_000.0);
        assert_eq!(expected_s(&classes, None), 5.0, "nothing tells how much it has to do");
        let doubt = |length| classes.expected("a", length).expect("it is known").common;
        assert!(doubt(steps(100_000.0)) > 2.0 && doubt(steps(50.0)) < doubt(steps(100_000.0)));
        // One of the same length counts more than any trial.
        classes.finished("a", 2, Span::from_secs(3000), steps(100_000.0));
        classes.finished("a", 3, Span::from_secs(5), steps(50.0));
        assert_eq!(expected_s(&classes, steps(100_000.0)), 3000.0);
        assert_eq!(expected_s(&classes, steps(50.0)), 5.0);
    }

    #[test]
    fn the_total_of_a_running_job_tells_about_those_that_wait() {
        let mut classes = ClassTable::new(BTreeMap::new());
        assert!(classes.expected("a", None).is_none());
        assert!(classes.set_total("a", 7, Span::from_secs(90), None), "it is news");
        assert!(!classes.set_total("a", 7, Span::from_secs(93), None), "that is none");
        assert_eq!(expected_s(&classes, None), 93.0);
        assert_eq!(classes.forget_running(7).as_deref(), Some("a"));
        assert!(classes.expected("a", None).is_none());
    }

    #[test]
    fn durations_of_an_earlier_store_have_no_lengths() {
        let body = r#"{"memory":{},"solo":{},"durations_us":[1000000,2000000],"beside":{}}"#;
        let class: LearnedClass = serde_json::from_str(body).expect("an earlier version wrote it");
        let mut classes = ClassTable::new(BTreeMap::from([("a".to_owned(), class)]));
        classes.finished("a", 1, Span::from_secs(30), steps(30.0));
        let class = classes.get("a").expect("it is known");
        let known: Vec<bool> = class.finished().map(|one| one.length.is_some()).collect();
        assert_eq!(known, [false, false, true]);
        for job in 2..40 {
            classes.finished("a", job, Span::from_secs(job), steps(job as f64));
        }
        let class = classes.get("a").expect("it is known");
        assert_eq!((class.durations_us.len(), class.lengths.len()), (16, 16));
    }
}
