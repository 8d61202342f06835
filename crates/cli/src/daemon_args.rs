//! Arguments of the daemon. They take precedence over the environment and the configuration file.

use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct DaemonArgs {
    /// State folder: store, journal, output of runs
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Unix socket to listen on
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Also listen on TCP, for clients that have the token
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// File of the token; created if missing
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Policy: NAME[:key=value,...]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Devices: auto, nvidia, cpu, fake, or slurm for those of a Slurm cluster
    #[arg(long, value_name = "KIND")]
    provider: Option<String>,
    /// Number of devices: CPU cores or fake GPUs
    #[arg(long, value_name = "N")]
    devices: Option<u32>,
    /// Use this many fake GPUs: real processes on devices that exist only as numbers
    #[arg(long, value_name = "N", conflicts_with_all = ["provider", "devices"])]
    fake_gpus: Option<u32>,
    /// Any other key of the configuration: SECTION.KEY=VALUE; see tandem config show
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = parse_setting)]
    settings: Vec<(String, String)>,
}

impl DaemonArgs {
    /// Configuration keys with the values given here.
    pub(crate) fn flags(&self) -> Vec<(&str, String)> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let given = [
            ("daemon.state", self.state.as_ref().map(text)),
            ("daemon.socket", self.socket.as_ref().map(text)),
            ("daemon.listen", self.listen.clone()),
            ("daemon.token_file", self.token_file.as_ref().map(text)),
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
