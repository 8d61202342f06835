//! Arguments of the commands that talk to the daemon.

use crate::job_options::JobOptions;
use crate::output::{ColorChoice, ListOutput};
use crate::units;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;
use tandem_daemon::job::JobState;
use tandem_daemon::tokens::Scope;

const SELECTORS: &str = "Jobs: a number, 1-10:2,14, task 3 of array 17 as 17_3, tasks as 17_1-4, 17_* or 17 (its whole array), \
                         last (your latest), all (yours that have not ended)";

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
    /// Stop running jobs, with a checkpoint if they can, and queue them
    #[command(after_help = SELECTORS)]
    Requeue(JobsArgs),
    /// Set in how many sub-batches a job computes a batch
    Accum(AccumArgs),
    /// Wait until jobs have ended
    #[command(after_help = SELECTORS)]
    Wait(WaitArgs),
    /// Show GPUs, tenants and queue, live; keys scroll and filter
    Top(ClientArgs),
    /// Show GPUs, queue, jobs and pair rates in a web browser, live
    Dashboard(DashboardArgs),
    /// List GPUs with tenants, rates and throughput; drain GPUs
    Gpus(GpusArgs),
    /// Show GPU time by user
    Usage(UsageArgs),
    /// Write the history and the learned rates as a trace to compare
    Export(ExportArgs),
    /// Reserve GPUs for users or for maintenance, list and cancel these
    Reserve(ReserveArgs),
    /// Make, list and revoke tokens for clients on TCP
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show what was learned about classes of jobs
    Classes(ListArgs),
    /// Show the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check what keeps the daemon from working well
    Doctor(ClientArgs),
    /// Serve the queue to assistants, by the Model Context Protocol
    Mcp(McpArgs),
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
    /// Address of a daemon that listens on TCP; http://HOST:PORT without TLS
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) host: Option<String>,
    /// File of the token for --host
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) token_file: Option<PathBuf>,
    /// Certificates to trust for --host, such as the daemon's own
    #[arg(long, value_name = "FILE", requires = "host")]
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct DashboardArgs {
    /// Port of the loopback interface; any that is free if 0
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) port: u16,
    /// Only print the address
    #[arg(long)]
    pub(crate) no_open: bool,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
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
    pub(crate) parts: SubBatchCount,
}

/// Number of sub-batches; without one the policy decides.
#[derive(Clone, Copy)]
pub(crate) struct SubBatchCount(pub(crate) Option<u32>);

fn parts(text: &str) -> Result<SubBatchCount, String> {
    match text {
        "auto" => Ok(SubBatchCount(None)),
        _ => text
            .parse()
            .map(|parts| SubBatchCount(Some(parts)))
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
    Drain(DrainArgs),
    /// Allow jobs on these GPUs again
    Undrain(DevicesArgs),
}

#[derive(Args)]
pub(crate) struct DrainArgs {
    /// Why, for those who wait: `GPU 0 is drained (fan)`
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Until then: now+2h, HH:MM, 2026-12-24 [default: until undrain]
    #[arg(long, value_name = "MOMENT", value_parser = units::moment)]
    pub(crate) until: Option<f64>,
    #[command(flatten)]
    pub(crate) devices: DevicesArgs,
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
pub(crate) struct ExportArgs {
    /// Folder for trace.csv and rates.csv
    #[arg(long, value_name = "DIR", default_value = "export")]
    pub(crate) out: PathBuf,
    /// Jobs submitted since: 30d is 30 days ago, HH:MM, 2026-12-24 [default: the beginning]
    #[arg(long, value_name = "MOMENT", value_parser = units::since)]
    pub(crate) since: Option<f64>,
    /// Keep the names of users and classes; without it they are numbered
    #[arg(long)]
    pub(crate) names: bool,
    /// Also write classes.csv: the program, script and arguments that define each class
    #[arg(long)]
    pub(crate) commands: bool,
    /// Compare policies on what was written: A,B:key=value,...
    #[arg(long, value_name = "LIST")]
    pub(crate) compare: Option<String>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
pub(crate) struct UsageArgs {
    /// Start of the period: 7d is a week ago, HH:MM, 2026-12-24 [default: the beginning]
    #[arg(long, value_name = "MOMENT", value_parser = units::since)]
    pub(crate) since: Option<f64>,
    /// Add up by user, account, month [default: user]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["user", "account", "month"])]
    pub(crate) by: Vec<String>,
    #[command(flatten)]
    pub(crate) list: ListArgs,
}

#[derive(Args)]
pub(crate) struct McpArgs {
    /// Also offer tools that submit and cancel jobs
    #[arg(long)]
    pub(crate) allow_changes: bool,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReserveArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReserveCommand>,
    /// Number of GPUs; Tandem chooses them
    #[arg(short = 'G', long, value_name = "N", conflicts_with = "devices")]
    pub(crate) gpus: Option<u32>,
    /// GPU numbers: 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(crate) devices: Option<String>,
    /// Start: now+2h, HH:MM, 2026-12-24T08:00 [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = units::moment)]
    pub(crate) start: Option<f64>,
    /// End; HH:MM is the first one after the start
    #[arg(long, value_name = "MOMENT")]
    pub(crate) end: Option<String>,
    /// Users whose jobs may use it (submit --reservation N) [default: nobody, for maintenance]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) users: Vec<String>,
    /// Start no other job there so long before: for jobs that cannot be stopped
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) lead: Option<f64>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) common: ClientArgs,
}

#[derive(Subcommand)]
pub(crate) enum ReserveCommand {
    /// List reservations and drains that are not over
    List(ListArgs),
    /// Cancel reservations
    Cancel {
        /// Numbers of reservations
        #[arg(required = true, value_name = "RESERVATION")]
        reservations: Vec<u64>,
        #[command(flatten)]
        common: ClientArgs,
    },
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token; it is shown once
    Create {
        /// What the token is for
        #[arg(long, value_name = "NAME", default_value = "")]
        name: String,
        /// The user that it stands for [default: you]; operators only
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// What it allows: read, submit, operate [default: read,submit]
        #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = scope)]
        scope: Vec<Scope>,
        /// Its life: 12h, 30d [default: 90d]
        #[arg(long, value_name = "TIME", value_parser = units::span)]
        expires: Option<f64>,
        #[command(flatten)]
        common: ClientArgs,
    },
    /// List your tokens; all tokens for operators
    List(ListArgs),
    /// Revoke tokens
    Revoke {
        /// Numbers of tokens
        #[arg(required = true, value_name = "TOKEN")]
        tokens: Vec<u64>,
        #[command(flatten)]
        common: ClientArgs,
    },
}

fn scope(text: &str) -> Result<Scope, String> {
    match text {
        "read" => Ok(Scope::Read),
        "submit" => Ok(Scope::Submit),
        "operate" => Ok(Scope::Operate),
        _ => Err("give read, submit or operate".to_owned()),
    }
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
    /// Print a configuration file with every key, its meaning and its default
    Example,
}
