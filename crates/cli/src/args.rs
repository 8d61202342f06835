//! The command line.

use crate::commands::QualityArgs;
use crate::daemon_args::DaemonArgs;
use crate::device_args::DeviceCommand;
use crate::kube_args::{KubeCommand, NodeArgs};
use crate::live_args::LiveCommand;
use crate::slurm_args::SlurmCommand;
use crate::store_args::StoreCommand;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tandem_core::{Memory, PlacementRule, Ratio, Span};
use tandem_policies::REGISTRY;
use tandem_sim::trace::TraceFormat;
use tandem_sim::{Estimates, FaultOptions, LoadFactor};

/// Shares GPUs between deep-learning jobs where that pays, and only there.
#[derive(Parser)]
#[command(name = "tandem", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Compare policies on a built-in trace; write report.html
    Demo(DemoArgs),
    /// Simulate a trace under one policy
    #[command(after_help = policies_help())]
    Sim(SimArgs),
    /// Simulate a trace under several policies and compare them
    #[command(after_help = policies_help())]
    Compare(CompareArgs),
    /// Inspect, convert and generate job traces
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Solve minimum-cost assignments
    #[command(subcommand)]
    Matching(MatchingCommand),
    /// Measure the speed of parts and the quality of policies
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Fit models to measurements and evaluate them
    #[command(subcommand)]
    Model(ModelCommand),
    /// Divide one GPU between tenants
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Schedule jobs on this machine until told to stop
    Daemon(DaemonArgs),
    /// Install Tandem in a Slurm cluster, or remove it
    #[command(subcommand)]
    Slurm(SlurmCommand),
    /// Install Tandem in a Kubernetes cluster, check or remove it
    #[command(subcommand)]
    Kube(KubeCommand),
    /// Serve the kubelet of this node as the driver of its GPUs
    Node(NodeArgs),
    /// Check, copy, restore or mend the store of a daemon
    #[command(subcommand)]
    Store(StoreCommand),
    /// Replay the decisions in a daemon's journal and compare
    Replay {
        /// The store of a daemon, state.db in its state folder
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write the generated pages of the documentation
    #[command(hide = true)]
    Reference {
        /// Folder to write to
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Run the sample job, tandem-train
    #[command(hide = true, disable_help_flag = true)]
    Train {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    #[command(flatten)]
    Live(LiveCommand),
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Folder for report.html
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) out: PathBuf,
    /// Measure real training jobs on this machine instead, first exclusive, then sharing; needs tandem-train
    #[arg(long)]
    pub(crate) live: bool,
    /// Seed of the built-in trace
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct SimArgs {
    /// Policy: NAME[:key=value,...], or python:FILE.py:Class[:key=value,...]
    #[arg(long, value_name = "POLICY", default_value = "tandem")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) common: SimulationArgs,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Policies: A,B:key=value,... [default: all]
    #[arg(long, value_name = "LIST")]
    pub(crate) policies: Option<String>,
    #[command(flatten)]
    pub(crate) common: SimulationArgs,
}

#[derive(Args)]
pub(crate) struct TraceInput {
    /// Trace format, guessed from the header if absent: tandem, venus, philly, muri, pollux, gavel,
    /// alibaba2023, sacct
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<TraceFormat>,
    /// Table of pair rates: Lucid's CSV or Gavel's JSON (which also has the speeds that gavel
    /// traces need); or muri-stages, the stage times of a muri trace
    #[arg(long, value_name = "FILE[:gpu=NAME]")]
    pub(crate) interference: Option<String>,
    /// Leave bad rows out and count them instead of refusing the trace
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

#[derive(Args)]
pub(crate) struct SimulationArgs {
    /// Trace of jobs; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    #[command(flatten)]
    pub(crate) input: TraceInput,
    /// Solo profiles of the classes at several batch sizes, Lucid's CSV: lets jobs run in sub-batches,
    /// and gives a predictor its features
    #[arg(long, value_name = "FILE")]
    pub(crate) solo: Option<String>,
    /// Cluster: NODESxGPUS[:MIB], a partition,nodes CSV, or a TOML file
    #[arg(long, value_name = "SPEC")]
    pub(crate) cluster: String,
    /// How whole GPUs are chosen
    #[arg(long, value_enum, default_value = "strict")]
    pub(crate) placement: PlacementArg,
    /// Classes of the jobs: those of the trace, or table:SEED to draw one of the table's for each job
    #[arg(long, value_name = "trace|table:SEED", default_value = "trace", value_parser = parse_classes)]
    pub(crate) classes: ClassesArg,
    /// What policies are told about durations: true, trace (its estimate column), history (from jobs
    /// that have finished), noisy:SIGMA
    #[arg(long, value_name = "KIND", default_value = "true", value_parser = parse_estimates)]
    pub(crate) estimates: Estimates,
    /// What policies are told about pair rates
    #[arg(long, value_enum, default_value = "true")]
    pub(crate) beliefs: BeliefsArg,
    /// Rates of co-located jobs whose pair was not measured
    #[arg(long, value_enum, default_value = "closed-form")]
    pub(crate) unmeasured: UnmeasuredArg,
    /// Share of the table's pairs that a predictor is trained on
    #[arg(long, value_name = "SHARE", default_value = "0.5", value_parser = parse_up_to_one)]
    pub(crate) train_pairs: f64,
    /// Fitted model to use instead of training one: FILE[:gpu=NAME]
    #[arg(long, value_name = "FILE[:gpu=NAME]")]
    pub(crate) model: Option<String>,
    /// Divide the inter-arrival times by this
    #[arg(long, value_name = "F", default_value = "1", allow_hyphen_values = true, value_parser = parse_load)]
    pub(crate) load: LoadFactor,
    /// Share of its rate that a gang loses when it spans more nodes than needed
    #[arg(long, value_name = "P", default_value = "0", allow_hyphen_values = true, value_parser = parse_penalty)]
    pub(crate) spread_penalty: Ratio,
    /// Network cost of gangs that span nodes: off, or contention, with a CSV model,share of
    /// communication where it is known
    #[arg(long, value_name = "off|contention[:FILE]", default_value = "off", value_parser = parse_network)]
    pub(crate) network: NetworkArg,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Seconds to restore the state of a gang of up to 8 GPUs, and of a larger one
    #[arg(long, value_name = "S,L", default_value = "40,60", allow_hyphen_values = true, value_parser = parse_restore)]
    pub(crate) restore_s: (Span, Span),
    /// Memory overhead of each tenant on a GPU, such as its CUDA context
    #[arg(long, value_name = "MIB", default_value = "0", allow_hyphen_values = true, value_parser = parse_memory)]
    pub(crate) context_mib: Memory,
    /// Failures of GPUs: mtbf_h=HOURS,repair_h=HOURS[,checkpoint_min=MINUTES]
    #[arg(long, value_name = "SPEC", value_parser = FaultOptions::parse)]
    pub(crate) faults: Option<FaultOptions>,
    /// Folder for report.html, results.json and a jobs CSV per policy
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write start, end and nodes of every job (one policy only; several: --out)
    #[arg(long, value_name = "FILE")]
    pub(crate) jobs_csv: Option<PathBuf>,
    /// Threads; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: usize,
    /// No progress bar and no messages
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Subcommand)]
pub(crate) enum TraceCommand {
    /// Statistics of a trace
    Info {
        /// Trace; - is standard input
        file: PathBuf,
        #[command(flatten)]
        input: TraceInput,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Write a trace in another format
    Convert {
        /// Trace; - is standard input
        file: PathBuf,
        #[command(flatten)]
        input: TraceInput,
        /// Format to write: tandem, venus, philly, muri, alibaba2023
        #[arg(long, value_name = "FORMAT", default_value = "tandem")]
        to: TraceFormat,
        /// File to write; standard output if absent
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Generate a synthetic trace in our own format
    Generate {
        /// Jobs
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
        jobs: u32,
        /// GPUs of the cluster that the trace is made for
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
        gpus: u32,
        /// Offered load: GPU time requested / GPU time available
        #[arg(long, default_value = "1", allow_hyphen_values = true, value_parser = parse_offered_load)]
        load: f64,
        /// Seed: the same seed gives the same trace
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Add services with promised latencies, which stay until the last job has arrived
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
        services: u32,
        /// File to write; standard output if absent
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub(crate) enum MatchingCommand {
    /// Assign as many rows as possible, and those at least cost; prints row,column lines counted
    /// from 0, then the total
    Solve {
        /// CSV of integer costs without a header, an empty cell is forbidden; - is standard input
        file: PathBuf,
    },
}

#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// A daemon under load: submissions, pages, starts
    Live(crate::commands::BenchLiveArgs),
    /// A real service beside real training on one core of this machine, with and without budgets
    Colocate(crate::commands::BenchColocateArgs),
    /// Random pairs of real training jobs on one core, one of them with --max-slowdown: how many share, and
    /// how much it is slowed down
    Slowdown(crate::commands::BenchSlowdownArgs),
    /// The same real training jobs on this machine and in the simulator, under several policies
    Fidelity(crate::commands::BenchFidelityArgs),
    /// How good the start times of `explain` are: coverage of their ranges and median error over several kinds
    /// of queue
    Starts(crate::commands::StartTimesArgs),
    /// Minimum-cost assignment of a generated instance
    Matching(BenchMatchingArgs),
    /// Every policy on published traces: writes docs/results.md and its chart. The exit code is 0
    /// even if a criterion is missed
    Quality(Box<QualityArgs>),
    /// Every policy against the exact optimum of random small instances
    Optimal(crate::commands::OptimalArgs),
    /// Every policy on small traces under unusual conditions: writes docs/regimes.md, the worst first
    Regimes(crate::commands::RegimesArgs),
}

#[derive(Args)]
pub(crate) struct BenchMatchingArgs {
    /// Rows, and columns
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) n: u32,
    /// Distribution of the costs
    #[arg(long, value_enum)]
    pub(crate) kind: MatchingKind,
    /// Seed: the same seed gives the same instance
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write the instance as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum MatchingKind {
    /// Independent uniform costs
    Uniform,
    /// Products of row and column factors, plus 1 % noise
    Rank1,
    /// 20 allowed cells per row, uniform costs
    Sparse,
}

impl MatchingKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Rank1 => "rank1",
            Self::Sparse => "sparse",
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum ModelCommand {
    /// Evaluate predictions of held-out pair rates
    Eval {
        #[command(flatten)]
        data: PairDataArgs,
        /// What is held out
        #[arg(long, value_enum, default_value = "5fold")]
        protocol: ProtocolArg,
        /// Seed of the folds and of the predictor
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Predict the rates of two classes that share a GPU
    Predict {
        /// A class by its name, or key=value,... with model, gpu_util, bandwidth_util (percent),
        /// memory_mib, steps_per_s, batch, amp
        #[arg(long, value_name = "CLASS")]
        a: String,
        /// The other class
        #[arg(long, value_name = "CLASS")]
        b: String,
        /// Model file [default: the built-in model]
        #[arg(long, value_name = "FILE")]
        model: Option<String>,
        /// Kind of GPU, where the model has several
        #[arg(long, value_name = "NAME")]
        gpu: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Suggest partners to measure a class with: the most informative about its other pairs
    Partners {
        /// A class by its name, or key=value,... as for predict
        #[arg(long, value_name = "CLASS")]
        class: String,
        /// Number of partners
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=400))]
        count: u32,
        /// Standard deviation of a measured rate
        #[arg(long, default_value_t = 0.05, value_parser = parse_up_to_one)]
        noise: f64,
        /// Model file [default: the built-in model]
        #[arg(long, value_name = "FILE")]
        model: Option<String>,
        /// Kind of GPU, where the model has several
        #[arg(long, value_name = "NAME")]
        gpu: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show how fast predictions of held-out pairs improve as rates are observed
    Online {
        #[command(flatten)]
        data: PairDataArgs,
        /// Standard deviation of an observed rate
        #[arg(long, default_value_t = 0.05, value_parser = parse_up_to_one)]
        noise: f64,
        /// Observations of each pair
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=10_000))]
        observations: u32,
        /// Seed of the folds and of the noise
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Train a predictor on all pairs of a table and write it to a file
    Fit {
        #[command(flatten)]
        data: PairDataArgs,
        /// File to write
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Description of the table, kept in the file [default: its file name]
        #[arg(long, value_name = "TEXT")]
        trained_on: Option<String>,
        /// Seed of the predictor
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Fit iteration times: α, β, γ, communication, cost of gradient accumulation
    Throughput {
        /// Step times: Pollux's placements.csv, or Lucid's table of solo speeds
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Fit memory by batch size for every model, data set and precision
    Memory {
        /// Lucid's table of solo profiles
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PlacementArg {
    /// On the fewest nodes, or not at all
    Strict,
    /// The first free GPUs, on any nodes
    Scatter,
}

impl From<PlacementArg> for PlacementRule {
    fn from(arg: PlacementArg) -> Self {
        match arg {
            PlacementArg::Strict => PlacementRule::Strict,
            PlacementArg::Scatter => PlacementRule::Scatter,
        }
    }
}

#[derive(Args)]
pub(crate) struct PairDataArgs {
    /// Table of pair rates: Lucid's CSV or Gavel's JSON
    #[arg(long, value_name = "FILE[:gpu=NAME]")]
    pub(crate) interference: String,
    /// Solo profiles of the classes: Lucid's CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) solo: Option<String>,
    /// Kind of GPU, where the table has several
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ProtocolArg {
    /// A fifth of the pairs, both directions, five times
    #[value(name = "5fold")]
    FiveFold,
    /// All pairs with a class of one model, for each model
    LeaveModelOut,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum BeliefsArg {
    /// The true rates
    True,
    /// Predicted from solo profiles and a share of the measured pairs
    Model,
    /// Predicted, then corrected by what is observed during the run
    Online,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum UnmeasuredArg {
    /// min(1, 100 / sum of utilisations) for a pair, the product for more
    ClosedForm,
    /// The device model: from the duty and the budget of each tenant, for any number of tenants
    Device,
}

#[derive(Clone, Copy)]
pub(crate) enum ClassesArg {
    Trace,
    Table { seed: u64 },
}

#[derive(Clone)]
pub(crate) enum NetworkArg {
    Off,
    Contention { shares: Option<String> },
}

fn parse_network(text: &str) -> Result<NetworkArg, String> {
    match text.split_once(':') {
        None if text == "off" => Ok(NetworkArg::Off),
        None if text == "contention" => Ok(NetworkArg::Contention { shares: None }),
        Some(("contention", file)) => Ok(NetworkArg::Contention { shares: Some(file.to_owned()) }),
        _ => Err("known are off, contention, contention:FILE".to_owned()),
    }
}

fn parse_classes(text: &str) -> Result<ClassesArg, String> {
    match text.split_once(':') {
        None if text == "trace" => Ok(ClassesArg::Trace),
        Some(("table", seed)) => seed
            .parse()
            .map(|seed| ClassesArg::Table { seed })
            .map_err(|_| "table:SEED needs a whole number".to_owned()),
        _ => Err("known are trace, table:SEED".to_owned()),
    }
}

fn parse_up_to_one(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 1".to_owned())
}

pub(crate) fn parse_estimates(text: &str) -> Result<Estimates, String> {
    match text.split_once(':') {
        None if text == "true" => Ok(Estimates::True),
        None if text == "trace" => Ok(Estimates::Trace),
        None if text == "history" => Ok(Estimates::History),
        Some(("noisy", sigma)) => {
            let sigma = sigma.parse::<f64>().ok().filter(|sigma| (0.0..=20.0).contains(sigma));
            let sigma = sigma.ok_or("noisy:SIGMA needs a number from 0 to 20")?;
            Ok(Estimates::Noisy { sigma })
        }
        _ => Err("known are true, trace, history, noisy:SIGMA".to_owned()),
    }
}

pub(crate) fn parse_load(text: &str) -> Result<LoadFactor, String> {
    LoadFactor::parse(text)
        .ok_or_else(|| "a load is a decimal number above 0, such as 1.5".to_owned())
}

fn parse_offered_load(text: &str) -> Result<f64, String> {
    let load = text.parse::<f64>().ok().filter(|load| (0.001..=1000.0).contains(load));
    load.ok_or_else(|| "an offered load is a number from 0.001 to 1000".to_owned())
}

/// The share of the rate that remains, as an exact ratio.
pub(crate) fn parse_penalty(text: &str) -> Result<Ratio, String> {
    const ONE: u64 = 1_000_000_000_000;
    let parts = tandem_sim::parse_scaled(text, 12).ok().filter(|&parts| parts < ONE);
    let parts = parts.ok_or("a penalty is a decimal number from 0 to below 1, such as 0.2")?;
    Ok(Ratio::new(ONE - parts, ONE))
}

fn parse_restore(text: &str) -> Result<(Span, Span), String> {
    let seconds = |text: &str| {
        tandem_sim::parse_scaled(text, 6).ok().filter(|&micros| micros <= 10_u64.pow(14)).map(Span)
    };
    let (small, large) = text.split_once(',').unwrap_or((text, text));
    let both = seconds(small).zip(seconds(large));
    both.ok_or_else(|| "restore costs are one or two numbers of seconds, such as 40,60".to_owned())
}

fn parse_memory(text: &str) -> Result<Memory, String> {
    let memory =
        tandem_sim::parse_scaled(text, 3).ok().filter(|&thousandths| thousandths <= 1 << 50);
    memory.map(Memory).ok_or_else(|| "memory is a number of MiB".to_owned())
}

fn policies_help() -> String {
    let mut text = "Policies:\n".to_owned();
    for entry in REGISTRY {
        text += &format!("  {:<10} {}\n", entry.name, entry.summary);
        for param in entry.params {
            text += &format!("  {:<10}   {}={}: {}\n", "", param.name, param.default, param.help);
        }
    }
    text
}
