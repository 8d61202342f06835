//! The options of `tandem bench live`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct BenchLiveArgs {
    /// Policy of the daemon: NAME[:key=value,...]
    #[arg(long, value_name = "POLICY", default_value = "tandem")]
    pub(crate) policy: String,
    /// Clients that submit at once, each over a connection of its own
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) clients: u32,
    /// Seconds of submitting
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Pending jobs while pages are read and short jobs run
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2000..=1_000_000))]
    pub(crate) jobs: u32,
    /// Short jobs whose starts are timed
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub(crate) short: u32,
    /// Fake devices
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) devices: u32,
    /// Pages to read of each kind
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) pages: u32,
    /// Folder for the daemon's state; use a disk, because its writes are measured
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// No messages
    #[arg(long)]
    pub(crate) quiet: bool,
}
