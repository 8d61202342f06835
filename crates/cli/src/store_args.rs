//! The command line of `tandem store`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Check a store and list what is wrong with it; a daemon may run meanwhile
    Check {
        #[command(flatten)]
        place: StorePlace,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Copy a store to a new file; a daemon may run meanwhile
    Backup {
        /// The new file
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Put a copy in the place of the store, which is kept beside it; without a daemon
    Restore {
        /// The copy
        file: PathBuf,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Remove a job from the store, without a daemon; its process, if it has one, is left alone
    Drop {
        /// The job
        #[arg(value_parser = job_number)]
        job: u64,
        #[command(flatten)]
        place: StorePlace,
    },
    /// Take over the state of a machine that is gone, without a daemon
    Adopt {
        #[command(flatten)]
        place: StorePlace,
    },
}

#[derive(Args)]
pub(crate) struct StorePlace {
    /// State folder of the daemon [default: daemon.state]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

fn job_number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| "give the number of one job, as tandem store check shows it".to_owned())
}
