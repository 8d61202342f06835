//! Synthetic traces, calibrated on published statistics of SenseTime's Helios data (the Venus
//! cluster, Hu et al., SC '21). Only the parameters of distributions are taken from there; no job,
//! user or class is. Everything is drawn from one seeded generator.
//!
//! | what | how | why |
//! |---|---|---|
//! | submissions | Poisson process whose intensity depends on hour and weekday | people work by day, less at weekends |
//! | batches | one submission in 17 is a geometric number of like jobs, seconds apart | hyper-parameter searches; a fifth of all jobs follow another within seconds |
//! | gangs | table of sizes, those above the cluster left out | powers of two and whole nodes of eight dominate |
//! | durations | mixture of three log-normals, cut at 30 days | median of minutes, mean of hours: trials that fail or end soon, runs of half an hour, real training |
//! | size and duration | the share of the third component is larger for gangs of several GPUs | half of the jobs have one GPU and use a thirtieth of the GPU time |
//! | estimates | log-linear in the truth with a small slope and much noise | users know little: rank correlation about 0.4 |
//! | users | Zipf–Mandelbrot activity, three favourite classes each | few users submit most jobs, and the same ones again |
//! | profiles | the class's memory and utilisation with a few percent of noise | like jobs behave alike |
//!
//! The span of the arrivals follows from the load: total GPU time ÷ (GPUs × load).

use super::{Class, Ids, Trace, TraceJob};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::weighted::WeightedAliasIndex;
use rand_distr::{Distribution, Exp, Geometric, StandardNormal};
use std::fmt::Write;
use tandem_core::{ClassId, MICROS_PER_SECOND, Memory, Span, Time, Tolerance, UserId, Utilisation};

/// Options of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// Number of jobs.
    pub jobs: usize,
    /// GPUs of the cluster: no gang is larger, and the load refers to them.
    pub gpus: u32,
    /// Requested GPU time ÷ available GPU time between the first and the last submission.
    pub load: f64,
    /// The same seed gives the same trace.
    pub seed: u64,
}

const HOUR_S: f64 = 3600.0;
const HOURS_PER_WEEK: usize = 168;
/// Longest span of arrivals, three hundred years: even a load near zero gives times that the reader accepts.
const SPAN_MAX_S: f64 = 1e10;

/// Relative intensity by hour of the day, from midnight: a deep night, a dip at lunch, a peak in
/// the late afternoon and a long evening.
const BY_HOUR: [f64; 24] = [
    0.9, 0.6, 0.4, 0.3, 0.25, 0.2, 0.2, 0.25, 0.45, 1.0, 1.25, 1.35, 1.05, 1.3, 1.5, 1.6, 1.75,
    1.8, 1.45, 1.3, 1.35, 1.3, 1.3, 1.15,
];
/// Relative intensity by day. The trace starts on a Monday at midnight.
const BY_DAY: [f64; 7] = [1.1, 1.15, 1.1, 1.1, 1.0, 0.75, 0.75];

/// Share of the submissions that are batches.
const BATCH_SHARE: f64 = 0.06;
/// The size of a batch is 2 + a geometric number with this parameter: six on average.
const BATCH_STOP: f64 = 0.2;
const BATCH_MAX: usize = 64;
/// Mean time between two jobs of a batch, which a script submits.
const BATCH_GAP_S: f64 = 3.0;
/// Probability that a job of a batch has the batch's kind of duration. Some configurations of a search fail
/// or are stopped early.
const BATCH_KEEPS_KIND: f64 = 0.5;
/// Correlation of the logarithms of two durations of the same kind in a batch.
const BATCH_CORRELATION: f64 = 0.7;

/// Gang sizes. Gangs of more than 64 GPUs, one job in 100, are left out.
const GANG_SIZES: [u32; 14] = [1, 2, 3, 4, 6, 7, 8, 16, 24, 32, 40, 48, 56, 64];
/// Their shares of the jobs, in thousandths.
const GANG_SHARES: [f64; 14] =
    [492.0, 52.0, 1.0, 84.0, 1.0, 1.0, 250.0, 58.0, 16.0, 31.0, 3.0, 5.0, 3.0, 3.0];

/// One component of the durations: log-normal.
#[derive(Clone, Copy)]
struct DurationKind {
    median_s: f64,
    sigma: f64,
}

/// Trials, failures, debugging.
const SHORT: DurationKind = DurationKind { median_s: 98.0, sigma: 1.4 };
/// Evaluation, fine-tuning, small models.
const MEDIUM: DurationKind = DurationKind { median_s: 1_800.0, sigma: 1.0 };
/// Training: a tenth of the jobs and nearly all of the time. With a larger sigma and the same mean, a few
/// jobs would decide the sample mean, and seeds would differ more than policies.
const LONG: DurationKind = DurationKind { median_s: 72_000.0, sigma: 1.0 };
const MEDIUM_SHARE: f64 = 0.2;
/// Share of `LONG` among one-GPU jobs: mean about two hours.
const LONG_SHARE_ONE_GPU: f64 = 0.052;
/// Share of `LONG` among gangs: mean almost five hours.
const LONG_SHARE_GANG: f64 = 0.14;
const DURATION_MAX_S: f64 = 30.0 * 86_400.0;

/// A user's estimate for a job of median duration; users overestimate.
const ESTIMATE_ANCHOR_S: f64 = 600.0;
/// The duration whose estimate is the anchor.
const ESTIMATE_MEDIAN_S: f64 = 200.0;
/// Slope of the logarithm of the estimate over that of the duration.
const ESTIMATE_SLOPE: f64 = 0.3;
/// Standard deviation of the logarithm of the estimate around that.
const ESTIMATE_SIGMA: f64 = 1.5;

/// Users ≈ 0.75 √jobs: about 150 for the 40,000 jobs of a real quarter.
const USERS_PER_ROOT_JOB: f64 = 0.75;
/// Activity of the user of rank r (from 1) ∝ (r + shift)^−exponent. The shift keeps the first user well below
/// a tenth of the jobs, where plain Zipf gives a fifth.
const ACTIVITY_SHIFT: f64 = 10.0;
const ACTIVITY_EXPONENT: f64 = 1.5;
/// Probability of the first, second and third favourite class; otherwise any class.
const FAVOURITES: [f64; 3] = [0.5, 0.25, 0.15];

const MEMORY_MAX_MIB: f64 = 24_000.0;
/// Relative standard deviation of a job's memory and utilisation around those of its class.
const MEMORY_NOISE: f64 = 0.03;
const UTILISATION_NOISE: f64 = 0.05;

/// Model, data set, batch size, mixed precision, popularity, and load on a GPU: memory in MiB, GPU
/// utilisation and bandwidth utilisation in percent.
type ClassRow = (&'static str, &'static str, u32, bool, f64, [f64; 3]);

/// Most jobs are small and leave most of the GPU idle, a few fill it.
const CLASSES: [ClassRow; 20] = [
    ("CNN-small", "Fashion-MNIST", 64, false, 12.0, [1_900.0, 14.0, 3.0]),
    ("WideResNet-28", "CIFAR-100", 128, true, 5.0, [4_300.0, 58.0, 31.0]),
    ("ShuffleNet", "Tiny-ImageNet", 64, false, 11.0, [2_500.0, 27.0, 11.0]),
    ("ConvNeXt-T", "ImageNet-1k", 64, true, 3.0, [11_800.0, 88.0, 57.0]),
    ("DeiT-S", "ImageNet-1k", 128, true, 2.0, [14_200.0, 92.0, 54.0]),
    ("SwinV2-B", "ImageNet-22k", 32, true, 1.0, [19_600.0, 97.0, 62.0]),
    ("YOLOX-S", "COCO", 16, true, 4.0, [9_400.0, 66.0, 36.0]),
    ("U-Net", "Cityscapes", 8, false, 3.0, [8_700.0, 81.0, 47.0]),
    ("PointTransformer", "S3DIS", 16, false, 7.0, [5_600.0, 45.0, 18.0]),
    ("NeRF", "Blender", 4096, false, 3.0, [6_800.0, 76.0, 28.0]),
    ("DDPM", "CelebA", 32, true, 2.0, [12_900.0, 94.0, 59.0]),
    ("RoBERTa-base", "MNLI", 32, true, 3.0, [9_900.0, 84.0, 50.0]),
    ("T5-small", "XSum", 16, false, 3.0, [7_300.0, 63.0, 38.0]),
    ("GPT-2-small", "OpenWebText", 8, true, 2.0, [17_400.0, 96.0, 66.0]),
    ("GRU-LM", "PTB", 64, false, 8.0, [2_200.0, 33.0, 14.0]),
    ("Conformer", "LibriSpeech", 16, true, 3.0, [10_600.0, 72.0, 41.0]),
    ("GraphSAGE", "ogbn-products", 1024, false, 8.0, [3_600.0, 22.0, 9.0]),
    ("DeepFM", "Criteo", 4096, false, 8.0, [3_100.0, 18.0, 12.0]),
    ("SAC", "HalfCheetah", 256, false, 6.0, [1_700.0, 11.0, 2.0]),
    ("DQN", "Atari", 32, false, 6.0, [2_000.0, 16.0, 4.0]),
];

/// Generates a trace. Values out of range are clamped.
pub fn generate(options: &GenerateOptions) -> Trace {
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut trace = Trace { name: "generated".to_owned(), ..Trace::default() };
    let population = Population::new(options, &mut rng);
    let mut submissions = Vec::new();
    while trace.jobs.len() < options.jobs {
        let room = options.jobs - trace.jobs.len();
        submissions.push(population.submit(room, &mut trace, &mut rng));
    }
    let span_s = span_s(&trace.jobs, options);
    let starts = Rhythm::new().arrivals(submissions.len(), span_s, &mut rng);
    set_times(&mut trace.jobs, &submissions, &starts, span_s, &mut rng);
    number(&mut trace);
    trace
}

/// The span of arrivals, in whole seconds, that gives the requested load.
fn span_s(jobs: &[TraceJob], options: &GenerateOptions) -> f64 {
    let work = |job: &TraceJob| u128::from(job.gpus) * u128::from(job.duration.0);
    let work_s = jobs.iter().map(work).sum::<u128>() as f64 / MICROS_PER_SECOND as f64;
    let span = work_s / (f64::from(options.gpus.max(1)) * options.load.max(0.0));
    // The quotient is infinite or NaN for a load of zero; `min` turns both into the limit.
    span.min(SPAN_MAX_S).round()
}

/// Users and their classes.
struct Population {
    activity: WeightedAliasIndex<f64>,
    favourites: Vec<[usize; FAVOURITES.len()]>,
    popularity: WeightedAliasIndex<f64>,
    gangs: WeightedAliasIndex<f64>,
    batch_extra: Geometric,
}

impl Population {
    fn new(options: &GenerateOptions, rng: &mut ChaCha8Rng) -> Self {
        let users = ((options.jobs as f64).sqrt() * USERS_PER_ROOT_JOB).ceil().max(1.0) as usize;
        let popularity = weighted(CLASSES.iter().map(|row| row.4).collect());
        let sizes = GANG_SIZES.partition_point(|&size| size <= options.gpus.max(1));
        let rank_weight = |rank: usize| (rank as f64 + ACTIVITY_SHIFT).powf(-ACTIVITY_EXPONENT);
        Self {
            activity: weighted((1..=users).map(rank_weight).collect()),
            favourites: (0..users)
                .map(|_| std::array::from_fn(|_| popularity.sample(rng)))
                .collect(),
            popularity,
            gangs: weighted(GANG_SHARES[..sizes].to_vec()),
            batch_extra: Geometric::new(BATCH_STOP).expect("a constant between 0 and 1"),
        }
    }

    /// Adds one submission of at most `room` jobs and returns their number. Common properties are drawn once.
    /// The jobs have no times yet, but submissions come in order of time, so that names are numbered by first
    /// appearance, as in a trace that was read.
    fn submit(&self, room: usize, trace: &mut Trace, rng: &mut ChaCha8Rng) -> usize {
        let user = self.activity.sample(rng);
        let (model, dataset, batch, amp, _, profile) = CLASSES[self.class_for(user, rng)];
        let class = Class { model: model.into(), dataset: dataset.into(), batch: Some(batch), amp };
        let user = UserId(trace.users.intern(&format!("user{:03}", user + 1)));
        let class = ClassId(trace.classes.intern(&class));
        let gpus = GANG_SIZES[self.gangs.sample(rng)];
        let kind = draw_kind(gpus, rng);
        let common: f64 = rng.sample(StandardNormal);
        let size = self.batch_size(rng).min(room);
        for _ in 0..size {
            let duration_s = draw_duration(kind, common, gpus, rng);
            trace.jobs.push(TraceJob {
                line: 0,
                user,
                partition: None,
                submit: Time::default(),
                duration: Span::from_secs(duration_s as u64),
                gpus,
                estimate: Some(draw_estimate(duration_s, rng)),
                class: Some(class),
                memory: Some(draw_memory(profile[0], rng)),
                gpu_util: Some(draw_utilisation(profile[1], rng)),
                bandwidth_util: Some(draw_utilisation(profile[2], rng)),
                tolerance: Tolerance::Any,
                priority: 0,
                share: tandem_core::JobShare::default(),
                service: None,
            });
        }
        size
    }

    fn batch_size(&self, rng: &mut ChaCha8Rng) -> usize {
        if !rng.random_bool(BATCH_SHARE) {
            return 1;
        }
        let extra = usize::try_from(self.batch_extra.sample(rng)).unwrap_or(BATCH_MAX);
        extra.saturating_add(2).min(BATCH_MAX)
    }

    fn class_for(&self, user: usize, rng: &mut ChaCha8Rng) -> usize {
        let mut left: f64 = rng.random();
        for (class, share) in self.favourites[user].into_iter().zip(FAVOURITES) {
            if left < share {
                return class;
            }
            left -= share;
        }
        self.popularity.sample(rng)
    }
}

fn weighted(weights: Vec<f64>) -> WeightedAliasIndex<f64> {
    WeightedAliasIndex::new(weights).expect("weights are positive and there is at least one")
}

fn draw_kind(gpus: u32, rng: &mut ChaCha8Rng) -> DurationKind {
    let long = if gpus == 1 { LONG_SHARE_ONE_GPU } else { LONG_SHARE_GANG };
    match rng.random::<f64>() {
        at if at < long => LONG,
        at if at < long + MEDIUM_SHARE => MEDIUM,
        _ => SHORT,
    }
}

/// Jobs of a batch share `kind` and `common` in part, yet each has the distribution of a single job, so that
/// batches do not change the totals.
fn draw_duration(kind: DurationKind, common: f64, gpus: u32, rng: &mut ChaCha8Rng) -> f64 {
    let kind = if rng.random_bool(BATCH_KEEPS_KIND) { kind } else { draw_kind(gpus, rng) };
    let own: f64 = rng.sample(StandardNormal);
    let normal = BATCH_CORRELATION.sqrt() * common + (1.0 - BATCH_CORRELATION).sqrt() * own;
    (kind.median_s * (kind.sigma * normal).exp()).round().clamp(1.0, DURATION_MAX_S)
}

/// The noise is independent even within a batch: users cannot rank the jobs of a search.
fn draw_estimate(duration_s: f64, rng: &mut ChaCha8Rng) -> Span {
    let noise: f64 = rng.sample(StandardNormal);
    let known = ESTIMATE_SLOPE * (duration_s / ESTIMATE_MEDIAN_S).ln();
    let guess = ESTIMATE_ANCHOR_S * (known + ESTIMATE_SIGMA * noise).exp();
    Span::from_secs(guess.round().clamp(1.0, DURATION_MAX_S) as u64)
}

fn draw_memory(mib: f64, rng: &mut ChaCha8Rng) -> Memory {
    let noise: f64 = rng.sample(StandardNormal);
    Memory::from_mib((mib * (MEMORY_NOISE * noise).exp()).min(MEMORY_MAX_MIB).round() as u64)
}

/// Rounded to a tenth of a percent, finer than it can be measured.
fn draw_utilisation(percent: f64, rng: &mut ChaCha8Rng) -> Utilisation {
    let noise: f64 = rng.sample(StandardNormal);
    let tenths = (percent * 10.0 * (UTILISATION_NOISE * noise).exp()).round() as u32;
    Utilisation(tenths * 100).min(Utilisation::FULL)
}

/// The weekly pattern: intensity summed up to the start of each hour of the week.
struct Rhythm {
    before: Vec<f64>,
    week: f64,
}

impl Rhythm {
    fn new() -> Self {
        let mut before = Vec::with_capacity(HOURS_PER_WEEK);
        let mut week = 0.0;
        for hour in 0..HOURS_PER_WEEK {
            before.push(week);
            week += intensity(hour);
        }
        Self { before, week }
    }

    /// Intensity summed from the origin to `time_s`.
    fn sum_until(&self, time_s: f64) -> f64 {
        let hours = time_s / HOUR_S;
        let weeks = (hours / HOURS_PER_WEEK as f64).floor();
        let rest = hours - weeks * HOURS_PER_WEEK as f64;
        let hour = (rest as usize).min(HOURS_PER_WEEK - 1);
        weeks * self.week + self.before[hour] + (rest - hour as f64) * intensity(hour)
    }

    /// The inverse of `sum_until`.
    fn time_of(&self, sum: f64) -> f64 {
        let weeks = (sum / self.week).floor();
        let rest = (sum - weeks * self.week).max(0.0);
        let hour = self.before.partition_point(|&before| before <= rest) - 1;
        let within = (rest - self.before[hour]) / intensity(hour);
        (weeks * HOURS_PER_WEEK as f64 + hour as f64 + within) * HOUR_S
    }

    /// `count` times in order. Given their number, the events of a Poisson process are independent draws with
    /// its intensity as density; they are drawn by inversion.
    fn arrivals(&self, count: usize, span_s: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let total = self.sum_until(span_s);
        let mut sums: Vec<f64> = (0..count).map(|_| rng.random::<f64>() * total).collect();
        sums.sort_unstable_by(f64::total_cmp);
        sums.into_iter().map(|sum| self.time_of(sum)).collect()
    }
}

fn intensity(hour_of_week: usize) -> f64 {
    BY_HOUR[hour_of_week % 24] * BY_DAY[hour_of_week / 24]
}

/// Sets submission times in whole seconds and sorts the jobs. The first job moves to the origin and the last
/// to the end of the span, so that the load computed from the file is the requested load, however few jobs
/// there are.
fn set_times(
    jobs: &mut [TraceJob],
    submissions: &[usize],
    starts: &[f64],
    span_s: f64,
    rng: &mut ChaCha8Rng,
) {
    let gap = Exp::new(BATCH_GAP_S.recip()).expect("a positive constant");
    let mut waiting = jobs.iter_mut();
    for (&size, &start_s) in submissions.iter().zip(starts) {
        let mut submit_s = start_s;
        for job in waiting.by_ref().take(size) {
            job.submit = Time::from_secs(submit_s.min(span_s) as u64);
            submit_s += gap.sample(rng);
        }
    }
    jobs.sort_by_key(|job| job.submit);
    if let Some(last) = jobs.last_mut() {
        last.submit = Time::from_secs(span_s as u64);
    }
    if let Some(first) = jobs.first_mut() {
        first.submit = Time::default();
    }
}

/// Ids from 1, and the lines of the jobs in a file with a header.
pub(super) fn number(trace: &mut Trace) {
    trace.ids = Ids::default();
    let mut id = String::new();
    for (line, job) in (2..).zip(&mut trace.jobs) {
        job.line = line;
        id.clear();
        write!(id, "{}", line - 1).expect("a string takes any text");
        trace.ids.push(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::info;
    use super::*;

    fn sample(jobs: usize, gpus: u32, load: f64, seed: u64) -> Trace {
        generate(&GenerateOptions { jobs, gpus, load, seed })
    }

    fn share(trace: &Trace, wanted: impl Fn(&TraceJob) -> bool) -> f64 {
        trace.jobs.iter().filter(|job| wanted(job)).count() as f64 / trace.jobs.len() as f64
    }

    #[test]
    fn the_seed_decides_everything() {
        let (once, again, other) =
            (sample(500, 64, 1.0, 7), sample(500, 64, 1.0, 7), sample(500, 64, 1.0, 8));
        assert_eq!(once.jobs, again.jobs);
        assert!(once.users.iter().eq(again.users.iter()));
        assert_ne!(once.jobs, other.jobs);
    }

    #[test]
    fn durations_have_a_short_median_and_a_long_mean() {
        for seed in 0..5 {
            let found = info(&sample(20_000, 512, 0.8, seed));
            let (median, mean) = (found.duration_median_s, found.duration_mean_s);
            assert!((170.0..240.0).contains(&median), "median {median}");
            assert!((10_200.0..13_800.0).contains(&mean), "mean {mean}");
            assert!(found.duration_min_s >= 1.0 && found.duration_max_s <= DURATION_MAX_S);
        }
    }

    #[test]
    fn half_of_the_jobs_have_one_gpu_and_little_of_the_time() {
        let found = info(&sample(20_000, 512, 0.8, 1)).gangs;
        for (size, expected) in [(1, 0.49), (2, 0.05), (4, 0.08), (8, 0.25)] {
            let gang = found.iter().find(|gang| gang.gpus == size).unwrap();
            assert!((gang.job_share - expected).abs() < 0.025, "{gang:?}");
        }
        assert!((0.025..0.05).contains(&found[0].gpu_time_share), "{:?}", found[0]);
    }

    #[test]
    fn no_gang_is_larger_than_the_cluster() {
        for gpus in [0, 1, 2, 6, 8, 63] {
            let trace = sample(2_000, gpus, 1.0, 3);
            assert!(trace.jobs.iter().all(|job| (1..=gpus.max(1)).contains(&job.gpus)));
        }
    }

    #[test]
    fn the_load_is_the_one_asked_for_and_submits_are_sorted() {
        for (jobs, gpus, load) in [(50, 64, 0.7), (1_000, 8, 1.5), (20_000, 1_064, 0.9)] {
            let trace = sample(jobs, gpus, load, 5);
            let found = info(&trace);
            let offered = found.gpu_hours / (f64::from(gpus) * found.span_days * 24.0);
            assert!((offered / load - 1.0).abs() < 0.01, "{offered} instead of {load}");
            assert!(trace.jobs.is_sorted_by_key(|job| job.submit));
            assert_eq!(trace.jobs[0].submit, Time::default());
            assert_eq!((trace.ids.get(0), trace.ids.len(), trace.jobs[0].line), ("1", jobs, 2));
        }
    }

    #[test]
    fn estimates_correlate_weakly_with_durations() {
        let correlation = info(&sample(20_000, 512, 0.8, 2)).estimate_spearman.unwrap();
        assert!((0.3..0.5).contains(&correlation), "{correlation}");
    }

    #[test]
    fn days_are_busier_than_nights_and_weekends_quieter() {
        let trace = sample(20_000, 512, 0.8, 4);
        let hour = |job: &TraceJob| job.submit.0 / 3_600_000_000;
        let by_day = share(&trace, |job| (14..18).contains(&(hour(job) % 24)));
        let by_night = share(&trace, |job| (3..7).contains(&(hour(job) % 24)));
        assert!(by_day > 4.0 * by_night, "{by_day} by day, {by_night} by night");
        let weeks = hour(&trace.jobs[trace.jobs.len() - 1]) / 168;
        let whole: Vec<_> = trace.jobs.iter().filter(|job| hour(job) < weeks * 168).collect();
        let weekend = whole.iter().filter(|job| hour(job) / 24 % 7 >= 5).count();
        assert!(weekend * 7 < whole.len() * 2 * 9 / 10, "{weekend} of {}", whole.len());
    }

    #[test]
    fn batches_come_within_seconds_from_one_user() {
        let trace = sample(20_000, 64, 0.8, 6);
        let mut last = vec![None; trace.users.len()];
        let mut follows = 0;
        for job in &trace.jobs {
            let before = last[job.user.0 as usize].replace(job.submit);
            follows += usize::from(before.is_some_and(|at| job.submit.since(at).0 <= 30_000_000));
        }
        let share = follows as f64 / trace.jobs.len() as f64;
        assert!((0.15..0.35).contains(&share), "{share}");
    }

    #[test]
    fn profiles_stay_within_a_gpu() {
        let trace = sample(20_000, 64, 0.8, 9);
        for job in &trace.jobs {
            assert!(job.memory.unwrap() <= Memory::from_mib(24_000));
            assert!(job.gpu_util.unwrap() <= Utilisation::FULL);
            assert!(job.bandwidth_util.unwrap() <= Utilisation::FULL);
        }
        assert_eq!(trace.classes.len(), CLASSES.len());
    }

    #[test]
    fn extreme_options_still_give_a_trace() {
        for load in [0.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY] {
            for jobs in [0, 1, 2, 300] {
                assert_eq!(sample(jobs, 1, load, 0).jobs.len(), jobs);
            }
        }
        assert_eq!(sample(1, u32::MAX, 1.0, 0).jobs[0].submit, Time::default());
    }
}
