//! A summary of a trace that shows whether it is useful for simulation, as JSON and as text (`text`).

mod text;

use super::{SacctCounts, Trace, TraceJob};
use serde::Serialize;
use std::collections::BTreeMap;
use tandem_core::MICROS_PER_SECOND;
use tandem_models::errors::spearman;

/// Version of the JSON form.
const SCHEMA: u32 = 1;
/// Number of classes listed.
const TOP_CLASSES: usize = 8;
/// Lower limits of the histogram of durations: steps of about a factor of three, at familiar durations.
const BAR_EDGES_S: [u64; 12] =
    [0, 3, 10, 30, 120, 300, 900, 3_600, 10_800, 43_200, 172_800, 604_800];
const HOUR_S: u64 = 3_600;
const DAY_S: f64 = 86_400.0;

/// A summary of a trace. Shares are between 0 and 1, percentiles by nearest rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceInfo {
    /// Version of this form.
    pub schema: u32,
    /// The trace's name.
    pub name: String,
    /// Jobs.
    pub jobs: usize,
    /// Distinct users.
    pub users: usize,
    /// Distinct partitions; 0 if the trace names none.
    pub partitions: usize,
    /// Distinct classes; 0 if the trace names none.
    pub classes: usize,
    /// The earliest submission.
    pub first_submit_s: f64,
    /// The latest submission.
    pub last_submit_s: f64,
    /// Time between the two.
    pub span_days: f64,
    /// GPUs × duration, summed.
    pub gpu_hours: f64,
    /// The shortest duration.
    pub duration_min_s: f64,
    /// Half of the jobs are at most as long.
    pub duration_median_s: f64,
    /// Mean duration.
    pub duration_mean_s: f64,
    /// Nine jobs of ten are at most as long.
    pub duration_p90_s: f64,
    /// 99 jobs of 100 are at most as long.
    pub duration_p99_s: f64,
    /// The longest duration.
    pub duration_max_s: f64,
    /// By gang size, smallest first.
    pub gangs: Vec<GangShare>,
    /// The most frequent classes, most frequent first.
    pub top_classes: Vec<ClassShare>,
    /// Memory per GPU, if any job states it.
    pub memory_mib: Option<ValueRange>,
    /// Solo GPU utilisation, if any job states it.
    pub gpu_util_percent: Option<ValueRange>,
    /// Solo bandwidth utilisation, if any job states it.
    pub bandwidth_util_percent: Option<ValueRange>,
    /// Jobs with a duration estimate.
    pub estimates: usize,
    /// Rank correlation of estimates and true durations; absent where it is undefined.
    pub estimate_spearman: Option<f64>,
    /// Durations below one second that were raised to it.
    pub durations_raised: usize,
    /// Bad rows that were skipped.
    pub rows_skipped: usize,
    /// Rows of a Slurm history that are no jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sacct: Option<SacctCounts>,
    /// Jobs by duration, on a logarithmic scale.
    pub duration_histogram: Vec<Bar>,
    /// Jobs submitted in each hour of the day, by the clock of the trace.
    pub arrivals_by_hour: [usize; 24],
}

/// The jobs of one gang size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GangShare {
    /// GPUs of each job.
    pub gpus: u32,
    /// Jobs of this size.
    pub jobs: usize,
    /// Their share of all jobs.
    pub job_share: f64,
    /// Their share of the GPU time.
    pub gpu_time_share: f64,
}

/// The jobs of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassShare {
    /// Its name.
    pub class: String,
    /// Jobs of this class.
    pub jobs: usize,
    /// Their share of all jobs.
    pub job_share: f64,
}

/// Values of the jobs that state one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueRange {
    /// Jobs that state one.
    pub jobs: usize,
    /// The smallest.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

/// One bar of the histogram.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// The shortest duration in it.
    pub from_s: u64,
    /// The shortest duration above it; none for the last bar.
    pub below_s: Option<u64>,
    /// Jobs in it.
    pub jobs: usize,
}

/// Summarises a trace.
pub fn info(trace: &Trace) -> TraceInfo {
    let jobs = &trace.jobs;
    let first = jobs.iter().map(|job| job.submit.0).min().unwrap_or(0);
    let last = jobs.iter().map(|job| job.submit.0).max().unwrap_or(0);
    let durations = sorted(jobs.iter().map(|job| job.duration.0));
    let total: u128 = durations.iter().map(|&micros| u128::from(micros)).sum();
    let percentile = |percent| to_seconds(nearest_rank(&durations, percent));
    let estimates: Vec<_> = jobs
        .iter()
        .filter_map(|job| job.estimate.map(|estimate| (job.duration.0, estimate.0)))
        .collect();
    TraceInfo {
        schema: SCHEMA,
        name: trace.name.clone(),
        jobs: jobs.len(),
        users: trace.users.len(),
        partitions: trace.partitions.len(),
        classes: trace.classes.len(),
        first_submit_s: to_seconds(first),
        last_submit_s: to_seconds(last),
        span_days: to_seconds(last - first) / DAY_S,
        gpu_hours: jobs.iter().map(gpu_time).sum::<u128>() as f64
            / (HOUR_S * MICROS_PER_SECOND) as f64,
        duration_min_s: percentile(0),
        duration_median_s: percentile(50),
        duration_mean_s: total as f64 / MICROS_PER_SECOND as f64 / jobs.len().max(1) as f64,
        duration_p90_s: percentile(90),
        duration_p99_s: percentile(99),
        duration_max_s: percentile(100),
        gangs: gangs(jobs),
        top_classes: top_classes(trace),
        memory_mib: range(jobs.iter().filter_map(|job| Some(job.memory?.0))),
        gpu_util_percent: range(jobs.iter().filter_map(|job| Some(job.gpu_util?.0.into()))),
        bandwidth_util_percent: range(
            jobs.iter().filter_map(|job| Some(job.bandwidth_util?.0.into())),
        ),
        estimates: estimates.len(),
        estimate_spearman: spearman(&estimates),
        durations_raised: trace.raised,
        rows_skipped: trace.skipped.len(),
        sacct: trace.sacct,
        duration_histogram: histogram(&durations),
        arrivals_by_hour: arrivals_by_hour(jobs),
    }
}

fn to_seconds(micros: u64) -> f64 {
    micros as f64 / MICROS_PER_SECOND as f64
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values
}

/// The smallest value that at least `percent` of the sorted values do not exceed; 0 of none.
fn nearest_rank(values: &[u64], percent: usize) -> u64 {
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied().unwrap_or(0)
}

/// In GPU-microseconds.
fn gpu_time(job: &TraceJob) -> u128 {
    u128::from(job.gpus) * u128::from(job.duration.0)
}

/// `part / whole`; 0 if `whole` is 0.
fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn gangs(jobs: &[TraceJob]) -> Vec<GangShare> {
    let mut sizes: BTreeMap<u32, (usize, u128)> = BTreeMap::new();
    for job in jobs {
        let (count, time) = sizes.entry(job.gpus).or_default();
        *count += 1;
        *time += gpu_time(job);
    }
    let total: u128 = sizes.values().map(|&(_, time)| time).sum();
    let of_size = |(gpus, (count, time))| GangShare {
        gpus,
        jobs: count,
        job_share: share(count as u128, jobs.len() as u128),
        gpu_time_share: share(time, total),
    };
    sizes.into_iter().map(of_size).collect()
}

fn top_classes(trace: &Trace) -> Vec<ClassShare> {
    let mut counts = vec![0_usize; trace.classes.len()];
    for class in trace.jobs.iter().filter_map(|job| job.class) {
        counts[class.0 as usize] += 1;
    }
    let mut classes: Vec<_> = counts.into_iter().zip(trace.classes.iter()).collect();
    // Equally frequent classes in order of their names.
    classes.sort_by(|(left, a), (right, b)| right.cmp(left).then_with(|| a.cmp(b)));
    classes
        .into_iter()
        .take(TOP_CLASSES)
        .map(|(jobs, class)| ClassShare {
            class: class.to_string(),
            jobs,
            job_share: share(jobs as u128, trace.jobs.len() as u128),
        })
        .collect()
}

/// The range of values that are given in thousandths.
fn range(thousandths: impl Iterator<Item = u64>) -> Option<ValueRange> {
    let values = sorted(thousandths);
    let at = |percent| nearest_rank(&values, percent) as f64 / 1000.0;
    (!values.is_empty()).then(|| ValueRange {
        jobs: values.len(),
        min: at(0),
        median: at(50),
        max: at(100),
    })
}

fn histogram(durations: &[u64]) -> Vec<Bar> {
    let below = |edge_s: u64| durations.partition_point(|&at| at < edge_s * MICROS_PER_SECOND);
    let bar = |(index, &from_s): (usize, &u64)| {
        let below_s = BAR_EDGES_S.get(index + 1).copied();
        Bar { from_s, below_s, jobs: below_s.map_or(durations.len(), below) - below(from_s) }
    };
    BAR_EDGES_S.iter().enumerate().map(bar).collect()
}

fn arrivals_by_hour(jobs: &[TraceJob]) -> [usize; 24] {
    let mut hours = [0; 24];
    for job in jobs {
        hours[(job.submit.0 / (HOUR_S * MICROS_PER_SECOND) % 24) as usize] += 1;
    }
    hours
}

#[cfg(test)]
mod tests {
    use super::super::Class;
    use super::*;
    use expect_test::expect;
    use tandem_core::{ClassId, Memory, Span, Time, UserId, Utilisation};

    fn job(submit_h: u64, gpus: u32, duration_s: u64) -> TraceJob {
        TraceJob {
            line: 2,
            user: UserId(0),
            partition: None,
            submit: Time::from_secs(submit_h * 3_600),
            duration: Span::from_secs(duration_s),
            gpus,
            estimate: None,
            class: None,
            memory: None,
            gpu_util: None,
            bandwidth_util: None,
            tolerance: tandem_core::Tolerance::Any,
            priority: 0,
            share: tandem_core::JobShare::default(),
            service: None,
        }
    }

    fn small() -> Trace {
        let mut trace = Trace { name: "small.csv".to_owned(), raised: 1, ..Trace::default() };
        trace.users.intern("ann");
        let class = Class { model: "GRU".into(), dataset: "PTB".into(), batch: None, amp: true };
        let class = ClassId(trace.classes.intern(&class));
        trace.jobs = vec![
            job(1, 1, 1),
            job(9, 1, 100),
            job(9, 2, 4_000),
            TraceJob {
                class: Some(class),
                memory: Some(Memory::from_mib(2_000)),
                gpu_util: Some(Utilisation(12_500)),
                ..job(49, 8, 700_000)
            },
        ];
        for (job, estimate) in trace.jobs.iter_mut().zip([9, 5, 300, 600]) {
            job.estimate = Some(Span::from_secs(estimate));
        }
        trace
    }

    #[test]
    fn a_small_trace_as_text() {
        expect![[r#"
            trace           small.csv
            jobs            4 (1 user, 0 partitions, 1 class)
            submitted       from 3,600 s to 176,400 s, a span of 2.00 days
            work            1,558 GPU-hours
            memory          2,000 to 2,000 MiB, median 2,000 MiB (1 job)
            GPU use         13 to 13 %, median 13 % (1 job)
            bandwidth use   not stated
            estimates       4 jobs, rank correlation with the true durations 0.80
            raised to 1 s   1 duration

            durations
                    min     median       mean        p90        p99        max
                    1 s      100 s        2 d      8.1 d      8.1 d      8.1 d

                   under 3 s  ████████████████████████████████████████           1
                  3 s - 10 s                                                     0
                 10 s - 30 s                                                     0
                30 s - 2 min  ████████████████████████████████████████           1
               2 min - 5 min                                                     0
              5 min - 15 min                                                     0
                15 min - 1 h                                                     0
                   1 h - 3 h  ████████████████████████████████████████           1
                  3 h - 12 h                                                     0
                  12 h - 2 d                                                     0
                   2 d - 7 d                                                     0
                 7 d or more  ████████████████████████████████████████           1

                        GPUs         jobs    of jobs  of GPU time
                           1            2     50.0 %        0.0 %
                           2            1     25.0 %        0.1 %
                           8            1     25.0 %       99.9 %

            most frequent classes                                  jobs    of jobs
              GRU PTB amp                                             1     25.0 %

            arrivals        ▁█▁▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▁▁▁▁▁▁
            by hour of day  0     6     12    18   24 h
        "#]]
        .assert_eq(&info(&small()).to_string());
    }

    #[test]
    fn a_small_trace_as_json() {
        let mut summary = info(&small());
        summary.duration_histogram.retain(|bar| bar.jobs > 0);
        let json = serde_json::to_string(&summary).unwrap().replace(",\"", ",\n\"");
        expect![[r#"
            {"schema":1,
            "name":"small.csv",
            "jobs":4,
            "users":1,
            "partitions":0,
            "classes":1,
            "first_submit_s":3600.0,
            "last_submit_s":176400.0,
            "span_days":2.0,
            "gpu_hours":1557.8058333333333,
            "duration_min_s":1.0,
            "duration_median_s":100.0,
            "duration_mean_s":176025.25,
            "duration_p90_s":700000.0,
            "duration_p99_s":700000.0,
            "duration_max_s":700000.0,
            "gangs":[{"gpus":1,
            "jobs":2,
            "job_share":0.5,
            "gpu_time_share":0.000018009661380920208},{"gpus":2,
            "jobs":1,
            "job_share":0.25,
            "gpu_time_share":0.0014265078321520957},{"gpus":8,
            "jobs":1,
            "job_share":0.25,
            "gpu_time_share":0.998555482506467}],
            "top_classes":[{"class":"GRU PTB amp",
            "jobs":1,
            "job_share":0.25}],
            "memory_mib":{"jobs":1,
            "min":2000.0,
            "median":2000.0,
            "max":2000.0},
            "gpu_util_percent":{"jobs":1,
            "min":12.5,
            "median":12.5,
            "max":12.5},
            "bandwidth_util_percent":null,
            "estimates":4,
            "estimate_spearman":0.8,
            "durations_raised":1,
            "rows_skipped":0,
            "duration_histogram":[{"from_s":0,
            "below_s":3,
            "jobs":1},{"from_s":30,
            "below_s":120,
            "jobs":1},{"from_s":3600,
            "below_s":10800,
            "jobs":1},{"from_s":604800,
            "below_s":null,
            "jobs":1}],
            "arrivals_by_hour":[0,2,0,0,0,0,0,0,0,2,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}"#]]
        .assert_eq(&json);
    }

    #[test]
    fn one_job_or_none_is_enough() {
        let one = Trace { jobs: vec![job(0, 1, 5)], ..Trace::default() };
        let summary = info(&one);
        assert_eq!((summary.duration_min_s, summary.duration_max_s), (5.0, 5.0));
        assert_eq!((summary.estimates, summary.estimate_spearman), (0, None));
        for trace in [one, Trace::default()] {
            assert!(!info(&trace).to_string().contains("NaN"));
        }
    }

    #[test]
    fn lines_fit_a_terminal() {
        let mut trace = small();
        trace.name = "long".repeat(40);
        trace.jobs.extend((1..300).map(|gpus| job(200, gpus, 5)));
        let text = info(&trace).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("other"));
    }
}
