//! The binary `tandem`: parses, calls, prints. Data go to standard output, messages to standard error.

mod args;
mod commands;
mod costs_csv;
mod daemon_args;
mod device_args;
mod failure;
mod files;
mod help;
mod job_options;
mod kube_args;
mod live_args;
mod output;
mod progress;
mod random;
mod slurm_args;
mod store_args;
mod table;
mod tenants;
mod units;

use args::Cli;
use clap::FromArgMatches;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The supervisor of a run is this program, too; it is started often and takes no options.
    if let Some(code) = commands::step_of_a_run() {
        return code;
    }
    // What follows -- belongs to a job.
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    let parsed = help::command().try_get_matches().and_then(|found| Cli::from_arg_matches(&found));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => return Failure::usage(&error).report(json),
        // Help and version are data.
        Err(error) => {
            return match error.print() {
                Ok(()) => ExitCode::SUCCESS,
                Err(cause) => Failure::from(cause).report(json),
            };
        }
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
