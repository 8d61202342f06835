//! The command line of the sample job.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;

/// Upper limit of `--gap`, in percent.
const GAP_MAX: i64 = 95;

/// What a step is bound by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum ModelKind {
    /// Dense layers: bound by arithmetic
    #[default]
    Mlp,
    /// Convolutions: bound by arithmetic, in many small pieces
    Cnn,
    /// A large table of embeddings: bound by the bandwidth of memory
    Memory,
}

/// Train a small model on generated data, on one core: the sample job of Tandem
#[derive(Parser, Clone, Debug)]
#[command(name = "tandem-train", version, max_term_width = 100)]
pub(crate) struct TrainArgs {
    /// Model, by what bounds its steps
    #[arg(long, value_enum, default_value_t)]
    pub(crate) model: ModelKind,
    /// Steps to train in all, those before a checkpoint included
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) steps: u64,
    /// Samples in a batch
    #[arg(long, value_name = "B", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch: u32,
    /// Seed of the data and of the first weights
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Sub-batches per batch until the daemon sets another number [default: $TANDEM_ACCUM, or 1]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) accum: Option<u32>,
    /// Share of the time to sleep: imitates a job that loads data while its device idles
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=GAP_MAX))]
    pub(crate) gap: u8,
    /// File for the loss of every step: step,loss,accum
    #[arg(long, value_name = "FILE")]
    pub(crate) losses: Option<PathBuf>,
    /// File for weights, optimiser and step number, written when the job is stopped and at its end.
    /// If it exists, training continues from it
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Also write the checkpoint every N steps
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: Option<u64>,
    /// Print a line `step N loss L` every N steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) print_every: Option<u64>,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer requests that arrive at random, so many per second, instead of training; --steps bounds them
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) serve: Option<f64>,
    /// CPU time that a request takes at least
    #[arg(long, value_name = "MS", default_value_t = 0.0, requires = "serve", value_parser = milliseconds)]
    pub(crate) request_ms: f64,
    /// Additional memory to occupy
    #[arg(long, value_name = "MIB")]
    pub(crate) allocate: Option<usize>,
    /// Fail after this step, with the code of --fail-code
    #[arg(long, value_name = "STEP")]
    pub(crate) fail_at: Option<u64>,
    /// Exit code of --fail-at
    #[arg(long, value_name = "CODE", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) fail_code: u8,
}

/// Requests per second.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=1e5).contains(rate));
    rate.ok_or_else(|| "give 0.001 to 100000 requests per second".to_owned())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms| (0.0..=6e4).contains(ms));
    ms.ok_or_else(|| "give 0 to 60000 milliseconds".to_owned())
}

impl TrainArgs {
    pub(crate) fn batch_size(&self) -> usize {
        self.batch as usize
    }

    /// The initial number of sub-batches. An invalid value in the environment is ignored.
    pub(crate) fn first_accum(&self) -> usize {
        let asked = self.accum.or_else(|| std::env::var("TANDEM_ACCUM").ok()?.parse().ok());
        (asked.unwrap_or(1) as usize).clamp(1, self.batch_size())
    }
}
