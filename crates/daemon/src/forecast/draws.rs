//! Draws of the unknown durations, and the answer that follows from them: a range of starts, or that the start
//! is not known and why. Time is bounded: if a queue is too long, the simulated part is extrapolated.

use crate::scheduler::{Estimate, EstimateBasis, OutsideWork};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::time::{Duration, Instant};
use tandem_core::{Span, Time, Work};
use tandem_sim::forecast::{Forecast, Snapshot, SnapshotJob};

/// Deviation of the classes in each draw, in standard deviations: first the expectation, then the extremes, so
/// that three draws already give a range.
const OFF: [f64; 9] = [0.0, -1.6, 1.6, -1.0, 1.0, -0.6, 0.6, -0.3, 0.3];
/// Number of draws.
pub(super) const DRAWS: u32 = OFF.len() as u32;
/// Deviation of the remaining time of a job that has exceeded its estimate.
const OUTLIVED: f64 = 0.8;
/// Deadline of all draws. The caller waits up to twice as long before it answers without them.
const TIME: Duration = Duration::from_millis(900);
/// Pending jobs that are simulated; later ones are only counted.
const PENDING_MAX: usize = 2000;
/// Time of a start beyond the end of the job before it.
const HANDOVER_S: f64 = 0.5;
/// Relative deviations of an extrapolated start: from the estimates, and from the extrapolation.
const EXTRAPOLATED: (f64, f64) = (1.3, 0.25);
/// A start is reported as unknown if more than this fraction of the work before it is of classes without a
/// finished job.
const GUESSED_MAX: f64 = 0.5;

/// A deadline.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn new() -> Self {
        Self::after(TIME)
    }

    pub(super) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    pub(super) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// The duration of a service in forecasts: a hundred years.
const NEVER: Span = Span::from_secs(3_153_600_000);
/// A start later than this waits for the end of a service.
const FORESEEN_S: f64 = 1e9;

/// Whether a time from now, in seconds, is within the forecast.
pub(super) fn is_foreseen(seconds: &f64) -> bool {
    *seconds < FORESEEN_S
}

/// Sets the durations of one draw.
pub(super) fn draw(jobs: &mut [SnapshotJob], estimates: &[Estimate], draw: u32) {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(draw));
    let off = OFF[draw as usize % OFF.len()];
    for (job, estimate) in jobs.iter_mut().zip(estimates) {
        let normal: f64 = StandardNormal.sample(&mut random);
        let normal = if draw == 0 { 0.0 } else { normal };
        job.duration = duration(job, estimate, normal, off);
    }
}

/// The duration of a job at a deviation, which combines its own and that of its class.
fn duration(job: &SnapshotJob, estimate: &Estimate, own: f64, off: f64) -> Span {
    if estimate.basis == EstimateBasis::Service {
        return NEVER;
    }
    let factor = (estimate.own * own + estimate.common * off).exp();
    let done = (job.done.0 / Work::of(Span(1)).0) as f64;
    let expected = job.spec.estimate.0 as f64;
    let total = match estimate.basis {
        // Work that is done is certain; only the rest is drawn.
        EstimateBasis::Progress if expected > done => done + (expected - done) * factor,
        _ => expected * factor,
    };
    let total = if total > done { total } else { done + done / 2.0 * (OUTLIVED * own).exp() };
    Span((total as u64).max(1))
}

/// The simulated part of a long queue.
pub(super) struct ReducedQueue {
    /// Positions of the jobs in the whole queue.
    pub(super) positions: Vec<usize>,
    /// Work of the jobs that come before the job in question and were left out.
    pub(super) left_out: Work,
}

/// Chooses the jobs to simulate: running jobs, and pending ones in the likely order of the queue.
pub(super) fn keep(present: &Snapshot, target: usize) -> ReducedQueue {
    let is_pending = |&index: &usize| present.jobs[index].placement.is_none();
    let mut pending: Vec<usize> = (0..present.jobs.len()).filter(is_pending).collect();
    if pending.len() <= PENDING_MAX {
        return ReducedQueue { positions: (0..present.jobs.len()).collect(), left_out: Work::ZERO };
    }
    pending.sort_by_cached_key(|&index| rank(&present.jobs[index], index));
    let place = pending.iter().position(|&index| index == target);
    let before = pending.iter().take(place.unwrap_or(0)).skip(PENDING_MAX);
    let left_out = before.map(|&index| left(&present.jobs[index]));
    let left_out = left_out.fold(Work::ZERO, |sum, work| sum + work);
    let mut positions: Vec<usize> =
        (0..present.jobs.len()).filter(|index| !is_pending(index)).collect();
    positions.extend(pending.into_iter().take(PENDING_MAX).filter(|&index| index != target));
    positions.push(target);
    positions.sort_unstable();
    positions.dedup();
    ReducedQueue { positions, left_out }
}

/// The likely position of a pending job: most policies prefer priority, then short jobs.
fn rank(job: &SnapshotJob, index: usize) -> (i16, u64, usize) {
    (-i16::from(job.spec.priority), job.spec.estimate.0, index)
}

fn left(job: &SnapshotJob) -> Work {
    Work::of(job.duration).saturating_sub(job.done)
}

fn seconds(work: Work) -> f64 {
    work.0 as f64 / Work::of(Span(1_000_000)).0 as f64
}

/// Extrapolates the start of a job that was not simulated, in seconds: the work before it at the speed at which
/// the simulated part started. `None` if nothing started.
pub(super) fn extrapolate(
    present: &Snapshot,
    forecast: &Forecast,
    estimates: &[Estimate],
    target: usize,
    left_out: Work,
) -> Option<[f64; 3]> {
    let reached = forecast.reached.unwrap_or_else(|| {
        let ends = forecast.jobs.iter().filter_map(|job| job.end);
        ends.max().unwrap_or(present.now)
    });
    let elapsed = reached.since(present.now).0 as f64 / 1e6;
    let own = rank(&present.jobs[target], target);
    let (mut started, mut before) = (0.0, seconds(left_out));
    for (index, (job, ahead)) in present.jobs.iter().zip(&forecast.jobs).enumerate() {
        if job.placement.is_some() || index == target {
            continue;
        }
        match ahead.start {
            Some(_) => started += seconds(left(job)),
            None if rank(job, index) < own => before += seconds(left(job)),
            None => {}
        }
    }
    if started <= 0.0 || elapsed <= 0.0 {
        return None;
    }
    let start = elapsed + before * elapsed / started;
    let (of_estimates, of_itself) = EXTRAPOLATED;
    let factor = (of_estimates * estimates[target].common + of_itself).exp();
    Some([(start / factor).max(elapsed.min(start)), start, start * factor])
}

/// Earliest, median and latest start, widened by the uncertainty that the draws do not cover.
pub(super) fn range(mut values: Vec<f64>) -> Option<[f64; 3]> {
    values.retain(is_foreseen);
    values.sort_by(f64::total_cmp);
    let middle = *values.get(values.len() / 2)?;
    let (first, last) = (*values.first()?, *values.last()?);
    if last <= 0.0 {
        return Some([0.0; 3]);
    }
    Some([(first * 0.97 - HANDOVER_S).max(0.0), middle, last * 1.03 + HANDOVER_S])
}

/// A job that needs more GPUs than are in service cannot start until an operator changes that.
pub(super) fn too_few_gpus(present: &Snapshot, target: usize) -> Option<String> {
    let needs = present.jobs[target].spec.gpus;
    let open = present.cluster.gpus().len().saturating_sub(present.closed.len());
    (needs as usize > open).then(|| {
        let (noun, verb) =
            (if needs == 1 { "GPU" } else { "GPUs" }, if open == 1 { "accepts" } else { "accept" });
        format!("it needs {needs} {noun}, and {open} {verb} jobs at present")
    })
}

/// Why a start is not known; `None` if it is. It is unknown if most of the work before the job is of classes
/// without a finished job.
pub(super) fn unknown(
    present: &Snapshot,
    forecast: &Forecast,
    estimates: &[Estimate],
    target: usize,
    outside: OutsideWork,
) -> Option<String> {
    let start = forecast.jobs[target].start;
    if start.is_some_and(|start| start.since(present.now) <= Span::from_secs(1)) {
        return None;
    }
    let (mut all, mut guessed) = (seconds(outside.all), seconds(outside.guessed));
    let mut jobs = outside.guesses;
    let is_before = |at: Option<Time>| match (at, start) {
        (Some(at), Some(start)) => at < start,
        (Some(_), None) => true,
        (None, _) => false,
    };
    for (index, (job, ahead)) in present.jobs.iter().zip(&forecast.jobs).enumerate() {
        if index == target || !(job.placement.is_some() || is_before(ahead.start)) {
            continue;
        }
        let work = seconds(left(job));
        all += work;
        if estimates[index].basis.is_guess() {
            guessed += work;
            jobs += 1;
        }
    }
    let on = match jobs {
        1 => "one job whose class has not finished a job yet".to_owned(),
        jobs => format!("{jobs} jobs of classes that have not finished a job yet"),
    };
    let hint = "known when one has, or with --estimate or -t";
    (guessed > GUESSED_MAX * all).then(|| format!("it depends on {on}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_covers_its_draws() {
        assert_eq!(range(Vec::new()), None);
        assert_eq!(range(vec![0.0; 3]), Some([0.0; 3]));
        let [first, middle, last] = range(vec![30.0, 10.0, 20.0]).expect("there are draws");
        assert!(first < 10.0 && middle == 20.0 && last > 30.0);
    }

    #[test]
    fn the_first_draw_is_what_is_expected_and_two_more_are_the_extremes() {
        assert_eq!(OFF[0], 0.0);
        let most = OFF.iter().copied().fold(0.0, f64::max);
        assert_eq!((OFF[1], OFF[2]), (-most, most));
    }
}
