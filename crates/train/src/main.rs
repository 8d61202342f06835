//! `tandem-train`, the sample job of the demo and the tests: trains a small model on generated data, on one
//! core.
//!
//! With `--serve` it answers requests with the same model instead, under a load of its own making.
//!
//! It is a real training job. It speaks the job protocol, computes a batch in as many parts as it is told
//! without changing the result, saves checkpoints, and continues from them bit by bit.

mod args;
mod checkpoint;
mod data;
mod error;
mod losses;
mod model;
mod optimiser;
mod report;
mod run;
mod serve;

use args::TrainArgs;
use clap::Parser;
use error::TrainError;
use run::Trained;
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit code of bad usage or bad input.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    let json = std::env::args_os().any(|arg| arg == "--json");
    let args = match TrainArgs::try_parse() {
        Ok(args) => args,
        // Help and version are data.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return refuse(&usage(&error), BAD_INPUT, json),
    };
    match run::run(&args).and_then(|trained| print(&trained, args.json)) {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough is not an error.
        Err(TrainError::Output(cause)) if cause.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => refuse(&error.to_string(), error.exit_code(), json),
    }
}

/// What is wrong with the command line, in one line.
fn usage(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or(&text);
    let words: Vec<&str> = first.split_whitespace().skip_while(|word| *word == "error:").collect();
    format!("{}; see --help", words.join(" "))
}

fn refuse(message: &str, code: u8, json: bool) -> ExitCode {
    let line = match json {
        true => json!({ "error": message }).to_string(),
        false => format!("tandem-train: {message}"),
    };
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(code)
}

/// Prints the object that `--json` asks for.
fn print(trained: &Trained, json: bool) -> Result<(), TrainError> {
    if !json {
        return Ok(());
    }
    let losses: Vec<_> =
        trained.losses.iter().map(|(step, loss)| json!({ "step": step, "loss": loss })).collect();
    let object = json!({
        "schema": 1,
        "first_step": trained.first_step,
        "steps": trained.steps,
        "done": trained.done,
        "accum": trained.accum,
        "loss": trained.loss,
        "losses": losses,
    });
    writeln!(io::stdout(), "{object}").map_err(TrainError::Output)
}
