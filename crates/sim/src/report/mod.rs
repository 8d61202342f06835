//! The HTML report: one self-contained file. This module reduces the runs to what the page draws; the
//! page itself is built from `web/src/report` and stands, built, in `web/dist`.

pub mod device;
mod gantt;
mod pairs;
mod sharing;

pub use pairs::PairHeatMap;

use crate::bound::LowerBound;
use crate::metrics::Metrics;
use crate::run::SimRun;
use crate::workload::Workload;
use gantt::{Gantt, GanttSegment};
use serde::Serialize;
use sharing::SharingSummary;
use tandem_core::{JobId, MICROS_PER_SECOND, Time};

const TEMPLATE: &str = include_str!("../../../../web/dist/report.html");
const CDF_POINTS_MAX: usize = 256;
const SERIES_BINS_MAX: u64 = 400;
const SCATTER_JOBS_MAX: usize = 2000;

/// The data of the page. Times are seconds since the first submission.
#[derive(Serialize)]
struct Page<'a> {
    schema: u32,
    trace: &'a str,
    jobs: usize,
    gpus: usize,
    partitions: usize,
    lower_bound: LowerBound,
    notes: &'a [String],
    runs: Vec<PageRun<'a>>,
    series: Axis,
    scatter: Scatter<'a>,
    gantt: Gantt<'a>,
    /// Present if pair rates come from a table.
    pairs: Option<&'a PairHeatMap>,
}

#[derive(Serialize)]
struct PageRun<'a> {
    policy: &'a str,
    metrics: &'a Metrics,
    cdf: Vec<(f64, f64)>,
    series: Series,
    jct: Vec<f64>,
    gantt: Vec<GanttSegment>,
    sharing: Option<SharingSummary>,
}

#[derive(Serialize)]
struct Axis {
    from_s: f64,
    to_s: f64,
}

#[derive(Default, Serialize)]
struct Series {
    waiting: Vec<f64>,
    busy: Vec<f64>,
    shared: Vec<f64>,
}

#[derive(Serialize)]
struct Scatter<'a> {
    ids: Vec<&'a str>,
    gpus: Vec<u32>,
}

/// Writes `runs` as one HTML file. They need their history.
pub fn html(
    workload: &Workload,
    lower_bound: LowerBound,
    runs: &[SimRun],
    notes: &[String],
    pairs: Option<&PairHeatMap>,
) -> String {
    let origin = workload.first_submit();
    let end = runs.iter().flat_map(|run| &run.outcomes).filter_map(|outcome| outcome.end).max();
    let span = end.unwrap_or(origin).since(origin).0.max(1);
    let gpus = workload.cluster.gpus().len();
    let sampled: Vec<usize> = evenly(workload.len(), SCATTER_JOBS_MAX).collect();
    let (gantt, segments) = gantt::gantt(workload, runs);
    let page_runs = runs.iter().zip(segments).map(|(run, gantt)| {
        let jct = |job: usize| {
            let end = run.outcomes[job].end.unwrap_or(origin);
            seconds(end.since(workload.jobs[job].spec.submit).0)
        };
        PageRun {
            policy: &run.policy,
            metrics: &run.metrics,
            cdf: cdf((0..workload.len()).map(jct).collect()),
            series: series(run, origin, span, gpus),
            jct: sampled.iter().map(|&job| jct(job)).collect(),
            gantt,
            sharing: sharing::sharing(workload, run),
        }
    });
    let page = Page {
        schema: 1,
        trace: &workload.trace.name,
        jobs: workload.len(),
        gpus,
        partitions: workload.cluster.partitions().len(),
        lower_bound,
        notes,
        runs: page_runs.collect(),
        series: Axis { from_s: 0.0, to_s: seconds(span) },
        scatter: Scatter {
            ids: sampled.iter().map(|&job| workload.id(job_id(job))).collect(),
            gpus: sampled.iter().map(|&job| workload.jobs[job].spec.gpus).collect(),
        },
        gantt,
        pairs,
    };
    let json = serde_json::to_string(&page).expect("plain data always serialises");
    let title = format!("Tandem: {} under {} policies", workload.trace.name, runs.len());
    // No `<` in the data, so that no name can end the script element.
    TEMPLATE.replacen("__TITLE__", &escape_html(&title), 1).replacen(
        "__DATA__",
        &json.replace('<', "\\u003c"),
        1,
    )
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / MICROS_PER_SECOND as f64
}

fn job_id(index: usize) -> JobId {
    JobId(u32::try_from(index).expect("jobs are counted in u32"))
}

/// At most `most` of `0..count`, evenly spread.
fn evenly(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most);
    (0..taken).map(move |position| position * count / taken)
}

fn cdf(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let points = values.len().min(CDF_POINTS_MAX);
    let point = |position: usize| {
        let rank = (position + 1) * values.len() / points;
        (values[rank - 1].max(1e-6), rank as f64 / values.len() as f64)
    };
    (0..points).map(point).collect()
}

/// The means of queue length and utilisation over equal bins of time.
fn series(run: &SimRun, origin: Time, span: u64, gpus: usize) -> Series {
    let Some(record) = &run.record else { return Series::default() };
    let bins = SERIES_BINS_MAX.min(span);
    let width = span as f64 / bins as f64;
    let mut sums = vec![[0.0; 3]; usize::try_from(bins).expect("bins are few")];
    let samples = &record.samples;
    for (index, sample) in samples.iter().enumerate() {
        let from = sample.at.since(origin).0;
        let to = samples.get(index + 1).map_or(span, |next| next.at.since(origin).0);
        let values = [sample.waiting, sample.busy, sample.shared].map(f64::from);
        let mut at = from as f64;
        while at < to as f64 {
            let bin = ((at / width) as usize).min(sums.len() - 1);
            let bin_end =
                if bin + 1 == sums.len() { span as f64 } else { (bin + 1) as f64 * width };
            // Rounding may put the end of the bin at this time; the next bin takes over.
            let until = bin_end.min(to as f64).max(at + 0.5);
            for (sum, value) in sums[bin].iter_mut().zip(values) {
                *sum += value * (until - at);
            }
            at = until;
        }
    }
    let mean = |which: usize, scale: f64| {
        sums.iter().map(|sum| (sum[which] / width / scale * 1e4).round() / 1e4).collect()
    };
    Series { waiting: mean(0, 1.0), busy: mean(1, gpus as f64), shared: mean(2, gpus as f64) }
}
