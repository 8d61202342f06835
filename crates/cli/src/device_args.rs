//! The command line of `tandem device`.

use crate::args::PairDataArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use tandem_models::device::{Objective, SmScheduler};

const TENANTS_HELP: &str = "\
Tenants: FILE[:key=value,...],FILE... where FILE is an operator trace in Orion's columns and an item with = belongs to the tenant before it
  batch=N      rescale the trace to this batch size
  base=N       batch size of the trace; taken from a name such as resnet50_4_fwd if absent
  h=US         least time between launches [28]
  H=US         host time per iteration [300]
  mem=SIZE     memory, such as 4G, 512M or MiB [0]
  slo=Y        least share of its speed alone that it keeps [0]
  weight=W     weight in the objective [1]
  arrivals=R   answers R requests per second, an iteration each, instead of iterating without end
  p99=MS       latency that 99 of 100 requests have to keep
  name=TEXT    what it is called; the file's name if absent
GPUs: v100, v100-32g, a100, a100-40g, h100, p100, t4, rtx3090, with :sms=N,mem=SIZE,context=SIZE,beta_compute=X,beta_memory=X,beta_unknown=X,sigma=X,kappa=X";

#[derive(Subcommand)]
pub(crate) enum DeviceCommand {
    /// Compare the ways in which tenants can share one GPU
    #[command(after_help = TENANTS_HELP)]
    Compare {
        #[command(flatten)]
        device: DeviceArgs,
        /// Modes: all, or some of sequential, slice, equal, double, uncapped, search, and
        /// v=0.6/0.67/0.67 for budgets of your own
        #[arg(long, value_name = "LIST", default_value = "all")]
        modes: String,
        #[command(flatten)]
        chart: ChartArgs,
    },
    /// Find each tenant's budget, or say that sharing does not pay
    #[command(after_help = TENANTS_HELP)]
    Allocate {
        #[command(flatten)]
        device: DeviceArgs,
        /// What chooses budgets
        #[arg(long, value_enum, default_value = "operators")]
        model: ModelArg,
        #[command(flatten)]
        chart: ChartArgs,
    },
    /// Increase the arrival rate of requests and show whether their latency target holds
    #[command(after_help = TENANTS_HELP)]
    Sweep {
        #[command(flatten)]
        device: DeviceArgs,
        /// Requests per second of every tenant with p99=
        #[arg(long, value_name = "LIST", value_delimiter = ',', required = true, value_parser = parse_rate)]
        arrivals: Vec<f64>,
    },
    /// Evaluate the law for several copies of one model against ParvaGPU's measurements
    Validate {
        /// Files of measurements, one for each model
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Models to leave out of the errors
        #[arg(long, value_name = "LIST", value_delimiter = ',')]
        without: Vec<String>,
        /// Largest batch size that counts in the errors
        #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true)]
        batch_max: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Evaluate the pair rates of the device model and of the closed form against measured ones
    Pairs {
        #[command(flatten)]
        data: PairDataArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Generate an operator trace
    Generate {
        /// Operators of an iteration
        #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        operators: u32,
        /// Median duration of an operator in microseconds
        #[arg(long, value_name = "US", default_value_t = 25.0, value_parser = parse_median)]
        duration_us: f64,
        /// Median of the SMs an operator wants
        #[arg(long, value_name = "N", default_value_t = 30.0, value_parser = parse_median)]
        sms: f64,
        /// Seed: the same seed gives the same trace
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// File to write; standard output if absent
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

#[derive(Args)]
pub(crate) struct DeviceArgs {
    /// GPU: NAME[:key=value,...]
    #[arg(long, value_name = "GPU", default_value = "v100")]
    pub(crate) gpu: String,
    /// Tenants: FILE[:key=value,...],...
    #[arg(long, value_name = "LIST")]
    pub(crate) tenants: String,
    /// How operators share SMs when they want more than there are
    #[arg(long, value_enum, default_value = "fifo")]
    pub(crate) scheduler: SchedulerArg,
    /// What the search maximises
    #[arg(long, value_enum, default_value = "nash")]
    pub(crate) objective: ObjectiveArg,
    /// Search by as many full evaluations as it takes: seconds instead of milliseconds
    #[arg(long)]
    pub(crate) thorough: bool,
    /// Seed of the requests' arrivals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct ChartArgs {
    /// Write an HTML page that shows who ran when on the SMs
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// Milliseconds that the chart shows
    #[arg(long, value_name = "MS", default_value_t = 5.0, value_parser = parse_chart_ms)]
    pub(crate) chart_ms: f64,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SchedulerArg {
    /// In order of issue
    Fifo,
    /// In proportion to demand
    Prop,
}

impl From<SchedulerArg> for SmScheduler {
    fn from(arg: SchedulerArg) -> Self {
        match arg {
            SchedulerArg::Fifo => SmScheduler::Fifo,
            SchedulerArg::Prop => SmScheduler::Prop,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ObjectiveArg {
    /// The sum of the logarithms of all speeds: nobody starves
    Nash,
    /// The sum of all speeds
    Stp,
}

impl ObjectiveArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nash => "nash",
            Self::Stp => "stp",
        }
    }
}

impl From<ObjectiveArg> for Objective {
    fn from(arg: ObjectiveArg) -> Self {
        match arg {
            ObjectiveArg::Nash => Objective::Nash,
            ObjectiveArg::Stp => Objective::Stp,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum ModelArg {
    /// The operators, event by event; a summary of them only proposes budgets
    Operators,
    /// The summary alone, which is rough; what it finds is evaluated with the operators
    Summary,
}

impl ModelArg {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Operators => "operators",
            Self::Summary => "summary",
        }
    }
}

fn within(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("a number from {low} to {high}"))
}

fn parse_rate(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1e6)
}

fn parse_median(text: &str) -> Result<f64, String> {
    within(text, 1.0, 10_000.0)
}

fn parse_chart_ms(text: &str) -> Result<f64, String> {
    within(text, 0.1, 1000.0)
}
