//! `tandem bench slowdown`: random pairs of real training jobs on one core of this machine. One job of each pair was
//! promised a largest slow-down; measured is whether they share and how much it is slowed down over time.

use super::bench_session::{self, POLL};
use super::demo_live::Daemon;
use super::{print, remark, sample_job};
use crate::failure::Failure;
use crate::random::Random;
use crate::table;
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_daemon::client::Client;
use tandem_daemon::request::JobRequest;

/// Time within which two jobs share or do not.
const DECIDED_WITHIN: Duration = Duration::from_secs(15);
/// Time after which the daemon has measured a pair and settled what to do with it.
const SETTLE: Duration = Duration::from_secs(4);
const MODES: [&str; 2] = ["off", "competitive"];

#[derive(Args)]
pub(crate) struct BenchSlowdownArgs {
    /// Pairs
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pairs: u32,
    /// Seed of the pairs
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The largest slow-down that one job of each pair was promised
    #[arg(long, value_name = "FACTOR", default_value_t = 1.2)]
    pub(crate) max_slowdown: f64,
    /// Windows of one second in which each pair is measured
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) seconds: u32,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// No messages
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// A kind of training.
#[derive(Clone, Debug)]
struct Training {
    model: &'static str,
    batch: u32,
    /// Part of its time that it sleeps, in per cent.
    gap: u32,
}

impl Training {
    fn draw(random: &mut Random) -> Self {
        let (models, batches) = (["mlp", "cnn", "memory"], [32, 64, 128]);
        Self {
            model: models[random.below(3)],
            batch: batches[random.below(3)],
            gap: [0, 20, 40, 60][random.below(4)],
        }
    }

    fn name(&self) -> String {
        format!("{} {} gap {} %", self.model, self.batch, self.gap)
    }
}

/// What one pair did under one mode of budgets.
struct SlowdownRun {
    mode: &'static str,
    promised: Training,
    other: Training,
    /// Slow-downs of the promised job in windows of one second; empty if they did not share.
    slowdowns: Vec<f64>,
    /// The same of the promised job alone: the machine's own noise.
    alone: Vec<f64>,
    /// Speed of the other job relative to alone.
    other_rate: f64,
}

pub(crate) fn run(args: &BenchSlowdownArgs) -> Result<(), Failure> {
    if !(args.max_slowdown > 1.0 && args.max_slowdown.is_finite()) {
        return Err(Failure::bad_input("--max-slowdown: give a factor above 1"));
    }
    let train = sample_job::find()?;
    let mut random = Random(args.seed);
    let mut runs = Vec::new();
    for pair in 1..=args.pairs {
        let (promised, other) = (Training::draw(&mut random), Training::draw(&mut random));
        let what = format!("{pair} of {}: {} beside {}", args.pairs, promised.name(), other.name());
        remark(&what, args.quiet);
        for mode in MODES {
            runs.push(measure(args, &train, mode, &promised, &other)?);
        }
    }
    if args.json {
        let runs: Vec<Value> = runs.iter().map(SlowdownRun::json).collect();
        let object = json!({ "schema": 1, "max_slowdown": args.max_slowdown, "runs": runs });
        return print(&object.to_string());
    }
    print(&as_table(&runs, args.max_slowdown))
}

/// One pair under a daemon of its own: each job alone, then both.
fn measure(
    args: &BenchSlowdownArgs,
    train: &Path,
    mode: &'static str,
    promised: &Training,
    other: &Training,
) -> Result<SlowdownRun, Failure> {
    // Jobs that take turns would show how turns are taken.
    let mut daemon =
        Daemon::start(&format!("tandem:slice_s=2,preempt=false,budgets={mode}"), 1, None)?;
    let client = daemon.client()?;
    let mut session = Session { client, train, folder: daemon.folder.path().to_owned() };
    let seconds = args.seconds;
    let other_alone = median(&session.alone("other", other, None, seconds / 2)?);
    let limit = Some(args.max_slowdown);
    let alone = session.alone("promised", promised, limit, seconds)?;
    let speed = median(&alone);
    let first = session.submit("promised", promised, limit)?;
    session.wait_for("training", first, |job| job.line.run_s > 0.0)?;
    let guest = session.submit("other", other, None)?;
    let began = Instant::now();
    let mut shares = false;
    while !shares && began.elapsed() < DECIDED_WITHIN {
        std::thread::sleep(POLL);
        shares = session.client.job(first)?.job.line.beside.contains(&guest);
    }
    std::thread::sleep(SETTLE);
    // Sharing that does not pay may have ended again.
    shares = shares && session.client.job(first)?.job.line.beside.contains(&guest);
    let (mut slowdowns, mut other_rate) = (Vec::new(), 0.0);
    if shares {
        let before = session.steps(guest)?;
        let began = Instant::now();
        let speeds = session.speeds(first, seconds)?;
        let steps = session.steps(guest)? - before;
        other_rate = steps / began.elapsed().as_secs_f64() / other_alone;
        if session.client.job(first)?.job.line.beside.contains(&guest) {
            slowdowns = speeds.iter().map(|now| speed / now.max(1e-9)).collect();
        }
    }
    let alone = alone.iter().map(|now| speed / now.max(1e-9)).collect();
    let (promised, other) = (promised.clone(), other.clone());
    Ok(SlowdownRun { mode, promised, other, slowdowns, alone, other_rate })
}

/// A daemon and how jobs are submitted to it.
struct Session<'a> {
    client: Client,
    train: &'a Path,
    folder: PathBuf,
}

impl Session<'_> {
    fn submit(
        &mut self,
        class: &str,
        training: &Training,
        max_slowdown: Option<f64>,
    ) -> Result<u64, Failure> {
        let program = self.train.to_string_lossy().into_owned();
        let Training { model, batch, gap } = training;
        let arguments = [
            "--steps".to_owned(),
            "1000000000".to_owned(),
            "--print-every".to_owned(),
            "1".to_owned(),
            "--model".to_owned(),
            (*model).to_owned(),
            "--batch".to_owned(),
            batch.to_string(),
            "--gap".to_owned(),
            gap.to_string(),
        ];
        let request = JobRequest {
            command: std::iter::once(program).chain(arguments).collect(),
            class: Some(class.to_owned()),
            dir: self.folder.clone(),
            env: std::env::vars().collect(),
            max_slowdown,
            ..JobRequest::default()
        };
        bench_session::submit(&mut self.client, &request)
    }

    fn wait_for(
        &mut self,
        what: &str,
        id: u64,
        is_so: impl Fn(&tandem_daemon::api::types::JobInfo) -> bool,
    ) -> Result<(), Failure> {
        bench_session::wait_until(what, || Ok(is_so(&self.client.job(id)?.job)))
    }

    /// Speeds of a job that has the core, in windows of one second.
    fn alone(
        &mut self,
        class: &str,
        training: &Training,
        max_slowdown: Option<f64>,
        seconds: u32,
    ) -> Result<Vec<f64>, Failure> {
        let id = self.submit(class, training, max_slowdown)?;
        self.wait_for("measuring a job alone", id, |job| job.steps_per_s_alone.is_some())?;
        let speeds = self.speeds(id, seconds.max(2))?;
        self.client.cancel(id)?;
        self.wait_for("ending a job", id, |job| job.line.state.is_over())?;
        Ok(speeds)
    }

    /// Steps per second in windows of one second.
    fn speeds(&mut self, id: u64, seconds: u32) -> Result<Vec<f64>, Failure> {
        let (mut began, mut before) = (Instant::now(), self.steps(id)?);
        (0..seconds)
            .map(|_| {
                std::thread::sleep(Duration::from_secs(1));
                let (now, steps) = (Instant::now(), self.steps(id)?);
                let speed = (steps - before) / (now - began).as_secs_f64();
                (began, before) = (now, steps);
                Ok(speed)
            })
            .collect()
    }

    /// The last step that a job has printed.
    fn steps(&mut self, id: u64) -> Result<f64, Failure> {
        let private = self.client.job(id)?.job.private.clone();
        let private = private.ok_or_else(|| Failure::failed("the job is another user's"))?;
        Ok(bench_session::last_step(Path::new(&private.stdout)))
    }
}

fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

impl SlowdownRun {
    fn json(&self) -> Value {
        json!({
            "budgets": self.mode, "promised": self.promised.name(), "other": self.other.name(),
            "shares": !self.slowdowns.is_empty(), "other_rate": self.other_rate,
            "slowdown_median": median(&self.slowdowns), "slowdown_p95": percentile(&self.slowdowns, 0.95),
            "alone_p95": percentile(&self.alone, 0.95),
        })
    }
}

fn as_table(runs: &[SlowdownRun], limit: f64) -> String {
    let header = ["promised", "other", "budgets", "median", "p95", "alone p95", "other's speed"];
    let rows = runs.iter().map(|run| {
        let number = |value: f64| match run.slowdowns.is_empty() {
            true => "alone".to_owned(),
            false => format!("{value:.2}"),
        };
        vec![
            run.promised.name(),
            run.other.name(),
            run.mode.to_owned(),
            number(median(&run.slowdowns)),
            number(percentile(&run.slowdowns, 0.95)),
            format!("{:.2}", percentile(&run.alone, 0.95)),
            format!("{:.2}", run.other_rate),
        ]
    });
    let mut text = table::plain(&header, rows.collect());
    for mode in MODES {
        let of_mode = || runs.iter().filter(|run| run.mode == mode);
        let shared = of_mode().filter(|run| !run.slowdowns.is_empty());
        let is_kept = |run: &&SlowdownRun| percentile(&run.slowdowns, 0.95) <= 1.03 * limit;
        text.push_str(&format!(
            "\nbudgets={mode}: {} of {} pairs share; in {} of them the slow-down is at most {limit} within 3 % at p95",
            shared.clone().count(),
            of_mode().count(),
            shared.filter(is_kept).count(),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!((median(&values), percentile(&values, 0.95)), (10.0, 19.0));
        assert!(median(&[]).is_nan());
    }
}
