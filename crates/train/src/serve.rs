//! The serving mode: answers requests that arrive at random.
//!
//! The load is open: requests arrive whether or not earlier ones were answered, so that a service that is too slow
//! builds up a queue, as with real users. Latency counts from the arrival.

use crate::args::TrainArgs;
use crate::data::{self, BatchSource};
use crate::error::TrainError;
use crate::model::SampleModel;
use crate::report::Reporter;
use crate::run::{Trained, cpu_time};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The stream of the random generator for arrivals, apart from those for data.
const ARRIVALS: u64 = 1 << 40;
/// Length of a reporting window.
const WINDOW: Duration = Duration::from_secs(1);
/// The longest time between two reads of the daemon's messages.
const POLL: Duration = Duration::from_millis(50);

/// The latencies of one window.
struct Window {
    since: Instant,
    latencies: Vec<Duration>,
}

impl Window {
    /// A percentile of the latencies in milliseconds, by nearest rank.
    fn percentile_ms(&self, part: f64) -> f64 {
        let rank = (part * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).map_or(0.0, |one| one.as_secs_f64() * 1e3)
    }
}

/// Serves `rate` requests per second until it is told to stop, or `--steps` are answered.
pub(crate) fn serve(
    args: &TrainArgs,
    rate: f64,
    socket: Option<PathBuf>,
) -> Result<Trained, TrainError> {
    let model = SampleModel::new(args.model, args.seed)?;
    let source = BatchSource::new(args.model, args.seed, args.batch_size());
    let batch = source.batch(1)?;
    let job = std::env::var("TANDEM_JOB_ID").unwrap_or_default();
    let mut reporter = Reporter::new(socket, job, args.batch_size(), 1, (0, args.steps));
    let mut rng = data::generator(args.seed, ARRIVALS);
    let work = Duration::from_secs_f64(args.request_ms / 1e3);
    let start = Instant::now();
    let mut arrival = gap(rate, &mut rng);
    let mut window = Window { since: start, latencies: Vec::new() };
    let mut answered = 0;
    while answered < args.steps && !reporter.poll().stop {
        if window.since.elapsed() >= WINDOW {
            report(&mut window, &mut reporter, args)?;
        }
        let early = arrival.saturating_sub(start.elapsed());
        if !early.is_zero() {
            std::thread::sleep(early.min(POLL));
            continue;
        }
        let from = cpu_time();
        model.loss(&batch)?;
        while cpu_time().saturating_sub(from) < work {
            model.loss(&batch)?;
        }
        window.latencies.push(start.elapsed().saturating_sub(arrival));
        answered += 1;
        arrival += gap(rate, &mut rng);
    }
    report(&mut window, &mut reporter, args)?;
    let done = answered >= args.steps;
    reporter.leave(done);
    Ok(Trained { first_step: 0, steps: answered, done, accum: 1, loss: None, losses: Vec::new() })
}

/// The time to the next arrival, exponentially distributed.
fn gap(rate: f64, rng: &mut ChaCha8Rng) -> Duration {
    let uniform: f64 = rng.random();
    Duration::from_secs_f64(-(1.0 - uniform).ln() / rate)
}

fn report(
    window: &mut Window,
    reporter: &mut Reporter,
    args: &TrainArgs,
) -> Result<(), TrainError> {
    window.latencies.sort_unstable();
    let (n, dt) = (window.latencies.len(), window.since.elapsed().as_secs_f64());
    let (p50, p99) = (window.percentile_ms(0.5), window.percentile_ms(0.99));
    reporter.requests(n, p50, p99, dt);
    if args.print_every.is_some() && !args.json {
        writeln!(std::io::stdout(), "{n} requests in {dt:.3} s: p50 {p50:.3} ms, p99 {p99:.3} ms")
            .map_err(TrainError::Output)?;
    }
    *window = Window { since: Instant::now(), latencies: Vec::new() };
    Ok(())
}
