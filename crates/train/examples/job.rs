//! The sample job as a program of its own: what `tandem train` is, without the rest.

use clap::Parser;
use std::process::ExitCode;
use tandem_train::{TrainArgs, TrainError, run};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let error = match run(&Cli::parse().train) {
        Ok(_) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    eprintln!("job: {error}");
    match error {
        TrainError::Asked { code, .. } => ExitCode::from(code),
        _ => ExitCode::FAILURE,
    }
}
