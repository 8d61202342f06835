//! `tandem bench starts`: how good the start times of `explain` are. Real jobs run in queues of several kinds;
//! the pending ones are asked about again and again, and the answers are compared with what happened.

use super::figures::machine_load;
use super::load::ids;
use super::server::BenchDaemon;
use super::starts::body;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::random::Random;
use crate::table;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tandem_daemon::client::JobQuery;
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;
use tandem_policies::PolicySpec;

/// Target: the actual start lies within the first range of at least this fraction of the jobs.
const COVERAGE_MIN: f64 = 0.8;
/// Interval between two rounds of questions, and questions of a round.
const ROUND: Duration = Duration::from_millis(700);
const QUESTIONS: usize = 6;
/// Timeout of a queue.
const ENDS_WITHIN: Duration = Duration::from_secs(900);
/// Seconds that jobs of the classes of a mixed queue take.
const MIXED_S: [f64; 4] = [0.6, 1.2, 2.4, 4.8];

#[derive(Args)]
pub(crate) struct StartTimesArgs {
    /// Jobs in each queue
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(4..=1000))]
    jobs: u32,
    /// Fake devices
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    devices: u32,
    /// Policy of the daemon: NAME[:key=value,...]
    #[arg(long, value_name = "POLICY", default_value = "tandem")]
    policy: String,
    /// Seed of the order of jobs and of their arrivals
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the daemons' state
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// No messages
    #[arg(long)]
    quiet: bool,
}

/// A kind of queue.
struct QueueKind {
    name: &'static str,
    what: &'static str,
    arrivals: fn(jobs: u32, random: &mut Random) -> Vec<Arrival>,
}

/// A group of jobs that are submitted together.
struct Arrival {
    /// Delay after the first group.
    after_s: f64,
    count: u32,
    /// Run time of each job.
    job_s: f64,
    /// Whether they print progress.
    prints: bool,
}

const KINDS: [QueueKind; 3] = [
    QueueKind { name: "equal", what: "an array of equal jobs", arrivals: equal },
    QueueKind { name: "mixed", what: "four classes, with progress", arrivals: mixed },
    QueueKind { name: "arrivals", what: "arrays that arrive over time", arrivals: over_time },
];

fn equal(jobs: u32, _: &mut Random) -> Vec<Arrival> {
    vec![Arrival { after_s: 0.0, count: jobs, job_s: 1.0, prints: false }]
}

fn mixed(jobs: u32, random: &mut Random) -> Vec<Arrival> {
    let one = |_| {
        let job_s = MIXED_S[random.below(4)];
        Arrival { after_s: 0.0, count: 1, job_s, prints: true }
    };
    (0..jobs).map(one).collect()
}

fn over_time(jobs: u32, random: &mut Random) -> Vec<Arrival> {
    let (mut left, mut after_s, mut all) = (jobs, 0.0, Vec::new());
    while left > 0 {
        let count = (2 + random.below(5) as u32).min(left);
        let job_s = MIXED_S[random.below(3)];
        all.push(Arrival { after_s, count, job_s, prints: false });
        left -= count;
        after_s += 0.5 + random.below(26) as f64 / 10.0;
    }
    all
}

/// An answer about the start of a job, in seconds since 1970.
struct Answer {
    job: u64,
    asked: f64,
    /// Earliest, median and latest start; `None` if reported as unknown.
    range: Option<[f64; 3]>,
}

/// The quality of the answers about a queue.
struct Score {
    kind: &'static QueueKind,
    jobs: usize,
    answers: usize,
    unknown: usize,
    /// Fraction of the jobs whose start was in the first range given.
    coverage_jobs: f64,
    /// Fraction of the answers that have a range.
    coverage: f64,
    median_error_s: f64,
    /// Relative to the wait.
    median_error: f64,
    median_width_s: f64,
}

pub(crate) fn run(args: &StartTimesArgs) -> Result<(), Failure> {
    PolicySpec::parse(&args.policy)?;
    let load = machine_load();
    let mut scores = Vec::new();
    for kind in &KINDS {
        remark(&format!("{}: {}", kind.name, kind.what), args.quiet);
        scores.push(measure(args, kind)?);
    }
    if args.json {
        return print(&as_json(args, &scores, load).to_string());
    }
    print(&as_table(args, &scores, load))
}

fn measure(args: &StartTimesArgs, kind: &'static QueueKind) -> Result<Score, Failure> {
    let folder = super::state_folder(args.dir.as_deref())?;
    let path = folder.path().canonicalize()?;
    let server = BenchDaemon::start(&path, &args.policy, args.devices)?;
    let mut random = Random(args.seed);
    let arrivals = (kind.arrivals)(args.jobs, &mut random);
    let (jobs, answers) = follow(&server, arrivals)?;
    let starts: BTreeMap<u64, f64> =
        jobs.iter().filter_map(|&job| Some((job, started(&server, job)?))).collect();
    Ok(score(kind, &starts, &answers))
}

/// Submits jobs as they arrive and asks about pending ones until all have ended.
fn follow(
    server: &BenchDaemon,
    arrivals: Vec<Arrival>,
) -> Result<(Vec<u64>, Vec<Answer>), Failure> {
    let began = Instant::now();
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut jobs, mut answers) = (Vec::new(), Vec::new());
    let mut client = server.client()?;
    let mut connection = server.connect()?;
    loop {
        let is_due = |next: &Arrival| next.after_s <= began.elapsed().as_secs_f64();
        while let Some(arrival) = arrivals.next_if(is_due) {
            let answer = connection.ask("POST", "/v1/jobs", &body(&request(server, &arrival))?)?;
            jobs.extend(ids(answer).map_err(Failure::failed)?);
        }
        let query =
            JobQuery { states: vec![JobState::Pending], limit: Some(1000), ..JobQuery::default() };
        let pending: Vec<u64> = client.jobs(&query)?.jobs.iter().map(|job| job.id).collect();
        for &job in pending.iter().step_by(pending.len().div_ceil(QUESTIONS).max(1)) {
            let asked = now_s();
            let range = client.explain(job, None)?.start_in_s;
            let range = range.map(|range| range.map(|after| asked + after));
            answers.push(Answer { job, asked, range });
        }
        let query = JobQuery { states: Vec::new(), limit: Some(1000), ..JobQuery::default() };
        let is_over = client.jobs(&query)?.jobs.iter().all(|job| job.state.is_over());
        if is_over && arrivals.peek().is_none() {
            return Ok((jobs, answers));
        }
        if began.elapsed() > ENDS_WITHIN {
            return Err(Failure::failed("the jobs of the benchmark do not end".to_owned()));
        }
        std::thread::sleep(ROUND);
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Jobs that print when they start, and then wait.
fn request(server: &BenchDaemon, arrival: &Arrival) -> JobRequest {
    let steps = (arrival.job_s / 0.1).round().max(1.0);
    let work = match arrival.prints {
        true => format!(
            "i=0; while [ $i -lt {steps} ]; do sleep 0.1; i=$((i+1)); echo step $i/{steps}; done"
        ),
        false => format!("sleep {}", arrival.job_s),
    };
    JobRequest {
        command: ["/bin/sh", "-c", &format!("date +%s%N; {work}")].map(str::to_owned).to_vec(),
        array: (arrival.count > 1).then(|| format!("1-{}", arrival.count)),
        dir: server.output().to_owned(),
        stdout: Some("start-%j".into()),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        ..JobRequest::default()
    }
}

/// When a job started, by its own output.
fn started(server: &BenchDaemon, job: u64) -> Option<f64> {
    let text = std::fs::read_to_string(server.output().join(format!("start-{job}"))).ok()?;
    let nanos: u64 = text.lines().next()?.trim().parse().ok()?;
    Some(nanos as f64 / 1e9)
}

fn score(kind: &'static QueueKind, starts: &BTreeMap<u64, f64>, answers: &[Answer]) -> Score {
    let (mut errors, mut relative, mut widths) = (Vec::new(), Vec::new(), Vec::new());
    let (mut covered, mut first): (usize, BTreeMap<u64, bool>) = (0, BTreeMap::new());
    let mut unknown = 0;
    for answer in answers {
        let Some(&truth) = starts.get(&answer.job) else { continue };
        let Some([earliest, median, latest]) = answer.range else {
            unknown += 1;
            continue;
        };
        let is_covered = earliest <= truth && truth <= latest;
        covered += usize::from(is_covered);
        first.entry(answer.job).or_insert(is_covered);
        errors.push((median - truth).abs());
        relative.push((median - truth).abs() / (truth - answer.asked).max(0.1));
        widths.push(latest - earliest);
    }
    let part = |some: usize, all: usize| if all == 0 { f64::NAN } else { some as f64 / all as f64 };
    Score {
        kind,
        jobs: starts.len(),
        answers: errors.len(),
        unknown,
        coverage_jobs: part(first.values().filter(|&&is_covered| is_covered).count(), first.len()),
        coverage: part(covered, errors.len()),
        median_error_s: median(errors),
        median_error: median(relative),
        median_width_s: median(widths),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn as_table(args: &StartTimesArgs, scores: &[Score], load: f64) -> String {
    let header = [
        "queue",
        "jobs",
        "answers",
        "not known",
        "jobs covered",
        "answers covered",
        "median error",
        "range",
    ];
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let row = |score: &Score| {
        vec![
            score.kind.what.to_owned(),
            score.jobs.to_string(),
            score.answers.to_string(),
            score.unknown.to_string(),
            percent(score.coverage_jobs),
            percent(score.coverage),
            format!("{:.1} s, {}", score.median_error_s, percent(score.median_error)),
            format!("{:.1} s", score.median_width_s),
        ]
    };
    format!(
        "{}\n\naim: at least {} of the jobs covered; policy {}, {} devices, seed {}, load {load:.1} before",
        table::plain(&header, scores.iter().map(row).collect()),
        percent(COVERAGE_MIN),
        args.policy,
        args.devices,
        args.seed,
    )
}

fn as_json(args: &StartTimesArgs, scores: &[Score], load: f64) -> Value {
    let score = |score: &Score| {
        json!({ "queue": score.kind.name, "jobs": score.jobs, "answers": score.answers,
            "unknown": score.unknown, "coverage_jobs": score.coverage_jobs,
            "coverage_answers": score.coverage, "median_error_s": score.median_error_s,
            "median_relative_error": score.median_error, "median_width_s": score.median_width_s })
    };
    json!({
        "schema": 1,
        "policy": args.policy,
        "devices": args.devices,
        "seed": args.seed,
        "coverage_aim": COVERAGE_MIN,
        "load_before": load,
        "queues": scores.iter().map(score).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_scored_against_what_happened() {
        let starts = BTreeMap::from([(1, 110.0), (2, 120.0)]);
        let answer = |job, range| Answer { job, asked: 100.0, range };
        let answers = [
            answer(1, None),
            answer(1, Some([105.0, 109.0, 112.0])),
            answer(2, Some([101.0, 102.0, 103.0])),
            answer(2, Some([115.0, 119.0, 125.0])),
        ];
        let score = score(&KINDS[0], &starts, &answers);
        assert_eq!((score.answers, score.unknown), (3, 1));
        assert_eq!((score.coverage_jobs, score.coverage), (0.5, 2.0 / 3.0));
        assert_eq!(score.median_error_s, 1.0);
    }
}
