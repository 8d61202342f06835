//! Arguments of the commands that talk to the daemon.

use crate::job_options::JobOptions;
use crate::output::{ColorChoice, ListOutput};
use crate::units;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use tandem_daemon::job::JobState;

const SELECTORS: &str = "Jobs: a number, 1-10:2,14, task 3 of array 17 as 17_3, last (your latest), \
                         all (yours that have not ended)";

#[derive(Subcommand)]
pub(crate) enum LiveCommand {
    /// Submit a job: a script with its arguments, or a command after --
    #[command(after_help = SCRIPTS)]
    Submit(Box<SubmitArgs>),
    /// Submit a job, show its output, and exit with its exit code
    #[command(after_help = SCRIPTS)]
    Run(Box<RunArgs>),
    /// List pending, held, running and paused jobs
    Queue(QueueArgs),
    /// Show jobs in full: co-located jobs, slow-down, enforcement
    #[command(after_help = SELECTORS)]
    Info(JobsArgs),
    /// Say why a job is pending, and when it will start
    #[command(after_help = SELECTORS)]
    Explain(ExplainArgs),
    /// Show the output of a job
    #[command(after_help = SELECTORS)]
    Logs(LogsArgs),
    /// Cancel pending or running jobs
    #[command(after_help = SELECTORS)]
    Cancel(JobsArgs),
    /// Keep pending jobs from starting
    #[command(after_help = SELECTORS)]
    Hold(JobsArgs),
    /// Let held jobs start
    #[command(after_help = SELECTORS)]
    Release(JobsArgs),
    /// Pause running jobs
    #[command(after_help = SELECTORS)]
    Pause(JobsArgs),
    /// Resume paused jobs
    #[command(after_help = SELECTORS)]
    Resume(JobsArgs),
    /// Set in how many sub-batches a job computes a batch
    Accum(AccumArgs),
    /// Wait until jobs have ended
    #[command(after_help = SELECTORS)]
    Wait(WaitArgs),
    /// Show GPUs, tenants and queue, live; q quits
    Top(ClientArgs),
    /// List GPUs with tenants, rates and throughput; drain GPUs
    Gpus(GpusArgs),
    /// Show GPU time by user
    Usage(UsageArgs),
    /// Show what was learned about classes of jobs
    Classes(ListArgs),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check what keeps the daemon from working well
    Doctor(ClientArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write manual pages
    Man {
        /// Folder to write to
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

const SCRIPTS: &str = "A script may have options in lines that begin with #TANDEM or #SBATCH, before its first \
                       command; the command line takes precedence. It is run by its #! line and read when it starts.";

#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Colours
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: ColorChoice,
    /// Unix socket of the daemon
    #[arg(long, value_name = "FILE", conflicts_with = "host")]
    pub(crate) socket: Option<PathBuf>,
    /// Address of a daemon that listens on TCP
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) host: Option<String>,
    /// File of the token for --host
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) job: JobOptions,
    /// Wait until the job has ended, and exit with its exit code
    #[arg(short = 'W', long)]
    pub(crate) wait: bool,
    /// Do not submit it; show when and where it would run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Policy for --dry-run
    #[arg(long, value_name = "POLICY", requires = "dry_run")]
    pub(crate) policy: Option<String>,
    /// Print only the job numbers, one per line
    #[arg(long)]
    pub(crate) parsable: bool,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
    /// A script with its arguments, or a command after --
    #[arg(trailing_var_arg = true, required = true, value_name = "SCRIPT|-- COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobOptions,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
    /// A script with its arguments, or a command after --
    #[arg(trailing_var_arg = true, required = true, value_name = "SCRIPT|-- COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct AccumArgs {
    #[command(flatten)]
    pub(crate) common: ClientArgs,
    /// Job: a number or `last`
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Number of sub-batches, or auto to let the policy decide
    #[arg(value_name = "PARTS|auto", value_parser = parts)]
    pub(crate) parts: Parts,
}

/// Number of sub-batches; without one the policy decides.
#[derive(Clone, Copy)]
pub(crate) struct Parts(pub(crate) Option<u32>);

fn parts(text: &str) -> Result<Parts, String> {
    match text {
        "auto" => Ok(Parts(None)),
        _ => text
            .parse()
            .map(|parts| Parts(Some(parts)))
            .map_err(|_| "give a number, or auto".to_owned()),
    }
}

#[derive(Args)]
pub(crate) struct QueueArgs {
    /// Also show jobs that have ended
    #[arg(long, conflicts_with = "state")]
    pub(crate) all: bool,
    /// Only jobs in these states: PD,R,S,H,CG,CD,F,CA,TO,OOM,UN or their names
    #[arg(short = 's', long, value_name = "LIST", value_delimiter = ',', value_parser = state)]
    pub(crate) state: Vec<JobState>,
    /// Only jobs of this user
    #[arg(short = 'u', long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Only your own jobs
    #[arg(long, conflicts_with = "user")]
    pub(crate) mine: bool,
    /// Only the latest N jobs
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

fn state(text: &str) -> Result<JobState, String> {
    let upper = text.to_ascii_uppercase();
    let found = JobState::parse(&text.to_ascii_lowercase()).or_else(|| JobState::parse(&upper));
    found.ok_or_else(|| {
        let all: Vec<&str> = JobState::ALL.iter().map(|state| state.letters()).collect();
        format!("'{}' is no state; give {}", text.escape_debug(), all.join(", "))
    })
}

#[derive(Args)]
pub(crate) struct JobsArgs {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Explain as if this policy decided
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct LogsArgs {
    /// The job
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
    /// Follow the output until the job has ended
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Standard error instead of standard output
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Only the last N lines
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) lines: Option<usize>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Jobs
    #[arg(required = true, value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    /// Exit with the exit code of the job; the highest of several
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// Give up after this time: 90 is minutes, 45s, 1h30m
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) timeout: Option<f64>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GpusArgs {
    #[command(subcommand)]
    pub(crate) change: Option<GpusCommand>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand)]
pub(crate) enum GpusCommand {
    /// Start no further job on these GPUs; running jobs continue
    Drain(DevicesArgs),
    /// Allow jobs on these GPUs again
    Undrain(DevicesArgs),
}

#[derive(Args)]
pub(crate) struct DevicesArgs {
    /// GPU numbers: 0-3,6
    #[arg(value_name = "LIST")]
    pub(crate) devices: String,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct UsageArgs {
    /// Start of the period: 7d is a week ago, HH:MM, 2026-12-24 [default: the beginning]
    #[arg(long, value_name = "MOMENT", value_parser = units::since)]
    pub(crate) since: Option<f64>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every key with its value
    Show {
        /// Also show where each value comes from
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        common: ClientArgs,
    },
}
