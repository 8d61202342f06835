//! Commands that talk to the daemon, one file per subject.

mod change;
mod config;
mod dashboard;
mod devices;
mod doctor;
#[cfg(test)]
mod documented;
mod explain;
pub(super) mod export;
mod info;
mod learned;
mod logs;
mod manual;
mod mcp;
mod queue;
mod request;
mod reserve;
mod script;
mod select;
mod submit;
mod token;
mod top;
mod wait;

use crate::failure::Failure;
use crate::live_args::{ClientArgs, LiveCommand};
use tandem_daemon::api::live_types::HealthCheck;
use tandem_daemon::api::types::JobAction;
use tandem_daemon::client::Client;
use tandem_daemon::config::{Config, Origins};

pub(crate) fn run(command: LiveCommand) -> Result<(), Failure> {
    match command {
        LiveCommand::Submit(args) => submit::submit(&args),
        LiveCommand::Run(args) => submit::run(&args),
        LiveCommand::Queue(args) => queue::run(&args),
        LiveCommand::Info(args) => info::run(&args),
        LiveCommand::Explain(args) => explain::run(&args),
        LiveCommand::Logs(args) => logs::run(&args),
        LiveCommand::Cancel(args) => change::jobs(JobAction::Cancel, &args),
        LiveCommand::Hold(args) => change::jobs(JobAction::Hold, &args),
        LiveCommand::Release(args) => change::jobs(JobAction::Release, &args),
        LiveCommand::Pause(args) => change::jobs(JobAction::Pause, &args),
        LiveCommand::Resume(args) => change::jobs(JobAction::Resume, &args),
        LiveCommand::Requeue(args) => change::jobs(JobAction::Requeue, &args),
        LiveCommand::Accum(args) => change::accum(&args),
        LiveCommand::Wait(args) => wait::run(&args),
        LiveCommand::Top(args) => top::run(&args),
        LiveCommand::Dashboard(args) => dashboard::run(&args),
        LiveCommand::Gpus(args) => devices::run(&args),
        LiveCommand::Usage(args) => learned::usage(&args),
        LiveCommand::Export(args) => export::run(&args),
        LiveCommand::Reserve(args) => reserve::run(&args),
        LiveCommand::Token(command) => token::run(&command),
        LiveCommand::Classes(args) => learned::classes(&args),
        LiveCommand::Config(command) => config::run(&command),
        LiveCommand::Doctor(args) => doctor::run(&args),
        LiveCommand::Mcp(args) => mcp::run(&args),
        LiveCommand::Completions { shell } => manual::completions(shell),
        LiveCommand::Man { out } => manual::pages(&out),
    }
}

/// The configuration with the options of the command line.
pub(super) fn configuration(args: &ClientArgs) -> Result<(Config, Origins), Failure> {
    let mut flags = Vec::new();
    if let Some(socket) = &args.socket {
        flags.push(("daemon.socket", socket.display().to_string()));
    }
    if let Some(host) = &args.host {
        flags.push(("client.host", host.clone()));
    }
    if let Some(file) = &args.token_file {
        flags.push(("client.token_file", file.display().to_string()));
    }
    if let Some(file) = &args.ca_file {
        flags.push(("client.ca_file", file.display().to_string()));
    }
    let (mut config, origins) = Config::load(&flags)?;
    if args.socket.is_some() {
        // --socket takes precedence over a configured host.
        config.client.host = None;
    }
    Ok((config, origins))
}

/// A client of the daemon that is configured.
pub(super) fn connect(args: &ClientArgs) -> Result<Client, Failure> {
    let (config, origins) = configuration(args)?;
    Ok(Client::new(config.client_address(&origins)?, config.client_token()?)?)
}

/// The checks that failed in the daemon; none if it is of a version that has no checks.
pub(super) fn failed_checks(client: &mut Client) -> Vec<HealthCheck> {
    let checks = client.health().map(|health| health.value.checks).unwrap_or_default();
    checks.into_iter().filter(|check| !check.ok).collect()
}

/// The name of the calling user.
fn own_name() -> String {
    tandem_daemon::users::name(rustix::process::getuid().as_raw())
}
