//! Arguments of `tandem kube` and `tandem node`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum KubeCommand {
    /// Install the admission policy, roles and claim templates, or print them
    Install(KubeInstallArgs),
    /// Release all gated pods and remove what install created; running pods go on
    Uninstall(KubeInstallArgs),
    /// Release all gated pods as plain pods; needs no daemon
    Release {
        /// Show what would be done and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        /// Only if no daemon has renewed its Lease for this long
        #[arg(long, value_name = "SECONDS")]
        if_away: Option<u32>,
        /// The namespace of Tandem's Lease
        #[arg(long, default_value = "tandem")]
        namespace: String,
    },
    /// Check whether the cluster has what Tandem needs
    Doctor {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct KubeInstallArgs {
    /// Print what would be done instead of doing it
    #[arg(long)]
    pub(crate) print: bool,
    /// The namespace of Tandem itself
    #[arg(long, default_value = "tandem")]
    pub(crate) namespace: String,
    /// Namespace whose GPU pods Tandem places; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) manage: Vec<String>,
    /// Image with this program: run daemon, watchdog and node agents in the cluster
    #[arg(long)]
    pub(crate) image: Option<String>,
}

#[derive(Args)]
pub(crate) struct NodeArgs {
    /// The node's name in the cluster
    #[arg(long)]
    pub(crate) name: String,
    /// The kubelet's folder
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet: PathBuf,
    /// The folder of CDI specifications
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub(crate) cdi: PathBuf,
    /// Publish this many fake GPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) fake_gpus: u32,
    /// Memory of each fake GPU
    #[arg(long, value_name = "MIB", default_value_t = 24_576, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) fake_memory_mib: u64,
}
