//! Arguments of `tandem slurm`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum SlurmCommand {
    /// Show or write what Slurm needs: the plugin that holds GPU jobs, prolog and epilog, settings
    Install(InstallArgs),
    /// Remove the files that install wrote
    Uninstall {
        /// The folder of slurm.conf
        #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
        dir: PathBuf,
    },
    /// Give all jobs that Tandem holds back to Slurm, as they were submitted; needs no daemon
    Release {
        /// Say what would be done
        #[arg(long)]
        dry_run: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Carry what a job on a node reports to the daemon; started by the prolog
    #[command(hide = true)]
    Relay(RelayArgs),
}

#[derive(Args)]
pub(crate) struct InstallArgs {
    /// Only show it
    #[arg(long)]
    pub(crate) print: bool,
    /// The folder of slurm.conf
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
    pub(crate) dir: PathBuf,
    /// Partition whose GPU jobs Tandem places
    #[arg(long, default_value = "tandem")]
    pub(crate) partition: String,
    /// GPUs of its largest node; asked of Slurm if absent
    #[arg(long, value_name = "N")]
    pub(crate) gpus: Option<u32>,
    /// Where jobs report to: HOST:PORT of the daemon's slurm.listen, as nodes reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) report_to: Option<String>,
    /// This program on the nodes
    #[arg(long, value_name = "FILE", default_value = "/usr/bin/tandem")]
    pub(crate) program: PathBuf,
}

#[derive(Args)]
pub(crate) struct RelayArgs {
    /// HOST:PORT of the daemon's slurm.listen
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "stop")]
    pub(crate) to: Option<String>,
    /// File of the secret that relays and the daemon share
    #[arg(long, value_name = "FILE", required_unless_present = "stop")]
    pub(crate) secret_file: Option<PathBuf>,
    /// The job's number in Slurm
    #[arg(long)]
    pub(crate) job: u64,
    /// The user whose job it is
    #[arg(long, required_unless_present = "stop")]
    pub(crate) uid: Option<u32>,
    /// Return at once and go on in the background
    #[arg(long)]
    pub(crate) detach: bool,
    /// End the relay of this job
    #[arg(long)]
    pub(crate) stop: bool,
    /// Where sockets of jobs are
    #[arg(long, value_name = "DIR", default_value = "/run/tandem/slurm")]
    pub(crate) dir: PathBuf,
}
