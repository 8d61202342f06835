//! Arguments of `tandem slurm`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum SlurmCommand {
    /// Write Slurm's plugin, prolog, epilog and settings for Tandem, or show them
    Install(SlurmInstallArgs),
    /// Remove the files that install wrote
    Uninstall {
        /// The folder of slurm.conf
        #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
        dir: PathBuf,
    },
    /// Release all jobs that Tandem holds as plain Slurm jobs; needs no daemon
    Release {
        /// Show what would be done and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check Slurm and its configuration, with advice; exit code 1 if something is to be done
    Doctor {
        /// Partition whose GPU jobs Tandem places
        #[arg(long, default_value = "tandem")]
        partition: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// What Tandem would gain, from the jobs of Slurm's accounting; changes nothing
    #[command(subcommand)]
    Shadow(ShadowCommand),
    /// Forward the reports of a job on a node to the daemon; started by the prolog
    #[command(hide = true)]
    Relay(RelayArgs),
}

#[derive(Args)]
pub(crate) struct SlurmInstallArgs {
    /// Print the files instead of writing them
    #[arg(long)]
    pub(crate) print: bool,
    /// The folder of slurm.conf
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
    pub(crate) dir: PathBuf,
    /// Partition whose GPU jobs Tandem places
    #[arg(long, default_value = "tandem")]
    pub(crate) partition: String,
    /// GPUs of its largest node; read from Slurm if absent
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<u32>,
    /// Address for the reports of jobs: HOST:PORT of the daemon's slurm.listen, as nodes reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) report_to: Option<String>,
    /// Path of this program on the nodes
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/tandem")]
    pub(crate) program: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum ShadowCommand {
    /// Decide on the jobs of the last days in the simulator, and compare the completion times
    Report(ShadowReportArgs),
}

#[derive(Args)]
pub(crate) struct ShadowReportArgs {
    /// Days of history to ask sacct for
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3660))]
    pub(crate) days: u32,
    /// Output of sacct to read instead, as docs/traces.md describes it
    #[arg(long, value_name = "FILE", conflicts_with = "days")]
    pub(crate) history: Option<PathBuf>,
    /// Partition whose jobs Tandem would place
    #[arg(long, default_value = "tandem")]
    pub(crate) partition: String,
    /// Its GPUs: NODESxGPUS[:MIB] or a TOML file; read from Slurm if absent
    #[arg(long, value_name = "SPEC")]
    pub(crate) cluster: Option<String>,
    /// Measured pair rates of classes like those of the site: Lucid's CSV or Gavel's JSON
    #[arg(long, value_name = "FILE[:gpu=NAME]")]
    pub(crate) interference: Option<String>,
    /// How often the classes of the jobs are drawn
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) draws: u32,
    /// The policy of the daemon
    #[arg(long, default_value = "tandem")]
    pub(crate) policy: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RelayArgs {
    /// HOST:PORT of the daemon's slurm.listen
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "stop")]
    pub(crate) to: Option<String>,
    /// File of the secret that relays and the daemon share
    #[arg(long, value_name = "FILE", required_unless_present = "stop")]
    pub(crate) secret_file: Option<PathBuf>,
    /// The job's id in Slurm
    #[arg(long)]
    pub(crate) job: u64,
    /// The job's user
    #[arg(long, required_unless_present = "stop")]
    pub(crate) uid: Option<u32>,
    /// Run in the background
    #[arg(long)]
    pub(crate) detach: bool,
    /// Stop the relay of this job
    #[arg(long)]
    pub(crate) stop: bool,
    /// The folder of the jobs' sockets
    #[arg(long, value_name = "DIR", default_value = "/run/tandem/slurm")]
    pub(crate) dir: PathBuf,
}
