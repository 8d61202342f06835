//! Arguments of the daemon. They take precedence over the environment and the configuration file.

use crate::live_args::ClientArgs;
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DaemonArgs {
    #[command(subcommand)]
    pub(crate) control: Option<DaemonControl>,
    #[command(flatten)]
    pub(crate) flags: DaemonFlags,
    /// Leaves the terminal that it was started on
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

#[derive(Subcommand)]
pub(crate) enum DaemonControl {
    /// Start the daemon in the background
    Start(DaemonFlags),
    /// Stop the daemon; jobs go on
    Stop(ClientArgs),
    /// Say whether the daemon runs
    Status(ClientArgs),
    /// Stop the daemon and start it again with the same arguments; jobs go on
    Restart(ClientArgs),
    /// Print a unit for a user's systemd
    Unit(DaemonFlags),
}

#[derive(Args)]
pub(crate) struct DaemonFlags {
    /// State folder: store, journal, output of runs
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Unix socket to listen on
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Also listen on TCP with TLS, for clients that have a token
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Also serve the dashboard with TLS, for users who sign in with a token
    #[arg(long, value_name = "ADDRESS:PORT")]
    web: Option<String>,
    /// Policy: NAME[:key=value,...]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Devices: auto, nvidia, cpu, fake, or slurm or kubernetes for those of a cluster
    #[arg(long, value_name = "KIND")]
    provider: Option<String>,
    /// Number of devices: CPU cores or fake GPUs
    #[arg(long, value_name = "N")]
    devices: Option<u32>,
    /// Use this many fake GPUs: real processes on devices that exist only as numbers
    #[arg(long, value_name = "N", conflicts_with_all = ["provider", "devices"],
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    fake_gpus: Option<u32>,
    /// Any other key of the configuration: SECTION.KEY=VALUE; see tandem config show
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
}

impl DaemonFlags {
    /// Configuration keys with the values given here.
    pub(crate) fn flags(&self) -> Vec<(&str, String)> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let given = [
            ("daemon.state", self.state.as_ref().map(text)),
            ("daemon.socket", self.socket.as_ref().map(text)),
            ("daemon.listen", self.listen.clone()),
            ("daemon.web", self.web.clone()),
            ("daemon.policy", self.policy.clone()),
            ("daemon.provider", self.provider.clone()),
            ("daemon.devices", self.devices.map(|count| count.to_string())),
            ("daemon.provider", self.fake_gpus.map(|_| "fake".to_owned())),
            ("daemon.devices", self.fake_gpus.map(|count| count.to_string())),
        ];
        let given = given.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let others = self.settings.iter().map(|(key, value)| (key.as_str(), value.clone()));
        given.chain(others).collect()
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give SECTION.KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use crate::help;

    #[test]
    fn no_fake_gpus_are_refused_because_none_means_a_default_number() {
        let parse = |count: &str| {
            help::command().try_get_matches_from(["tandem", "daemon", "--fake-gpus", count])
        };
        assert!(parse("1").is_ok());
        assert!(parse("0").is_err_and(|error| error.to_string().contains("0 is not in 1..=65536")));
    }
}
