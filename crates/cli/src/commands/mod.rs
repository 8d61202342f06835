//! One file per command.

mod bench_colocate;
mod bench_fidelity;
mod bench_live;
mod bench_session;
mod bench_slowdown;
mod daemon;
mod daemon_control;
mod demo;
mod demo_live;
mod device;
mod device_law;
mod interference;
mod kube;
mod live;
mod matching;
mod model;
mod optimal;
mod quality;
mod reference;
mod regimes;
mod replay;
mod sample_job;
mod simulate;
mod slurm;
mod slurm_shadow;
mod store;
mod trace;

use crate::args::{BenchCommand, Cli, CliCommand};
use crate::failure::Failure;
pub(crate) use bench_colocate::BenchColocateArgs;
pub(crate) use bench_fidelity::BenchFidelityArgs;
pub(crate) use bench_live::BenchLiveArgs;
pub(crate) use bench_live::start_times::StartTimesArgs;
pub(crate) use bench_slowdown::BenchSlowdownArgs;
pub(crate) use daemon::step_of_a_run;
pub(crate) use optimal::OptimalArgs;
pub(crate) use quality::QualityArgs;
pub(crate) use regimes::RegimesArgs;
use std::io::Write;

pub(crate) fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        CliCommand::Demo(args) => demo::run(&args),
        CliCommand::Sim(args) => simulate::sim(&args),
        CliCommand::Compare(args) => simulate::compare(&args),
        CliCommand::Trace(command) => trace::run(command),
        CliCommand::Matching(command) => matching::run(&command),
        CliCommand::Bench(BenchCommand::Live(args)) => bench_live::run(&args),
        CliCommand::Bench(BenchCommand::Colocate(args)) => bench_colocate::run(&args),
        CliCommand::Bench(BenchCommand::Slowdown(args)) => bench_slowdown::run(&args),
        CliCommand::Bench(BenchCommand::Fidelity(args)) => bench_fidelity::run(&args),
        CliCommand::Bench(BenchCommand::Starts(args)) => bench_live::start_times::run(&args),
        CliCommand::Bench(BenchCommand::Matching(args)) => matching::bench(&args),
        CliCommand::Bench(BenchCommand::Quality(args)) => quality::run(&args),
        CliCommand::Bench(BenchCommand::Optimal(args)) => optimal::run(&args),
        CliCommand::Bench(BenchCommand::Regimes(args)) => regimes::run(&args),
        CliCommand::Model(command) => model::run(&command),
        CliCommand::Device(command) => device::run(&command),
        CliCommand::Daemon(args) => daemon::daemon(&args),
        CliCommand::Slurm(command) => slurm::run(&command),
        CliCommand::Kube(command) => kube::run(&command),
        CliCommand::Node(args) => kube::node(&args),
        CliCommand::Store(command) => store::run(&command),
        CliCommand::Replay { file, json } => replay::replay(&file, json),
        CliCommand::Reference { out } => reference::write(&out),
        CliCommand::Train { args } => sample_job::exec(&args),
        CliCommand::Live(command) => live::run(command),
    }
}

/// Writes a line of data to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Prints a message for the user to standard error; a closed one is not an error.
fn remark(text: &str, quiet: bool) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}
