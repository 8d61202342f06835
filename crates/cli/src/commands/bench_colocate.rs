//! `tandem bench colocate`: a real service with an open load beside a real training job on one core of this
//! machine, with and without budgets.

mod picture;

use super::bench_session;
use super::demo_live::Daemon;
use super::{print, remark, sample_job};
use crate::failure::Failure;
use crate::table;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_daemon::client::Client;
use tandem_daemon::request::{JobRequest, LatencyPromise, ServiceRequest};

/// One-second windows for which the service is measured alone.
const WINDOWS_ALONE: usize = 6;
/// Time for which the training is measured alone.
const TRAINING_ALONE: Duration = Duration::from_secs(3);

#[derive(Args)]
pub(crate) struct BenchColocateArgs {
    /// Requests per second, each rate measured by itself
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5.0, 25.0, 45.0])]
    pub(crate) rates: Vec<f64>,
    /// CPU time of a request in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10.0)]
    pub(crate) request_ms: f64,
    /// Promised latency of the service
    #[arg(long, value_name = "LATENCY", default_value = "p99=150ms")]
    pub(crate) slo: String,
    /// Ways to share the core
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SharingMode::value_variants().to_vec())]
    pub(crate) modes: Vec<SharingMode>,
    /// Seconds to measure
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) seconds: u32,
    /// Seconds before that, in which budgets settle
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(crate) settle: u32,
    /// Repetitions, interleaved
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeats: u32,
    /// Draw the measurements into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// No messages
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// How the service and the training share the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharingMode {
    /// No promise and no caps
    Uncapped,
    /// Budgets add up to at most the core
    Strict,
    /// Budgets may add up to more
    Competitive,
}

impl std::fmt::Display for SharingMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl SharingMode {
    fn name(self) -> &'static str {
        match self {
            SharingMode::Uncapped => "uncapped",
            SharingMode::Strict => "strict",
            SharingMode::Competitive => "competitive",
        }
    }

    fn policy(self) -> &'static str {
        match self {
            SharingMode::Uncapped => "tandem:slice_s=2,budgets=off",
            SharingMode::Strict => "tandem:slice_s=2,budgets=strict",
            SharingMode::Competitive => "tandem:slice_s=2,budgets=competitive",
        }
    }
}

/// One second of a service.
#[derive(Clone, Copy)]
struct LatencyWindow {
    requests: f64,
    seconds: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// One run: the service alone, then beside the training.
struct ColocateRun {
    rate: f64,
    mode: SharingMode,
    alone: Vec<LatencyWindow>,
    training_alone: f64,
    /// Windows of the service beside the training; empty if they did not share.
    beside: Vec<LatencyWindow>,
    training: f64,
}

pub(crate) fn run(args: &BenchColocateArgs) -> Result<(), Failure> {
    let promise = LatencyPromise::parse(&args.slo)
        .map_err(|problem| Failure::bad_input(format!("--slo: {problem}")))?;
    for &rate in &args.rates {
        if !(rate > 0.0 && rate * args.request_ms < 1000.0 && args.request_ms > 0.0) {
            return Err(Failure::bad_input(format!(
                "{rate} requests per second of {} ms each: give rates and times above 0 that need less than one core",
                args.request_ms
            )));
        }
    }
    let train = sample_job::find()?;
    let mut all = Vec::new();
    for repeat in 1..=args.repeats {
        for &rate in &args.rates {
            for &mode in &args.modes {
                let what = format!("{repeat} of {}: {rate} requests/s, {mode}", args.repeats);
                remark(&what, args.quiet);
                all.push(measure(args, &train, rate, mode)?);
            }
        }
    }
    let cells = summarise(args, promise, &all);
    if let Some(file) = &args.chart {
        std::fs::write(file, picture::svg(&cells, promise.limit_us as f64 / 1e3)).map_err(
            |error| Failure::failed(format!("{}: cannot be written: {error}", file.display())),
        )?;
    }
    if args.json {
        let cells: Vec<Value> = cells.iter().map(ColocateCell::json).collect();
        return print(&json!({ "schema": 1, "slo": args.slo, "cells": cells }).to_string());
    }
    print(&as_table(&cells))
}

/// One run with a daemon of its own: first the training alone, then the service, then both.
fn measure(
    args: &BenchColocateArgs,
    train: &Path,
    rate: f64,
    mode: SharingMode,
) -> Result<ColocateRun, Failure> {
    let mut daemon = Daemon::start(mode.policy(), 1, None)?;
    let mut client = daemon.client()?;
    let mut bench = ColocateBench { client: &mut client, train, folder: daemon.folder.path() };
    let first = bench.submit_training()?;
    bench.wait("measuring the training alone", |job| job.steps_per_s_alone.is_some(), first)?;
    let training_alone = bench.steps_per_second(first, TRAINING_ALONE)?;
    bench.client.cancel(first)?;
    bench.wait("ending the training", |job| job.line.state.is_over(), first)?;

    let service = bench.submit_service(args, rate, mode)?;
    let output = bench.output(service)?;
    bench_session::wait_until("requests of the service", || {
        Ok(windows(&output).len() >= WINDOWS_ALONE)
    })?;
    let alone = windows(&output);
    let guest = bench.submit_training()?;
    let is_beside = |job: &tandem_daemon::api::types::JobInfo| job.line.beside.contains(&service);
    if bench.wait("sharing the core", is_beside, guest).is_err() {
        return Ok(ColocateRun {
            rate,
            mode,
            alone,
            training_alone,
            beside: Vec::new(),
            training: 0.0,
        });
    }
    std::thread::sleep(Duration::from_secs(args.settle.into()));
    let before = windows(&output).len();
    let training = bench.steps_per_second(guest, Duration::from_secs(args.seconds.into()))?;
    let beside = windows(&output).split_off(before);
    Ok(ColocateRun { rate, mode, alone, training_alone, beside, training })
}

struct ColocateBench<'a> {
    client: &'a mut Client,
    train: &'a Path,
    folder: &'a Path,
}

impl ColocateBench<'_> {
    fn submit(
        &mut self,
        class: &str,
        arguments: &[String],
        as_service: Option<ServiceRequest>,
    ) -> Result<u64, Failure> {
        let program = self.train.to_string_lossy().into_owned();
        let request = JobRequest {
            command: std::iter::once(program).chain(arguments.iter().cloned()).collect(),
            class: Some(class.to_owned()),
            dir: self.folder.to_owned(),
            env: std::env::vars().collect(),
            service: as_service,
            ..JobRequest::default()
        };
        bench_session::submit(self.client, &request)
    }

    fn submit_training(&mut self) -> Result<u64, Failure> {
        let arguments = ["--steps", "1000000000", "--print-every", "5"].map(str::to_owned);
        self.submit("training", &arguments, None)
    }

    fn submit_service(
        &mut self,
        args: &BenchColocateArgs,
        rate: f64,
        mode: SharingMode,
    ) -> Result<u64, Failure> {
        let (rate, work) = (rate.to_string(), args.request_ms.to_string());
        let arguments =
            ["--steps", "1000000000", "--print-every", "1", "--batch", "4"].map(str::to_owned);
        let load = ["--serve".to_owned(), rate, "--request-ms".to_owned(), work];
        // Without a promise the service is not protected, but its latency is measured all the same.
        let slo = (mode != SharingMode::Uncapped).then(|| args.slo.clone());
        let service = ServiceRequest { slo, ..ServiceRequest::default() };
        self.submit("service", &[&arguments[..], &load].concat(), Some(service))
    }

    fn wait(
        &mut self,
        what: &str,
        is_so: impl Fn(&tandem_daemon::api::types::JobInfo) -> bool,
        id: u64,
    ) -> Result<(), Failure> {
        bench_session::wait_until(what, || Ok(is_so(&self.client.job(id)?.job)))
    }

    fn output(&mut self, id: u64) -> Result<PathBuf, Failure> {
        let private = self.client.job(id)?.job.private.clone();
        let private = private.ok_or_else(|| Failure::failed("the job is another user's"))?;
        Ok(PathBuf::from(private.stdout))
    }

    /// Steps per second over some time.
    fn steps_per_second(&mut self, id: u64, time: Duration) -> Result<f64, Failure> {
        let output = self.output(id)?;
        let (began, before) = (Instant::now(), bench_session::last_step(&output));
        std::thread::sleep(time);
        Ok((bench_session::last_step(&output) - before) / began.elapsed().as_secs_f64())
    }
}

/// The windows that a service has printed: `40 requests in 1.002 s: p50 6.1 ms, p99 9.3 ms`.
fn windows(output: &Path) -> Vec<LatencyWindow> {
    let text = std::fs::read_to_string(output).unwrap_or_default();
    text.lines().filter_map(window).collect()
}

fn window(line: &str) -> Option<LatencyWindow> {
    let words: Vec<&str> = line.split(' ').collect();
    let [requests, "requests", "in", seconds, "s:", "p50", p50, "ms,", "p99", p99, "ms"] =
        words[..]
    else {
        return None;
    };
    let number = |text: &str| text.parse().ok();
    Some(LatencyWindow {
        requests: number(requests)?,
        seconds: number(seconds)?,
        p50_ms: number(p50)?,
        p99_ms: number(p99)?,
    })
}

/// The results of a rate and a mode over all repetitions.
struct ColocateCell {
    rate: f64,
    mode: &'static str,
    runs: usize,
    /// Runs in which service and training shared the core.
    shared: usize,
    p50_ms: Spread,
    p99_ms: Spread,
    /// Fraction of the windows that kept the promise.
    kept: Spread,
    /// Speed of the training relative to alone.
    training: Spread,
    /// Answered ÷ offered requests, plus the relative speed of the training.
    total: Spread,
}

/// Median, minimum and maximum.
#[derive(Clone, Copy)]
struct Spread([f64; 3]);

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Spread([at(values.len() / 2), at(0), at(values.len().saturating_sub(1))])
    }

    fn median(self) -> f64 {
        self.0[0]
    }

    fn text(self, digits: usize) -> String {
        let [median, least, most] = self.0;
        format!("{median:.digits$} [{least:.digits$}-{most:.digits$}]")
    }

    fn json(self) -> Value {
        let [median, least, most] = self.0;
        json!({ "median": median, "min": least, "max": most })
    }
}

impl ColocateCell {
    fn json(&self) -> Value {
        json!({
            "rate_per_s": self.rate, "mode": self.mode, "runs": self.runs, "shared": self.shared,
            "p50_ms": self.p50_ms.json(), "p99_ms": self.p99_ms.json(), "kept": self.kept.json(),
            "training": self.training.json(), "total": self.total.json(),
        })
    }
}

/// The windows of a run, the relative speed of the training and the rate of requests.
type Run<'a> = (&'a [LatencyWindow], f64, f64);

/// One cell for the service alone, and one per mode, of every rate.
fn summarise(
    args: &BenchColocateArgs,
    promise: LatencyPromise,
    all: &[ColocateRun],
) -> Vec<ColocateCell> {
    let mut cells = Vec::new();
    for &rate in &args.rates {
        let of_rate = || all.iter().filter(move |one| one.rate == rate);
        let alone: Vec<Run<'_>> = of_rate().map(|one| (&one.alone[..], 0.0, one.rate)).collect();
        cells.push(cell("exclusive", rate, promise, &alone));
        for &mode in &args.modes {
            let runs = of_rate().filter(|one| one.mode == mode);
            // A run that did not share counts as the service alone and no training.
            let runs = runs.map(|one| match one.beside.is_empty() {
                true => (&one.alone[..], 0.0, one.rate),
                false => (&one.beside[..], one.training / one.training_alone.max(1e-9), one.rate),
            });
            let runs: Vec<Run<'_>> = runs.collect();
            let mut next = cell(mode.name(), rate, promise, &runs);
            let shared = of_rate().filter(|one| one.mode == mode && !one.beside.is_empty());
            next.shared = shared.count();
            cells.push(next);
        }
    }
    cells
}

fn cell(mode: &'static str, rate: f64, promise: LatencyPromise, runs: &[Run<'_>]) -> ColocateCell {
    let us = |ms: f64| (ms * 1e3).round() as u64;
    let is_kept = |one: &&LatencyWindow| promise.is_kept_by(us(one.p50_ms), us(one.p99_ms));
    let kept = |windows: &[LatencyWindow]| {
        windows.iter().filter(is_kept).count() as f64 / windows.len().max(1) as f64
    };
    let middle = |windows: &[LatencyWindow], of: fn(&LatencyWindow) -> f64| {
        Spread::of(windows.iter().map(of).collect()).median()
    };
    let answered = |windows: &[LatencyWindow], rate: f64| {
        let requests: f64 = windows.iter().map(|one| one.requests).sum();
        let seconds: f64 = windows.iter().map(|one| one.seconds).sum();
        (requests / (rate * seconds).max(1e-9)).min(1.0)
    };
    let spread = |of: &dyn Fn(&Run<'_>) -> f64| Spread::of(runs.iter().map(of).collect());
    ColocateCell {
        rate,
        mode,
        runs: runs.len(),
        shared: 0,
        p50_ms: spread(&|(windows, _, _)| middle(windows, |one| one.p50_ms)),
        p99_ms: spread(&|(windows, _, _)| middle(windows, |one| one.p99_ms)),
        kept: spread(&|(windows, _, _)| kept(windows)),
        training: spread(&|(_, training, _)| *training),
        total: spread(&|(windows, training, rate)| answered(windows, *rate) + training),
    }
}

fn as_table(cells: &[ColocateCell]) -> String {
    let header =
        ["requests/s", "mode", "p50 ms", "p99 ms", "kept %", "training", "total", "shared"];
    let percent = |kept: Spread| Spread(kept.0.map(|part| part * 100.0)).text(0);
    let row = |cell: &ColocateCell| {
        vec![
            cell.rate.to_string(),
            cell.mode.to_owned(),
            cell.p50_ms.text(1),
            cell.p99_ms.text(1),
            percent(cell.kept),
            cell.training.text(2),
            cell.total.text(2),
            format!("{} of {}", cell.shared, cell.runs),
        ]
    };
    table::plain(&header, cells.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_the_sample_job_are_read() {
        let read = window("40 requests in 1.002 s: p50 6.100 ms, p99 9.300 ms").unwrap();
        assert_eq!((read.requests, read.p50_ms, read.p99_ms), (40.0, 6.1, 9.3));
        assert!(window("step 5 loss 0.1").is_none());
    }

    #[test]
    fn a_cell_counts_the_windows_within_the_promise() {
        let window = |p99_ms| LatencyWindow { requests: 10.0, seconds: 1.0, p50_ms: 1.0, p99_ms };
        let windows = [window(5.0), window(9.0), window(11.0), window(3.0)];
        let promise = LatencyPromise::parse("p99=10ms").unwrap();
        let cell = cell("strict", 10.0, promise, &[(&windows[..], 0.5, 10.0)]);
        assert_eq!((cell.kept.median(), cell.total.median()), (0.75, 1.5));
    }
}
