//! `tandem bench live`: measures a daemon under load on this machine.

mod args;
mod figures;
mod http;
mod load;
mod server;
pub(crate) mod start_times;
mod starts;

pub(crate) use args::BenchLiveArgs;

use super::{print, remark};
use crate::failure::Failure;
use crate::table;
use figures::{Latencies, machine_load, millis};
use load::SubmissionLoad;
use serde_json::{Value, json};
use server::BenchDaemon;
use starts::Starts;
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::request::JobRequest;
use tandem_policies::PolicySpec;

/// Targets.
const PER_SECOND_MIN: f64 = 2000.0;
const PAGE_MAX_MS: f64 = 50.0;
const START_MAX_MS: f64 = 50.0;
const PAGE: u32 = 1000;

/// All that was measured.
struct LiveReport {
    load_before: f64,
    idle: Latencies,
    alone: Starts,
    held: SubmissionLoad,
    lost: usize,
    kept: usize,
    restart: Duration,
    separate: usize,
    grown: Duration,
    pages: Vec<(&'static str, Latencies)>,
    beside: Starts,
    crowded: SubmissionLoad,
    memory: Option<u64>,
    restart_crowded: Duration,
    waiting: usize,
    load_after: f64,
}

/// A folder for the state of the daemon, in `dir` or among temporary files.
fn state_folder(dir: Option<&Path>) -> std::io::Result<tempfile::TempDir> {
    let mut folder = tempfile::Builder::new();
    let folder = folder.prefix("tandem-bench-");
    match dir {
        Some(dir) => folder.tempdir_in(dir),
        None => folder.tempdir(),
    }
}

pub(crate) fn run(args: &BenchLiveArgs) -> Result<(), Failure> {
    PolicySpec::parse(&args.policy)?;
    let folder = state_folder(args.dir.as_deref())?;
    let report = measure(args, &folder.path().canonicalize()?)?;
    if args.json {
        print(&as_json(args, &report).to_string())
    } else {
        print(&as_table(args, &report))
    }
}

fn measure(args: &BenchLiveArgs, folder: &std::path::Path) -> Result<LiveReport, Failure> {
    let say = |text: &str| remark(text, args.quiet);
    let load_before = machine_load();
    let time = Duration::from_secs(args.seconds.into());
    let mut server = BenchDaemon::start(folder, &args.policy, args.devices)?;

    say("short jobs, one at a time");
    let idle = starts::idle(&server)?;
    say("short jobs, one after the other on every device");
    let alone = short_jobs(&server, args.short, || Ok(()))?;

    say("submissions of held jobs, and the daemon killed in the middle of them");
    let held = load::submit(&mut server, args.clients, time, true, BenchDaemon::kill)?;
    let restart = server.restart()?;
    let kept = starts::all(&server)?;
    let lost = held.acknowledged.iter().filter(|id| !kept.contains(id)).count();

    say("jobs that wait");
    server.drain("drain")?;
    let mut separate = 0;
    let mut grown = Duration::ZERO;
    let mut pages = Vec::new();
    let beside = short_jobs(&server, args.short, || {
        let began = Instant::now();
        separate = grow(&server, args.jobs)?;
        grown = began.elapsed();
        say("pages of them");
        pages = read_pages(&server, args)?;
        say("short jobs beside them");
        server.drain("undrain")
    })?;
    say("submissions of jobs that wait with them");
    let crowded = load::submit(&mut server, args.clients, time, false, |_| Ok(()))?;
    let memory = server.memory();
    server.kill()?;
    let restart_crowded = server.restart()?;
    let waiting = starts::all(&server)?.len();
    Ok(LiveReport {
        load_before,
        idle,
        alone,
        held,
        lost,
        kept: kept.len(),
        restart,
        separate,
        grown,
        pages,
        beside,
        crowded,
        memory,
        restart_crowded,
        waiting,
        load_after: machine_load(),
    })
}

/// Submits short jobs, calls `meanwhile` and waits until they have ended.
fn short_jobs(
    server: &BenchDaemon,
    count: u32,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<Starts, Failure> {
    let jobs = starts::submit(server, count)?;
    meanwhile()?;
    starts::wait(server, &jobs)?;
    starts::measure(server, &jobs)
}

/// Submits this many pending jobs: a tenth of them one by one, the rest as arrays.
fn grow(server: &BenchDaemon, jobs: u32) -> Result<usize, Failure> {
    let mut connection = server.connect()?;
    let separate = jobs / 10;
    for number in 0..separate {
        let body = starts::body(&load::waiting(number, false))?;
        connection.ask("POST", "/v1/jobs", &body)?;
    }
    let arrays = 100;
    for number in 0..arrays {
        let tasks = (jobs - separate) / arrays;
        let request = JobRequest {
            array: Some(format!("0-{}", tasks.saturating_sub(1))),
            ..load::waiting(number * 2, false)
        };
        connection.ask("POST", "/v1/jobs", &starts::body(&request)?)?;
    }
    Ok(separate as usize)
}

/// Times pages of the list of jobs.
fn read_pages(
    server: &BenchDaemon,
    args: &BenchLiveArgs,
) -> Result<Vec<(&'static str, Latencies)>, Failure> {
    let last = starts::all(server)?.last().copied().unwrap_or(0);
    let from = |share: u64| last.saturating_sub(u64::from(args.jobs) / 100 * share);
    let user = server.user()?;
    let kinds = [
        ("the first", "order=asc".to_owned()),
        ("from the middle", format!("after={}", from(50))),
        ("the last", "order=desc".to_owned()),
        ("waiting", format!("state=pending&after={}", from(90))),
        ("not over, of a user", format!("state=active&user={user}&after={}", from(50))),
        ("not over, the last", "state=active&order=desc".to_owned()),
    ];
    let mut connection = server.connect()?;
    let mut pages: Vec<_> = kinds.iter().map(|(name, _)| (*name, Latencies::default())).collect();
    for _ in 0..args.pages {
        for ((_, query), (_, times)) in kinds.iter().zip(&mut pages) {
            let began = Instant::now();
            let page = connection.ask("GET", &format!("/v1/jobs?limit={PAGE}&{query}"), &[])?;
            times.add(millis(began.elapsed()));
            let count = count(page)?;
            if count != PAGE as usize {
                return Err(Failure::failed(format!("{query}: {count} jobs and not {PAGE}")));
            }
        }
    }
    Ok(pages)
}

fn count(page: &[u8]) -> Result<usize, Failure> {
    let page: Value = serde_json::from_slice(page).map_err(Failure::failed)?;
    Ok(page["jobs"].as_array().map_or(0, Vec::len))
}

fn as_table(args: &BenchLiveArgs, report: &LiveReport) -> String {
    let mut rows = Vec::new();
    let mut row = |what: String, aim: String, cells: [String; 3]| {
        let mut row = vec![what];
        row.extend(cells);
        row.push(aim);
        rows.push(row);
    };
    let none = || "-".to_owned();
    let ms = |value: f64| format!("{value:.1}");
    let times = |times: &Latencies| [times.len().to_string(), ms(times.median()), ms(times.p99())];
    let loads = [("held jobs", &report.held), ("jobs that wait", &report.crowded)];
    for (what, load) in loads {
        let (rate, least) = (load.per_second(), load.by_second.iter().min().copied().unwrap_or(0));
        let what = format!(
            "submissions, {what}: {} per second, {} in the slowest",
            table::grouped(rate.round() as u64),
            table::grouped(least)
        );
        row(what, format!("{PER_SECOND_MIN}/s"), times(&load.latency));
    }
    let page = format!("{PAGE_MAX_MS} ms");
    for (what, pages) in &report.pages {
        row(format!("page of {PAGE} jobs, {what}"), page.clone(), times(pages));
    }
    let start = format!("{START_MAX_MS} ms");
    row("submission to process, idle devices".to_owned(), start.clone(), times(&report.idle));
    let others = table::grouped(args.jobs.into());
    for (what, starts) in [
        ("nobody else waits".to_owned(), &report.alone),
        (format!("{others} others wait"), &report.beside),
    ] {
        let seen = format!("end seen to next process, {what}");
        row(seen, start.clone(), times(&starts.seen_to_run));
        let word = format!("process to process, {what}");
        row(word, none(), times(&starts.word_to_word));
    }
    let header = ["what", "times", "median ms", "p99 ms", "aim"];
    let memory = report.memory.map_or(0, |bytes| bytes >> 20);
    format!(
        "{}\n\npolicy {}, {} clients, {} devices; of {} acknowledged jobs {} were lost when the daemon was killed; \
         it listened again after {:.1} s with {} jobs, {:.1} s with {}; {} MiB at the end; load {:.1} before and {:.1} after",
        table::plain(&header, rows),
        args.policy,
        args.clients,
        args.devices,
        table::grouped(report.held.acknowledged.len() as u64),
        report.lost,
        report.restart.as_secs_f64(),
        table::grouped(report.kept as u64),
        report.restart_crowded.as_secs_f64(),
        table::grouped(report.waiting as u64),
        memory,
        report.load_before,
        report.load_after,
    )
}

fn as_json(args: &BenchLiveArgs, report: &LiveReport) -> Value {
    let load = |load: &SubmissionLoad| {
        json!({ "per_second": load.per_second(), "by_second": load.by_second,
            "latency": load.latency.json() })
    };
    let starts = |starts: &Starts| {
        json!({ "end_seen_to_process": starts.seen_to_run.json(),
            "process_to_process": starts.word_to_word.json(), "took_s": starts.took.as_secs_f64() })
    };
    let pages: serde_json::Map<String, Value> =
        report.pages.iter().map(|(what, times)| ((*what).to_owned(), times.json())).collect();
    json!({
        "schema": 1,
        "policy": args.policy,
        "clients": args.clients,
        "devices": args.devices,
        "submissions_held": load(&report.held),
        "acknowledged": report.held.acknowledged.len(),
        "lost": report.lost,
        "restart_s": report.restart.as_secs_f64(),
        "jobs": args.jobs,
        "submitted_separately": report.separate,
        "growing_s": report.grown.as_secs_f64(),
        "pages": pages,
        "submissions_waiting": load(&report.crowded),
        "submission_to_process": report.idle.json(),
        "starts_alone": starts(&report.alone),
        "starts_beside": starts(&report.beside),
        "memory_bytes": report.memory,
        "restart_crowded_s": report.restart_crowded.as_secs_f64(),
        "jobs_at_the_end": report.waiting,
        "load_before": report.load_before,
        "load_after": report.load_after,
    })
}
