//! The training loop.

use crate::args::TrainArgs;
use crate::checkpoint;
use crate::data::BatchSource;
use crate::error::TrainError;
use crate::losses::Losses;
use crate::model::SampleModel;
use crate::optimiser::Optimiser;
use crate::report::Reporter;
use crate::serve::serve;
use rayon::ThreadPoolBuilder;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// What a run has done.
#[derive(Debug)]
pub(crate) struct Trained {
    /// Steps before this run, from the checkpoint.
    pub(crate) first_step: u64,
    /// Steps in all.
    pub(crate) steps: u64,
    /// Whether these are all that were asked for; otherwise the job was told to stop.
    pub(crate) done: bool,
    /// Parts in which the last batch was computed.
    pub(crate) accum: usize,
    /// Loss of the last step of this run, if there was one.
    pub(crate) loss: Option<f64>,
    /// Steps that `--print-every` asks for, with their losses; empty unless `--json` is given.
    pub(crate) losses: Vec<(u64, f64)>,
}

/// Trains as `args` say, on one core whatever the machine has.
///
/// Where `$TANDEM_SOCK` names a socket, the job reports to it and obeys it. A job that is told to stop saves
/// its checkpoint and returns like a job that is done. A missing daemon is never an error.
pub(crate) fn run(args: &TrainArgs) -> Result<Trained, TrainError> {
    let socket = std::env::var_os("TANDEM_SOCK").filter(|path| !path.is_empty()).map(PathBuf::from);
    // Parallel arithmetic runs in the pool that it is called from.
    ThreadPoolBuilder::new().num_threads(1).build()?.install(|| match args.serve {
        Some(rate) => serve(args, rate, socket),
        None => train(args, socket),
    })
}

fn train(args: &TrainArgs, socket: Option<PathBuf>) -> Result<Trained, TrainError> {
    let ballast = ballast(args.allocate)?;
    let model = SampleModel::new(args.model, args.seed)?;
    let mut optimiser = Optimiser::new(&model)?;
    let first = match &args.checkpoint {
        Some(path) => checkpoint::load(path, args, &model, &mut optimiser)?,
        None => 0,
    };
    let mut losses = args.losses.as_deref().map(|path| Losses::open(path, first)).transpose()?;
    let source = BatchSource::new(args.model, args.seed, args.batch_size());
    let job = std::env::var("TANDEM_JOB_ID").unwrap_or_default();
    let mut accum = args.first_accum();
    let mut reporter = Reporter::new(socket, job, args.batch_size(), accum, (first, args.steps));

    let save = |step, optimiser: &Optimiser, losses: &mut Option<Losses>| {
        if let Some(losses) = losses {
            losses.flush()?;
        }
        match &args.checkpoint {
            Some(path) => checkpoint::save(path, args, step, &model, optimiser),
            None => Ok(()),
        }
    };
    let (mut done, mut saved) = (first, first);
    let (mut last, mut kept) = (None, Vec::new());
    while done < args.steps {
        let settings = reporter.pass_gate();
        if settings.stop {
            break;
        }
        accum = settings.accum;
        let start = cpu_time();
        let loss = optimiser.step(&model, &source.batch(done + 1)?, accum)?;
        done += 1;
        if let Some(losses) = &mut losses {
            losses.add(done, loss, accum)?;
        }
        last = Some(loss);
        if is_due(args.print_every, done) && args.json {
            kept.push((done, loss));
        } else if is_due(args.print_every, done) {
            writeln!(std::io::stdout(), "step {done} loss {loss:.6}")
                .map_err(TrainError::Output)?;
        }
        if is_due(args.checkpoint_every, done) {
            save(done, &optimiser, &mut losses)?;
            saved = done;
        }
        if args.fail_at == Some(done) {
            return Err(TrainError::Asked { step: done, code: args.fail_code });
        }
        idle(cpu_time().saturating_sub(start), args.gap);
        reporter.step(done, accum, loss);
    }
    if saved < done {
        save(done, &optimiser, &mut losses)?;
    }
    reporter.bye(done, accum, done >= args.steps);
    drop(ballast);
    let is_done = done >= args.steps;
    Ok(Trained { first_step: first, steps: done, done: is_done, accum, loss: last, losses: kept })
}

fn is_due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|every| step.is_multiple_of(every))
}

/// Sleeps so that `gap` per cent of the time are asleep if the job has a core to itself. The cost of a step
/// is its CPU time: loading data takes no longer when the core is shared.
fn idle(work: Duration, gap: u8) {
    if gap > 0 {
        std::thread::sleep(work.mul_f64(f64::from(gap) / f64::from(100 - gap)));
    }
}

pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Allocates memory and writes to every page of it.
fn ballast(mib: Option<usize>) -> Result<Vec<u8>, TrainError> {
    let mib = mib.unwrap_or(0);
    let mut bytes = Vec::new();
    let wanted = mib.checked_mul(1 << 20).ok_or(TrainError::Memory { mib })?;
    bytes.try_reserve_exact(wanted).map_err(|_| TrainError::Memory { mib })?;
    bytes.resize(wanted, 1);
    Ok(std::hint::black_box(bytes))
}
